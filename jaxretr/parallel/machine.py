"""The machine that a number was measured on."""

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
def cpu_flags() -> frozenset[str]:
    """What the processor can do, in the words of Linux; empty where that is not known."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return frozenset(next((line.split(":", 1)[1].split() for line in file if line.startswith("flags")), ()))
    except OSError:
        return frozenset()


def has_amx() -> bool:
    """Whether the processor has units for matrices of bfloat16, Intel's AMX: some eight times as fast as float32 in XLA."""
    return "amx_bf16" in cpu_flags()


def multiplies_bfloat16() -> bool:
    """Whether XLA multiplies bfloat16 faster than float32: by AMX, or by AVX512_BF16, some two times as fast.

    With neither of them bfloat16 is slower than float32, as measured.
    """
    return has_amx() or "avx512_bf16" in cpu_flags()


def blas_beats_xla() -> bool:
    """Whether numpy's BLAS multiplies float32 faster than XLA: where the widest vectors are AVX2's, as measured."""
    return "avx2" in cpu_flags() and "avx512f" not in cpu_flags()
