"""Layers of one kind as a stack: parameters with a leading axis that a scan runs over, and kept activations.

XLA on CPUs supports bfloat16 only in matmuls: to write one layer's array into those of all layers, or to read it from
them, it casts all of them to float32 and back. It copies their bits as integers unchanged.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from jaxretr.models.backbones.dropout import folded
from jaxretr.runtime.parallel.mesh import lent

T = TypeVar("T")

_KEPT = "dense"


# ---- bfloat16 as bits ------------------------------------------------------------------------------------------------


def bits_of(x: jax.Array) -> jax.Array:
    """Return bfloat16 as uint16 of its bits, anything else unchanged."""
    return jax.lax.bitcast_convert_type(x, jnp.uint16) if x.dtype == jnp.bfloat16 else x


def from_bits(x: jax.Array, dtype: Any) -> jax.Array:
    """Return the array of type `dtype` that `bits_of` was given."""
    return jax.lax.bitcast_convert_type(x, dtype) if x.dtype != dtype else x


_bits_are_kept = contextvars.ContextVar("bits_are_kept", default=False)
_are_apart = contextvars.ContextVar("layers_are_apart", default=False)


def bits_are_kept() -> contextlib.AbstractContextManager[None]:
    """A context to trace a model in, where `scan_layers` keeps bfloat16 activations as integers of their bits."""
    return within(_bits_are_kept, True)


def layers_apart(apart: bool) -> contextlib.AbstractContextManager[None]:
    """A context to trace a model in, where `scan_layers` writes stacked layers one behind the other, if they are to be apart.

    A loop writes what each layer keeps for the backward pass into arrays over all layers, which matrix products cannot
    write into by themselves, and computes attention once more. Without it, a program takes several times as long to
    compile.
    """
    return within(_are_apart, apart)


@contextlib.contextmanager
def within(variable: contextvars.ContextVar[T], value: T) -> Iterator[None]:
    """A context in which a variable of tracing has a value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def kept_result(y: jax.Array) -> jax.Array:
    """Mark a dense layer's result, which `scan_layers` keeps if it keeps matmuls."""
    if not _bits_are_kept.get() or y.dtype != jnp.bfloat16:
        return checkpoint_name(y, _KEPT)
    return _as_bits(y)


def _through_bits(y: jax.Array) -> jax.Array:
    return from_bits(checkpoint_name(bits_of(y), _KEPT), y.dtype)


@jax.custom_jvp
def _as_bits(y: jax.Array) -> jax.Array:
    return _through_bits(y)


@_as_bits.defjvp
def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    # Not `_as_bits`: inside a call of it, the name would not be seen.
    return _through_bits(*primals), *tangents


# ---- stacks ----------------------------------------------------------------------------------------------------------


def stack_layers(make: Callable[[nnx.Rngs], nnx.Module], count: int, rngs: nnx.Rngs) -> nnx.Module:
    """Create `count` layers of the same kind as one module whose parameters have a leading [count] axis."""

    @nnx.split_rngs(splits=count)
    @nnx.vmap(in_axes=0, out_axes=0)
    def create(rngs: nnx.Rngs) -> nnx.Module:
        return make(rngs)

    return create(rngs)


def make_layers(
    make: Callable[[nnx.Rngs], nnx.Module], count: int, *, stacked: bool, rngs: nnx.Rngs
) -> nnx.Module | nnx.List:
    """Create `count` layers for `scan_layers`: stacked, or copies of one that are apart, for programs without a backward pass."""
    if stacked:
        return stack_layers(make, count, rngs)
    layer = make(rngs)  # A copy takes a tenth of the time of another one.
    return nnx.List([layer, *(nnx.clone(layer) for _ in range(count - 1))])


def scan_layers(
    layers: Any,
    x: Any,
    apply: Callable[[Any, Any, jax.Array | None, Any], Any],
    keys: jax.Array | None,
    *,
    keep_matmuls: bool = False,
) -> Any:
    """Run layers one after the other; of stacked layers, keep only each layer's input for the backward pass.

    Args:
      layers: layers from `stack_layers`, or a tuple of several such, of which `apply` gets a tuple; or a list of
        layers, for programs without a backward pass (see `unstack`).
      x: input of the first layer, any tree of arrays.
      apply: function (layer, x, keys of this layer's dropout or None, the layer's number, which is traced for stacked
        layers) -> the next x.
      keys: one PRNG key per row [B], or None.
      keep_matmuls: whether to keep the results of the dense layers' matmuls as well, which saves computing them again,
        for callers that bound the memory in another way.

    Returns:
      The last layer's output.
    """
    if isinstance(layers, nnx.List | list):
        for number, layer in enumerate(layers):
            x = apply(layer, x, folded(keys, number), number)
        return x
    graph, params = nnx.split(layers)
    count = jax.tree.leaves(params)[0].shape[0]

    def body(x: Any, slice_: Any) -> tuple[Any, None]:
        params, number = slice_
        return apply(nnx.merge(graph, params), x, folded(keys, number), number), None

    # Even then attention's products are computed again: writing them out costs more.
    policies = jax.checkpoint_policies
    policy = policies.save_only_these_names(_KEPT) if keep_matmuls else policies.nothing_saveable
    # The two passes are separate loops, so that nothing has to keep the compiler from sharing between them.
    body = jax.checkpoint(body, policy=policy, prevent_cse=False)

    def scan(x: Any, params: Any) -> Any:
        return jax.lax.scan(body, x, (params, jnp.arange(count)), unroll=_are_apart.get())[0]

    if all(leaf.dtype != jnp.bfloat16 for leaf in jax.tree.leaves(params)):
        return scan(x, params)

    def on_cpus(x: Any, params: Any) -> Any:
        # Layers stored as bfloat16 are frozen. Leaving the stack in that type, each would be cast to float32 and back.
        types = jax.tree.map(lambda leaf: leaf.dtype, params)
        bits = jax.tree.map(bits_of, params)

        def body_of_bits(x: Any, slice_: Any) -> tuple[Any, None]:
            bits, number = slice_
            return body(x, (jax.tree.map(from_bits, bits, types), number))

        return jax.lax.scan(body_of_bits, x, (bits, jnp.arange(count)))[0]

    return jax.lax.platform_dependent(x, params, cpu=on_cpus, default=scan)


def traced_once(apply: Callable[[Any, Any, jax.Array | None, Any], Any]) -> Callable[..., Any]:
    """Return the function of `scan_layers` for layers that do not depend on their number: Python traces a list's first one alone.

    Args:
      apply: the function; XLA inlines its calls, so that the program is the same.
    """
    traced = jax.jit(lambda graph, params, x, keys: apply(nnx.merge(graph, params), x, keys, None), static_argnums=0)

    def run(layer: Any, x: Any, keys: jax.Array | None, number: Any) -> Any:
        return traced(*nnx.split(layer), x, keys) if isinstance(number, int) else apply(layer, x, keys, number)

    return run


def map_layers(function: Callable[[Any], Any], params: Any, dtype: Any) -> Any:
    """`jax.lax.map` over the parameters of stacked layers; the results have a leading [count] axis.

    Args:
      function: function of one layer's parameters that returns a tree of arrays of type `dtype`.
      params: a tree of arrays with a leading [count] axis.
      dtype: type of the results.
    """
    if jnp.dtype(dtype) != jnp.bfloat16:
        return jax.lax.map(function, params)

    def on_cpus(params: Any) -> Any:
        bits = jax.lax.map(lambda params: jax.tree.map(bits_of, function(params)), params)
        return jax.tree.map(lambda x: from_bits(x, dtype), bits)

    return jax.lax.platform_dependent(params, cpu=on_cpus, default=lambda params: jax.lax.map(function, params))


def unstack(params: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Split the parameters of stacked layers: the number of a layer in an nnx.List -> nested dict of arrays.

    On CPUs a scan copies each layer's slice of the weights at every call; without that copy, encoding in bfloat16
    takes 0.83 of the time. Do it once, outside the compiled program.

    Args:
      params: nested dict of arrays with a leading [count] axis.
    """
    count = jax.tree.leaves(params)[0].shape[0]
    return {number: jax.tree.map(lambda array, number=number: array[number], params) for number in range(count)}


def kernels_of(params: dict[str, Any]) -> list[np.ndarray]:
    """Return the weights of the matmuls among the parameters of stacked layers."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return [array for path, array in leaves if path[-1].key == "kernel"]


def as_operands(params: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Return numpy parameters as `lent` does, the weights of the layers' matmuls in the type of their operands.

    Args:
      params: parameters of a tower with stacked layers.
    """

    def cast(path: tuple[Any, ...], array: np.ndarray) -> np.ndarray:
        is_operand = path[-1].key == "kernel" and {"layers", "adapter"} & {key.key for key in path}
        return lent(array, dtype if is_operand else None)

    return jax.tree_util.tree_map_with_path(cast, params)
