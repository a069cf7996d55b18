"""Pretraining of a small scorer: a language model of texts that belong to a passage, and an order of passages.

An example is a passage and a target text; the scorer learns p(target | passage). Two kinds of targets:

- *made from the passage*: a window of it, thinned out to between 30% and 100% of its words. In a quarter of the
  examples the window is cut out of the passage that the encoder sees (a held-out piece: topic), in the others it
  stays (copying, which is what tells a passage with a question's words from one without).
- *a question* known to be answered by the passage, where such pairs are given.

Likelihood alone does not make a ranker of a small model: most of what it learns holds for all passages alike. So a
question may also come with several passages, its own first, and the loss then includes the cross-entropy of its own
among them, by the scores that ART asks for (the mean log-probabilities of its tokens).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.losses.language_models import passage_lm_loss, ranking_losses
from jaxretr.models.backbones.layers import Params, bind, matmuls_in
from jaxretr.models.backbones.t5 import T5Config, T5Model
from jaxretr.models.scorers.t5_scorer import Prompt, encoder_input, graph, mean_log_prob
from jaxretr.training.steps.token_step import SumLoss


class Example(NamedTuple):
    """A batch of token rows, each padded on the right, with its lengths."""

    passages: np.ndarray  # [B, M]; [G, C, M] of questions with C passages each
    passage_lengths: np.ndarray  # int32 [B]; [G, C]
    targets: np.ndarray  # [B, T]
    target_lengths: np.ndarray  # int32 [B]


class ScorerBatch(NamedTuple):
    """Examples that a step learns from."""

    examples: Example
    ranked: Example | None
    """Questions with several passages each, of which the first is their own."""


def scorer_loss(
    t5: T5Config, prompt: Prompt, dtype: Any, *, ranked_temperature: float, ranked_weight: float
) -> SumLoss:
    """Return the summed cross-entropy of a ScorerBatch: of its target tokens, and of its questions' own passages.

    A ranked question's loss is, with s_j the mean log-probability of its tokens given its passage j and tau the
    temperature, -w log(exp(s_0 / tau) / sum_j exp(s_j / tau)) - sum_t log p(question_t | question_<t, passage 0).

    Args:
      ranked_temperature: tau.
      ranked_weight: w.
    """
    model = graph(t5, dtype)

    def log_probs_of(bound: T5Model, passages: jax.Array, lengths: jax.Array, targets: jax.Array) -> jax.Array:
        tokens, lengths = encoder_input(prompt, passages, lengths)
        return bound.target_log_probs(targets, bound.read(tokens, lengths))

    def loss(params: Params, batch: ScorerBatch, _: Any) -> tuple[jax.Array, jax.Array]:
        bound = bind(model, params)
        passages, lengths, targets, target_lengths = map(jnp.asarray, batch.examples)
        with matmuls_in(dtype):
            log_probs = log_probs_of(bound, passages, lengths, targets)
            total, count = passage_lm_loss(log_probs, target_lengths)
            if batch.ranked is None:
                return total, count
            # G questions with C passages each, as G C pairs; log-probabilities of the questions' tokens, [G, C, T].
            passages, lengths, targets, target_lengths = map(jnp.asarray, batch.ranked)
            g, c, width = passages.shape
            pairs = passages.reshape(g * c, width), lengths.reshape(-1), jnp.repeat(targets, c, axis=0)
            ranked = log_probs_of(bound, *pairs).reshape(g, c, -1)
        scores = mean_log_prob(ranked, jnp.repeat(target_lengths[:, None], c, axis=1))  # [G, C]
        order = ranking_losses(scores, ranked_temperature).sum()
        of_questions, tokens = passage_lm_loss(ranked[:, 0], target_lengths)
        return total + of_questions + ranked_weight * order, count + tokens

    return loss


def thinned_windows(
    rng: np.random.Generator,
    passages: np.ndarray,
    lengths: np.ndarray,
    *,
    window: int,
    target_length: int,
    held_out: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw a target from each passage.

    Args:
      rng: source of all randomness.
      passages: token ids, [B, M].
      lengths: int [B]; every passage needs at least one token.
      window: the longest window that a target is drawn from, in tokens.
      target_length: T, the most tokens that a target may have.
      held_out: the share of examples whose window is removed from the passage.

    Returns:
      (passages [B, M], lengths int32 [B], targets [B, T], target lengths int32 [B]).
    """
    batch, width = passages.shape
    position = np.arange(width)
    # A window of random length and start in each row, bool [B, M].
    span = np.minimum(rng.integers(4, window + 1, batch), lengths)
    start = (rng.random(batch) * (lengths - span + 1)).astype(np.int64)
    inside = (position >= start[:, None]) & (position < (start + span)[:, None])
    # Targets: a random share of the window's tokens, at most `target_length` of them.
    keep_rate = rng.uniform(0.3, 1.0, (batch, 1))
    kept = inside & (rng.random((batch, width)) < keep_rate)
    kept[np.arange(batch), start] |= ~kept.any(axis=1)  # never an empty target
    kept &= np.cumsum(kept, axis=1) <= target_length
    targets, target_lengths = compact(passages, kept)
    # Rows without their window, where it is held out and enough of the passage is left.
    removed = inside & ((rng.random(batch) < held_out) & (lengths > 2 * span))[:, None]
    passages, lengths = compact(passages, (position < lengths[:, None]) & ~removed)
    return passages, lengths, targets[:, :target_length], target_lengths


def compact(tokens: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Move the kept tokens of each row to its front, in order, and set the rest to 0. Returns (rows, lengths int32)."""
    order = np.argsort(~kept, axis=1, kind="stable")
    lengths = kept.sum(axis=1).astype(np.int32)
    moved = np.take_along_axis(tokens, order, axis=1)
    return np.where(np.arange(tokens.shape[1]) < lengths[:, None], moved, 0).astype(tokens.dtype), lengths
