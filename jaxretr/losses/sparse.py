"""Regularisation that makes learned vectors sparse."""

import jax
import jax.numpy as jnp
from jax import lax


def flops(weights: jax.Array, present: jax.Array | None = None, *, axis: str | None = None) -> jax.Array:
    """Return the FLOPS of some texts' sparse vectors (Paria et al. 2020, equation 4; SPLADE's equation 7).

    sum over v of (mean over i of |w_iv|)^2: the expected number of products in an inner product of two such vectors, made
    smooth. It is lower where the same weights are spread evenly over the vocabulary.

    Args:
      weights: float32 [n, V].
      present: the rows that count, bool [n]; None: all.
      axis: the axis of a surrounding shard_map over which the texts are spread; None: they are all here.

    Returns:
      A float32 scalar, the same on all devices of the axis.
    """
    present = jnp.ones(len(weights), bool) if present is None else present
    sums, count = jnp.where(present[:, None], jnp.abs(weights), 0.0).sum(axis=0), present.sum()
    if axis is not None:
        sums, count = lax.psum((sums, count), axis)
    return jnp.square(sums / jnp.maximum(count, 1)).sum()
