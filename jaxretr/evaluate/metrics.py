"""The measures of trec_eval: nDCG, MRR, recall, precision, MAP and success at a cut.

The numbers equal trec_eval's. What that means where systems differ:
- Passages are ranked by score, read in single precision as trec_eval does; equal scores by id, DESCENDING (byte
  order). Ranks and the order in the run do not count.
- A question of the qrels that the run lacks counts as 0 (`trec_eval -c`). A question of the run that the qrels lack is
  ignored. A question without a relevant passage counts as 0 in every measure.
- A passage is relevant from grade 1; grades of 0 and below, and passages without judgement, are not relevant.
- nDCG's gain is the grade itself (not 2^grade - 1), its discount log2(rank + 1); the ideal ranking holds all the judged
  passages, retrieved or not.
- precision@k divides by k even when fewer were retrieved; recall@k and MAP divide by all the relevant passages.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from jaxretr.errors import UsageError, UserError, did_you_mean

Qrels = Mapping[str, Mapping[str, int]]
Run = Mapping[str, Mapping[str, float]]


@overload
def evaluate(
    qrels: Qrels, run: Run, measures: Sequence[str], per_query: Literal[False] = False
) -> dict[str, float]: ...


@overload
def evaluate(
    qrels: Qrels, run: Run, measures: Sequence[str], per_query: Literal[True]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]: ...


@overload
def evaluate(
    qrels: Qrels, run: Run, measures: Sequence[str], per_query: bool
) -> dict[str, float] | tuple[dict[str, float], dict[str, dict[str, float]]]: ...


def evaluate(
    qrels: Qrels, run: Run, measures: Sequence[str], per_query: bool = False
) -> dict[str, float] | tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Measures a run against relevance judgements.

    Args:
      qrels: {question id: {passage id: grade}}.
      run: {question id: {passage id: score}}, higher is better; the order of the dicts does not count.
      measures: names as "ndcg@10", "mrr@10", "recall@100", "precision@5", "map@100", "success@20", in any case; "ndcg",
        "mrr" and "map" also without a cut. Acc@k needs answers: see `jaxretr.evaluate.answers`.
      per_query: also return the value of every question.

    Returns:
      {measure as written: mean over all questions of the qrels, in [0, 1]}, summed in double precision; with
      `per_query` a pair of that and {measure: {question id: value}} in the order of the qrels.

    Raises:
      UsageError: an unknown measure.
      UserError: the qrels are empty, or a score is not a number.
    """
    if isinstance(measures, str):
        raise TypeError("measures must be a sequence of names, not one string")
    computed = {name: _parse(name) for name in measures}
    if not qrels:
        raise UserError("there are no relevance judgements to measure against: the qrels are empty")
    values: dict[str, dict[str, float]] = {name: {} for name in computed}
    for question_id, judged in qrels.items():
        found = _found(question_id, judged, run.get(question_id, {}))
        for name, (measure, cut) in computed.items():
            values[name][question_id] = measure(found, cut) if found.ideal else 0.0
    means = {name: mean(of_questions) for name, of_questions in values.items()}
    return (means, values) if per_query else means


def mean(of_questions: Mapping[str, float]) -> float:
    """The mean of {question id: value}, at least one question, summed in double precision."""
    return math.fsum(of_questions.values()) / len(of_questions)


def single_precision(scores: Mapping[str, float]) -> NDArray[np.float32]:
    """Returns the scores, in their order, as trec_eval reads them: float32 [K], infinite where that overflows."""
    with np.errstate(over="ignore"):
        return np.fromiter(scores.values(), np.float32, len(scores))


@dataclass(frozen=True)
class _Found:
    """All that the measures need to know of one question.

    Attributes:
      ranks: ranks (from 1) of the relevant passages that were retrieved, ascending.
      grades: the grades of those.
      ideal: the grades of all the relevant passages, retrieved or not, descending.
    """

    ranks: list[int]
    grades: list[int]
    ideal: list[int]


def _found(question_id: str, judged: Mapping[str, int], retrieved: Mapping[str, float]) -> _Found:
    ideal = sorted((grade for grade in judged.values() if grade > 0), reverse=True)
    scores = single_precision(retrieved)
    if np.isnan(scores).any():
        passage_id = list(retrieved)[int(np.isnan(scores).argmax())]
        raise UserError(f"the score of passage '{passage_id}' for question '{question_id}' is not a number")
    # Reversed, so that both the score and, among equal scores, the id descend. Python orders strings by code point,
    # which is the order of their UTF-8 bytes, hence of C's strcmp.
    ranking = sorted(zip(scores.tolist(), retrieved, strict=True), reverse=True)
    relevant = [
        (rank, judged[passage_id])
        for rank, (_, passage_id) in enumerate(ranking, start=1)
        if judged.get(passage_id, 0) > 0
    ]
    return _Found([rank for rank, _ in relevant], [grade for _, grade in relevant], ideal)


def _ndcg(found: _Found, cut: float) -> float:
    gained = sum(
        grade / math.log2(rank + 1) for rank, grade in zip(found.ranks, found.grades, strict=True) if rank <= cut
    )
    best = sum(grade / math.log2(rank + 1) for rank, grade in enumerate(found.ideal, start=1) if rank <= cut)
    return gained / best


def _mrr(found: _Found, cut: float) -> float:
    return 1.0 / found.ranks[0] if found.ranks and found.ranks[0] <= cut else 0.0


def _recall(found: _Found, cut: float) -> float:
    return _retrieved(found, cut) / len(found.ideal)


def _precision(found: _Found, cut: float) -> float:
    return _retrieved(found, cut) / cut


def _map(found: _Found, cut: float) -> float:
    precisions = (count / rank for count, rank in enumerate(found.ranks, start=1) if rank <= cut)
    return sum(precisions) / len(found.ideal)


def _success(found: _Found, cut: float) -> float:
    return float(_retrieved(found, cut) > 0)


def _retrieved(found: _Found, cut: float) -> int:
    return sum(rank <= cut for rank in found.ranks)


_MEASURES: dict[str, Callable[[_Found, float], float]] = {
    "ndcg": _ndcg,
    "mrr": _mrr,
    "recall": _recall,
    "precision": _precision,
    "map": _map,
    "success": _success,
}
_WITHOUT_CUT = ("ndcg", "mrr", "map")


def _parse(name: str) -> tuple[Callable[[_Found, float], float], float]:
    """Returns the measure's function and its cut, infinity where it has none."""
    parts = re.fullmatch(r"([^@]*)(?:@(.*))?", name.strip().lower(), flags=re.DOTALL)
    assert parts is not None
    base, cut = parts.groups()
    if base in ("acc", "accuracy"):
        raise UsageError(
            f"measure '{name}' needs answers, not relevance judgements: give answers, or use success@{cut or 'k'}"
        )
    if base not in _MEASURES:
        raise UsageError(
            f"unknown measure '{name}'{did_you_mean(base, _MEASURES)} (known: {', '.join(f'{m}@k' for m in _MEASURES)})"
        )
    if cut is None and base in _WITHOUT_CUT:
        return _MEASURES[base], math.inf
    if cut is None or not re.fullmatch(r"[1-9][0-9]{0,17}", cut):
        raise UsageError(f"measure '{name}' needs a cut of at least 1: write for instance {base}@10")
    return _MEASURES[base], int(cut)
