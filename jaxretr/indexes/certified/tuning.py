"""The choice of leaves and candidates for a recall: the fastest that reaches it, measured against exact search."""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes.recall import Target, certain_recall, ladder

# Parts into which the steps below and above a target's fastest rung of leaves are divided.
_PARTS = 3

# The most candidates that are tried: this many, or this many times k.
_MOST_CANDIDATES = 500
_MOST_PER_K = 10

# Questions and rounds of the timing.
_TIMED_QUESTIONS = 512
_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class FilterSetting:
    """The way to answer questions where a filter allows a share of the rows; see filtering.py.

    Attributes:
      share: the least share of the rows that are allowed.
      approximate: whether the engine is asked; otherwise every allowed row is scored.
      leaves: leaves of the tree to search; 0 where there is no tree.
      candidates: the least number of allowed rows to score exactly; as many as without a filter.
      certain: recall that is certain with every kind of filter; 0 where it was not found, or not in time.
      seconds, exact_seconds: seconds of a question by this setting, and with every allowed row scored.
    """

    share: float
    approximate: bool
    leaves: int
    candidates: int
    certain: float
    seconds: float
    exact_seconds: float


@dataclass(frozen=True, kw_only=True)
class Setting(Target):
    """The leaves and the candidates that reach a target; if it is not reached, those with the highest `certain`.

    Attributes:
      leaves: leaves of the tree to search; 0 where there is no tree.
      candidates: rows to score exactly, where k results are asked for.
      tuning_recall: the recall on the tuning questions.
      certain: the recall that as many other questions would reach with 99% certainty.
      filters: for filtered searches, of shares that become smaller; all but the last are approximate.
    """

    leaves: int
    candidates: int
    tuning_recall: float
    certain: float
    filters: tuple[FilterSetting, ...] = ()

    def with_share(self, share: float) -> FilterSetting | None:
        """The setting for a filter that allows a share of the rows; None: score every allowed row."""
        setting = next((each for each in self.filters if each.share <= share), None)
        return setting if setting is not None and setting.approximate else None


# (leaves, candidates) -> candidate rows of the tuning questions, best first, -1 for none, [T, candidates].
Candidates = Callable[[int, int], NDArray[np.int64]]
# (leaves, candidates, questions) -> searches so many of the tuning questions to the end.
Search = Callable[[int, int, int], object]


def tune(
    candidates: Candidates,
    search: Search,
    exact: NDArray[np.int64],
    own_rows: NDArray[np.int64],
    *,
    targets: Sequence[float],
    leaves: int,
    rows: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Setting]:
    """Find the fastest setting for each target.

    The ladder of leaves is measured first, then the leaves between the rungs around each target's fastest. Whatever was
    measured is a choice for every target that it reaches.

    Args:
      candidates, search: the index, see above.
      exact: the exact neighbours of the tuning questions [T, k].
      own_rows: for each question the row that it is itself, which does not count, or -1, [T].
      targets: recalls@k.
      leaves: leaves of the tree; 1 where there is none.
      rows: N.
      clock: seconds, for the timing.

    Returns:
      A setting for each target. It is chosen for the bound of its recall and not for the recall, so that questions
      that were not tuned on reach the target as well.
    """
    k = exact.shape[1]
    most = min(rows, max(_MOST_CANDIDATES, _MOST_PER_K * k))
    counts = ladder(min(k + int((own_rows >= 0).any()), rows), most)
    # (leaves, candidates) -> recall and its bound.
    measured: dict[tuple[int, int], tuple[float, float]] = {}

    def measure(leaf_count: int) -> None:
        places = _places(candidates(leaf_count, most), exact)
        for count in counts:
            recalls = (places < count).mean(axis=1)
            measured[leaf_count, count] = float(recalls.mean()), certain_recall(recalls, k)

    extra_rungs = 0
    for leaf_count in ladder(1, leaves) if leaves > 1 else [0]:
        measure(leaf_count)
        # With more leaves fewer candidates may do, and that may be faster: go on a little.
        extra_rungs += measured[leaf_count, counts[-1]][1] >= max(targets)
        if extra_rungs > 3:
            break
    settings = _fastest(measured, search, targets, len(exact), clock)
    rungs, fastest = sorted({leaf_count for leaf_count, _ in measured}), {setting.leaves for setting in settings}
    steps = [step for step in itertools.pairwise(rungs) if not fastest.isdisjoint(step)]
    between = {low + (high - low) * part // _PARTS for low, high in steps for part in range(1, _PARTS)} - set(rungs)
    for leaf_count in sorted(between):
        measure(leaf_count)
    return _fastest(measured, search, targets, len(exact), clock) if between else settings


def _places(candidates: NDArray[np.int64], exact: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rank of each exact neighbour among the candidates, [T, k]; a missing one ranks after all of them."""
    never = np.iinfo(np.int64).max
    places = np.full(exact.shape, never)
    for question, (row, neighbours) in enumerate(zip(candidates, exact, strict=True)):
        # Look the neighbours up in the sorted candidates; `order` leads back to a candidate's rank.
        order = np.argsort(row, kind="stable")
        at = np.minimum(np.searchsorted(row, neighbours, sorter=order), len(row) - 1)
        is_candidate = row[order[at]] == neighbours
        places[question, is_candidate] = order[at[is_candidate]]
    return places


def _fastest(
    measured: Mapping[tuple[int, int], tuple[float, float]],
    search: Search,
    targets: Sequence[float],
    questions: int,
    clock: Callable[[], float],
) -> list[Setting]:
    """Pick the fastest setting that reaches each target; the candidates of all targets are timed together."""
    fronts = [_front(measured, target) for target in targets]
    timed = min(questions, _TIMED_QUESTIONS)
    seconds = {setting: math.inf for front in fronts for setting in front}
    for _ in range(_ROUNDS):
        for setting in sorted(seconds):
            began = clock()
            search(*setting, timed)
            # The shortest of the rounds: what else runs on the machine only adds.
            seconds[setting] = min(seconds[setting], clock() - began)
    settings = []
    for target, front in zip(targets, fronts, strict=True):
        if front:
            best = min(front, key=lambda setting: (seconds[setting], setting))
        else:
            best = max(measured, key=lambda setting: (measured[setting][1], -setting[0], -setting[1]))
        recall, certain = measured[best]
        settings.append(
            Setting(
                target=target,
                leaves=best[0],
                candidates=best[1],
                tuning_recall=recall,
                certain=certain,
                reached=bool(front),
            )
        )
    return settings


def _front(measured: Mapping[tuple[int, int], tuple[float, float]], target: float) -> list[tuple[int, int]]:
    """The settings that reach a target, without those that search no less than another: they are no faster."""
    front: list[tuple[int, int]] = []
    for leaves, count in sorted(setting for setting, (_, bound) in measured.items() if bound >= target):
        if not front or count < front[-1][1]:
            front.append((leaves, count))
    return front
