"""The machine that a figure was measured on."""

import functools
import os
import platform


def cpu_name() -> str:
    """As the processor calls itself."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def cpu_threads() -> int:
    """How many threads this process may run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether the processor multiplies matrices of bfloat16, which XLA makes use of: several times as fast as float32."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return any(line.startswith("flags") and "amx_bf16" in line.split() for line in file)
    except OSError:
        return False
