"""Devices: the mesh, arrays sharded by row over it, and values fetched back to the host."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jaxretr.runtime.errors import UsageError

DATA = "data"
MODEL = "model"

# A checkpoint of a row-sharded array is readable on any power-of-two number of devices up to this one.
ROW_MULTIPLE = 1024

# Bytes of which the address of an array that JAX reads in place on CPUs is a multiple.
_ALIGNMENT = 64


def make_mesh(
    devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]
    *,
    model: int = 1,
) -> Mesh:
    """Arrange devices in a mesh with the axes ("data", "model").

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
    # make_mesh creates Explicit axes unless told otherwise; the models leave their shardings to the compiler.
    axis_types = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((len(devices) // model, model), (DATA, MODEL), axis_types=axis_types, devices=devices)


def check_cpu_devices(mesh: Mesh, inner: int) -> None:
    """Refuse to train wide layers on several CPU devices of one process, where XLA computes wrong gradients.

    benchmarks/cpu_devices_gradients.py shows the fault in plain JAX; a feed-forward block of 512 is right in every
    test.

    Args:
      inner: the width of the model's feed-forward blocks.

    Raises:
      UsageError: the mesh has several CPU devices of this process, and the layers are wider than 512.
    """
    local = mesh.local_devices
    if local[0].platform == "cpu" and len(local) > 1 and inner > 512:
        raise UsageError(
            f"XLA computes wrong gradients for layers as wide as this model's ({inner}) on {len(local)} CPU devices of one "
            "process; unset JAX_NUM_CPU_DEVICES to train on one device, which uses all cores and is as fast"
        )


def padded_rows(n: int, mesh: Mesh) -> int:
    """Return the smallest positive multiple of 1024 and of the data axis that holds `n` rows."""
    unit = math.lcm(ROW_MULTIPLE, mesh.shape[DATA])
    return max(1, -(-n // unit)) * unit


def put_rows(
    mesh: Mesh,
    rows: np.ndarray | Callable[[int, int], np.ndarray],
    shape: tuple[int, ...],
    dtype: DTypeLike,
) -> jax.Array:
    """Put host rows on the devices, sharded over the data axis; each host reads only the rows of its devices.

    Args:
      rows: an array [n, ...] (a memory map is read one shard at a time), or a function that returns the rows
        [start, stop) of one and may return fewer at the end. Rows up to `shape[0]` are filled with zeros.
      shape: shape of the global array; `shape[0]` must be a multiple of the data axis (see `padded_rows`).

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


def lendable(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return an uninitialised array for `lent`."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(kind).reshape(shape)


def lent(array: np.ndarray, dtype: DTypeLike | None = None) -> np.ndarray:
    """Return the array, or a copy of it if it is of another type or CPU devices cannot read it where it is.

    They copy most arrays, because numpy does not place them as JAX needs them. A lent array must not be changed.
    """
    dtype = array.dtype if dtype is None else dtype
    if array.dtype == dtype and array.flags.c_contiguous and array.ctypes.data % _ALIGNMENT == 0:
        return array
    copy = lendable(array.shape, dtype)
    copy[...] = array
    return copy


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Copy every array of a tree to every device of the mesh; all hosts must hold the same values."""
    return put_tree(tree, NamedSharding(mesh, PartitionSpec()))


def put_tree(tree: Any, shardings: Any) -> Any:
    """`jax.device_put`, also for arrays of which each process holds its own copy; all must hold the same values.

    JAX itself creates broken arrays from these where every process has a single device, as under Slurm.
    """
    if jax.process_count() > 1:
        tree = jax.tree.map(lambda x: np.asarray(x) if getattr(x, "is_fully_addressable", False) else x, tree)
    return jax.device_put(tree, shardings)


def to_host(x: Any) -> np.ndarray:
    """Fetch a whole array, also one whose shards are on other hosts (then every host must call this)."""
    if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
        return np.asarray(multihost_utils.process_allgather(x, tiled=True))
    return np.asarray(x)


def varying_like(x: jax.Array, like: jax.Array) -> jax.Array:
    """Return the same values, marked as varying over the mesh axes that `like` varies over; also outside a shard_map.

    A loop's carry must have that mark from the start. The compiler removes the operation.
    """
    return jnp.where(like.ravel()[0] > 0, x, x)


def varying_alike(*arrays: Any) -> tuple[Any, ...]:
    """Return the same arrays, marked as varying over all mesh axes that any of them varies over; None stays None.

    Custom gradients and kernels inside a shard_map need the same mark on all their arguments.
    """
    given = [array for array in arrays if array is not None]
    axes = frozenset[str]().union(*(_varying_axes(array) for array in given))

    def vary(array: Any) -> Any:
        missing = () if array is None else tuple(axes - _varying_axes(array))
        return lax.pcast(array, missing, to="varying") if missing else array

    return tuple(map(vary, arrays))


def _varying_axes(array: Any) -> frozenset[str]:
    return jax.typeof(array).manual_axis_type.varying
