"""The measures of trec_eval: nDCG, MRR, recall, precision, MAP, success, R-precision and bpref; hole rate; capped recall.

The numbers equal trec_eval's, where it has the measure. What that means where systems differ:
- Passages are ranked by score, read in single precision as trec_eval does; equal scores by id, DESCENDING (byte
  order). Ranks and the order in the run do not count.
- A question of the qrels that the run lacks counts as 0 (`trec_eval -c`). A question of the run that the qrels lack is
  ignored. A question without a relevant passage counts as 0 in every measure.
- A passage is relevant from grade 1, or from `relevance_level` (trec_eval -l), which nDCG does not heed; other grades,
  and passages without judgement, are not relevant.
- nDCG's gain is the grade itself (not 2^grade - 1), its discount log2(rank + 1); the ideal ranking holds all the judged
  passages, retrieved or not.
- precision@k divides by k even when fewer were retrieved; recall@k and MAP divide by all the relevant passages.
- bpref compares the relevant passages with those that are judged not relevant, grade 0 and up; a negative grade is no
  judgement to it.

Two are not trec_eval's:
- holes@k is the share of the first k passages that have no judgement for the question; of a ranking shorter than k, the
  share of what there is, and 0 where nothing was retrieved. Lower is better: a system that differs from those that were
  judged is measured too low, and this says where. It is 1 - Judged@k of ir_measures.
- recall_cap@k is BEIR's capped recall: divided by k where more than k passages are relevant.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, overload

from jaxretr.data.runs import ranked_ids
from jaxretr.runtime.errors import UsageError, UserError, check_list, did_you_mean, is_number

Qrels = Mapping[str, Mapping[str, int]]
Run = Mapping[str, Mapping[str, float]]


@overload
def evaluate(
    qrels: Qrels, run: Run, measures: Sequence[str], per_query: Literal[False] = False, *, relevance_level: int = 1
) -> dict[str, float]: ...


@overload
def evaluate(
    qrels: Qrels, run: Run, measures: Sequence[str], per_query: Literal[True], *, relevance_level: int = 1
) -> tuple[dict[str, float], dict[str, dict[str, float]]]: ...


def evaluate(
    qrels: Qrels, run: Run, measures: Sequence[str], per_query: bool = False, *, relevance_level: int = 1
) -> dict[str, float] | tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Measure a run against relevance judgements.

    Args:
      qrels: {question id: {passage id: grade}}.
      run: {question id: {passage id: score}}, higher is better; the order of the dicts does not count.
      measures: names as "ndcg@10", "mrr@10", "recall@100", "precision@5", "map@100", "success@20", "recall_cap@100" and
        "holes@10", in any case; "ndcg", "mrr" and "map" also without a cut, "rprec" and "bpref" always. Acc@k needs
        answers: see `jaxretr.evaluate.answers`.
      per_query: also return the value of every question.
      relevance_level: the lowest grade that is relevant, at least 1; 2 for instance for MRR on TREC Deep Learning.

    Returns:
      {measure as written: mean over all questions of the qrels, in [0, 1]}, summed in double precision; with
      `per_query` a pair of that and {measure: {question id: value}} in the order of the qrels.

    Raises:
      UsageError: an unknown measure, or one name in place of a list, or a relevance level below 1.
      UserError: the qrels are empty, or a score is not a number.
    """
    check_list("measures", measures)
    if not is_number(relevance_level):
        raise UsageError(f"relevance_level={relevance_level!r}: give a number, 1 or more")
    if relevance_level < 1:
        raise UsageError(
            f"a relevance level of {relevance_level} would count what is judged not relevant; give 1 or more"
        )
    check_by_question("qrels", qrels)
    check_by_question("run", run)
    computed = {name: (_MEASURES[base], cut) for name in measures for base, cut in [parse(name)]}
    if not qrels:
        raise UserError("there are no relevance judgements to measure against: the qrels are empty")
    values: dict[str, dict[str, float]] = {name: {} for name in computed}
    for question_id, judged in qrels.items():
        facts = _facts_of(question_id, judged, run.get(question_id, {}), relevance_level)
        for name, (measure, cut) in computed.items():
            values[name][question_id] = measure(facts, cut)
    means = {name: mean(of_questions) for name, of_questions in values.items()}
    return (means, values) if per_query else means


def check_by_question(name: str, content: object) -> None:
    """Raise UserError for qrels or a run, by the parameter's name, that is not a dict of a dict for each question."""
    value = "grade" if name == "qrels" else "score"
    if not isinstance(content, Mapping):
        raise UserError(f"{name}: a {type(content).__name__} is no dict; give {{question id: {{passage id: {value}}}}}")
    for question_id, found in content.items():
        if not isinstance(found, Mapping):
            raise UserError(
                f"{name}: question '{question_id}' has a {type(found).__name__}, not a dict; give {{passage id: {value}}}"
            )


def mean(of_questions: Mapping[str, float]) -> float:
    """The mean of {question id: value}, at least one question, summed in double precision."""
    return math.fsum(of_questions.values()) / len(of_questions)


@dataclass(frozen=True)
class _Facts:
    """The facts about one question that the measures need.

    Attributes:
      grades: the grade of each retrieved passage, best first; None without a judgement.
      gains: (rank from 1, grade) of the passages with a grade from 1, by rank.
      ranks: the ranks of the relevant passages, ascending.
      ideal: the grades from 1 of all judged passages, retrieved or not, descending.
      relevant: the number of relevant passages, retrieved or not.
      not_relevant: the number of passages that are judged not relevant, with a grade from 0.
    """

    grades: list[int | None]
    gains: list[tuple[int, int]]
    ranks: list[int]
    ideal: list[int]
    relevant: int
    not_relevant: int


def _facts_of(question_id: str, judged: Mapping[str, int], retrieved: Mapping[str, float], level: int) -> _Facts:
    if wrong := next((id for id, each in judged.items() if not is_number(each)), None):
        raise UserError(
            f"the grade of passage '{wrong}' for question '{question_id}' is not a number; give a whole one"
        )
    grades = [judged.get(passage_id) for passage_id in ranked_ids(retrieved, question_id=question_id)]
    gains = [(rank, grade) for rank, grade in enumerate(grades, start=1) if grade is not None and grade > 0]
    return _Facts(
        grades,
        gains,
        [rank for rank, grade in gains if grade >= level],
        sorted((grade for grade in judged.values() if grade > 0), reverse=True),
        sum(grade >= level for grade in judged.values()),
        sum(0 <= grade < level for grade in judged.values()),
    )


def _ndcg(facts: _Facts, cut: float) -> float:
    gained = sum(grade / math.log2(rank + 1) for rank, grade in facts.gains if rank <= cut)
    best = sum(grade / math.log2(rank + 1) for rank, grade in enumerate(facts.ideal, start=1) if rank <= cut)
    return _share(gained, best)


def _mrr(facts: _Facts, cut: float) -> float:
    return 1.0 / facts.ranks[0] if facts.ranks and facts.ranks[0] <= cut else 0.0


def _recall(facts: _Facts, cut: float) -> float:
    return _share(_retrieved(facts, cut), facts.relevant)


def _capped_recall(facts: _Facts, cut: float) -> float:
    return _share(_retrieved(facts, cut), min(facts.relevant, cut))


def _precision(facts: _Facts, cut: float) -> float:
    return _retrieved(facts, cut) / cut


def _r_precision(facts: _Facts, cut: float) -> float:
    return _share(_retrieved(facts, facts.relevant), facts.relevant)


def _map(facts: _Facts, cut: float) -> float:
    precisions = (count / rank for count, rank in enumerate(facts.ranks, start=1) if rank <= cut)
    return _share(sum(precisions), facts.relevant)


def _success(facts: _Facts, cut: float) -> float:
    return float(_retrieved(facts, cut) > 0)


def _bpref(facts: _Facts, cut: float) -> float:
    """Compute bpref, as trec_eval does, from the judged passages alone.

    C. Buckley and E. Voorhees, "Retrieval evaluation with incomplete information", SIGIR 2004.
    """
    relevant = set(facts.ranks)
    total, num_above = 0.0, 0
    for rank, grade in enumerate(facts.grades, start=1):
        if rank in relevant:
            total += 1 - min(num_above, facts.relevant) / min(facts.not_relevant, facts.relevant) if num_above else 1
        elif grade is not None and grade >= 0:
            num_above += 1
    return _share(total, facts.relevant)


def _holes(facts: _Facts, cut: float) -> float:
    first = facts.grades[: int(min(cut, len(facts.grades)))]
    return _share(first.count(None), len(first))


def _retrieved(facts: _Facts, cut: float) -> int:
    return sum(rank <= cut for rank in facts.ranks)


def _share(part: float, total: float) -> float:
    """`part` divided by `total`; 0 if `total` is 0."""
    return part / total if total else 0.0


_MEASURES: dict[str, Callable[[_Facts, float], float]] = {
    "ndcg": _ndcg,
    "mrr": _mrr,
    "recall": _recall,
    "precision": _precision,
    "map": _map,
    "success": _success,
    "recall_cap": _capped_recall,
    "holes": _holes,
    "rprec": _r_precision,
    "bpref": _bpref,
}
_WITHOUT_CUT = ("ndcg", "mrr", "map", "rprec", "bpref")
_NEVER_CUT = ("rprec", "bpref")


def lower_is_better(name: str) -> bool:
    """Whether a smaller value of this measure is the better one: of the hole rate alone."""
    return name.strip().lower().startswith("holes")


def parse(name: str) -> tuple[str, float]:
    """Return a measure's name without its cut, in lower case, and the cut, infinity where it has none.

    Raises:
      UsageError: there is no such measure, or its cut is missing or none.
    """
    if not isinstance(name, str):
        raise UsageError(f"measure {name!r} is no text: write for instance ndcg@10")
    parts = re.fullmatch(r"([^@]*)(?:@(.*))?", name.strip().lower(), flags=re.DOTALL)
    assert parts is not None
    base, cut = parts.groups()
    if base in ("acc", "accuracy"):
        raise UsageError(
            f"measure {name!r} needs answers, not relevance judgements: give answers, or use success@{cut or 'k'}"
        )
    if base not in _MEASURES:
        known = ", ".join(measure if measure in _NEVER_CUT else f"{measure}@k" for measure in _MEASURES)
        raise UsageError(f"unknown measure {name!r}{did_you_mean(base, _MEASURES)} (known: {known})")
    if cut is None and base in _WITHOUT_CUT:
        return base, math.inf
    if base in _NEVER_CUT:
        raise UsageError(f"measure {name!r} has no cut: write {base}")
    if cut is None or not re.fullmatch(r"[1-9][0-9]{0,17}", cut):
        raise UsageError(f"measure {name!r} needs a cut of at least 1: write for instance {base}@10")
    return base, int(cut)
