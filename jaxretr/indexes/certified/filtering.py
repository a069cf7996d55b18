"""Filtered searches of a `ScannIndex`: how they are answered where a share of the rows is allowed, and with what recall.

The engine proposes candidates from more leaves than without a filter, and those that are not allowed are dropped. Where
the allowed rows are so few that scoring all of them is faster, that is done; which it is was timed when the index was
tuned. A filter seldom has to do with chance, so that the recall must be certain with each of three kinds of filters:

  random       rows drawn at random, the same for all questions
  related      the rows nearest to a passage, which of a few is the one nearest to the question: many of its neighbours
               are allowed
  unrelated    the same rows, for any question: its allowed neighbours may be in leaves far away
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes import question_sets
from jaxretr.indexes.certified.exact_scores import Anywhere, OnePass
from jaxretr.indexes.certified.layout import Facts
from jaxretr.indexes.certified.rows import Rows
from jaxretr.indexes.certified.searcher import Searcher
from jaxretr.indexes.certified.tuning import FilterSetting, Setting
from jaxretr.indexes.measuring import GroundTruth
from jaxretr.indexes.question_sets import Questions
from jaxretr.indexes.recall import FilterLine, Recall, certain_recall
from jaxretr.indexes.source import masked
from jaxretr.runtime.parallel import memory

# Shares of the rows that are tuned and certified. A search with a share between two takes the setting of the lower one.
SHARES = (1 / 2, 1 / 10, 1 / 30, 1 / 100)

# With fewer rows, and fewer allowed ones for each result, all that are allowed are scored, and nothing is measured.
LEAST_ROWS = 20_000
_LEAST_PER_RESULT = 4

_CENTRES = 8
_QUESTIONS = 500

# Leaves of the next attempt.
_STEP = 1.6

# Questions and rounds of a timing, which ends after so long if a few were timed.
_TIMED, _LEAST_TIMED, _ROUNDS, _TIMING_SECONDS = 24, 4, 3, 0.5

# Parts of the vectors' file, of which timed searches read one: filters and copies of allowed rows take memory, too.
_PARTS = 4

Kind = Literal["random", "related", "unrelated"]


class Measurable(Protocol):
    """The parts of a `ScannIndex` that tuning and certifying needs."""

    facts: Facts
    rows: Rows
    searcher: Searcher

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Case:
    """Questions that are searched with the same filter, and their true neighbours.

    Attributes:
      kind: the kind of filter.
      allowed: the rows that pass the filter, bool [N].
      truth: the questions, with their exact allowed neighbours.
    """

    kind: Kind
    allowed: NDArray[np.bool_]
    truth: GroundTruth


def tuned(index: Measurable, questions: Questions, settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Add to each setting how it answers filtered searches; nothing if its target is not reached without a filter."""
    filters: dict[float, list[FilterSetting]] = {setting.target: [] for setting in settings}
    candidates = [setting for setting in settings if setting.reached]
    for share in SHARES:
        if not candidates or not _enough(index, share):
            break
        cases = _cases(index, questions, questions.tune, share)
        exact_seconds = _exact_seconds(index, cases)
        for setting in candidates:
            before = filters[setting.target]
            leaves = before[-1].leaves if before else setting.leaves
            filters[setting.target].append(_fastest(index, setting, share, cases, leaves, exact_seconds))
        candidates = [setting for setting in candidates if filters[setting.target][-1].approximate]
    return tuple(replace(setting, filters=tuple(filters[setting.target])) for setting in settings)


def certified(index: Measurable, questions: Questions) -> tuple[FilterLine, ...]:
    """Measure the settings with filters on the certification questions, for shares that are not searched exactly."""
    lines: list[FilterLine] = []
    k = index.facts.k
    for share in SHARES:
        settings = [(setting, setting.with_share(share)) for setting in index.facts.settings]
        if not _enough(index, share) or not any(setting for _, setting in settings):
            break
        cases = _cases(index, questions, questions.certify, share)
        exact_seconds = _exact_seconds(index, cases)
        for setting, filter_setting in settings:
            if filter_setting is None:
                continue
            recalls = {kind: Recall.of(values, k) for kind, values in _recalls(index, cases, filter_setting).items()}
            seconds = _seconds(index, cases, _search(index, filter_setting))
            lines.append(
                FilterLine(
                    target=setting.target,
                    share=share,
                    leaves=filter_setting.leaves,
                    ms=1000 * seconds,
                    exact_ms=1000 * exact_seconds,
                    **recalls,
                )
            )
    return tuple(line for setting in index.facts.settings for line in lines if line.target == setting.target)


def _enough(index: Measurable, share: float) -> bool:
    n, facts = len(index), index.facts
    return facts.kind != "exact" and n >= LEAST_ROWS and int(share * n) >= _LEAST_PER_RESULT * facts.k


def _fastest(
    index: Measurable, setting: Setting, share: float, cases: Sequence[Case], leaves: int, exact_seconds: float
) -> FilterSetting:
    """The fewest leaves that reach the target for certain with every kind of filter, or exact search if that is faster."""
    fallback = FilterSetting(
        share=share,
        approximate=False,
        leaves=leaves,
        candidates=setting.candidates,
        certain=0.0,
        seconds=exact_seconds,
        exact_seconds=exact_seconds,
    )
    while True:
        tried = replace(
            fallback,
            approximate=True,
            leaves=leaves,
            seconds=_seconds(index, cases, _search(index, replace(fallback, leaves=leaves))),
        )
        if tried.seconds >= exact_seconds:
            return fallback
        recalls = _recalls(index, cases, tried)
        certain = min(certain_recall(values, index.facts.k) for values in recalls.values())
        if certain >= setting.target:
            return replace(tried, certain=certain)
        if leaves >= index.facts.leaves or not leaves:
            return fallback
        leaves = min(index.facts.leaves, max(leaves + 1, round(_STEP * leaves)))


# ---- searches with filters -------------------------------------------------------------------------------------------

Search = Callable[[Case, NDArray[np.float32]], object]


def _search(index: Measurable, setting: FilterSetting) -> Search:
    reading = Anywhere(index.rows, index.rows.slots_of_timing(_PARTS))

    def search(case: Case, questions: NDArray[np.float32]) -> object:
        return index.searcher.search_allowed(
            questions, index.facts.k, case.allowed, setting.leaves, setting.candidates, 1, reading
        )

    return search


def _recalls(index: Measurable, cases: Sequence[Case], setting: FilterSetting) -> dict[Kind, NDArray[np.float64]]:
    """Measure the recall of each question, by the kind of filter."""
    shares: dict[Kind, list[NDArray[np.float64]]] = {}
    for case in cases:

        def search(questions: np.ndarray, k: int, threads: int, case: Case = case) -> NDArray[np.int64]:
            how = min(k, int(np.count_nonzero(case.allowed))), case.allowed, setting.leaves, setting.candidates, threads
            return index.searcher.search_allowed(questions, *how, OnePass(index.rows))[1]

        shares.setdefault(case.kind, []).append(case.truth.recalls(search, index.facts.k))
        memory.give_back()
    return {kind: np.concatenate(values) for kind, values in shares.items()}


def _exact_seconds(index: Measurable, cases: Sequence[Case]) -> float:
    """The seconds of a question if every allowed row is scored, measured as `_seconds` does."""
    reading = Anywhere(index.rows, index.rows.slots_of_timing(_PARTS))
    return _seconds(index, cases, lambda case, questions: reading.exact(questions, index.facts.k, case.allowed))


def _seconds(index: Measurable, cases: Sequence[Case], search: Search) -> float:
    """The seconds of a single question with one thread: the shortest of some rounds, averaged over the questions."""
    kinds = [case.kind for case in cases]
    timed = [
        (case, row)
        for case in cases
        for row in range(min(max(1, _TIMED // kinds.count(case.kind)), len(case.truth.vectors)))
    ]
    best = np.full(len(timed), np.inf)
    search(cases[0], cases[0].truth.vectors[:1])  # Loops may have to be compiled.
    end = time.perf_counter() + _TIMING_SECONDS
    for _ in range(_ROUNDS):
        for number in np.random.default_rng(0).permutation(len(timed)).tolist():
            case, row = timed[number]
            began = time.perf_counter()
            if began > end and np.isfinite(best).sum() >= _LEAST_TIMED:
                break
            search(case, case.truth.vectors[row : row + 1])
            best[number] = min(best[number], time.perf_counter() - began)
    index.rows.release()
    return float(best[np.isfinite(best)].mean())


# ---- filters to measure with -----------------------------------------------------------------------------------------


def _cases(index: Measurable, questions: Questions, part: slice, share: float) -> list[Case]:
    """Questions with filters that let a share of the rows pass, and their exact neighbours."""
    vectors = questions.vectors[part][:_QUESTIONS]
    own_rows = questions.own_rows(index.rows.row_of(), part)[:_QUESTIONS]
    n = len(index)
    count = int(share * n)
    rng = np.random.default_rng([index.facts.seed, count])
    # The same random rows are allowed for all questions.
    allowed = np.zeros(n, bool)
    allowed[rng.choice(n, count, replace=False)] = True
    cases = [_case(index, "random", vectors, own_rows, allowed)]
    centres = np.stack([index.rows.vector(int(row)) for row in rng.choice(n, min(_CENTRES, n), replace=False)])
    # `scores` [N, centres]: the rows nearest to a centre are allowed, for the questions near it and for any.
    scores = np.concatenate([block @ centres.T for block in index.rows.vector_blocks()])
    nearest = (vectors @ centres.T).argmax(axis=1)
    random_centres = rng.integers(len(centres), size=len(vectors))
    kinds: tuple[tuple[Kind, NDArray[np.int64]], ...] = (("related", nearest), ("unrelated", random_centres))
    for number in range(len(centres)):
        allowed = np.zeros(n, bool)
        allowed[np.argpartition(-scores[:, number], count - 1)[:count]] = True
        for kind, centre_of in kinds:
            of_centre = np.flatnonzero(centre_of == number)
            if len(of_centre):
                cases.append(_case(index, kind, vectors[of_centre], own_rows[of_centre], allowed))
    index.rows.release()
    memory.give_back()
    return cases


def _case(
    index: Measurable,
    kind: Kind,
    questions: NDArray[np.float32],
    own_rows: NDArray[np.int64],
    allowed: NDArray[np.bool_],
) -> Case:
    rows = np.flatnonzero(allowed)
    place = np.full(len(allowed) + 1, -1)  # the last one: of no row
    place[rows] = np.arange(len(rows))
    blocks = masked(index.rows.vector_blocks(), allowed)
    truth = question_sets.with_exact(questions, place[own_rows], blocks, index.facts.k, len(rows))
    return Case(kind, allowed, GroundTruth(questions, rows[truth.exact], own_rows))
