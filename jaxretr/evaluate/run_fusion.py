"""`jaxretr.fuse`: one run of several, with given weights or the weight that is best on judged questions."""

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.data.question_identity import without_own
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_qrels
from jaxretr.data.run_reading import has_question_ids, read_run, write_trec
from jaxretr.data.runs import questions_of
from jaxretr.evaluate.evaluating import check_texts, read_test_set
from jaxretr.evaluate.measuring import TestSet, depth, warn_of_own
from jaxretr.evaluate.metrics import check_by_question
from jaxretr.evaluate.weight_curve import Curve, check_grid, check_metric, trace
from jaxretr.indexes.hybrid.fusion import Missing, Normalise, Run, interpolate, reciprocal_rank
from jaxretr.indexes.hybrid.weight_choice import balancing_weight
from jaxretr.runtime.errors import UsageError, check_choice, check_list

log = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Fused:
    """The run made by fusing runs.

    Attributes:
      run: {question id: {passage id: score}}, best first.
      curve: the metric for each weight, if the weight was tuned.
    """

    run: Run
    curve: Curve | None = None

    @property
    def hits(self) -> int:
        """The number of passages of all questions together."""
        return sum(map(len, self.run.values()))

    def __repr__(self) -> str:
        weight = "" if self.curve is None else f", tuned weight {self.curve.choice.weight:.4g}"
        return f"Fused({self.hits} hits of {len(self.run)} questions{weight})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a TREC run."""
        write_trec(path, self.run)


def fuse(
    runs: Sequence[str | Path | Run],
    *,
    method: Literal["interpolation", "rrf"] = "interpolation",
    weights: Sequence[float] | None = None,
    normalise: Normalise | None = None,
    missing: Sequence[Missing] | None = None,
    k: int = 100,
    tune: str | Path | Mapping[str, Mapping[str, int]] | None = None,
    metric: str | None = None,
    grid: str | Sequence[float] | None = None,
    corpus: str | Path | Corpus | None = None,
    queries: str | Path | Sequence[Question] | None = None,
    trec_ids: bool = False,
) -> Fused:
    """Fuse runs by a weighted sum of scores, s_1 + w_2 s_2 + ..., or by reciprocal ranks, the sum of 1 / (60 + rank).

    Args:
      runs: two or more runs, in any format that evaluate reads. Files, or {question id: {passage id: score}}.
      method: a weighted sum of scores, s1 + w s2, or the sum of 1/(60 + rank).
      weights: weight of the scores of each run but the first, whose weight is 1.
      normalise: how each run's scores of a question are normalised before they are added; by default none.
      missing: score of a passage that a run lacks, once for each run; lowest: the run's lowest score for the question;
        zero: 0 if the run's list for the question is shorter than its other lists, as BM25's is if few passages share a
        word with it; by default lowest for all.
      k: passages per question.
      tune: judgements, or their file, used to choose the weight of two runs instead.
      metric: the metric to maximise; by default recall@100.
      grid: log: search for the maximum in steps of 2, then of 2^(1/4); paper: .1, .2, ... 1 and their reciprocals; or the
        weights to try; by default log.
      corpus: the passages of the runs, for `tune`; with `queries`, a passage that is the question itself does not count as
        found. Without, it counts as in trec_eval. The fused run keeps it.
      queries: the questions of the runs, for `tune` with `corpus`, or runs without their ids (DPR's).
      trec_ids: refuse ids that a TREC run cannot represent.

    Raises:
      UsageError: arguments that do not go together.
      UserError: a file cannot be read.
    """
    _check_arguments(runs, method, weights, normalise, missing, tune, metric, grid)
    files = [run for run in runs if isinstance(run, str | Path)]
    if tune is not None:
        check_texts(files, corpus, queries)
    elif corpus is not None or (queries is not None and all(map(has_question_ids, files))):
        name = "queries" if corpus is None else "corpus"
        raise UsageError(f"{name}= belongs to tune=; leave it out")
    questions = questions_of(queries or ())
    qrels = read_qrels(tune) if isinstance(tune, str | Path) else tune
    names = [str(run) if isinstance(run, str | Path) else f"run {number}" for number, run in enumerate(runs, start=1)]
    loaded_runs = [
        read_run(run, questions=questions or None, trec_ids=trec_ids) if isinstance(run, str | Path) else run
        for run in runs
    ]
    _warn_of_other_questions(loaded_runs, names)
    if method == "rrf":
        return Fused(reciprocal_rank(loaded_runs, k=k))
    if missing is None:
        _warn_of_short_lists(loaded_runs, names)
    how: Normalise = normalise or "none"
    curve = None
    if qrels is not None:
        on = read_test_set(questions, corpus, qrels, (queries, tune))
        if corpus is None:
            for run, name in zip(loaded_runs, names, strict=True):
                warn_of_own(run, qrels, name)
        curve = _tuned(loaded_runs, names, on, metric or "recall@100", grid or "log", how, missing)
        weights = [curve.choice.weight]
    return Fused(interpolate(loaded_runs, [1.0, *(weights or ())], normalise=how, missing=missing, k=k), curve)


def _check_arguments(
    runs: Sequence[object],
    method: str,
    weights: Sequence[float] | None,
    normalise: object,
    missing: Sequence[Missing] | None,
    tune: object,
    metric: str | None,
    grid: str | Sequence[float] | None,
) -> None:
    check_choice(("interpolation", "rrf"), method=method)
    check_choice(get_args(Normalise), normalise=normalise)
    for each in missing or ():
        check_choice(get_args(Missing), missing=each)
    check_list("runs", runs)
    if weights is not None:
        check_list("weights", weights)
    for run in runs:
        if not isinstance(run, str | Path):
            check_by_question("run", run)
    if len(runs) < 2:
        raise UsageError("one run alone cannot be fused; give at least two")
    if method == "rrf":
        options = {"weights": weights, "normalise": normalise, "missing": missing, "tune": tune}
        if superfluous := next((name for name, value in options.items() if value is not None), None):
            raise UsageError(f"{superfluous}= belongs to method=interpolation; leave it out: rrf looks at ranks alone")
    elif tune is not None:
        if weights is not None:
            raise UsageError("tune= finds the weight; leave weights= out")
        if len(runs) != 2:
            raise UsageError(f"tune= finds the one weight of two runs, not {len(runs)}; fuse them step by step")
    elif len(weights or ()) != len(runs) - 1:
        raise UsageError(
            f"{len(weights or ())} weights for {len(runs) - 1} runs besides the first; give one for each of them "
            "as weights=, or find it with tune="
        )
    if grid is not None:
        check_grid(grid)
    check_metric(metric)
    if missing is not None and len(missing) != len(runs):
        raise UsageError(
            f"missing= is given {len(missing)} times for {len(runs)} runs; give it once for each run, in their order"
        )
    if tune is None:
        options = {"metric": metric, "grid": grid}
        if superfluous := next((name for name, value in options.items() if value is not None), None):
            raise UsageError(f"{superfluous}= belongs to tune=; leave it out")


def _warn_of_other_questions(runs: Sequence[Run], names: Sequence[str]) -> None:
    """Warns of a run that lacks questions which another one has."""
    questions = dict.fromkeys(name for run in runs for name in run)
    for run, name in zip(runs, names, strict=True):
        if missing := [question_id for question_id in questions if question_id not in run]:
            log.warning(
                "%s lacks %d of %d questions (%s, ...): the other runs alone rank their passages",
                name,
                len(missing),
                len(questions),
                missing[0],
            )


def _warn_of_short_lists(runs: Sequence[Run], names: Sequence[str]) -> None:
    """Warns of a run with lists of different lengths, as BM25's where few passages share a word with the question."""
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        longest = max(map(len, run.values()), default=0)
        if short := sum(0 < len(hits) < longest for hits in run.values()):
            of_each = " ".join(f"missing={'zero' if n == number else 'lowest'}" for n in range(len(runs)))
            log.warning(
                "%s has fewer than %d hits for %d of %d questions; what it lacks there gets its lowest score. If it is "
                "BM25's, whose score of all others is 0, add %s",
                name,
                longest,
                short,
                len(run),
                of_each,
            )


def _tuned(
    runs: Sequence[Run],
    names: Sequence[str],
    on: TestSet,
    metric: str,
    grid: str | Sequence[float],
    normalise: Normalise,
    missing: Sequence[Missing] | None,
) -> Curve:
    single_runs = [on.others(run, (metric,), name) for run, name in zip(runs, names, strict=True)]
    k = depth((metric,)) + bool(on.own_questions)

    def evaluate(weights: Sequence[float]) -> dict[float, Mapping[str, float]]:
        values = {}
        for weight in weights:
            if weight == 0:
                fused: Run = single_runs[0]
            elif math.isinf(weight):
                fused = single_runs[1]
            else:
                # The question itself is in what is fused, since it is in what is written: it only does not count.
                fused_run = interpolate(runs, [1.0, weight], normalise=normalise, missing=missing, k=k)
                fused = without_own(fused_run, on.own_questions)
            values[weight] = on(fused, (metric,))[metric]
        return values

    return trace(
        evaluate,
        grid,
        lambda: balancing_weight(_scores_of_both(runs, normalise, missing)),
        metric=metric,
        systems=(names[0], names[1]),
    )


def _scores_of_both(
    runs: Sequence[Run], normalise: Normalise, missing: Sequence[Missing] | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each question's scores by both runs, of all passages that either has."""
    first, second = (
        interpolate(runs, weights, normalise=normalise, missing=missing) for weights in ((1.0, 0.0), (0.0, 1.0))
    )
    for question_id in (name for name in runs[0] if runs[0][name] and runs[1].get(name)):
        names = list(first[question_id])
        yield tuple(np.array([scores[question_id][name] for name in names]) for scores in (first, second))  # pyright: ignore[reportReturnType]
