"""Devices: the mesh, arrays sharded by row over it, and values fetched back to the host."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jaxretr.errors import UsageError

DATA = "data"
MODEL = "model"

# A checkpoint of a row-sharded array is readable on any power-of-two number of devices up to this one.
ROW_MULTIPLE = 1024


def make_mesh(
    devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]
    *,
    model: int = 1,
) -> Mesh:
    """Arranges devices in a mesh with the axes ("data", "model").

    Args:
      devices: the devices to use; all devices of all hosts by default.
      model: devices that share one copy of the model; the rest of the factor is the "data" axis.

    Raises:
      UsageError: `model` does not divide the number of devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    if model < 1 or not devices or len(devices) % model:
        raise UsageError(
            f"model={model} does not divide the {len(devices)} devices; choose a divisor of {len(devices)} (1 is always one)"
        )
    # make_mesh makes Explicit axes unless told otherwise; the models leave their shardings to the compiler.
    axis_types = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((len(devices) // model, model), (DATA, MODEL), axis_types=axis_types, devices=devices)


def padded_rows(n: int, mesh: Mesh) -> int:
    """Returns the smallest positive multiple of 1024 and of the data axis that holds `n` rows."""
    unit = math.lcm(ROW_MULTIPLE, mesh.shape[DATA])
    return max(1, -(-n // unit)) * unit


def put_rows(
    mesh: Mesh,
    rows: np.ndarray | Callable[[int, int], np.ndarray],
    shape: tuple[int, ...],
    dtype: DTypeLike,
) -> jax.Array:
    """Puts host rows on the devices, sharded over the data axis; each host reads only the rows of its devices.

    Args:
      rows: an array [n, ...] (a memory map is read one shard at a time), or a function that returns the rows
        [start, stop) of one and may return fewer at the end. Rows up to `shape[0]` are filled with zeros.
      shape: shape of the global array; `shape[0]` must be a multiple of the data axis (see `padded_rows`).
      dtype: dtype of the global array.

    Returns:
      A global array of the given shape, sharded by row over DATA and replicated over MODEL.
    """
    read = rows if callable(rows) else lambda start, stop: rows[start:stop]

    def shard(index: tuple[slice, ...] | None) -> np.ndarray:
        start, stop, _ = (index[0] if index else slice(None)).indices(shape[0])
        values = np.asarray(read(start, stop))
        missing = stop - start - len(values)
        if not missing:
            return values.astype(dtype, copy=False)
        padded = np.zeros((stop - start, *shape[1:]), dtype)
        padded[: len(values)] = values
        return padded

    return jax.make_array_from_callback(shape, NamedSharding(mesh, PartitionSpec(DATA)), shard, dtype=dtype)


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Copies every array of a tree to every device of the mesh; all hosts must hold the same values."""
    return put_tree(tree, NamedSharding(mesh, PartitionSpec()))


def put_tree(tree: Any, shardings: Any) -> Any:
    """`jax.device_put`, also of arrays that each process holds for itself; all must hold the same values.

    JAX itself makes broken arrays of those where every process has a single device, as it has under Slurm.
    """
    if jax.process_count() > 1:
        tree = jax.tree.map(lambda x: np.asarray(x) if getattr(x, "is_fully_addressable", False) else x, tree)
    return jax.device_put(tree, shardings)


def to_host(x: Any) -> np.ndarray:
    """Fetches a whole array, also one whose shards are on other hosts (then every host must call this)."""
    if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
        return np.asarray(multihost_utils.process_allgather(x, tiled=True))
    return np.asarray(x)


def varying_like(x: jax.Array, like: jax.Array) -> jax.Array:
    """The same values, marked as varying over the mesh axes that `like` varies over, inside a shard_map or outside of one.

    What a loop carries must have that mark from the start. The compiler removes the choice.
    """
    return jnp.where(like.ravel()[0] > 0, x, x)
