"""Matrix products whose operands are rounded to the compute type and whose sums are float32, forwards and backwards.

Left to JAX, the gradient of a bfloat16 product with a float32 result is two products of float32: the cotangent has the
result's type, and the other operand is cast up to it. Matrix units take several times as long over those.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from jaxretr.parallel.mesh import varying_alike


def product(
    spec: str,
    a: jax.Array,
    b: jax.Array,
    dtype: DTypeLike,
    *,
    bias: jax.Array | None = None,
    result: DTypeLike | None = None,
) -> jax.Array:
    """einsum(spec, a, b) + bias.

    In float32 this is just that, gradient included. In bfloat16 the operands are rounded to it, and so is the cotangent that
    comes in; all sums are float32, and each result is rounded once, to its own type: that of `result`, and of the operands
    for their gradients. A float32 kernel so gets a gradient that is not rounded.

    Args:
      spec: two operands and a result, as "nd,de->ne"; no index may stand in one operand alone.
      a: of any float type.
      b: likewise.
      dtype: of the multiplication, float32 or bfloat16.
      bias: float32 [e], of the result's last index; rounded to `result`.
      result: the type of the result; None: `dtype`.

    Returns:
      An array of type `result`.
    """
    if jnp.dtype(dtype) == jnp.float32:
        y = jnp.einsum(spec, a.astype(jnp.float32), b.astype(jnp.float32), preferred_element_type=jnp.float32)
        return y if bias is None else y + bias
    # Frozen parameters do not vary over the devices; the gradient's rule, whose result for them nobody reads, must not mind.
    a, b, bias = varying_alike(a, b, bias)
    return _rounded(a, b, bias, spec, _Types(jnp.dtype(dtype), jnp.dtype(result or dtype), a.dtype, b.dtype))


class _Types(NamedTuple):
    multiplied: Any
    result: Any
    a: Any
    b: Any


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _rounded(a: jax.Array, b: jax.Array, bias: jax.Array | None, spec: str, types: _Types) -> jax.Array:
    return _sums(spec, a.astype(types.multiplied), b.astype(types.multiplied), types.result, bias)


def _forward(a: jax.Array, b: jax.Array, bias: jax.Array | None, spec: str, types: _Types) -> tuple[jax.Array, Any]:
    a, b = a.astype(types.multiplied), b.astype(types.multiplied)
    return _sums(spec, a, b, types.result, bias), (a, b, bias is not None)


def _backward(spec: str, types: _Types, saved: Any, cotangent: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
    a, b, biased = saved
    one, other, c = _indices(spec)
    of_bias = cotangent.astype(jnp.float32).sum(axis=range(cotangent.ndim - 1)) if biased else None
    cotangent = cotangent.astype(types.multiplied)
    return (
        _sums(f"{c},{other}->{one}", cotangent, b, types.a),
        _sums(f"{one},{c}->{other}", a, cotangent, types.b),
        of_bias,
    )


_rounded.defvjp(_forward, _backward)


def _sums(spec: str, a: jax.Array, b: jax.Array, result: Any, bias: jax.Array | None = None) -> jax.Array:
    """The product of rounded operands, summed in float32 and then rounded to the type of the result."""

    def on_cpus(a: jax.Array, b: jax.Array, bias: jax.Array | None) -> jax.Array:
        # XLA on CPUs is fast at bfloat16 operands with a float32 result, unless the sums run over the rows of both; and
        # products of bfloat16 numbers are exact in float32. The numbers are the same.
        if _over_rows(spec):
            a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        y = jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)
        return (y if bias is None else y + bias).astype(result)

    def elsewhere(a: jax.Array, b: jax.Array, bias: jax.Array | None) -> jax.Array:
        # In this form cuBLAS adds the bias before it rounds, and nothing of float32 goes through the memory.
        y = jnp.einsum(spec, a, b, preferred_element_type=result)
        return y if bias is None else y + bias

    bias = None if bias is None else bias.astype(result)
    return lax.platform_dependent(a, b, bias, cpu=on_cpus, default=elsewhere)


def _over_rows(spec: str) -> bool:
    """Whether the sums run over an index that is last in neither operand, as in a kernel's gradient."""
    one, other, c = _indices(spec)
    return one[-1] in c and other[-1] in c


def _indices(spec: str) -> tuple[str, str, str]:
    inputs, c = spec.split("->")
    one, other = inputs.split(",")
    return one, other, c
