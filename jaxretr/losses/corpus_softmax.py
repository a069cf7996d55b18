"""The softmax's denominator over a whole sharded corpus, streamed in one pass for both directions: no [B, N] array."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.losses.contrastive import scaled_scores
from jaxretr.losses.quantised import StoredRows

_NOTHING = -1e30


def corpus_logsumexp(
    queries: jax.Array,
    rows: jax.Array,
    text_ids: jax.Array,
    excluded: jax.Array,
    excluded_each: jax.Array,
    *,
    axis: str,
    num_valid: int,
    temperature: float,
    normalise: bool,
    block_rows: int,
    stored: StoredRows | None = None,
) -> jax.Array:
    """Return log sum over the corpus of exp(q . e / temperature); call it inside a shard_map over `axis`.

    The embeddings are constants (stale ones have no gradient to give). The gradient with respect to a question is the
    softmax's mean of e / temperature, which is accumulated in the same pass.

    Args:
      queries: embeddings of the whole batch, float32 [B, D], on every device.
      rows: this device's embeddings, [n, D].
      text_ids: text ids of these rows (contrastive.py), int32 [n].
      excluded: global rows that no question counts (the batch has them, freshly embedded), int32 [m].
      excluded_each: text ids of each question's false negatives, int32 [B, X]; negative for none.
      axis: name of the mesh's axis over which the rows are split.
      num_valid: number of global rows; the rows after them are padding.
      temperature: divisor of the scores.
      normalise: whether to divide each embedding by its length first, at least 1e-12 (prefixes of normalised embeddings).
      block_rows: number of rows scored at a time.
      stored: quantiser of the embeddings that are scored; None: they are scored exactly.

    Returns:
      float32 [B], the same on all devices; about -1e30 where nothing is left.
    """
    # This device's rows that count, bool [n]: not padding, and not excluded. The text ids of all others become -1.
    n = rows.shape[0]
    first = lax.axis_index(axis) * n
    place = excluded - first
    counts = jnp.arange(n) + first < num_valid
    counts = counts.at[jnp.where((place >= 0) & (place < n), place, n)].set(False, mode="drop")
    text_ids = jnp.where(counts, text_ids, -1)
    settings = (axis, temperature, normalise, min(block_rows, n))
    local = _logsumexp(settings, queries, lax.stop_gradient(rows), text_ids, excluded_each, stored)  # [B]
    # Log of the sum over devices, with the largest local value taken out so that exp does not overflow: [B].
    highest = lax.pmax(lax.stop_gradient(local), axis)
    return jnp.log(lax.psum(jnp.exp(local - highest), axis)) + highest


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _logsumexp(settings: Any, *arrays: Any) -> jax.Array:
    return _stream(settings, *arrays)[0]


def _stream(
    settings: Any,
    queries: jax.Array,
    rows: jax.Array,
    text_ids: jax.Array,
    excluded: jax.Array,
    stored: StoredRows | None,
) -> tuple[jax.Array, jax.Array]:
    """Return one device's log-sum-exp [B], and its gradient [B, D]: the mean of the rows under the softmax."""
    axis, temperature, normalise, size = settings
    n = rows.shape[0]

    def block(number: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        # Running maximum and sum of exp(score - maximum), both [B], and the rows' sum weighted by exp, [B, D].
        highest, total, mean = carry
        # The last block is moved back to end with the rows; the rows that it shares with the one before it are masked.
        start = jnp.minimum(number * size, n - size)
        # The block's embeddings, as the index stores them: float32 [size, D].
        e = lax.dynamic_slice_in_dim(rows, start, size).astype(jnp.float32)
        if normalise:
            e = e * lax.rsqrt(jnp.maximum(jnp.square(e).sum(axis=-1, keepdims=True), 1e-24))
        if stored is not None:
            e = stored.values(e)
        # Scores of all questions with the block, [B, size], and the rows that count and are new in this block, [size].
        scores = scaled_scores(queries, e, temperature)
        ids = lax.dynamic_slice_in_dim(text_ids, start, size)
        is_new = (ids >= 0) & (start + jnp.arange(size) >= number * size)
        # False negatives, [B, size]. The compiler compares and reduces in one loop: far less work than the product.
        is_excluded = (excluded[:, None, :] == ids[:, None]).any(axis=-1)
        scores = jnp.where(is_new & ~is_excluded, scores, _NOTHING)
        # Raise the maximum to this block's, and scale the sums so far down to it.
        top = jnp.maximum(highest, scores.max(axis=-1))
        weights = jnp.where(scores > _NOTHING / 2, jnp.exp(scores - top[:, None]), 0.0)  # [B, size]
        shrink = jnp.exp(highest - top)
        mean = mean * shrink[:, None] + jnp.matmul(weights, e, precision=lax.Precision.HIGHEST)
        return top, total * shrink + weights.sum(axis=-1), mean

    zeros = jnp.zeros(queries.shape, jnp.float32)
    start = lax.pcast((zeros[:, 0] + _NOTHING, zeros[:, 0], zeros), axis, to="varying")
    highest, total, mean = lax.fori_loop(0, -(-n // size), block, start)
    # Questions with any row left, [B]; the others get _NOTHING and no gradient.
    any_left = total > 0
    total = jnp.where(any_left, total, 1.0)
    result = jnp.where(any_left, highest + jnp.log(total), _NOTHING)
    return result, mean / total[:, None] / temperature


def _backward(settings: Any, gradient: jax.Array, cotangent: jax.Array) -> Any:
    return cotangent[:, None] * gradient, None, None, None, None


_logsumexp.defvjp(_stream, _backward)
