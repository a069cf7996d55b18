"""The questions that the index of a database is tuned and certified with, drawn from a store or given."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes import question_sets
from jaxretr.indexes.certified.tuning import ladder
from jaxretr.indexes.engine_certificate import FEWEST_ROWS, MOST_QUESTIONS, Asked
from jaxretr.indexes.question_sets import Questions
from jaxretr.indexes.source import IndexSource

# pgvector's own default.
_NARROWEST = 40

VERIFIED_QUESTIONS = 200
"""The number of questions that `verify` asks again."""


@dataclass(frozen=True)
class _Passages:
    """A store's rows, one by one."""

    source: IndexSource

    @property
    def ids(self) -> Sequence[str]:
        return self.source.ids

    def __len__(self) -> int:
        return len(self.source.ids)

    def vector(self, row: int) -> NDArray[np.float32]:
        return self.source.store.rows(row, row + 1)[0]


def asked_of(source: IndexSource, questions: np.ndarray | None, seed: int) -> Asked | None:
    """Draw the questions, and find their exact neighbours in the store; None for too few passages.

    Args:
      source: the passages.
      questions: the questions' vectors, float32 [B, D]; passages stand in by default.
      seed: the seed of the draw.
    """
    rows = len(source.ids)
    if rows < FEWEST_ROWS:
        return None
    if questions is None:
        drawn = question_sets.stand_ins(_Passages(source), seed, MOST_QUESTIONS)
    else:
        drawn = question_sets.split(questions, seed, MOST_QUESTIONS)
    row_of = {name: row for row, name in enumerate(source.ids)}
    return Asked.of(drawn, row_of, source.pieces(), rows)


def stored(questions: Questions) -> tuple[list[str | None], bytes]:
    """The certification questions in the form that is kept: ids of the passages that they are, and vectors as bytes."""
    part = questions.certify
    return list(questions.own[part]), np.ascontiguousarray(questions.vectors[part], "<f4").tobytes()


def widths(k: int, most: int) -> list[int]:
    """The widths of a graph's search to try.

    Narrower ones save little, and questions may be farther from the passages than those that they were tuned on.
    """
    return ladder(min(max(k, _NARROWEST), most), most)
