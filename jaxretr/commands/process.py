"""How a command's process is set up: what is logged, what is kept quiet, and that compiled programs are kept."""

import contextlib
import logging
import sys
import warnings

from jaxretr.parallel.compilation_cache import keep_programs
from jaxretr.parallel.tpu_environment import quiet_without_tpu


def set_up() -> None:
    """Sets up logging, warnings, the compilation cache and libtpu; calling it again changes nothing."""
    _set_up_logging()
    keep_programs()
    quiet_without_tpu()


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
