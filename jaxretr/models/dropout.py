"""Dropout whose masks are a function of the row's key and the element's place: a hash, and no generator's state."""

from typing import Any

import jax
import jax.numpy as jnp

ATTENTION, EMBEDDINGS = 1 << 16, 1 << 17
"""Places of dropout, as `folded` takes them: in a layer the attention's probabilities, in an encoder what is before its
layers. Other places of a layer are counted by `Dropout`, and layers from 0."""

_GOLDEN, _FIRST, _SECOND = 0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35


class Dropout:
    """Dropout whose mask depends on the row's own key only, so that any number of devices draws the same masks.

    An element's mask is the same however far the row is padded, for states [B, L, D] and for scores [B, H, L, M].

    Args:
      keys: one key a row: a PRNG key [B], what `folded` returned, or None outside training.
      rate: the share of elements set to zero; the others are scaled by 1 / (1 - rate).
    """

    def __init__(self, keys: jax.Array | None, rate: float):
        self.keys = keys if rate > 0 else None
        self.rate = rate
        self.calls = 0

    def __call__(self, x: jax.Array) -> jax.Array:
        """Float [B, ...] -> float32 [B, ...]; x itself outside training."""
        if self.keys is None:
            return x
        self.calls += 1
        bits = random_bits(folded(self.keys, self.calls), x.shape[1:])
        keep = bits >= jnp.uint32(round(self.rate * 2**32))
        # A product, for XLA on GPUs writes out the zeros that a choice is made from.
        return x.astype(jnp.float32) * (keep.astype(jnp.float32) * (1.0 / (1.0 - self.rate)))


def folded(keys: jax.Array | None, number: Any) -> Any:
    """Each row's key for one place, by its number.

    Args:
      keys: PRNG keys [B], or what this function returned; None stays None.
      number: an integer, traced or not, or an array of them that broadcasts against the keys.

    Returns:
      uint32 [..., 2], two words a key.
    """
    if keys is None:
        return None
    if jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        keys = jax.random.key_data(keys)
    one, other = keys[..., 0], keys[..., 1]
    one = _mixed(one + (jnp.asarray(number).astype(jnp.uint32) + 1) * jnp.uint32(_GOLDEN))
    return jnp.stack([one, _mixed(other ^ one)], axis=-1)


def random_bits(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """32 bits an element, by the row's key and the element's place in the row.

    Args:
      keys: as `folded` returns them, uint32 [B, 2].
      shape: of a row, of one dimension or more.

    Returns:
      uint32 [B, *shape].
    """
    for size in shape[:-1]:  # a key for each line of the last dimension
        keys = folded(keys[..., None, :], jnp.arange(size))
    one, other = keys[..., 0, None], keys[..., 1, None]
    # The finaliser of MurmurHash3, with a word of the key in its middle: lines whose counters overlap differ all the same.
    x = one + jnp.arange(shape[-1], dtype=jnp.uint32) * jnp.uint32(_GOLDEN)
    x = (x ^ (x >> 16)) * jnp.uint32(_FIRST)
    x = x ^ other
    x = (x ^ (x >> 13)) * jnp.uint32(_SECOND)
    return x ^ (x >> 16)


def _mixed(x: jax.Array) -> jax.Array:
    """The finaliser of MurmurHash3 (Appleby 2011): a bijection of uint32 in which every bit depends on every other."""
    x = (x ^ (x >> 16)) * jnp.uint32(_FIRST)
    x = (x ^ (x >> 13)) * jnp.uint32(_SECOND)
    return x ^ (x >> 16)
