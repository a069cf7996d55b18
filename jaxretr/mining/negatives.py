"""Hard negatives: the choice of ranked passages that are used as wrong answers to a question.

DPR takes them from BM25's hits without an answer (Karpukhin et al. 2020, section 3.2). A passage that a good ranking
places near a positive is often an unjudged positive, hence the other filters: a window of ranks, and margins below the
score of the positive, absolute or relative (NV-Retriever, arXiv 2407.15831, "TopK-MarginPos" and "TopK-PercPos").
"""

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from jaxretr.data.question_identity import joined_by_text, without_own
from jaxretr.data.questions import Question
from jaxretr.evaluate.answers import AnswerMatcher, Match
from jaxretr.runtime.errors import UsageError, UserError, check_choice, is_number, require_at_least

log = logging.getLogger(__name__)

# Reasons why a ranked passage is not a negative, in the order of the checks: it counts under the first that applies.
REASONS = {
    "outside_ranks": "outside the window of ranks",
    "surplus": "after enough negatives",
    "positive": "positives of the question",
    "duplicate": "identical to a positive or to the question",
    "zero_score": "without a word of the question",
    "margin": "scored too close to the positive or above it",
    "answer": "that contain an answer",
    "relabelled": "that the scorer finds so good that they are positives now",
    "scorer": "that the scorer finds too close to the positive or better",
}

# Last ranks of the intervals of a report's histogram.
_LAST_RANKS = (1, 3, 10, 30, 100, 300, 1000)

# Runs of other programs list passages that share no word with the question. Their score of 0 may be written as a few
# steps of float32 below 0, since all scores of a question in a TREC run differ (see `write_trec`).
_NEXT_TO_ZERO = float(np.finfo(np.float32).tiny)


class Passages(Protocol):
    """Passages as columns of N rows."""

    @property
    def titles(self) -> Sequence[str]: ...
    @property
    def texts(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Filters:
    """The conditions under which a ranked passage is a negative.

    Attributes:
      negatives: the most negatives of a question; the best ranked are taken.
      first_rank: the first rank of the window, counted from 1.
      last_rank: the last rank of the window, inclusive.
      margin: a negative scores at most the best positive's score less this; None: no such filter.
      relative_margin: a negative scores at most the best positive's score less this share of its magnitude; None: no
        such filter.
      answers: how to match answers in the passages' texts (see `jaxretr.evaluate.answers`); None: no such filter.
    """

    negatives: int = 30
    first_rank: int = 1
    last_rank: int = 100
    margin: float | None = None
    relative_margin: float | None = None
    answers: Match | None = "string"

    def __post_init__(self) -> None:
        require_at_least(1, negatives=self.negatives, first_rank=self.first_rank, last_rank=self.last_rank)
        check_choice(get_args(Match), answers=self.answers)
        if self.first_rank > self.last_rank:
            raise UsageError(
                f"ranks {self.first_rank}:{self.last_rank}: not a window; give the first and the last, from 1"
            )
        if self.margin is not None and not is_number(self.margin):
            raise UsageError(f"margin={self.margin!r}: must be a finite number")
        if self.relative_margin is not None and not (
            is_number(self.relative_margin) and 0 <= self.relative_margin <= 1
        ):
            raise UsageError(f"relative_margin={self.relative_margin!r}: must be a share between 0 and 1")

    def ceiling(self, positive_scores: NDArray[np.float32]) -> float:
        """Return the highest score that a negative may have, given those of the positives, float32 [P], nan: unknown."""
        if self.margin is None and self.relative_margin is None:
            return math.inf
        known = positive_scores[~np.isnan(positive_scores)]
        if not len(known):
            return -math.inf  # No passage is known to score far enough below.
        best = float(known.max())
        absolute = math.inf if self.margin is None else best - self.margin
        # A share of the magnitude: dense scores may be negative, and the ceiling must still be below the positive.
        relative = math.inf if self.relative_margin is None else best - self.relative_margin * abs(best)
        return min(absolute, relative)


@dataclass(frozen=True)
class Ranking:
    """The passages found for one question.

    Attributes:
      rows: corpus rows, integers [K], best first; -1 after the last hit.
      scores: their scores, float32 [K].
      positive_scores: the score of each positive of the question, float32 [P], found or not; nan if unknown.
    """

    rows: NDArray[np.integer]
    scores: NDArray[np.float32]
    positive_scores: NDArray[np.float32]


@dataclass(frozen=True)
class Mined:
    """The negatives of one question.

    Attributes:
      rows: corpus rows, integers [n], best ranked first.
      scores: their scores, float32 [n].
      dropped: reason (of `REASONS`) -> number of ranked passages; together with the n kept these are all the hits.
      relabelled: the rows among them that are positives, best ranked first.
      relabelled_scores: their scores, float32.
      positive_scores: the score of each positive, as in the ranking.
      positive_rank: the rank of the first positive, from 1, or None if none was found.
      positive_unknown: whether the ranking has a score for none of the positives.
    """

    rows: NDArray[np.integer]
    scores: NDArray[np.float32]
    dropped: dict[str, int]
    positive_scores: NDArray[np.float32]
    positive_rank: int | None
    positive_unknown: bool
    relabelled: NDArray[np.integer] = field(default_factory=lambda: np.zeros(0, np.int32))
    relabelled_scores: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))


def hard_negatives(
    questions: Iterable[Question],
    positives: Iterable[Sequence[int]],
    rankings: Iterable[Ranking],
    passages: Passages,
    filters: Filters,
) -> Iterator[Mined]:
    """Yield the hard negatives of each question: no positive of any question with its text is one, nor is the text itself.

    Args:
      questions: B questions, with or without answers.
      positives: the rows of each question's positives, [B][P].
      rankings: B rankings, taken one by one, so that they need not fit in memory.
      passages: the corpus of N rows, to which the positives' and the rankings' rows point.

    Raises:
      ValueError: the numbers of questions, positives and rankings differ.
    """
    matcher = None if filters.answers is None else AnswerMatcher(filters.answers)
    questions, positives = list(questions), list(positives)
    known = joined_by_text([question.text for question in questions], positives)
    for question, of_question, of_text, ranking in zip(questions, positives, known, rankings, strict=True):
        yield _mine_one(question, of_question, of_text, ranking, passages, filters, matcher)


def _mine_one(
    question: Question,
    positives: Sequence[int],
    known: Sequence[int],
    ranking: Ranking,
    passages: Passages,
    filters: Filters,
    matcher: AnswerMatcher | None,
) -> Mined:
    titles, texts = passages.titles, passages.texts
    hits = int(np.count_nonzero(ranking.rows >= 0))
    rows = ranking.rows[:hits].tolist()
    scores = ranking.scores[:hits].tolist()
    positive_rows = {int(row) for row in positives}
    known_rows = positive_rows.union(known)
    known_contents = {(titles[row], texts[row]) for row in known_rows}
    ceiling = filters.ceiling(ranking.positive_scores)

    def reason_against(row: int, score: float) -> str | None:
        if row in known_rows:
            return "positive"
        if (titles[row], texts[row]) in known_contents or (texts[row] == question.text and question.text.strip()):
            return "duplicate"
        if abs(score) < _NEXT_TO_ZERO:
            return "zero_score"
        if score > ceiling:
            return "margin"
        # Checked last, because it costs more than all the others.
        if matcher is not None and question.answers and matcher.has_answer(texts[row], question.answers):
            return "answer"
        return None

    window = range(len(rows))[filters.first_rank - 1 : filters.last_rank]
    dropped = dict.fromkeys(REASONS, 0)
    dropped["outside_ranks"] = len(rows) - len(window)
    kept: list[int] = []
    for place in window:
        if len(kept) == filters.negatives:
            dropped["surplus"] = window.stop - place
            break
        reason = reason_against(rows[place], scores[place])
        if reason is None:
            kept.append(place)
        else:
            dropped[reason] += 1
    ranks = (rank for rank, row in enumerate(rows, start=1) if row in positive_rows)
    positive_rank = next(ranks, None)
    if positive_rank is not None and abs(scores[positive_rank - 1]) < _NEXT_TO_ZERO:
        positive_rank = None  # The positive only pads the list; it was not found.
    its_scores = ranking.positive_scores
    unknown = bool(np.isnan(its_scores).all())
    return Mined(ranking.rows[kept], ranking.scores[kept], dropped, its_scores, positive_rank, unknown)


def warn_without_hits(name: object, run: Mapping[str, Mapping[str, float]], ids: Sequence[str], what: str) -> None:
    """Warn of questions without a hit.

    Args:
      name: the run's name in messages.
      run: question id -> passage id -> score.
      ids: the ids of the questions.
      what: the questions in messages, for instance "queries".

    Raises:
      UserError: no question has a hit.
    """
    without = [id for id in ids if not run.get(id)]
    if len(without) == len(ids):
        raise UserError(f"{name}: has hits for none of the {len(ids)} {what}; check that the ids match")
    if without:
        log.warning("%s: no hits for %d of %d %s (the first: '%s')", name, len(without), len(ids), what, without[0])


def rankings_of_run(
    run: Mapping[str, Mapping[str, float]],
    questions: Iterable[Question],
    positives: Iterable[Sequence[int]],
    row_of_id: Mapping[str, int],
    depth: int,
    own: Collection[str] = (),
) -> Iterator[Ranking]:
    """Yield each question's ranking in a run: by score, equal scores by row, lowest first.

    Args:
      run: question id -> passage id -> score; the corpus has all its passages.
      questions: B questions; one that the run lacks gets an empty ranking.
      positives: the rows of all positives of each question, [B][P]; the score of one that the run lacks is nan.
      row_of_id: passage id -> corpus row.
      depth: passages to take for each question.
      own: ids of the questions that are passages themselves, which are not ranked.
    """
    run = without_own(run, own)
    for question, of_question in zip(questions, positives, strict=True):
        score_of_row = {row_of_id[id]: score for id, score in run.get(question.id, {}).items()}
        rows = np.array(sorted(score_of_row), np.int64)
        scores = np.array([score_of_row[row] for row in rows.tolist()], np.float32)
        best = np.argsort(-scores, kind="stable")[:depth]
        of_positives = np.array([score_of_row.get(int(row), math.nan) for row in of_question], np.float32)
        yield Ranking(rows[best], scores[best], of_positives)


@dataclass
class MiningReport:
    """The numbers of passages that were kept and filtered, over all questions.

    Attributes:
      depth: passages ranked for a question.
      questions: number of questions.
      negatives: number of negatives -> number of questions that have this many.
      dropped: reason (of `REASONS`) -> ranked passages.
      positive_scores_unknown: questions without a known positive score; a margin drops all their passages.
      ranks: rank of the best positive, None below `depth` -> questions.
    """

    depth: int
    questions: int = 0
    negatives: Counter[int] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(REASONS, 0)))
    positive_scores_unknown: int = 0
    ranks: Counter[int | None] = field(default_factory=Counter)

    def add(self, mined: Mined) -> None:
        """Count one question."""
        self.questions += 1
        self.negatives[len(mined.rows)] += 1
        self.dropped.update(mined.dropped)
        self.positive_scores_unknown += mined.positive_unknown
        self.ranks[mined.positive_rank] += 1

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON; `dropped` and the negatives together are all the passages ranked."""
        total = sum(number * questions for number, questions in self.negatives.items())
        of_all = max(1, self.questions)
        found = self.questions - self.ranks[None]
        edges = [0, *(last for last in _LAST_RANKS if last < self.depth), self.depth]
        histogram = {
            f"{before + 1}-{last}" if last > before + 1 else str(last): sum(
                self.ranks[rank] for rank in range(before + 1, last + 1)
            )
            for before, last in pairwise(edges)
        }
        histogram["lower"] = self.ranks[None]
        return {
            "questions": self.questions,
            "negatives": {
                "total": total,
                "mean": total / of_all,
                "questions_by_number": {str(number): self.negatives[number] for number in sorted(self.negatives)},
            },
            "dropped": {reason: self.dropped[reason] for reason in REASONS},
            "questions_without_negatives": self.negatives[0],
            "questions_without_positive_score": self.positive_scores_unknown,
            "positive_in_top": {
                "depth": self.depth,
                "questions": found,
                "share": found / of_all,
            },
            "best_positive_ranks": {name: number for name, number in histogram.items() if number},
        }
