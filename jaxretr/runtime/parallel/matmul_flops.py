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


def matmul_flops(traced: Any) -> int:
    """Count the floating-point operations of all matrix products of one call, over all devices, from the jaxpr.

    XLA's own cost analysis counts a loop's body once, however often it runs; a jaxpr knows the length of each scan.
    A multiplication and an addition are two operations. The most expensive branch of a conditional counts, so that a
    refresh is counted as if all passages were of full length. The body of a loop whose length follows from the data
    counts as often as `while_counted` says, which assumes a teacher that knows no score yet and reads rows of full
    length. Recomputation for the backward pass counts again. Products that nobody reads, such as the gradients of
    frozen kernels, do not count: the compiler drops them.

    Args:
      traced: the result of `jax.jit(f).trace(...)`.
    """
    return _count(traced.jaxpr.jaxpr)


def _count(jaxpr: Any) -> int:
    read, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return sum(_of_equation(equation) for equation in read.eqns)


def _of_equation(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
    if name == "cond":
        return max(_count(branch.jaxpr) for branch in params["branches"])
    if name == "scan":
        return params["length"] * _count(params["jaxpr"].jaxpr)
    inner = sum(_count(jaxpr) for value in params.values() for jaxpr in _jaxprs(value))
    if name == "while":
        # The loop's own scope is the last of the scopes around it.
        counted = _TRIPS.findall(str(equation.source_info.name_stack))
        return int(counted[-1]) * inner if counted else inner
    # Each device of this axis runs a shard_map's body on its own part; the other axis is left to the compiler.
    return inner * params["mesh"].shape[DATA] if name == "shard_map" else inner


def _jaxprs(value: Any) -> list[Any]:
    """Return the programs that an equation calls."""
    if isinstance(value, core.ClosedJaxpr):
        return [value.jaxpr]
    return [value] if isinstance(value, core.Jaxpr) else []
