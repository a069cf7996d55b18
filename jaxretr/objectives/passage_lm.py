"""Pretraining of a small scorer: a language model of texts that belong to a passage.

An example is a passage and a target text; the scorer learns p(target | passage). Two kinds of targets:

- *made from the passage*: a window of it, thinned out to between 30% and 100% of its words. In a quarter of the
  examples the window is cut out of the passage that the encoder sees (a held-out piece: topic), in the others it
  stays (copying, which is what tells a passage with a question's words from one without).
- *a question* known to be answered by the passage, where such pairs are given.
"""

from typing import NamedTuple

import numpy as np


class Example(NamedTuple):
    """A batch of token rows, each padded on the right, with its lengths."""

    passages: np.ndarray  # [B, M]
    passage_lengths: np.ndarray  # int32 [B]
    targets: np.ndarray  # [B, T]
    target_lengths: np.ndarray  # int32 [B]


def thinned_windows(
    rng: np.random.Generator,
    passages: np.ndarray,
    lengths: np.ndarray,
    *,
    window: int,
    target_length: int,
    held_out: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draws a target from each passage.

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
    span = np.minimum(rng.integers(4, window + 1, batch), lengths)
    start = (rng.random(batch) * (lengths - span + 1)).astype(np.int64)
    inside = (position >= start[:, None]) & (position < (start + span)[:, None])
    keep_rate = rng.uniform(0.3, 1.0, (batch, 1))
    kept = inside & (rng.random((batch, width)) < keep_rate)
    kept[np.arange(batch), start] |= ~kept.any(axis=1)  # never an empty target
    kept &= np.cumsum(kept, axis=1) <= target_length
    targets, target_lengths = compact(passages, kept)
    removed = inside & ((rng.random(batch) < held_out) & (lengths > 2 * span))[:, None]
    passages, lengths = compact(passages, (position < lengths[:, None]) & ~removed)
    return passages, lengths, targets[:, :target_length], target_lengths


def compact(tokens: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Moves the kept tokens of each row to its front, in order; the rest becomes 0. Returns (rows, lengths int32)."""
    order = np.argsort(~kept, axis=1, kind="stable")
    lengths = kept.sum(axis=1).astype(np.int32)
    moved = np.take_along_axis(tokens, order, axis=1)
    return np.where(np.arange(tokens.shape[1]) < lengths[:, None], moved, 0).astype(tokens.dtype), lengths
