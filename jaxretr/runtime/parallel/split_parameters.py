"""Parameters and moments that are split over "data": gathered where they are used, and how their gradients add up.

For use inside a shard_map over "data". The optimizer's moments of large matrices are always split: each device gets the
sum of its part of their gradients, updates that part of the parameters, and the devices exchange what they updated
(ZeRO stage 1: Rajbhandari et al. 2020). With `mesh.shard_parameters` the parameters themselves are split as well (stage
3, FSDP). sharding.py decides which arrays are split, and here their types tell it: a split parameter varies over "data"
from the start, a copy does not; the moments of a copy have its shape or are a part of it.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.typing import DTypeLike

from jaxretr.runtime.parallel.mesh import DATA


class OfWhole(NamedTuple):
    """The state of an optimizer that updates whole matrices, as Muon does: no part of it is split over "data"."""

    of_whole: Any


def is_split(x: jax.Array) -> bool:
    """Whether an argument or a result of a shard_map's function is split over "data"."""
    return DATA in jax.typeof(x).mat.varying


# ---- where a parameter is used ---------------------------------------------------------------------------------------


def whole(kernel: jax.Array, shape: tuple[int, int], dtype: DTypeLike) -> jax.Array:
    """Return a whole kernel.

    The devices exchange the parts of a split kernel in the type that it is multiplied in. Its gradient is added up over
    the devices in the type of the parameter, and each keeps its part. Inside a rematerialised layer the backward pass
    gathers the kernel again.

    Args:
      kernel: [in, out], or this device's part of it, along either axis.
      shape: shape of the whole kernel.
      dtype: type that the kernel is multiplied in.

    Returns:
      [in, out], of the parameter's type, so that its gradient is too; a split kernel has been rounded to `dtype`.
    """
    if kernel.shape == shape:
        return kernel
    return _gathered(kernel, 0 if kernel.shape[0] != shape[0] else 1, jnp.dtype(dtype))


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gathered(part: jax.Array, axis: int, dtype: Any) -> jax.Array:
    return lax.all_gather(part.astype(dtype), DATA, axis=axis, tiled=True).astype(part.dtype)


def _forward(part: jax.Array, axis: int, dtype: Any) -> tuple[jax.Array, None]:
    return _gathered(part, axis, dtype), None


def _backward(axis: int, dtype: Any, _: None, cotangent: jax.Array) -> tuple[jax.Array]:
    # float32, as the parameters are: bfloat16 sums of many devices would lose small gradients.
    return (scattered(cotangent.astype(jnp.float32), axis),)


_gathered.defvjp(_forward, _backward)


def rows_of(table: jax.Array, ids: jax.Array, size: int) -> jax.Array:
    """Look up rows of a table that no device holds whole if it is split by columns, [B, L, D], of the table's type.

    Each device looks up its own columns for the ids of all devices, and the devices exchange what they found: the rows
    of a step are far fewer than those of a vocabulary. The gradient goes back the same way.

    Args:
      table: [V, D], or this device's columns of it.
      ids: int32 [B, L]; the same shape on all devices.
      size: D.
    """
    if table.shape[1] == size:
        return table[ids]
    everyone = lax.all_gather(ids, DATA, tiled=True)
    return lax.all_to_all(table[everyone], DATA, split_axis=0, concat_axis=ids.ndim, tiled=True)


def longest_row(lengths: jax.Array, together: bool) -> jax.Array:
    """Return the longest of a chunk's rows, or of all devices' chunks if they embed `together`, int32 [...].

    Devices that gather parameters together must take the same branches, and branches follow a chunk's longest row.

    Args:
      lengths: int32 [..., m].
      together: whether parameters are split.
    """
    longest = lengths.max(axis=-1)
    return lax.pmax(longest, DATA) if together else longest


# ---- in a training step ----------------------------------------------------------------------------------------------


def varying(params: Any) -> Any:
    """Return the parameters with copies marked as varying, so that their gradients stay local; for `reduced`."""
    return jax.tree.map(lambda x: x if is_split(x) else lax.pcast(x, DATA, to="varying"), params)


def reduced(gradients: Any, params: Any, opt_state: Any, others: Any, *, mean: bool = False) -> tuple[Any, Any]:
    """Add up over the devices the gradients of copies and other values, which are not added up yet.

    Args:
      gradients: gradients of each device's own loss with respect to `varying(params)`; those of split parameters were
        added up where the parameters were gathered.
      params: parameters as the shard_map's function got them.
      opt_state: optimizer state as the function got it; if the moments of a copy are split, a device gets its part of
        the copy's gradient.
      others: a tree of values to add up as well.
      mean: whether to divide all by the number of devices.

    Returns:
      `gradients`, split as the moments are, and `others`, the same everywhere.
    """
    leaves, tree = jax.tree.flatten(gradients)
    split = [is_split(x) for x in jax.tree.leaves(params)]
    axes = _axes_of_moments(params, opt_state)
    whole = [axis is None and not apart for axis, apart in zip(axes, split, strict=True)]
    copies = [leaf for leaf, is_whole in zip(leaves, whole, strict=True) if is_whole]
    copies, others = (lax.pmean if mean else lax.psum)((copies, others), DATA)
    of_copies, factor = iter(copies), 1.0 / lax.axis_size(DATA) if mean else 1.0

    def one(leaf: jax.Array, apart: bool, axis: int | None) -> jax.Array:
        if axis is not None:
            return factor * scattered(leaf, axis)
        return factor * leaf if apart else next(of_copies)

    return jax.tree.unflatten(tree, [one(*each) for each in zip(leaves, split, axes, strict=True)]), others


def scattered(x: jax.Array, axis: int) -> jax.Array:
    """Return this device's part, along an axis, of the devices' sum of an array.

    On TPUs in two steps: libtpu 0.0.42 compiles a sum that spans several hosts as a reduction of the whole array to all
    devices, which is twice the traffic, unless the devices are one side of a rectangle.
    """
    return lax.platform_dependent(
        x,
        tpu=partial(scattered_in_two_steps, axis=axis),
        default=partial(lax.psum_scatter, axis_name=DATA, scatter_dimension=axis, tiled=True),
    )


def scattered_in_two_steps(x: jax.Array, axis: int) -> jax.Array:
    """`scattered` over the columns of a rectangle of devices, as near to a square as possible, and then its rows."""
    devices = lax.axis_size(DATA)
    height = next(size for size in range(math.isqrt(devices), 0, -1) if devices % size == 0)
    rows = np.arange(devices).reshape(height, -1)
    for groups in (rows.T, rows):
        if groups.shape[1] > 1:
            x = lax.psum_scatter(x, DATA, scatter_dimension=axis, axis_index_groups=groups.tolist(), tiled=True)
    return x


def _axes_of_moments(params: Any, opt_state: Any) -> list[int | None]:
    """Return for each parameter the axis along which its moments are split while it is not; None if there is none."""
    tree = jax.tree.structure(params)
    if isinstance(opt_state, OfWhole):
        return [None] * tree.num_leaves

    def is_like_params(x: Any) -> bool:
        return jax.tree.structure(x) == tree

    moments = next(filter(is_like_params, jax.tree.leaves(opt_state, is_leaf=is_like_params)), params)
    return [_axis_of(part, whole) for part, whole in zip(*map(jax.tree.leaves, (moments, params)), strict=True)]


def _axis_of(part: jax.Array, whole: jax.Array) -> int | None:
    """Return the axis along which an array is a part of another; None if it is all of it."""
    return next(
        (axis for axis, pair in enumerate(zip(part.shape, whole.shape, strict=True)) if len(set(pair)) > 1), None
    )


def parts_like(gradients: Any, params: Any) -> Any:
    """Return this device's parts of the parameters, the same parts that `reduced` gave it gradients of."""

    def one(gradient: jax.Array, param: jax.Array) -> jax.Array:
        axis = _axis_of(gradient, param)
        if axis is None:
            return param
        size = gradient.shape[axis]
        return lax.dynamic_slice_in_dim(param, lax.axis_index(DATA) * size, size, axis)

    return jax.tree.map(one, gradients, params)


def gathered_like(params: Any, parts: Any) -> Any:
    """Return whole parameters on every device, of which each device has changed its part (`parts_like`)."""

    def one(param: jax.Array, part: jax.Array) -> jax.Array:
        axis = _axis_of(part, param)
        return part if axis is None else lax.all_gather(part, DATA, axis=axis, tiled=True, to="invarying")

    return jax.tree.map(one, params, parts)


def global_norm(gradients: Any) -> jax.Array:
    """Return the norm of the whole gradient, float32 scalar; copies count once.

    Args:
      gradients: gradients as `reduced` returns them, or whole ones outside of a shard_map.
    """
    parts = [x for x in jax.tree.leaves(gradients) if is_split(x)]
    if not parts:
        return optax.global_norm(gradients)
    copies = [x for x in jax.tree.leaves(gradients) if not is_split(x)]
    return jnp.sqrt(lax.psum(_squares(parts), DATA) + _squares(copies))


def _squares(arrays: list[jax.Array]) -> jax.Array:
    return sum((jnp.square(x).sum() for x in arrays), jnp.zeros(()))
