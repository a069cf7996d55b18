"""One device's rows and the operations that every formulation of the search shares."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Row of a result that does not exist (fewer than k rows); its score is -inf.
NO_ROW = np.int32(np.iinfo(np.int32).max)


class Shard(NamedTuple):
    """One device's rows, and which of them may be found; see `local_topk`.

    Attributes:
      rows: [n, D].
      num_valid: int32 scalar; the rows from it on are padding.
      allowed: bool [n], or None.
      scales: float32 [n], or None.
    """

    rows: jax.Array
    num_valid: jax.Array
    allowed: jax.Array | None = None
    scales: jax.Array | None = None

    def first_row(self, number: jax.Array, size: int) -> jax.Array:
        """The first row of a block; the last block is moved back to end with the shard, so that all have one shape."""
        return jnp.minimum(number * size, self.rows.shape[0] - size)

    def groups(self, number: jax.Array, place: jax.Array, size: int, width: int) -> "Block":
        """The rows of k groups of `width` rows, of blocks `number` [k] of `size` rows, where they have `place` [k].

        Returns [k * width] rows, of which those beyond a block's last one are not valid.
        """
        start = self.first_row(number, size) + place * width
        # Nothing before it is the group's: the last block is moved back, and so is a last group that is not full.
        lowest = jnp.maximum(start, number * size)
        first = jnp.minimum(start, self.rows.shape[0] - width)
        row = first[:, None] + jnp.arange(width, dtype=jnp.int32)
        block_end = jnp.minimum((number + 1) * size, self.num_valid)
        valid = (row >= lowest[:, None]) & (row < block_end[:, None])
        cut = jax.vmap(lambda start, array: lax.dynamic_slice_in_dim(array, start, width), in_axes=(0, None))
        rows, allowed, scales = jax.tree.map(partial(cut, first), (self.rows, self.allowed, self.scales))
        block = Block(rows, row, valid if allowed is None else valid & allowed, scales)
        return jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), block)

    def block(self, number: jax.Array, size: int) -> "Block":
        """Rows [number * size, (number + 1) * size), or the last `size` rows."""
        start = self.first_row(number, size)
        row = start + jnp.arange(size, dtype=jnp.int32)
        # Mask the rows that the last block shares with the one before.
        valid = (row >= number * size) & (row < self.num_valid)
        arrays = self.rows, self.allowed, self.scales
        if size < self.rows.shape[0]:  # a slice copies the rows
            arrays = jax.tree.map(partial(lax.dynamic_slice_in_dim, start_index=start, slice_size=size), arrays)
        rows, allowed, scales = arrays
        return Block(rows, row, valid if allowed is None else valid & allowed, scales)


class Block(NamedTuple):
    """A block of a shard: rows [size, D], their numbers, a mask of those that may be found, and scales, [size] each."""

    rows: jax.Array
    row: jax.Array
    valid: jax.Array
    scales: jax.Array | None


def unsigned_zero(scores: jax.Array) -> jax.Array:
    """0.0 for -0.0: equal scores, of which top_k ranks one above the other."""
    return jnp.where(scores == 0, 0.0, scores)


def inner_products(queries: jax.Array, rows: jax.Array) -> jax.Array:
    """Return float32 [B, n]; HIGHEST keeps GPUs and TPUs from rounding fp32 operands to tf32 or bf16."""
    dtype = jnp.promote_types(queries.dtype, rows.dtype)
    return lax.dot_general(
        queries.astype(dtype),
        rows.astype(dtype),
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def as_numbers(rows: jax.Array, queries: jax.Array) -> jax.Array:
    """Rows that are given as the bits of bfloat16 become bfloat16 for questions of that type, else float32."""
    if rows.dtype != jnp.uint16:
        return rows
    if queries.dtype == jnp.bfloat16:
        return lax.bitcast_convert_type(rows, jnp.bfloat16)
    return lax.bitcast_convert_type(rows.astype(jnp.uint32) << 16, jnp.float32)


def select_best(scores: jax.Array, rows: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Top k along the last axis; top_k keeps the first of equal scores."""
    scores, position = lax.top_k(scores, k)
    return scores, jnp.take_along_axis(rows, position, axis=-1)
