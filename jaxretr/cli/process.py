"""The set-up of a command's process: its place among several, its logs, and the cache of compiled programs."""

import argparse
import contextlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable

from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.compilation_cache import keep_programs
from jaxretr.runtime.parallel.tpu_environment import quiet_without_tpu


def set_up(spoken: Callable[[str], str] = str) -> None:
    """Set up logging, warnings, the compilation cache and libtpu.

    Args:
      spoken: function of a warning that returns it in the words of the command line.
    """
    _set_up_logging(spoken)
    keep_programs()
    quiet_without_tpu()


class _Lines(logging.Handler):
    """A log handler that writes plain lines to the current stderr, and a warning once in a command."""

    spoken: Callable[[str], str] = str
    warned: set[str]

    def emit(self, record: logging.LogRecord) -> None:
        line = " ".join(record.getMessage().split())
        if record.levelno >= logging.WARNING:
            if record.levelno == logging.WARNING and line in self.warned:
                return
            self.warned.add(line)
            line = f"{record.levelname.lower()}: {self.spoken(line)}"
        with contextlib.suppress(OSError):  # A stderr that nobody reads any more is no reason to end a run.
            print(f"jaxretr: {line}\n", end="", file=sys.stderr, flush=True)  # One piece: threads write lines as well.


def _set_up_logging(spoken: Callable[[str], str]) -> None:
    root = logging.getLogger()
    if not any(isinstance(handler, _Lines) for handler in root.handlers):
        root.addHandler(_Lines())
        # JAX looks for a TPU everywhere; its absence is no news. (An unused GPU is, and is shown.)
        logging.getLogger("jax._src.xla_bridge").addFilter(lambda record: "tpu" not in record.getMessage().lower())
    for handler in root.handlers:
        if isinstance(handler, _Lines):
            handler.spoken, handler.warned = spoken, set()
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


# ---- one of several processes ------------------------------------------------------------------------------------------


def apply(args: argparse.Namespace) -> None:
    """Take the options out of `args`, if the command has them, and put them where `parallel.hosts` looks for them.

    Raises:
      UsageError: some are missing, or the numbers do not fit together.
    """
    given = [vars(args).pop(name, None) for name in ("coordinator", "processes", "process_id")]
    coordinator, processes, process = given
    if given == [None, None, None]:
        return
    if coordinator is None or processes is None or process is None:
        raise UsageError("--coordinator, --processes and --process-id go together; give all three, or none")
    host, colon, port = coordinator.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
        raise UsageError(f"--coordinator {coordinator}: give HOST:PORT, for instance host-0:8476")
    if processes < 1 or not 0 <= process < processes:
        raise UsageError(
            f"--process-id {process} of --processes {processes}: give each process its own number, from 0 to N - 1"
        )
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    os.environ.update({name: str(value) for name, value in zip(names, given, strict=True)})


def typed(args: argparse.Namespace) -> str:
    """A command's options as one text, which must be the same in all processes."""
    return json.dumps({name: value for name, value in sorted(vars(args).items()) if name != "taken"}, default=str)
