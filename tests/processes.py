"""Several processes on one machine that train, encode or search together, as the hosts of a pod do."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jaxretr.runtime.parallel.hosts import EXIT_AGAIN

ROOT = Path(__file__).parents[1]


def free_port() -> int:
    """A port of this machine that nobody listens on.

    Not one that the system gives to whoever asks for any: until a server has it, a connection of another program might.
    """
    for _ in range(100):
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("localhost", port))
            return port
    raise RuntimeError("no free port was found")


def start(
    words: Sequence[str], count: int, devices: int, cwd: str | Path | None = None, **variables: str
) -> list[subprocess.Popen]:
    """Starts `python *words` as `count` processes of one run, each with `devices` devices; alone if there is one."""
    port = free_port()
    processes = []
    for number in range(count):
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices),
            **variables,
        }
        if count > 1:
            environment |= {
                "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
                "JAX_NUM_PROCESSES": str(count),
                "JAX_PROCESS_ID": str(number),
            }
        processes.append(
            subprocess.Popen(
                [sys.executable, *words],
                env=environment,
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def impatient(seconds: int) -> dict[str, str]:
    """Variables that let a process give up lost ones after these seconds, and those that do not come after 20."""
    return {"JAXRETR_LOST_SECONDS": str(seconds), "JAXRETR_JOIN_SECONDS": "20"}


def finish(processes: Sequence[subprocess.Popen], timeout: float = 600) -> list[tuple[str, str]]:
    """Waits for all; returns what each wrote to stdout and to stderr, and fails if one failed."""
    outputs = []
    try:
        outputs = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return outputs


def ended(run: Sequence[subprocess.Popen], timeout: float = 600) -> list[tuple[int, str]]:
    """Waits for all; returns the exit code of each and what it wrote to stderr."""
    try:
        outputs = [process.communicate(timeout=timeout)[1] for process in run]
    finally:
        for process in run:
            process.kill()
    return [(process.returncode, errors) for process, errors in zip(run, outputs, strict=True)]


def last_error(errors: str) -> str:
    """The last error line of a process that failed."""
    return next(line for line in reversed(errors.splitlines()) if line.startswith("jaxretr: error:"))


def kill_one(run: Sequence[subprocess.Popen], victim: int, lost_seconds: int) -> float:
    """Kills one of two processes; returns how many seconds later the other one ended, which has to say why."""
    run[victim].send_signal(signal.SIGKILL)
    began = time.monotonic()
    code, errors = ended(run)[1 - victim]
    seconds = time.monotonic() - began
    assert seconds < 60
    if code == EXIT_AGAIN:
        lost = f"process {victim} has given no sign of life for {lost_seconds} seconds"
        never_there = "not all processes have come within"
        assert lost in last_error(errors) or never_there in last_error(errors), errors[-2000:]
    else:  # JAX's own words: its coordinator is gone
        assert victim == 0 and code == -signal.SIGABRT, errors[-2000:]
        assert "another task died" in errors or "coordination service" in errors, errors[-2000:]
    return seconds
