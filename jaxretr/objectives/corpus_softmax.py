"""The softmax's denominator over a whole sharded corpus, streamed: no [B, N] array, and one pass for both directions."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.models.embed import truncated
from jaxretr.objectives.quantised import StoredRows
from jaxretr.parallel.mesh import DATA

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
    """log sum over the corpus of exp(q . e / temperature); call it inside a shard_map over the data axis.

    The embeddings are constants (stale ones have no gradient to give); the gradient in a question is the softmax's mean
    of e / temperature, which is summed up in the same pass.

    Args:
      queries: embeddings of the whole batch, float32 [B, D], on every device.
      rows: this device's embeddings, [n, D].
      contents: what each of them is: the first row of the corpus with the same title and text, int32 [n].
      excluded: global rows that no question counts (they are in the batch, fresh), int32 [m].
      excluded_each: contents of each question's false negatives, int32 [B, Q]; negative for none.
      num_valid: global rows from this one on are padding.
      temperature: divides the scores.
      normalise: divide each embedding by its length first (prefixes of normalised embeddings).
      block_rows: rows scored at a time.
      stored: how an index stores the embeddings that are scored; None: as they are.

    Returns:
      float32 [B], the same on all devices; about -1e30 where nothing is left.
    """
    n = rows.shape[0]
    first = lax.axis_index(DATA) * n
    place = excluded - first
    counts = jnp.arange(n) + first < num_valid
    counts = counts.at[jnp.where((place >= 0) & (place < n), place, n)].set(False, mode="drop")
    contents = jnp.where(counts, contents, -1)
    settings = (temperature, normalise, min(block_rows, n))
    local = _logsumexp(settings, queries, lax.stop_gradient(rows), contents, excluded_each, stored)  # [B]
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
    """One device's log-sum-exp [B], and its gradient [B, D]: the mean of the rows under the softmax."""
    temperature, normalise, size = settings
    n = rows.shape[0]

    def block(number: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        highest, total, mean = carry
        # The last block is moved back to end with the rows; what it shares with the one before it is masked.
        start = jnp.minimum(number * size, n - size)
        e = lax.dynamic_slice_in_dim(rows, start, size).astype(jnp.float32)
        if normalise:
            e = truncated(e, e.shape[-1], normalise=True)
        if stored is not None:
            e = stored.values(e)
        scores = jnp.matmul(queries, e.T, precision=lax.Precision.HIGHEST) / temperature
        content = lax.dynamic_slice_in_dim(contents, start, size)
        new = (content >= 0) & (start + jnp.arange(size) >= number * size)
        # Compared and reduced in one loop by the compiler; far less work than the product above.
        excluded = (each[:, None, :] == content[:, None]).any(axis=-1)
        scores = jnp.where(new & ~excluded, scores, _NOTHING)
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
