"""Exact maximum inner product search as pure functions of arrays, for use inside compiled steps.

The order of results is total: higher score first, and the lower row first among equal scores. Nothing here holds a
[B, N] matrix: each device streams over blocks of its own rows, and only k candidates per question leave it.

`local_topk` has two formulations of the same search and takes the one that was measured to be faster:

  `grouped_topk` on CPUs: the scores of a block of rows are reduced to the maxima of groups of 8 neighbouring rows while
    they are in the cache; one selection over all maxima finds k groups, and only their rows are scored again. XLA's
    top_k reads its input once but pays for every change of the best k, so few selections over much are cheap, and a
    selection in every block is not.
  `streamed_topk` elsewhere, and where k is so large that the groups would hold most of the rows: a selection in every
    block, merged with the best so far.
"""

import functools
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxretr.parallel.mesh import DATA

# Row of a result that does not exist (fewer than k rows); its score is -inf.
NO_ROW = np.int32(np.iinfo(np.int32).max)

# Rows that `streamed_topk` scores at a time.
BLOCK_ROWS = 8192

GROUP = 16

# Of `grouped_topk`: rows a group, and rows a group of groups, over whose maxima the first selection goes.
FINE, COARSE = 8, 64

# Bytes of maxima that `grouped_topk` holds, of which a sixteenth of the rows' bytes counts if it is between the two:
# above this it selects after a part of the rows, and continues.
MAXIMA_BYTES = 8 * 2**20, 128 * 2**20

# With so few questions `grouped_topk` scores all rows in one product, if that takes no more bytes than this.
WHOLE_BATCH = 8
WHOLE_BYTES = 64 * 2**20


def local_topk(
    queries: jax.Array,
    rows: jax.Array,
    k: int,
    *,
    num_valid_local: jax.Array | int,
    block_rows: int = BLOCK_ROWS,
    allowed: jax.Array | None = None,
    scales: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Top k of one device's rows for each question, streamed over blocks; never holds a [B, n] matrix of scores.

    Scores are fp32 sums of products in the wider of the two dtypes: fp32 questions with bf16 rows are exact for the
    stored rows, while questions cast to bf16 by the caller use the matrix unit's native bf16 x bf16 -> fp32. No
    gradient flows through the search.

    Args:
      queries: embeddings [B, D], float32 or bfloat16, B > 0.
      rows: this device's rows [n, D], float32, bfloat16 or int8, n > 0; or the bits of bfloat16 as uint16, since XLA
        has no bfloat16 on CPUs and would make all rows float32 before the first block.
      k: number of results; may exceed n.
      num_valid_local: int32 scalar; rows at or after it are padding and never returned.
      block_rows: rows scored at a time, at most.
      allowed: bool [n], the rows that may be returned; None: all.
      scales: float32 [n], what to multiply a row's scores with (int8 rows); None: nothing.

    Returns:
      scores float32 [B, k], descending, and local rows int32 [B, k]; missing results are -inf and NO_ROW.
    """
    shard = Shard(rows, jnp.asarray(num_valid_local, jnp.int32), allowed, scales)
    arrays = lax.stop_gradient((queries, shard))
    streamed, grouped = (partial(search, k=k, block_rows=block_rows) for search in (streamed_topk, grouped_topk))
    if not can_group(rows.shape[0], k, block_rows):
        return streamed(*arrays)
    return lax.platform_dependent(*arrays, cpu=grouped, default=streamed)


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

    def block(self, number: jax.Array, size: int) -> "Block":
        """Rows [number * size, (number + 1) * size), or the last `size` rows."""
        start = self.first_row(number, size)
        row = start + jnp.arange(size, dtype=jnp.int32)
        # What the last block shares with the one before is masked.
        valid = (row >= number * size) & (row < self.num_valid)
        arrays = self.rows, self.allowed, self.scales
        if size < self.rows.shape[0]:  # a slice copies the rows
            arrays = jax.tree.map(partial(lax.dynamic_slice_in_dim, start_index=start, slice_size=size), arrays)
        rows, allowed, scales = arrays
        return Block(rows, row, valid if allowed is None else valid & allowed, scales)


class Block(NamedTuple):
    """Some rows of a shard: rows [size, D], their numbers [size], which may be found [size], and scales [size]."""

    rows: jax.Array
    row: jax.Array
    valid: jax.Array
    scales: jax.Array | None


def streamed_topk(queries: jax.Array, shard: Shard, k: int, block_rows: int) -> tuple[jax.Array, jax.Array]:
    """`local_topk` with a selection in every block; holds [B, block_rows] scores."""
    n, batch = shard.rows.shape[0], queries.shape[0]
    size = min(block_rows, n)

    def score_block(number: jax.Array, best: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        block = shard.block(number, size)
        scores = inner_products(queries, as_numbers(block.rows, queries))  # [B, size]
        if block.scales is not None:
            scores *= block.scales
        scores = jnp.where(block.valid, _unsigned_zero(scores), -jnp.inf)
        scores, row = block_candidates(scores, block.row, k)
        # The best so far have lower rows and therefore come first: top_k keeps the first of equal scores.
        return select_best(jnp.concatenate([best[0], scores], -1), jnp.concatenate([best[1], row], -1), k)

    none = _varying_like((queries, shard), (jnp.full((batch, k), -jnp.inf, jnp.float32), jnp.full((batch, k), NO_ROW)))
    scores, row = lax.fori_loop(0, -(-n // size), score_block, none)
    return scores, jnp.where(scores == -jnp.inf, NO_ROW, row)


def _varying_like(inputs: Any, constants: Any) -> Any:
    """Gives constants the mesh axes that any of the inputs varies over, as the carry of a loop in a shard_map needs.

    A choice between two equal constants that depends on the inputs has that type, and the compiler removes it.
    """
    varies = functools.reduce(jnp.logical_or, (x[(0,) * x.ndim] > 0 for x in jax.tree.leaves(inputs)))
    return jax.tree.map(lambda constant: jnp.where(varies, constant, constant), constants)


def _unsigned_zero(scores: jax.Array) -> jax.Array:
    """0.0 for -0.0: equal scores, of which top_k ranks one above the other."""
    return jnp.where(scores == 0, 0.0, scores)


def can_group(n: int, k: int, block_rows: int) -> bool:
    """Whether `grouped_topk` can search n rows for k results, and would leave most of the rows out at the end."""
    return min(block_rows, n) >= COARSE and 2 * FINE * k <= n


def grouped_topk(queries: jax.Array, shard: Shard, k: int, block_rows: int) -> tuple[jax.Array, jax.Array]:
    """`local_topk` where `can_group`: the maxima of all groups, one selection, and the scores of k groups again.

    The k groups that come first by (maximum descending, group ascending) hold the top k: a row outside them is preceded
    by the maximum of each of the k, which is higher, or equal and in a lower row. The same holds for groups of groups.
    """
    n, batch = shard.rows.shape[0], queries.shape[0]
    whole = scores_whole(n, batch) and shard.rows.dtype == queries.dtype
    size = n if whole else min(block_rows, cpu_block_rows(batch), n) // COARSE * COARSE
    groups = _best_groups(queries, shard, k, size)
    # In the order of rows, so that the first of equal scores is the lowest row.
    of_questions = queries, jnp.sort(groups, axis=-1)
    # A few questions at a time keep all cores busy.
    scores, row = lax.map(
        lambda one: _group_scores(one[0], one[1], shard, size), of_questions, batch_size=4 if batch >= 32 else None
    )  # [B, k * FINE]
    scores, row = select_best(scores, row, k)
    return scores, jnp.where(scores == -jnp.inf, NO_ROW, row)


def _best_groups(queries: jax.Array, shard: Shard, k: int, size: int) -> jax.Array:
    """The groups of `FINE` rows with the k highest maxima for each question, [B, k], from blocks of `size` rows."""
    n, batch = shard.rows.shape[0], queries.shape[0]
    blocks = -(-n // size)
    passes = 1 if blocks == 1 else -(-(blocks * size // FINE * batch * 4) // maxima_limit(shard.rows.nbytes))
    per_pass = -(-blocks // passes)

    def block_maxima(number: jax.Array) -> jax.Array:
        block = shard.block(number, size)
        # Questions last, so that maxima are taken in parallel.
        scores = inner_products(as_numbers(block.rows, queries), queries)  # [size, B]
        if block.scales is not None:
            scores *= block.scales[:, None]
        scores = jnp.where(block.valid[:, None], scores, -jnp.inf)
        return _unsigned_zero(scores.reshape(size // FINE, FINE, batch).max(1))

    def one_pass(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        blocks = number * per_pass + jnp.arange(per_pass, dtype=jnp.int32)
        maxima = block_maxima(blocks[0])[None] if per_pass == 1 else lax.map(block_maxima, blocks)
        best, group = _top_groups(maxima.reshape(-1, batch), k)
        return best, number * (per_pass * size // FINE) + group

    if passes == 1:
        maxima, groups = one_pass(jnp.int32(0))
    else:
        maxima, groups = lax.map(one_pass, jnp.arange(passes, dtype=jnp.int32))  # [passes, B, k']
        maxima, groups = (jnp.moveaxis(x, 0, 1).reshape(batch, -1) for x in (maxima, groups))
    return select_best(maxima, groups, k)[1] if groups.shape[1] > k else groups


def _group_scores(query: jax.Array, groups: jax.Array, shard: Shard, size: int) -> tuple[jax.Array, jax.Array]:
    """Scores the rows of groups [k], counted in blocks of `size` rows, for one question [D]; [k * FINE] and rows."""
    number, place = groups // (size // FINE), groups % (size // FINE)
    first = shard.first_row(number, size) + place * FINE
    cut = jax.vmap(lambda start, array: lax.dynamic_slice_in_dim(array, start, FINE), in_axes=(0, None))
    rows = as_numbers(cut(first, shard.rows), query).reshape(len(groups) * FINE, -1)
    scores = inner_products(rows, query[None])[:, 0]
    row = first[:, None] + jnp.arange(FINE, dtype=jnp.int32)
    valid = (row >= number[:, None] * size) & (row < shard.num_valid)
    if shard.allowed is not None:
        valid &= cut(first, shard.allowed)
    if shard.scales is not None:
        scores *= cut(first, shard.scales).reshape(-1)
    return jnp.where(valid.reshape(-1), _unsigned_zero(scores), -jnp.inf), row.reshape(-1)


def scores_whole(n: int, batch: int) -> bool:
    """Whether `grouped_topk` scores all rows in one product: for few questions, which are bound by memory.

    Cutting blocks copies the rows. More questions are bound by the matmul, and their scores must stay in the cache.
    """
    return batch <= WHOLE_BATCH and n % COARSE == 0 and 4 * n * batch <= WHOLE_BYTES


def cpu_block_rows(batch: int) -> int:
    """Rows that `grouped_topk` scores at a time: 2 MB of scores, within limits, were the fastest."""
    return min(max(2**19 // batch, 512), 4096)


def maxima_limit(row_bytes: int) -> int:
    """Bytes of maxima that `grouped_topk` holds at most."""
    return min(max(row_bytes // 16, MAXIMA_BYTES[0]), MAXIMA_BYTES[1])


def _top_groups(maxima: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The first k groups (or all) of maxima [groups, B] for each question: their maxima and numbers, [B, k]."""
    groups, batch = maxima.shape
    width = COARSE // FINE
    if groups // width <= k:
        best, group = lax.top_k(maxima.T, min(k, groups))
        return best, group
    coarse = maxima.reshape(groups // width, width, batch)
    _, chosen = lax.top_k(coarse.max(1).T, k)
    chosen = jnp.sort(chosen, axis=-1)  # [B, k]
    fine = coarse[chosen, :, jnp.arange(batch)[:, None]].reshape(batch, -1)
    number = (chosen[:, :, None] * width + jnp.arange(width, dtype=jnp.int32)).reshape(batch, -1)
    return select_best(fine, number, k)


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
    allowed: jax.Array | None = None,
    scales: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Searches rows sharded over `axis`; call it inside a shard_map over `axis`.

    Args:
      queries: the whole batch [B, D], the same on all devices, or this device's part of it (`queries_sharded`).
      rows: this device's rows [n, D].
      k: number of results; may exceed the rows there are.
      num_valid: int32 scalar; global rows at or after it are padding.
      queries_sharded: `queries` is this device's [B / devices, D]; the batch is gathered first.
      block_rows: rows scored at a time, at most.
      allowed, scales: this device's part [n], see `local_topk`.

    Returns:
      scores float32 [B, k] and global rows int32 [B, k] of the whole batch, identical on all devices.
    """
    if queries_sharded:
        queries = lax.all_gather(queries, axis, tiled=True, to="invarying")
    n = rows.shape[0]
    num_valid_local = jnp.clip(jnp.asarray(num_valid, jnp.int32) - lax.axis_index(axis).astype(jnp.int32) * n, 0, n)
    found = local_topk(
        queries, rows, min(k, n), num_valid_local=num_valid_local, block_rows=block_rows, allowed=allowed, scales=scales
    )
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


def as_numbers(rows: jax.Array, queries: jax.Array) -> jax.Array:
    """Rows that are given as the bits of bfloat16 become bfloat16 for questions of that type, else float32."""
    if rows.dtype != jnp.uint16:
        return rows
    if queries.dtype == jnp.bfloat16:
        return lax.bitcast_convert_type(rows, jnp.bfloat16)
    return lax.bitcast_convert_type(rows.astype(jnp.uint32) << 16, jnp.float32)


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
