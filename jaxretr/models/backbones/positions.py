"""Positions of tokens in attention: relative biases, and rotary angles."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.models.backbones.layers import Embedding
from jaxretr.models.backbones.rotary_config import RotaryScaling


def relative_bias(table: Embedding, length: int, max_distance: int, *, bidirectional: bool) -> jax.Array:
    """Return the bias of relative positions that T5 and MPNet add to the scores of attention.

    Args:
      table: a bias for each bucket and head, float32 [buckets, H].
      length: length of the rows.
      max_distance: as in `relative_bucket`.
      bidirectional: as in `relative_bucket`.

    Returns:
      float32 [1, H, keys, queries].
    """
    position = jnp.arange(length)
    distance = position[:, None] - position[None, :]  # key - query
    buckets = relative_bucket(distance, table.table.shape[0], max_distance, bidirectional=bidirectional)
    return table(buckets).transpose(2, 0, 1)[None]


def relative_bucket(distance: jax.Array, buckets: int, max_distance: int, *, bidirectional: bool) -> jax.Array:
    """Map key - query distances to bucket numbers: exact when near, logarithmic up to `max_distance`.

    Args:
      distance: key position minus query position, any integer array.
      buckets: number of buckets; half of them for each direction when bidirectional.
      max_distance: every greater distance shares the last bucket.
      bidirectional: whether keys after the query have buckets of their own.

    Returns:
      int32 array of `distance`'s shape.
    """
    offset = jnp.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        offset = jnp.where(distance > 0, buckets, 0)
        distance = jnp.abs(distance)
    else:
        distance = jnp.maximum(-distance, 0)
    exact = buckets // 2
    # The clamp keeps the logarithm of near distances finite; they take the exact branch anyway.
    ratio = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact) / math.log(max_distance / exact)
    far = exact + (ratio * (buckets - exact)).astype(jnp.int32)
    return offset + jnp.where(distance < exact, distance, jnp.minimum(far, buckets - 1)).astype(jnp.int32)


def rotary_frequencies(size: int, theta: float, scaling: RotaryScaling | None = None) -> np.ndarray:
    """Return the angle by which each pair of a head's dimensions turns from one position to the next (Su et al. 2021).

    Args:
      size: d, the size of a head.
      theta: the base; pair i turns by theta ** (-2 i / d).
      scaling: stretch of the frequencies for texts longer than those of the pretraining.

    Returns:
      float64 [d / 2], in radians.
    """
    exponents = np.arange(0, size, 2) / size
    if scaling is None:
        return theta**-exponents
    if scaling.kind == "ntk":
        return (theta * scaling.factor) ** -exponents / scaling.factor ** (2 / size)
    frequencies = theta**-exponents
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_length * frequencies / (2 * np.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def rotate(x_blhd: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turn each pair of dimensions (i, i + d / 2) by the position's angle, float32 [B, L, H, d].

    Args:
      x_blhd: queries or keys, float32 [B, L, H, d].
      cos: cosines of the angles, float32 [L, d / 2] or [B, L, d / 2].
      sin: sines of the angles, of the same shape.
    """
    cos, sin = cos[..., None, :], sin[..., None, :]
    one, other = jnp.split(x_blhd, 2, axis=-1)
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1)
