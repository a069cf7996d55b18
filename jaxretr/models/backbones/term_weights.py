"""Weights of the vocabulary's entries that a text's own tokens have, without expansion, and those of questions that no
encoder reads."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.models.backbones.layers import Params, linear
from jaxretr.models.backbones.packed_rows import are_packed, of_tokens, text_numbers, token_places

TERM_HEAD = "term_head"
"""Branch of a tower's parameters that holds the linear layer from a token's state to its weight (UniCOIL)."""

QUERY_WEIGHTS = "query_weights"
"""Branch of the question tower's parameters, the only one, where a question's words have fixed weights: float32 [V]."""


def largest_of_terms(
    values: jax.Array, tokens: jax.Array, lengths: jax.Array, counted: jax.Array, size: int
) -> jax.Array:
    """Return each text's weight of each vocabulary entry: the largest of its tokens that are this entry, else 0.

    Args:
      values: the tokens' weights, not negative, float32 [B, L].
      tokens: token ids, integers [B, L], padded or packed.
      lengths: int32 [B], or of packed rows [B, M].
      counted: tokens that may give a weight, bool [B, L]; padding gives none anyway.
      size: V.

    Returns:
      float32 [B, V], of packed rows [B * M, V].
    """
    b, width = tokens.shape
    texts = lengths.shape[1] if are_packed(lengths) else 1
    filled = jnp.arange(width) < (lengths.sum(axis=1, keepdims=True) if are_packed(lengths) else lengths[:, None])
    counted = counted & filled
    # The row of the result that each token is of; behind the last one for what gives no weight.
    text = text_numbers(lengths, width) if are_packed(lengths) else jnp.zeros((b, width), jnp.int32)
    same = (tokens[:, :, None] == tokens[:, None]) & (text[:, :, None] == text[:, None]) & counted[:, None]
    largest = jnp.where(same, values[:, None], 0.0).max(axis=-1)
    # Each entry is written once, where it comes first: sums of several would be in any order.
    is_first = counted & ~(same & (jnp.arange(width) < jnp.arange(width)[:, None])).any(axis=-1)
    row = jnp.where(is_first, jnp.arange(b)[:, None] * texts + text, b * texts)
    return jnp.zeros((b * texts, size), jnp.float32).at[row, tokens].add(largest, mode="drop")


def question_weights(weights: jax.Array, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
    """Return the vectors of questions whose words have fixed weights (Geng et al. 2024, arXiv 2411.04403, equation 6).

    w_v = relu(weights_v) of the entries that the question has, however often, and 0 of all others.

    Args:
      weights: float32 [V].
      tokens: token ids [CLS] q [SEP], integers [B, L], padded or packed; the first and the last one have no weight.
      lengths: int32 [B], or of packed rows [B, M].

    Returns:
      float32 [B, V], of packed rows [B * M, V].
    """
    width = tokens.shape[1]
    place = token_places(lengths, width)
    last = (of_tokens(lengths, lengths, width) if are_packed(lengths) else lengths[:, None]) - 1
    counted = (place > 0) & (place < last)
    return largest_of_terms(jax.nn.relu(weights)[tokens], tokens, lengths, counted, len(weights))


def new_term_head(size: int) -> Params:
    """Return a head for states [D] with which every token weighs 1, so that texts are compared by the words they share."""
    return {"kernel": jnp.zeros((size, 1), jnp.float32), "bias": jnp.ones(1, jnp.float32)}


def unicoil_weights(
    head: Params, states: jax.Array, tokens: jax.Array, lengths: jax.Array, ignored: Sequence[int], size: int
) -> jax.Array:
    """Return UniCOIL's weights of the words of each text (Lin & Ma 2021, arXiv 2106.14807, section 2).

    w_v = max over the text's tokens i that are v of relu(W h_i + b); 0 of all words that it has not.

    Args:
      head: kernel [D, 1] and bias [1].
      states: states of the last layer, float32 [B, L, D].
      tokens: token ids, integers [B, L], padded or packed.
      lengths: int32 [B], or of packed rows [B, M].
      ignored: ids that never have a weight, such as [CLS].
      size: V.

    Returns:
      float32 [B, V], of packed rows [B * M, V].
    """
    values = jax.nn.relu(linear(head, states))[..., 0]
    counted = ~jnp.isin(tokens, jnp.array(ignored, jnp.int32))
    return largest_of_terms(values, tokens, lengths, counted, size)


def questions_on_host(weights: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return `question_weights` in numpy for padded rows, a function of (tokens, lengths)."""
    weights = np.maximum(np.asarray(weights, np.float32), 0)

    def embed_rows(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        place, found = np.arange(tokens.shape[1]), np.zeros((len(tokens), len(weights)), np.float32)
        rows, places = np.nonzero((place > 0) & (place < lengths[:, None] - 1))
        ids = tokens[rows, places]
        found[rows, ids] = weights[ids]
        return found

    return embed_rows
