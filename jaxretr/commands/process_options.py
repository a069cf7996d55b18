"""How a command learns that it is one of several processes, if the environment does not say so."""

import argparse
import json
import os

from jaxretr.errors import UsageError


def apply(args: argparse.Namespace) -> None:
    """Takes the options out of `args`, if the command has them, and puts them where `parallel.hosts` looks for them.

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
    return json.dumps({name: value for name, value in sorted(vars(args).items()) if not callable(value)})
