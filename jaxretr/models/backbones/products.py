"""Matrix products whose operands are rounded to the compute type and whose sums are float32, forwards and backwards.

Left to JAX, the gradient of a bfloat16 product with a float32 result is two products of float32: the cotangent has the
result's type, and the other operand is cast up to it. Matrix units take several times as long over those.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike

from jaxretr.runtime.parallel.mesh import varying_alike


def product(
    spec: str,
    a: jax.Array,
    b: jax.Array,
    dtype: DTypeLike,
    *,
    bias: jax.Array | None = None,
    result: DTypeLike | None = None,
) -> jax.Array:
    """Compute einsum(spec, a, b) + bias, an array of type `result`.

    In float32 this is just that, gradient included. In bfloat16 the operands are rounded to it, and so is the incoming
    cotangent; all sums are float32, and each result is rounded once, to its own type: `result`, or the operand's for
    its gradient. The gradient of a float32 kernel is therefore not rounded.

    Args:
      spec: two operands and a result, as "nd,de->ne"; no index may be in one operand alone.
      a: first operand, of any float type.
      b: second operand, of any float type.
      dtype: type of the multiplication, float32 or bfloat16.
      bias: bias of the result's last index, float32 [e]; rounded to `result`.
      result: type of the result; None: `dtype`.
    """
    if jnp.dtype(dtype) == jnp.float32:
        y = jnp.einsum(spec, a.astype(jnp.float32), b.astype(jnp.float32), preferred_element_type=jnp.float32)
        return y if bias is None else y + bias
    # Frozen parameters do not vary over the devices; the gradient's rule must accept this, though nobody reads it.
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
    return _sums(spec, a, b, types.result, bias, trained=True), (a, b, bias is not None)


def _backward(spec: str, types: _Types, saved: Any, cotangent: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
    a, b, biased = saved
    one, other, c = _indices(spec)
    of_bias = cotangent.astype(jnp.float32).sum(axis=range(cotangent.ndim - 1)) if biased else None
    cotangent = cotangent.astype(types.multiplied)
    return (
        _sums(f"{c},{other}->{one}", cotangent, b, types.a, trained=True),
        _sums(f"{one},{c}->{other}", a, cotangent, types.b, trained=True),
        of_bias,
    )


_rounded.defvjp(_forward, _backward)


def _sums(
    spec: str, a: jax.Array, b: jax.Array, result: Any, bias: jax.Array | None = None, *, trained: bool = False
) -> jax.Array:
    """Return the product of rounded operands, summed in float32 and then rounded to the type of the result.

    Args:
      bias: bias of type `result`, or None.
      trained: whether the program has a backward pass; others can be exported, which layouts cannot.
    """

    def on_cpus(a: jax.Array, b: jax.Array, bias: jax.Array | None) -> jax.Array:
        # XLA on CPUs is fast at bfloat16 operands with a float32 result. The numbers are the same: products of bfloat16
        # numbers are exact in float32.
        y = _on_cpus(spec, a, b) if trained else jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)
        return (y if bias is None else y + bias).astype(result)

    def elsewhere(a: jax.Array, b: jax.Array, bias: jax.Array | None) -> jax.Array:
        # In this form cuBLAS adds the bias before it rounds, and no float32 goes through the memory.
        y = jnp.einsum(spec, a, b, preferred_element_type=result)
        return y if bias is None else y + bias

    bias = None if bias is None else bias.astype(result)
    return lax.platform_dependent(a, b, bias, cpu=on_cpus, default=elsewhere)


@partial(jax.jit, static_argnums=0, inline=True)
def _on_cpus(spec: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Return einsum(spec, a, b) of bfloat16 in float32, with the operands in the layout that the multiplication reads.

    Where an operand is transposed before or within the product, XLA on CPUs casts both to float32. With AMX that takes
    four times as long as transposing first and then multiplying. If a product sums over an index that is last in
    neither operand, as in a kernel's gradient, the smaller operand is transposed.
    """
    one, other, c = _indices(spec)
    if one[-1] not in c or other[-1] not in c:
        return jnp.einsum(spec, _row_major(a), _row_major(b), preferred_element_type=jnp.float32)
    if a.size > b.size:
        a, b, one, other = b, a, other, one
    batch = [index for index in one if index in other and index in c]
    rows, columns = ([index for index in indices if index in c and index not in batch] for indices in (one, other))
    turned = [*batch, *rows, *(index for index in one if index not in c)]
    out = [*batch, *rows, *columns]
    a = _row_major(a.transpose([one.index(index) for index in turned]))
    y = jnp.einsum(f"{''.join(turned)},{other}->{''.join(out)}", a, _row_major(b), preferred_element_type=jnp.float32)
    # Nothing is transposed within the product either.
    return _row_major(y).transpose([out.index(index) for index in c])


def _row_major(x: jax.Array) -> jax.Array:
    """Return x in row-major order in memory, against any choice of XLA."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _indices(spec: str) -> tuple[str, str, str]:
    inputs, c = spec.split("->")
    one, other = inputs.split(",")
    return one, other, c
