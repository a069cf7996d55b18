"""One ranking from several runs: interpolation of their scores, and reciprocal ranks.

A run is {question id: {passage id: score}}. As everywhere here (and in trec_eval), the scores of runs count in single
precision, and equal ones are ordered by passage id, descending. Sums are ordered in double precision; where single precision
would order them otherwise, they are made to decrease. So a fused run gives the same metrics whether it is measured at once
or written with `write_trec` and read again.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from jaxretr.data.runs import ranked_ids, single_precision, strictly_decreasing
from jaxretr.runtime.errors import UserError, at_least, is_number

Run = Mapping[str, Mapping[str, float]]
Normalise = Literal["none", "minmax"]
Missing = Literal["lowest", "zero"]

RRF_CONSTANT = 60
"""The constant of Cormack, Clarke and Büttcher, 2009, who proposed reciprocal rank fusion."""


def interpolate(
    runs: Sequence[Run],
    weights: Sequence[float],
    *,
    normalise: Normalise = "none",
    missing: Sequence[Missing] | None = None,
    k: int | None = None,
) -> dict[str, dict[str, float]]:
    """Weighted sum of scores, w_1 s_1 + w_2 s_2 + ...

    A passage that a run lacks gets the run's lowest score for that question, as in the literature on hybrid search. That
    is right where a list was cut. BM25 leaves out what shares no word with the question: a list shorter than was asked
    for is complete, and what it lacks has the score 0. A run that lacks the whole question adds nothing to any of its
    passages.

    Args:
      runs: at least two.
      weights: one a run, from 0.
      normalise: "minmax" maps each run's scores of a question to [0, 1] before; scores that are all equal become 0.
      missing: one a run, "lowest" (the default of all) or "zero": there a passage that a list shorter than the run's
        longest lacks has the score 0, also in "minmax". For BM25, not for a dense model's scores.
      k: keep only the best so many; by default all that any run has.

    Returns:
      A run of all questions, those of the first run first; passages best first.

    Raises:
      UserError: fewer than two runs, other than one weight (and one of `missing`) each, or a score that is not finite.
    """
    if len(weights) != len(runs):
        raise UserError(f"{len(weights)} weights for {len(runs)} runs; give one for each")
    if missing is not None and len(missing) != len(runs):
        raise UserError(f"{len(missing)} times missing for {len(runs)} runs; give it once for each")
    if not all(is_number(weight) and weight >= 0 for weight in weights):
        raise UserError(f"the weights {list(weights)} must be finite numbers from 0; correct them")

    longest = [max(map(len, run.values()), default=0) for run in runs]
    zero = [what == "zero" for what in missing or ["lowest"] * len(runs)]

    def fuse(question_id: str) -> dict[str, float]:
        fused: dict[str, float] = {}
        hits_of_runs = [_single(question_id, run.get(question_id, {})) for run in runs]
        lowest = [
            0.0 if is_zero and len(hits) < most else min(hits.values(), default=0.0)
            for hits, most, is_zero in zip(hits_of_runs, longest, zero, strict=True)
        ]
        if normalise == "minmax":
            mapped = map(_in_unit_interval, hits_of_runs, lowest)
            hits_of_runs, lowest = map(list, zip(*mapped, strict=True))
        for passage_id in dict.fromkeys(name for hits in hits_of_runs for name in hits):
            fused[passage_id] = math.fsum(
                weight * hits.get(passage_id, low)
                for weight, hits, low in zip(weights, hits_of_runs, lowest, strict=True)
            )
        return fused

    return _of_all_questions(runs, fuse, k)


def reciprocal_rank(
    runs: Sequence[Run], *, constant: float = RRF_CONSTANT, k: int | None = None
) -> dict[str, dict[str, float]]:
    """Reciprocal rank fusion: the sum over runs of 1 / (constant + rank), ranks from 1; scores do not count.

    Args:
      runs: at least two. A run adds nothing to a passage that it lacks.
      constant: at least 0; the larger it is, the less the first ranks count.
      k: keep only the best so many; by default all that any run has.

    Returns:
      A run of all questions, as `interpolate` returns it.

    Raises:
      UserError: fewer than two runs, a constant below 0, or a score that is not finite.
    """
    if not is_number(constant) or constant < 0:
        raise UserError(f"the constant {constant} of reciprocal rank fusion must be a number from 0; 60 is usual")

    def fuse(question_id: str) -> dict[str, float]:
        terms: dict[str, list[float]] = {}
        for run in runs:
            ranked = ranked_ids(_single(question_id, run.get(question_id, {})))
            for rank, passage_id in enumerate(ranked, start=1):
                terms.setdefault(passage_id, []).append(1 / (constant + rank))
        return {passage_id: math.fsum(of_runs) for passage_id, of_runs in terms.items()}

    return _of_all_questions(runs, fuse, k)


def _of_all_questions(
    runs: Sequence[Run], fuse: Callable[[str], dict[str, float]], k: int | None
) -> dict[str, dict[str, float]]:
    if len(runs) < 2:
        raise UserError("fusion needs at least two runs; add another one")
    at_least(1, k=k)
    fused = {}
    for question_id in dict.fromkeys(name for run in runs for name in run):
        summed = fuse(question_id)
        scores = _single(question_id, summed)
        ranked = [passage_id for _, passage_id in sorted(zip(summed.values(), summed, strict=True), reverse=True)[:k]]
        values = np.array([scores[passage_id] for passage_id in ranked], np.float32)
        # Of sums that float32 does not tell apart, ids would put the other one first.
        if any(scores[one] == scores[other] and one < other for one, other in pairwise(ranked)):
            values = strictly_decreasing(values)
        fused[question_id] = dict(zip(ranked, values.tolist(), strict=True))
    return fused


def _single(question_id: str, hits: Mapping[str, float]) -> dict[str, float]:
    """The scores of a question's hits, rounded to float32."""
    values = single_precision(hits)  # Infinite where that overflows, which is reported.
    if not np.isfinite(values).all():
        passage_id = list(hits)[int((~np.isfinite(values)).argmax())]
        raise UserError(
            f"the score of passage '{passage_id}' for question '{question_id}' is not a finite float32; correct the run"
        )
    return dict(zip(hits, values.tolist(), strict=True))


def _in_unit_interval(hits: Mapping[str, float], missing: float) -> tuple[dict[str, float], float]:
    """The scores, and that of a missing passage, mapped from [the lowest, the highest] of them all to [0, 1]."""
    scores = [missing, *hits.values()]
    low = min(scores)
    span = (max(scores) - low) or 1.0
    return {name: (score - low) / span for name, score in hits.items()}, (missing - low) / span
