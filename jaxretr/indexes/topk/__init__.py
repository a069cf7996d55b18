"""Exact maximum inner product search as pure functions of arrays, for use inside compiled steps.

The order of results is total: higher score first, and the lower row first among equal scores. Nothing here holds a
[B, N] matrix on every device: each device streams over its own rows, and only k candidates per question leave it.

`local_topk` has three formulations of the same search and takes the one that suits the device:

  `grouped.py` on CPUs: the scores of a block of rows are reduced to the maxima of groups of 8 neighbouring rows while
    they are in the cache; one selection over all maxima finds k groups, and only their rows are scored again. XLA's
    top_k reads its input once but pays for every change of the best k, so few selections over much are cheap, and a
    selection in every block is not.
  `accelerators.py` on GPUs and TPUs: the same idea with a pyramid of maxima. There a selection is a sort, which pays
    for all that it is given: each goes over a few thousand maxima.
  `streamed.py` where k is so large that the groups would hold most of the rows: a selection in every block, merged with
    the best so far.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.indexes.topk.accelerators import CUDA, GPU, TPU, can_narrow, pyramid_topk
from jaxretr.indexes.topk.grouped import can_group, grouped_topk
from jaxretr.indexes.topk.shard import NO_ROW, Shard, inner_products, select_best
from jaxretr.indexes.topk.streamed import BLOCK_ROWS, GROUP, block_candidates, streamed_topk
from jaxretr.runtime.parallel.mesh import DATA

__all__ = [
    "BLOCK_ROWS",
    "GROUP",
    "NO_ROW",
    "block_candidates",
    "global_topk",
    "inner_products",
    "local_topk",
    "merge_topk",
    "search_step",
    "select_best",
]


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
    stored rows, up to the rounding of the sums. No gradient flows through the search.

    Args:
      queries: embeddings [B, D], float32 or bfloat16, B > 0.
      rows: this device's rows [n, D], float32, bfloat16 or int8, n > 0; or the bits of bfloat16 as uint16, since XLA
        has no bfloat16 on CPUs and would make all rows float32 before the first block.
      k: number of results; may exceed n.
      num_valid_local: int32 scalar; rows at or after it are padding and never returned.
      block_rows: rows scored at a time, at most, where a formulation goes block by block.
      allowed: bool [n], the rows that may be returned; None: all.
      scales: float32 [n], what to multiply a row's scores with (int8 rows); None: nothing.

    Returns:
      scores float32 [B, k], descending, and local rows int32 [B, k]; missing results are -inf and NO_ROW.
    """
    n = rows.shape[0]
    shard = Shard(rows, jnp.asarray(num_valid_local, jnp.int32), allowed, scales)
    arrays = lax.stop_gradient((queries, shard))
    sizes = {"k": k, "block_rows": block_rows}
    streamed = partial(streamed_topk, **sizes)
    cpu = partial(grouped_topk, **sizes) if can_group(n, k, block_rows) else streamed
    cuda, tpu, others = (
        partial(pyramid_topk, **sizes, kind=kind) if can_narrow(n, k, block_rows, kind) else streamed
        for kind in (CUDA if has_matrix_kernels() else GPU, TPU, GPU)
    )
    return lax.platform_dependent(*arrays, cpu=cpu, cuda=cuda, tpu=tpu, default=others)


def has_matrix_kernels() -> bool:
    """Whether this process's GPUs, or those of elsewhere that a program is compiled for, are of 2020 or later."""
    if jax.default_backend() != "gpu":
        return True
    return float(getattr(jax.local_devices()[0], "compute_capability", 0)) >= 8


def global_topk(
    local_scores: jax.Array,
    local_rows: jax.Array,
    k: int,
    *,
    rows_per_shard: int,
    axis: str = DATA,
) -> tuple[jax.Array, jax.Array]:
    """Merge the devices' candidates; call it inside a shard_map over `axis`.

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
    """Search rows sharded over `axis`; call it inside a shard_map over `axis`.

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
    candidates = local_topk(
        queries, rows, min(k, n), num_valid_local=num_valid_local, block_rows=block_rows, allowed=allowed, scales=scales
    )
    return global_topk(*candidates, k, rows_per_shard=n, axis=axis)


def merge_topk(
    scores: jax.Array, rows: jax.Array, new_scores: jax.Array, new_rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Top k of two results [B, k], where every row of the second comes after every row of the first."""
    k = scores.shape[1]
    return select_best(jnp.concatenate([scores, new_scores], -1), jnp.concatenate([rows, new_rows], -1), k)
