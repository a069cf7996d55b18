"""Rows of tokens, padded or packed: the functions of their lengths that encoders need.

A padded row [L] has one text and then padding; the rows' lengths are int32 [B]. A packed row has up to M texts one behind
the other, without gaps, and its end is unfilled; the lengths are int32 [B, M], 0 where there is no text. A program for
packed rows serves texts of every length. Each token sees those of its own text alone, and a text's position 0 is its
first token.
"""

import jax
import jax.numpy as jnp

ROW = 512
"""Tokens of a packed row, for texts that are not longer: few enough that a row's attention without a kernel costs less than
its dense layers."""

# A packed row has room for texts of this mean length; shorter ones leave a part of it unfilled.
_LEAST_MEAN_LENGTH = 16


def room_for_texts(width: int) -> int:
    """Return M, the largest number of texts in a row of so many tokens."""
    return max(1, width // _LEAST_MEAN_LENGTH)


def are_packed(lengths: jax.Array) -> bool:
    """Whether these are the lengths of packed rows."""
    return lengths.ndim == 2


def text_numbers(lengths: jax.Array, width: int) -> jax.Array:
    """Return the number of each token's text in its packed row, M in the unfilled end: int32 [B, M] -> int32 [B, L]."""
    ends = jnp.cumsum(lengths, axis=1)
    return (jnp.arange(width)[:, None] >= ends[:, None, :]).sum(axis=-1, dtype=jnp.int32)


def text_starts(lengths: jax.Array) -> jax.Array:
    """Return where each text of a packed row starts, and the unfilled end: int32 [B, M] -> int32 [B, M + 1]."""
    ends = jnp.cumsum(lengths, axis=1)
    return jnp.concatenate([jnp.zeros_like(ends[:, :1]), ends], axis=1)


def of_tokens(values: jax.Array, lengths: jax.Array, width: int) -> jax.Array:
    """Return the value of each token's text: values [B, M, ...], lengths int32 [B, M] -> [B, L, ...]; any in the end."""
    text = jnp.minimum(text_numbers(lengths, width), lengths.shape[1] - 1)
    return jnp.take_along_axis(values, text.reshape(*text.shape, *[1] * (values.ndim - 2)), axis=1)


def token_starts(lengths: jax.Array, width: int) -> jax.Array:
    """Return the place in the row where each token's text starts: int32 [B, M] -> int32 [B, L]."""
    return jnp.take_along_axis(text_starts(lengths), text_numbers(lengths, width), axis=1)


def token_places(lengths: jax.Array, width: int) -> jax.Array:
    """Return the position of each token in its text: int32 [L] of padded rows, [B, L] of packed ones, 0 in their end."""
    place = jnp.arange(width)
    if not are_packed(lengths):
        return place
    unfilled = place >= lengths.sum(axis=1, keepdims=True)
    return jnp.where(unfilled, 0, place - token_starts(lengths, width))


def own_tokens(lengths: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
    """Return whether a text has each token, bool [B, L], of packed rows [B, M, L]; and the tokens' places, which
    broadcast against it."""
    place = token_places(lengths, width)
    if not are_packed(lengths):
        return place < lengths[:, None], place
    texts = jnp.arange(lengths.shape[1])
    return text_numbers(lengths, width)[:, None] == texts[:, None], place[:, None]


def counted_places(counted: jax.Array, lengths: jax.Array) -> jax.Array:
    """Return the number of counted tokens of the same text before each one: bool [B, L] -> int32 [B, L]."""
    before = jnp.cumsum(counted, axis=1) - counted
    if are_packed(lengths):
        before = before - jnp.take_along_axis(before, token_starts(lengths, counted.shape[1]), axis=1)
    return before


def hidden_keys(lengths: jax.Array, width: int) -> jax.Array:
    """Return the addition to the scores that hides padding, and a packed row's other texts.

    Args:
      lengths: lengths of padded rows, int32 [B], or of packed ones, int32 [B, M].
      width: L.

    Returns:
      float32 [B, 1, keys, 1] of padded rows, [B, 1, keys, queries] of packed ones: 0 where a query reads the key, -1e9
      where it does not. (Not -inf: a row of length 0 would become NaN, and NaN spreads through the gradient even where
      the row is masked.)
    """
    if are_packed(lengths):
        text = text_numbers(lengths, width)
        return jnp.where(text[:, :, None] == text[:, None, :], 0.0, -1e9)[:, None]
    real = jnp.arange(width) < lengths[:, None]
    return jnp.where(real, 0.0, -1e9)[:, None, :, None]


def text_tiles(lengths: jax.Array, width: int, block: int) -> jax.Array:
    """Return the blocks of the texts of packed rows, for kernels that run one program for each.

    Args:
      lengths: lengths of packed rows, int32 [B, M].
      width: L.
      block: tokens of a block.

    Returns:
      int32 [B, n, 5], for each block where its text starts, its number in the text, the text's length, the number of
      places that it may write, and the text's number. Blocks of the unfilled end have a length of 0, and unused ones
      nothing to write either; both have the number of some text.
    """
    texts = lengths.shape[1]
    starts = text_starts(lengths)
    sizes = jnp.concatenate([lengths, width - starts[:, -1:]], axis=1)
    counts = (sizes + block - 1) // block
    number = jnp.arange(width // block + texts + 1)
    text = text_numbers(counts, len(number))  # [B, n], M + 1 of unused blocks
    facts = jnp.stack([starts, text_starts(counts)[:, :-1], sizes], axis=-1)  # of each text, [B, M + 1, 3]
    start, first, size = jnp.unstack(jnp.take_along_axis(facts, jnp.minimum(text, texts)[..., None], axis=1), axis=-1)
    size = jnp.where(text > texts, 0, size)
    tiles = start, number - first, jnp.where(text < texts, size, 0), size, jnp.minimum(text, texts - 1)
    return jnp.stack(tiles, axis=-1).astype(jnp.int32)
