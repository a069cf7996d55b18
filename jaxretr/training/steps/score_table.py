"""The teacher's scores from earlier steps: the teacher is frozen, so that they never change.

For each training question the table keeps passages with their scores, as an ordered list; the order decides which
passages are replaced once it is full. The questions are split over the devices; call everything here inside the
shard_map.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.config import Replacement
from jaxretr.runtime.parallel.mesh import DATA

EMPTY = -1
"""A place of the table without a passage."""


@jax.tree_util.register_dataclass
@dataclass
class TableState:
    """Scores of passages by training question, sharded by row; rows after the last question stay empty."""

    rows: jax.Array
    """Corpus rows, int32 [Q, C]; EMPTY after a question's last."""
    scores: jax.Array
    """The teacher's scores of these rows, float32 [Q, C]."""


def look_up(table: TableState, numbers: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Read the scores of a step's pairs.

    Args:
      table: this device's part of the table.
      numbers: numbers of the whole batch's questions, int32 [B], the same everywhere.
      rows: their passages, int32 [B, K], the same everywhere.

    Returns:
      known bool [B, K] and scores float32 [B, K], 0 where a pair is not known; the same everywhere.
    """
    mine, kept_rows, kept_scores = _of_questions(table, numbers)
    same = (kept_rows[:, None] == rows[..., None]) & mine[:, None, None]  # [B, K, C]
    found = same.any(axis=-1).astype(jnp.int32), jnp.where(same, kept_scores[:, None], 0.0).sum(axis=-1)
    # Each question is on one device, and a passage stands in its row once: the sums only move the scores.
    known, scores = lax.psum(found, DATA)
    return known > 0, scores


def remember(
    table: TableState,
    numbers: jax.Array,
    rows: jax.Array,
    scores: jax.Array,
    known: jax.Array,
    replacement: Replacement,
) -> TableState:
    """Put the scores of a step into the table.

    If a question stands in the batch twice, its first place counts.

    Args:
      table, numbers: see `look_up`.
      rows: their passages, no two of a question the same, int32 [B, K], the same everywhere; K is at most C.
      scores: their scores, float32 [B, K], the same everywhere.
      known: pairs that `look_up` found, bool [B, K].
      replacement: rule by which a full row of the table loses a score, see `jaxretr.config.ScoreTable`.
    """
    mine, kept_rows, kept_scores = _of_questions(table, numbers)
    all_rows = jnp.concatenate([rows, kept_rows], axis=1)  # [B, K + C]
    all_scores = jnp.concatenate([scores, kept_scores], axis=1)
    # A known passage occurs twice. The order by last retrieval keeps its new place, in front; the others its old one.
    if replacement == "unused":
        again = (kept_rows[..., None] == rows[:, None]).any(axis=-1)
        gone = jnp.concatenate([jnp.zeros_like(known), again], axis=1)
    else:
        gone = jnp.concatenate([known, jnp.zeros(kept_rows.shape, bool)], axis=1)
    gone |= all_rows == EMPTY
    # The sort is stable: among equals new ones come first, and then the order of the table.
    first = -all_scores if replacement == "worst" else jnp.zeros_like(all_scores)
    order = jnp.argsort(jnp.where(gone, jnp.inf, first), axis=1, stable=True)[:, : kept_rows.shape[1]]
    # The C passages that stay, with their scores, [B, C].
    chosen = jnp.take_along_axis(jnp.where(gone, EMPTY, all_rows), order, axis=1)
    values = jnp.take_along_axis(jnp.where(gone, 0.0, all_scores), order, axis=1)
    # Each question's row of this device's part, [B]; n for other devices' questions and for repeats in the batch.
    n = len(table.rows)
    earlier = jnp.tril(numbers[:, None] == numbers[None, :], -1).any(axis=1)
    place = jnp.where(mine & ~earlier, numbers - lax.axis_index(DATA) * n, n)  # n is out of bounds: dropped
    return TableState(
        table.rows.at[place].set(chosen, mode="drop"),
        table.scores.at[place].set(values, mode="drop"),
    )


def _of_questions(table: TableState, numbers: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return whether this device has each question, bool [B], and its row of the table, [B, C], where it has it."""
    n = len(table.rows)
    local = numbers - lax.axis_index(DATA) * n
    place = jnp.clip(local, 0, n - 1)
    return (local >= 0) & (local < n), table.rows[place], table.scores[place]
