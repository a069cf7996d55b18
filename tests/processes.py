"""Several processes on one machine that train, encode or search together, as the hosts of a pod do."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def start(words: Sequence[str], count: int, devices: int, **variables: str) -> list[subprocess.Popen]:
    """Starts `python *words` as `count` processes of one run, each with `devices` devices; alone if there is one."""
    port = free_port()
    processes = []
    for number in range(count):
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices),
            "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax_cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
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
                [sys.executable, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    return processes


def finish(processes: Sequence[subprocess.Popen], timeout: float = 300) -> list[tuple[str, str]]:
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
