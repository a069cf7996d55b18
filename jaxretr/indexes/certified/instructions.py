"""ScaNN's library, told what the processor can do: its wheels do not look."""

import ctypes
from typing import Any

from jaxretr.runtime.errors import import_extra
from jaxretr.runtime.parallel.machine import cpu_flags

_MODULE = "scann.scann_ops.py.scann_ops_pybind"

# The variable of the library, which exports it, that decides whether loops for AVX2 and FMA are taken.
_USES_AVX2 = "_ZN14research_scann14flags_internal15should_use_avx2E"


def load_scann() -> Any:
    """Import ScaNN's searchers and let them use AVX2 where the processor has it.

    In ScaNN's wheels (1.4.2 at least) the function that asks the processor is compiled to say no, so that all of them
    search with SSE4, which takes 1.7 times as long. AVX-512 is left alone: with it as well they are no faster.

    Raises:
      UserError: ScaNN is not installed.
    """
    module = import_extra(_MODULE, "scann")
    if can_use_avx2() and (flag := avx2_flag(module)) is not None:
        flag.value = True
    return module


def can_use_avx2() -> bool:
    """Whether the processor has what ScaNN's loops for AVX2 need."""
    return {"avx2", "fma"} <= cpu_flags()


def avx2_flag(module: Any) -> ctypes.c_bool | None:
    """The library's variable, or None where it has none (another version, another kind of processor)."""
    try:
        return ctypes.c_bool.in_dll(ctypes.CDLL(module.scann_pybind.__file__), _USES_AVX2)
    except (OSError, ValueError):
        return None
