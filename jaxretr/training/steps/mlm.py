"""Masked language modelling (Devlin et al. 2019): 15% of the tokens, of these 80% masked, 10% random, 10% kept."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.losses.language_models import mlm_loss
from jaxretr.models.backbones.layers import Params, bind, define, matmuls_in
from jaxretr.models.backbones.masked_lm import MaskedLm, MaskedLmShape
from jaxretr.training.steps.token_step import SumLoss


class MaskedBatch(NamedTuple):
    """Rows with masks, and the original tokens under the masks."""

    tokens: np.ndarray  # [B, L]
    lengths: np.ndarray  # int32 [B]
    positions: np.ndarray  # int32 [B, P]: where to predict; unused places are 0
    labels: np.ndarray  # int32 [B, P]
    weights: np.ndarray  # float32 [B, P]: 1 for a prediction, 0 for an unused place


def prediction_places(width: int, rate: float) -> int:
    """Return P, the number of places for the predictions of a row of so many tokens."""
    return min(width, int(np.ceil(rate * width + 3 * np.sqrt(rate * (1 - rate) * width))))


def mask(
    rng: np.random.Generator,
    tokens: np.ndarray,
    lengths: np.ndarray,
    *,
    rate: float,
    mask_id: int,
    special: np.ndarray,
    vocab_size: int,
) -> MaskedBatch:
    """Draw the predictions of a batch.

    Args:
      rng: source of all randomness; another draw masks other tokens.
      tokens: ids, [B, L].
      lengths: int [B].
      rate: share of the ordinary tokens to predict.
      mask_id: the id of [MASK].
      special: ids that are never predicted nor drawn as random tokens ([CLS], [SEP], ...).
      vocab_size: V.

    Returns:
      The masked batch; P is three standard deviations above the mean number of a full row's draws. Any draws of a row
      beyond that, once in a thousand rows, are dropped at random.
    """
    batch, width = tokens.shape
    ordinary = (np.arange(width) < lengths[:, None]) & ~np.isin(tokens, special)
    places = prediction_places(width, rate)
    # Each chosen token gets a random rank; the first P of a row are predicted.
    rank = np.where(ordinary & (rng.random((batch, width)) < rate), rng.random((batch, width)), 2.0)
    positions = np.argsort(rank, axis=1)[:, :places]
    # Each place: 1 if it is used, the original token, and a draw that decides the shown token; all [B, P].
    weights = (np.take_along_axis(rank, positions, axis=1) < 2.0).astype(np.float32)
    labels = np.take_along_axis(tokens, positions, axis=1).astype(np.int32)
    kind = rng.random((batch, places))
    words = np.setdiff1d(np.arange(vocab_size), special)
    shown = np.where(kind < 0.8, mask_id, np.where(kind < 0.9, rng.choice(words, (batch, places)), labels))
    masked = tokens.copy()
    # An unused place keeps its token.
    np.put_along_axis(masked, positions, np.where(weights > 0, shown, labels).astype(tokens.dtype), axis=1)
    return MaskedBatch(masked, lengths.astype(np.int32), positions.astype(np.int32), labels, weights)


def masked_lm_loss(shape: MaskedLmShape, dtype: Any) -> SumLoss:
    """Return the cross-entropy of the tokens under the masks, summed over the predictions of a MaskedBatch."""
    graph, _ = define(lambda rngs: MaskedLm(shape, dtype=dtype, rngs=rngs))

    def loss(params: Params, batch: MaskedBatch, keys: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        with matmuls_in(dtype):
            logits = bind(graph, params)(batch.tokens, batch.lengths, batch.positions, keys)
        return mlm_loss(logits, jnp.asarray(batch.labels), jnp.asarray(batch.weights))

    return loss
