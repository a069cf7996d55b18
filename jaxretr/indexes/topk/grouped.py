"""The exact top k of a device's rows on CPUs: maxima of groups of rows while the scores are in the cache."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.indexes.topk.shard import NO_ROW, Shard, as_numbers, inner_products, select_best, unsigned_zero

# Rows a group, and rows a group of groups, over whose maxima the first selection goes.
FINE, COARSE = 8, 64

# Bytes of maxima that are held, of which a sixteenth of the rows' bytes counts if it is between the two: above this it
# selects after a part of the rows, and continues.
MAXIMA_BYTES = 8 * 2**20, 128 * 2**20

# With so few questions all rows are scored in one product, if that takes no more bytes than this.
WHOLE_BATCH = 8
WHOLE_BYTES = 64 * 2**20


def can_group(n: int, k: int, block_rows: int) -> bool:
    """Whether `grouped_topk` can search n rows for k results, and would leave most of the rows out at the end."""
    return min(block_rows, n) >= COARSE and 2 * FINE * k <= n


def grouped_topk(queries: jax.Array, shard: Shard, k: int, block_rows: int) -> tuple[jax.Array, jax.Array]:
    """`local_topk` where `can_group`: the maxima of all groups, one selection, and the scores of k groups again.

    The k groups that come first by (maximum descending, group ascending) hold the top k: a row outside them is preceded
    by the maximum of each of the k, which is higher, or equal and in a lower row. The same holds for groups of groups.
    """
    n, batch = shard.rows.shape[0], queries.shape[0]
    if batch <= WHOLE_BATCH and n % COARSE == 0 and 4 * n * batch <= WHOLE_BYTES and shard.rows.dtype == queries.dtype:
        size = n  # Few questions wait for the memory alone, and cutting blocks would copy the rows.
    else:
        # More are bound by the matmul, and their scores must stay in the cache: 2 MB of them, within limits, were the fastest.
        size = min(block_rows, min(max(2**19 // batch, 512), 4096), n) // COARSE * COARSE
    groups = _best_groups(queries, shard, k, size)
    # In the order of rows, so that the first of equal scores is the lowest row.
    of_questions = queries, jnp.sort(groups, axis=-1)
    # A few questions at a time keep all cores busy.
    scores, row = lax.map(
        lambda pair: _group_scores(pair[0], pair[1], shard, size), of_questions, batch_size=4 if batch >= 32 else None
    )  # [B, k * FINE]
    scores, row = select_best(scores, row, k)
    return scores, jnp.where(scores == -jnp.inf, NO_ROW, row)


def _best_groups(queries: jax.Array, shard: Shard, k: int, size: int) -> jax.Array:
    """The groups of `FINE` rows with the k highest maxima for each question, [B, k], from blocks of `size` rows."""
    n, batch = shard.rows.shape[0], queries.shape[0]
    blocks = -(-n // size)
    limit = min(max(shard.rows.nbytes // 16, MAXIMA_BYTES[0]), MAXIMA_BYTES[1])
    passes = 1 if blocks == 1 else -(-(blocks * size // FINE * batch * 4) // limit)
    per_pass = -(-blocks // passes)

    def block_maxima(number: jax.Array) -> jax.Array:
        block = shard.block(number, size)
        # Questions last, so that maxima are taken in parallel.
        scores = inner_products(as_numbers(block.rows, queries), queries)  # [size, B]
        if block.scales is not None:
            scores *= block.scales[:, None]
        scores = jnp.where(block.valid[:, None], scores, -jnp.inf)
        return unsigned_zero(scores.reshape(size // FINE, FINE, batch).max(1))

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
    """Score the rows of groups [k], counted in blocks of `size` rows, for one question [D]; [k * FINE] and rows."""
    block = shard.groups(groups // (size // FINE), groups % (size // FINE), size, FINE)
    scores = inner_products(as_numbers(block.rows, query), query[None])[:, 0]
    if block.scales is not None:
        scores *= block.scales
    return jnp.where(block.valid, unsigned_zero(scores), -jnp.inf), block.row


def _top_groups(maxima: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The first k groups (or all) of maxima [groups, B] for each question: their maxima and numbers, [B, k]."""
    groups, batch = maxima.shape
    width = COARSE // FINE
    if groups // width <= k:
        best, group = lax.top_k(maxima.T, min(k, groups))
        return best, group
    coarse = maxima.reshape(groups // width, width, batch)
    _, coarse_groups = lax.top_k(coarse.max(1).T, k)
    coarse_groups = jnp.sort(coarse_groups, axis=-1)  # [B, k]
    fine = coarse[coarse_groups, :, jnp.arange(batch)[:, None]].reshape(batch, -1)
    number = (coarse_groups[:, :, None] * width + jnp.arange(width, dtype=jnp.int32)).reshape(batch, -1)
    return select_best(fine, number, k)
