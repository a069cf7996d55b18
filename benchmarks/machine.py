"""The machine that a benchmark ran on, in the one line that each of them prints."""

import os

from jaxretr.runtime.parallel.machine import cpu_flags, cpu_name, cpu_threads

# A speed of XLA or PyTorch on a CPU holds for processors with the same of these.
UNITS = {"AVX2": "avx2", "AVX-512": "avx512f", "bfloat16 in AVX-512": "avx512_bf16", "AMX": "amx_tile"}


def describe(threads: int | None = None, flags: frozenset[str] | None = None) -> str:
    """The processor, which vector and matrix units it has, and how busy it is.

    Args:
      threads: that the benchmark uses; None: as many as the process may.
      flags: of the processor; None: of this one.
    """
    flags = cpu_flags() if flags is None else flags
    units = ", ".join(name if flag in flags else f"no {name}" for name, flag in UNITS.items())
    return (
        f"{cpu_name()} ({units if flags else 'its vector units are not known'}), {threads or cpu_threads()} threads, "
        f"load {os.getloadavg()[0]:.1f}"
    )
