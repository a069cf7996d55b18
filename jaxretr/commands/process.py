"""How a command's process is set up: what is logged, what is kept quiet, and where compiled programs are kept."""

import contextlib
import hashlib
import logging
import os
import platform
import sys
import warnings
from pathlib import Path

from jaxretr.parallel.tpu_environment import quiet_without_tpu


def set_up() -> None:
    """Sets up logging, warnings, the compilation cache and libtpu; calling it again changes nothing."""
    _set_up_logging()
    _set_up_cache()
    quiet_without_tpu()


# ---- what is said ----------------------------------------------------------------------------------------------------


class _Lines(logging.Handler):
    """Plain lines on whatever is stderr at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        with contextlib.suppress(OSError):  # Nobody reads stderr any more, which is no reason to end a run.
            print(f"jaxretr: {level}{' '.join(record.getMessage().split())}", file=sys.stderr, flush=True)


def _set_up_logging() -> None:
    root = logging.getLogger()
    if not any(isinstance(handler, _Lines) for handler in root.handlers):
        root.addHandler(_Lines())
        # JAX looks for a TPU everywhere; that there is none is no news. (That a GPU goes unused is, and is shown.)
        logging.getLogger("jax._src.xla_bridge").addFilter(lambda record: "tpu" not in record.getMessage().lower())
    root.setLevel(logging.WARNING)
    logging.getLogger("jaxretr").setLevel(logging.INFO)
    # These log every step of every checkpoint, and each error of theirs several times before raising it.
    for name in ("absl", "orbax"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.showwarning = _show_warning
    for category in (DeprecationWarning, FutureWarning):
        warnings.filterwarnings("ignore", category=category)


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    logging.getLogger("jaxretr").warning("%s", message)


# ---- compiled programs -----------------------------------------------------------------------------------------------


def _set_up_cache() -> None:
    """Keeps compiled programs in $JAXRETR_CACHE or ~/.cache/jaxretr/xla, if that can be written."""
    stated = os.environ.get("JAXRETR_CACHE")
    # Programs for a CPU hold its instructions, and a home directory may be shared by machines with other ones.
    folder = Path(stated).expanduser() if stated else Path.home() / ".cache/jaxretr/xla"
    folder = folder / f"{platform.machine()}-{_cpu()}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            # Through the environment, which JAX reads when it is imported: not every command needs it. The user's own
            # settings stay.
            os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
            os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")


def _cpu() -> str:
    """A short name of the CPU's instruction set."""
    flags = platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), flags)
    return hashlib.sha256(flags.encode()).hexdigest()[:8]
