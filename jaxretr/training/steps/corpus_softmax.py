"""The softmax's denominator over a whole sharded corpus, streamed in one pass for both directions: no [B, N] array."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.models.embed import truncated
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.training.steps.quantised import StoredRows

_NOTHING = -1e30


def corpus_logsumexp(
    queries: jax.Array,
    rows: jax.Array,
    contents: jax.Array,
    excluded: jax.Array,
    excluded_each: jax.Array,
    *,
    num_valid: int,
    temperature: float,
    normalise: bool,
    block_rows: int,
    stored: StoredRows | None = None,
) -> jax.Array:
    """Return log sum over the corpus of exp(q . e / temperature); call it inside a shard_map over the data axis.

    The embeddings are constants (stale ones have no gradient to give). The gradient with respect to a question is the
    softmax's mean of e / temperature, which is accumulated in the same pass.

    Args:
      queries: embeddings of the whole batch, float32 [B, D], on every device.
      rows: this device's embeddings, [n, D].
      contents: contents of these rows: the first row of the corpus with the same title and text, int32 [n].
      excluded: global rows that no question counts (the batch has them, freshly embedded), int32 [m].
      excluded_each: contents of each question's false negatives, int32 [B, Q]; negative for none.
      num_valid: number of global rows; the rows after them are padding.
      temperature: divisor of the scores.
      normalise: whether to divide each embedding by its length first (prefixes of normalised embeddings).
      block_rows: number of rows scored at a time.
      stored: quantiser of the embeddings that are scored; None: they are scored exactly.

    Returns:
      float32 [B], the same on all devices; about -1e30 where nothing is left.
    """
    # This device's rows that count, bool [n]: not padding, and not excluded. The contents of all others become -1.
    n = rows.shape[0]
    first = lax.axis_index(DATA) * n
    place = excluded - first
    counts = jnp.arange(n) + first < num_valid
    counts = counts.at[jnp.where((place >= 0) & (place < n), place, n)].set(False, mode="drop")
    contents = jnp.where(counts, contents, -1)
    settings = (temperature, normalise, min(block_rows, n))
    local = _logsumexp(settings, queries, lax.stop_gradient(rows), contents, excluded_each, stored)  # [B]
    # Log of the sum over devices, with the largest local value taken out so that exp does not overflow: [B].
    highest = lax.pmax(lax.stop_gradient(local), DATA)
    return jnp.log(lax.psum(jnp.exp(local - highest), DATA)) + highest


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _logsumexp(
    settings: Any,
    queries: jax.Array,
    rows: jax.Array,
    contents: jax.Array,
    each: jax.Array,
    stored: StoredRows | None,
) -> jax.Array:
    return _stream(settings, queries, rows, contents, each, stored)[0]


def _stream(
    settings: Any,
    queries: jax.Array,
    rows: jax.Array,
    contents: jax.Array,
    each: jax.Array,
    stored: StoredRows | None,
) -> tuple[jax.Array, jax.Array]:
    """Return one device's log-sum-exp [B], and its gradient [B, D]: the mean of the rows under the softmax."""
    temperature, normalise, size = settings
    n = rows.shape[0]

    def block(number: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        # Running maximum and sum of exp(score - maximum), both [B], and the rows' sum weighted by exp, [B, D].
        highest, total, mean = carry
        # The last block is moved back to end with the rows; the rows that it shares with the one before it are masked.
        start = jnp.minimum(number * size, n - size)
        # The block's embeddings, as the index stores them: float32 [size, D].
        e = lax.dynamic_slice_in_dim(rows, start, size).astype(jnp.float32)
        if normalise:
            e = truncated(e, e.shape[-1], normalise=True)
        if stored is not None:
            e = stored.values(e)
        # Scores of all questions with the block, [B, size], and the rows that count and are new in this block, [size].
        scores = jnp.matmul(queries, e.T, precision=lax.Precision.HIGHEST) / temperature
        content = lax.dynamic_slice_in_dim(contents, start, size)
        new = (content >= 0) & (start + jnp.arange(size) >= number * size)
        # False negatives, [B, size]. The compiler compares and reduces in one loop: far less work than the product.
        excluded = (each[:, None, :] == content[:, None]).any(axis=-1)
        scores = jnp.where(new & ~excluded, scores, _NOTHING)
        # Raise the maximum to this block's, and scale the sums so far down to it.
        top = jnp.maximum(highest, scores.max(axis=-1))
        weights = jnp.where(scores > _NOTHING / 2, jnp.exp(scores - top[:, None]), 0.0)  # [B, size]
        shrink = jnp.exp(highest - top)
        mean = mean * shrink[:, None] + jnp.matmul(weights, e, precision=lax.Precision.HIGHEST)
        return top, total * shrink + weights.sum(axis=-1), mean

    zeros = jnp.zeros(queries.shape, jnp.float32)
    start = lax.pcast((zeros[:, 0] + _NOTHING, zeros[:, 0], zeros), DATA, to="varying")
    highest, total, mean = lax.fori_loop(0, -(-n // size), block, start)
    found = total > 0
    result = jnp.where(found, highest + jnp.log(jnp.where(found, total, 1.0)), _NOTHING)
    return result, mean / jnp.where(found, total, 1.0)[:, None] / temperature


def _backward(settings: Any, gradient: jax.Array, cotangent: jax.Array) -> Any:
    return cotangent[:, None] * gradient, None, None, None, None


_logsumexp.defvjp(_stream, _backward)
