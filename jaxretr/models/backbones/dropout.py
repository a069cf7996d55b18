"""Dropout whose masks are a hash of the row's key and the element's place, without a generator's state."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.models.backbones.packed_rows import are_packed, of_tokens, token_places

ATTENTION, EMBEDDINGS = 1 << 16, 1 << 17
"""Numbers of places of dropout for `folded`: in a layer the attention's probabilities, in an encoder its embeddings.
`Dropout` counts other places of a layer, and layers count from 0."""

_GOLDEN, _FIRST, _SECOND = 0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35


class PackedKeys(NamedTuple):
    """Keys of the texts of packed rows.

    Attributes:
      words: PRNG keys [B, M], or two words of each, uint32 [B, M, 2].
      lengths: lengths of the texts, int32 [B, M].
    """

    words: jax.Array
    lengths: jax.Array


def keys_of_texts(keys: Any, lengths: jax.Array) -> Any:
    """Return keys, one for each text with one of these lengths, as `Dropout` takes them; None stays None."""
    return PackedKeys(keys, lengths) if keys is not None and are_packed(lengths) else keys


class Dropout:
    """Dropout whose mask depends on the text's own key only, so that any number of devices draws the same masks.

    An element's mask is the same however far the row is padded, or where in a packed row the text stands, for states
    [B, L, D] and for scores [B, H, L, M].

    Args:
      keys: one key per row: a PRNG key [B], a result of `folded`, or None outside training. Of packed rows `PackedKeys`.
      rate: share of elements that are set to zero; the others are scaled by 1 / (1 - rate).
    """

    def __init__(self, keys: jax.Array | None, rate: float):
        self.keys = keys if rate > 0 else None
        self.rate = rate
        self.calls = 0

    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply dropout: float [B, ...] -> float32 [B, ...]; x itself outside training."""
        return dropped(x, self.next_keys(), self.rate)

    def next_keys(self) -> Any:
        """Return each row's key for the next call, which then counts as made, as `folded` does; None outside training."""
        if self.keys is None:
            return None
        self.calls += 1
        return folded(self.keys, self.calls)


NO_DROPOUT = Dropout(None, 0.0)


def dropped(x: jax.Array, keys: Any, rate: float) -> jax.Array:
    """Apply dropout to x by the keys of one call of a `Dropout`.

    Args:
      x: float [B, ...]; with the keys of packed rows states [B, L, D] or scores [B, H, L, M].
      keys: result of `Dropout.next_keys`.

    Returns:
      float32 [B, ...]; x itself without keys.
    """
    if keys is None:
        return x
    bits = packed_bits(keys, x.shape) if isinstance(keys, PackedKeys) else random_bits(keys, x.shape[1:])
    keep = bits >= jnp.uint32(threshold(rate))
    # A product, as XLA on GPUs writes out the zeros of a choice.
    return x.astype(jnp.float32) * (keep.astype(jnp.float32) * (1.0 / (1.0 - rate)))


def threshold(rate: float) -> int:
    """Return the least value of an element's 32 bits with which the element is kept."""
    return round(rate * 2**32)


def folded(keys: Any, number: Any) -> Any:
    """Return each row's key for one place, by its number.

    Args:
      keys: PRNG keys [B], or a result of this function; None stays None.
      number: an integer, traced or not, or an array of them that broadcasts against the keys.

    Returns:
      uint32 [..., 2], two words per key; `PackedKeys` with them of `PackedKeys`.
    """
    if keys is None:
        return None
    if isinstance(keys, PackedKeys):
        return keys._replace(words=folded(keys.words, number))
    if jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        keys = jax.random.key_data(keys)
    return jnp.stack(folded_words(keys[..., 0], keys[..., 1], jnp.asarray(number).astype(jnp.uint32)), axis=-1)


def folded_words(one: jax.Array, other: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`folded` for keys whose two words are separate arrays; all uint32, also in kernels."""
    one = _mixed(one + (number + 1) * np.uint32(_GOLDEN))
    return one, _mixed(other ^ one)


def random_bits(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return 32 bits per element, by the row's key and the element's place in the row, uint32 [B, *shape].

    Args:
      keys: keys that `folded` returned, uint32 [B, 2].
      shape: shape of a row, of one dimension or more.
    """
    for size in shape[:-1]:  # a key for each line of the last dimension
        keys = folded(keys[..., None, :], jnp.arange(size))
    return element_bits(keys[..., 0, None], keys[..., 1, None], jnp.arange(shape[-1], dtype=jnp.uint32))


def packed_bits(keys: PackedKeys, shape: tuple[int, ...]) -> jax.Array:
    """Return the bits that each text's elements have in a padded row, by their places in the text.

    Args:
      keys: keys that `folded` returned.
      shape: shape of states [B, L, D] or of scores [B, H, L, M].

    Returns:
      uint32 of that shape; those of scores between two texts mean nothing.
    """
    words, lengths = keys
    width = shape[-2]
    line = last = token_places(lengths, width)  # [B, L]
    of_each = of_tokens(words, lengths, width)  # [B, L, 2]
    if len(shape) == 3:
        last = jnp.arange(shape[-1], dtype=jnp.uint32)
    else:
        of_each = folded(of_each[:, None], jnp.arange(shape[1])[:, None])  # [B, H, L, 2]
        line, last = line[:, None], last[:, None, None, :].astype(jnp.uint32)
    lines = folded(of_each, line)
    return element_bits(lines[..., 0, None], lines[..., 1, None], last)


def element_bits(one: jax.Array, other: jax.Array, place: jax.Array) -> jax.Array:
    """`random_bits` by the two words of a line's key and the element's place in the line; all uint32."""
    # The finaliser of MurmurHash3 with a word of the key in its middle, so that lines with overlapping counters differ.
    x = one + place * np.uint32(_GOLDEN)
    x = (x ^ (x >> 16)) * np.uint32(_FIRST)
    x = x ^ other
    x = (x ^ (x >> 13)) * np.uint32(_SECOND)
    return x ^ (x >> 16)


def _mixed(x: jax.Array) -> jax.Array:
    """Apply MurmurHash3's finaliser (Appleby 2011), a bijection of uint32: every bit depends on every other."""
    x = (x ^ (x >> 16)) * np.uint32(_FIRST)
    x = (x ^ (x >> 13)) * np.uint32(_SECOND)
    return x ^ (x >> 16)
