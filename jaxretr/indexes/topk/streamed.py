"""The exact top k of a device's rows with a selection in every block of rows."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.indexes.topk.shard import NO_ROW, Shard, as_numbers, inner_products, select_best, unsigned_zero

# Rows that are scored at a time.
BLOCK_ROWS = 8192

GROUP = 16


def streamed_topk(queries: jax.Array, shard: Shard, k: int, block_rows: int) -> tuple[jax.Array, jax.Array]:
    """`local_topk` with a selection in every block; holds [B, block_rows] scores."""
    n, batch = shard.rows.shape[0], queries.shape[0]
    size = min(block_rows, n)

    def score_block(number: jax.Array, best: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        block = shard.block(number, size)
        scores = inner_products(queries, as_numbers(block.rows, queries))  # [B, size]
        if block.scales is not None:
            scores *= block.scales
        scores = jnp.where(block.valid, unsigned_zero(scores), -jnp.inf)
        scores, row = block_candidates(scores, block.row, k)
        # The best so far have lower rows and therefore come first: top_k keeps the first of equal scores.
        return select_best(jnp.concatenate([best[0], scores], -1), jnp.concatenate([best[1], row], -1), k)

    none = _varying_like((queries, shard), (jnp.full((batch, k), -jnp.inf, jnp.float32), jnp.full((batch, k), NO_ROW)))
    scores, row = lax.fori_loop(0, -(-n // size), score_block, none)
    return scores, jnp.where(scores == -jnp.inf, NO_ROW, row)


def _varying_like(inputs: Any, constants: Any) -> Any:
    """Give constants the mesh axes that any of the inputs varies over, as the carry of a loop in a shard_map needs.

    A choice between two equal constants that depends on the inputs has that type, and the compiler removes it.
    """
    varies = functools.reduce(jnp.logical_or, (x[(0,) * x.ndim] > 0 for x in jax.tree.leaves(inputs)))
    return jax.tree.map(lambda constant: jnp.where(varies, constant, constant), constants)


def block_candidates(scores: jax.Array, row: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Reduce one block [B, n] to candidates [B, m] that hold its top k, in the order of rows.

    The k groups of 16 neighbouring rows that come first by (maximum descending, group ascending) hold the top k: an
    element outside them is preceded by the maximum of each of the k, which is higher, or equal and in a lower row.
    """
    batch, n = scores.shape
    if n % GROUP or 2 * GROUP * k > n:  # the groups would hold most of the block
        return scores, jnp.broadcast_to(row, scores.shape)
    groups = scores.reshape(batch, n // GROUP, GROUP)
    _, group = lax.top_k(groups.max(-1), k)
    group = jnp.sort(group, axis=-1)[:, :, None]  # [B, k, 1]
    scores = jnp.take_along_axis(groups, group, axis=1)
    return scores.reshape(batch, -1), row.reshape(-1, GROUP)[group[:, :, 0]].reshape(batch, -1)
