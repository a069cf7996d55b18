"""The number of operations in a program's matrix products, counted before it is compiled."""

import math
import re
from typing import Any

from jax.extend import core
from jax.interpreters import partial_eval

from jaxretr.runtime.parallel.mesh import DATA

# Name of the scope around a loop whose length follows from the data; a number follows the name, see `while_counted`.
TRIPS = "trips_"
_TRIPS = re.compile(rf"\b{TRIPS}(\d+)")

# Name of the scope around packed rows; the length of their texts and of a row follow.
TEXTS = "texts_"
_TEXTS = re.compile(rf"\b{TEXTS}(\d+)_(\d+)")


def matmul_flops(traced: Any) -> int:
    """Count the floating-point operations of all matrix products of one call, over all devices, from the jaxpr.

    XLA's own cost analysis counts a loop's body once, however often it runs; a jaxpr knows the length of each scan.
    A multiplication and an addition are two operations. The most expensive branch of a conditional counts, so that a
    refresh is counted as if all passages were of full length. The body of a loop whose length follows from the data
    counts as often as `while_counted` says, which assumes a teacher that knows no score yet and reads rows of full
    length. Attention over packed rows counts text by text, all of full length, where it may be a kernel's.
    Recomputation for the backward pass counts again. Products that nobody reads, such as the gradients of frozen
    kernels, do not count: the compiler drops them.

    Args:
      traced: the result of `jax.jit(f).trace(...)`.
    """
    return _count(traced.jaxpr.jaxpr)


def _count(jaxpr: Any, texts: tuple[int, int] | None = None) -> int:
    """Count a program's operations; `texts` are the lengths of the texts and of the packed rows that it is for."""
    read, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return sum(_of_equation(equation, texts) for equation in read.eqns)


def _of_equation(equation: Any, texts: tuple[int, int] | None) -> int:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
    # A loop's body knows the scopes within it alone.
    scopes = str(equation.source_info.name_stack)
    if found := _TEXTS.findall(scopes):
        texts = int(found[-1][0]), int(found[-1][1])
    if name == "cond":
        branches = [branch.jaxpr for branch in params["branches"]]
        dearest = max(_count(branch, texts) for branch in branches)
        return dearest * texts[0] // texts[1] if texts and any(map(_has_kernel, branches)) else dearest
    if name == "scan":
        return params["length"] * _count(params["jaxpr"].jaxpr, texts)
    inner = sum(_count(jaxpr, texts) for value in params.values() for jaxpr in _jaxprs(value))
    if name == "while":
        # The loop's own scope is the last of the scopes around it.
        counted = _TRIPS.findall(scopes)
        return int(counted[-1]) * inner if counted else inner
    # Each device of this axis runs a shard_map's body on its own part; the other axis is left to the compiler.
    return inner * params["mesh"].shape[DATA] if name == "shard_map" else inner


def _has_kernel(jaxpr: Any) -> bool:
    """Whether a program calls a kernel, other than in a conditional of its own, which is counted by itself."""
    inner = (called for equation in jaxpr.eqns for value in equation.params.values() for called in _jaxprs(value))
    return any(equation.primitive.name == "pallas_call" for equation in jaxpr.eqns) or any(map(_has_kernel, inner))


def _jaxprs(value: Any) -> list[Any]:
    """Return the programs that an equation calls."""
    if isinstance(value, core.ClosedJaxpr):
        return [value.jaxpr]
    return [value] if isinstance(value, core.Jaxpr) else []
