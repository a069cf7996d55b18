"""The machine that a number was measured on."""

import functools
import os
import platform
from pathlib import Path


def cpu_name() -> str:
    """Return the processor's name, as it reports it."""
    name = cpuinfo_line("model name").partition(":")[2].strip()
    return name or platform.processor() or platform.machine()


def cpu_threads() -> int:
    """Return the number of threads that this process may run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota() -> float | None:
    """Return the processors' worth of time that the container may use; None: it has no limit that Linux states."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return int(limit) / int(period)
    except (OSError, ValueError):  # no such file, or "max"
        return None


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the processor's features by Linux's names ("avx2"); empty where they are not known."""
    return frozenset(cpuinfo_line("flags", "Features").partition(":")[2].split())


def cpuinfo_line(*fields: str) -> str:
    """Return the first line of /proc/cpuinfo that starts with one of `fields`; "" if there is none (not Linux)."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line for line in file if line.startswith(fields)), "")
    except OSError:
        return ""


def has_amx() -> bool:
    """Whether the processor has Intel's AMX for bfloat16 matrices: in XLA some eight times as fast as float32."""
    return "amx_bf16" in cpu_flags()


def multiplies_bfloat16() -> bool:
    """Whether XLA multiplies bfloat16 faster than float32: by AMX, or by AVX512_BF16, some two times as fast.

    With neither of them bfloat16 is slower than float32, as measured.
    """
    return has_amx() or "avx512_bf16" in cpu_flags()


def blas_beats_xla() -> bool:
    """Whether numpy's BLAS multiplies float32 faster than XLA: where the widest vectors are AVX2's, as measured."""
    return "avx2" in cpu_flags() and "avx512f" not in cpu_flags()
