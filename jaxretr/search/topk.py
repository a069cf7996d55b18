"""Exact maximum inner product search as pure functions of arrays, for use inside compiled steps.

The order of results is total: higher score first, and the lower row first among equal scores. Nothing here holds a
[B, N] matrix: each device streams over blocks of its own rows, and only k candidates a question leave it.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxretr.parallel.mesh import DATA

# Row of a result that does not exist (fewer than k rows); its score is -inf.
NO_ROW = np.int32(np.iinfo(np.int32).max)

# On a CPU blocks must stay in its cache: on 2 cores 2k to 8k rows were about equally fast, 16k slower, 64k much slower.
BLOCK_ROWS = 8192

GROUP = 16


def local_topk(
    queries: jax.Array,
    rows: jax.Array,
    k: int,
    *,
    num_valid_local: jax.Array | int,
    block_rows: int = BLOCK_ROWS,
) -> tuple[jax.Array, jax.Array]:
    """Top k of one device's rows for each question, streamed over blocks; holds at most [B, block_rows] scores.

    Scores are fp32 sums of products in the wider of the two dtypes: fp32 questions with bf16 rows are exact for the
    stored rows, while questions cast to bf16 by the caller use the matrix unit's native bf16 x bf16 -> fp32. No
    gradient flows through the search.

    Args:
      queries: embeddings [B, D], float32 or bfloat16, B > 0.
      rows: this device's rows [n, D], float32 or bfloat16, n > 0.
      k: number of results; may exceed n.
      num_valid_local: int32 scalar; rows at or after it are padding and never returned.
      block_rows: rows scored at a time.

    Returns:
      scores float32 [B, k], descending, and local rows int32 [B, k]; missing results are -inf and NO_ROW.
    """
    queries, rows = lax.stop_gradient((queries, rows))
    n = rows.shape[0]
    block_rows = min(block_rows, n)
    num_valid_local = jnp.asarray(num_valid_local, jnp.int32)

    def score_block(block: jax.Array, best: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        # The last block is moved back to end with the shard, so that all blocks have one shape; what it then shares
        # with the block before it is masked.
        start = jnp.minimum(block * block_rows, n - block_rows)
        scores = inner_products(queries, lax.dynamic_slice_in_dim(rows, start, block_rows))  # [B, block_rows]
        row = start + jnp.arange(block_rows, dtype=jnp.int32)
        valid = (row >= block * block_rows) & (row < num_valid_local)
        # top_k ranks 0.0 above -0.0, which are equal scores.
        scores = jnp.where(valid, jnp.where(scores == 0, 0.0, scores), -jnp.inf)
        scores, row = block_candidates(scores, row, k)
        # The best so far have lower rows and therefore stand first: top_k keeps the first of equal scores.
        return select_best(jnp.concatenate([best[0], scores], -1), jnp.concatenate([best[1], row], -1), k)

    # The carry starts with constants, but must have the type "varying over the mesh" that the loop gives it; a choice
    # between two equal constants has that type whatever axes the inputs vary over, and the compiler removes it.
    varies = (queries[0, 0] > 0) | (rows[0, 0] > 0) | (num_valid_local > 0)
    none = (
        jnp.full((queries.shape[0], k), jnp.where(varies, -jnp.inf, -jnp.inf)),
        jnp.full((queries.shape[0], k), jnp.where(varies, NO_ROW, NO_ROW)),
    )
    scores, row = lax.fori_loop(0, -(-n // block_rows), score_block, none)
    return scores, jnp.where(scores == -jnp.inf, NO_ROW, row)


def global_topk(
    local_scores: jax.Array,
    local_rows: jax.Array,
    k: int,
    *,
    rows_per_shard: int,
    axis: str = DATA,
) -> tuple[jax.Array, jax.Array]:
    """Merges the devices' candidates; call it inside a shard_map over `axis`.

    Args:
      local_scores: this device's candidates, float32 [B, k'], descending.
      local_rows: their local rows, int32 [B, k'], ascending among equal scores, NO_ROW where missing.
      k: number of results.
      rows_per_shard: rows of each device's shard, padding included.

    Returns:
      scores float32 [B, k] and global rows int32 [B, k], identical on all devices; missing ones are -inf and NO_ROW.
    """
    first = lax.axis_index(axis).astype(jnp.int32) * rows_per_shard
    rows = jnp.where(local_rows == NO_ROW, NO_ROW, local_rows + first)
    # In the order of the shards, so that the first of equal candidates is the one with the lowest global row.
    scores, rows = (lax.all_gather(x, axis, axis=1, tiled=True, to="invarying") for x in (local_scores, rows))
    missing = max(0, k - scores.shape[1])
    scores = jnp.pad(scores, ((0, 0), (0, missing)), constant_values=-jnp.inf)
    rows = jnp.pad(rows, ((0, 0), (0, missing)), constant_values=NO_ROW)
    return select_best(scores, rows, k)


def search_step(
    queries: jax.Array,
    rows: jax.Array,
    k: int,
    *,
    num_valid: jax.Array | int,
    queries_sharded: bool = False,
    block_rows: int = BLOCK_ROWS,
    axis: str = DATA,
) -> tuple[jax.Array, jax.Array]:
    """Searches rows sharded over `axis`; call it inside a shard_map over `axis`.

    Args:
      queries: the whole batch [B, D], the same on all devices, or this device's part of it (`queries_sharded`).
      rows: this device's rows [n, D].
      k: number of results; may exceed the rows there are.
      num_valid: int32 scalar; global rows at or after it are padding.
      queries_sharded: `queries` is this device's [B / devices, D]; the batch is gathered first.
      block_rows: rows scored at a time.

    Returns:
      scores float32 [B, k] and global rows int32 [B, k] of the whole batch, identical on all devices.
    """
    if queries_sharded:
        queries = lax.all_gather(queries, axis, tiled=True, to="invarying")
    n = rows.shape[0]
    num_valid_local = jnp.clip(jnp.asarray(num_valid, jnp.int32) - lax.axis_index(axis).astype(jnp.int32) * n, 0, n)
    found = local_topk(queries, rows, min(k, n), num_valid_local=num_valid_local, block_rows=block_rows)
    return global_topk(*found, k, rows_per_shard=n, axis=axis)


def merge_topk(
    scores: jax.Array, rows: jax.Array, new_scores: jax.Array, new_rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Top k of two results [B, k], where every row of the second comes after every row of the first."""
    k = scores.shape[1]
    return select_best(jnp.concatenate([scores, new_scores], -1), jnp.concatenate([rows, new_rows], -1), k)


def inner_products(queries: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns float32 [B, n]; HIGHEST keeps GPUs and TPUs from rounding fp32 operands to tf32 or bf16."""
    dtype = jnp.promote_types(queries.dtype, rows.dtype)
    return lax.dot_general(
        queries.astype(dtype),
        rows.astype(dtype),
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def block_candidates(scores: jax.Array, row: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Reduces one block [B, n] to candidates [B, m] that hold its top k, in the order of rows.

    The k groups of 16 neighbouring rows that come first by (maximum descending, group ascending) hold the top k: an
    element outside them is preceded by the maximum of each of the k, which is higher, or equal and in a lower row.
    """
    batch, n = scores.shape
    if n % GROUP or 2 * GROUP * k > n:  # the groups would hold most of the block
        return scores, jnp.broadcast_to(row, scores.shape)
    groups = scores.reshape(batch, n // GROUP, GROUP)
    _, chosen = lax.top_k(groups.max(-1), k)
    chosen = jnp.sort(chosen, axis=-1)[:, :, None]  # [B, k, 1]
    scores = jnp.take_along_axis(groups, chosen, axis=1)
    return scores.reshape(batch, -1), row.reshape(-1, GROUP)[chosen[:, :, 0]].reshape(batch, -1)


def select_best(scores: jax.Array, rows: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Top k along the last axis; top_k keeps the first of equal scores."""
    scores, position = lax.top_k(scores, k)
    return scores, jnp.take_along_axis(rows, position, axis=-1)
