"""The values of every question, computed from a search or a run."""

import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.data.question_identity import own_ids, without_own
from jaxretr.data.questions import Question
from jaxretr.data.runs import ranked_ids, strictly_decreasing
from jaxretr.evaluate import metrics
from jaxretr.evaluate.answers import AnswerMatcher, Match
from jaxretr.runtime.errors import UsageError, UserError, check_choice

if TYPE_CHECKING:  # It brings JAX along, which a run is measured without.
    from jaxretr.indexes.index import Index

log = logging.getLogger(__name__)

Run = metrics.Run
Search = Callable[[Sequence[Question], int], tuple[np.ndarray, Sequence[Sequence[str]]]]
"""A function of B questions and k that returns scores float32 [B, k] and passages' ids, fewer than k for fewer hits."""
Values = dict[str, dict[str, float]]
"""The values of every question: {metric: {question id: value}}."""
Measure = Callable[[Run, Sequence[str], str], Values]
"""A function of a run, the names of metrics and the run's name for errors that returns the values of every question."""

OF_QRELS = ("ndcg@10", "mrr@10", "recall@100")
OF_ANSWERS = ("acc@1", "acc@5", "acc@20", "acc@100")


def check_same_corpus(indexes: Sequence["Index | None"], corpus: Corpus | None, name: str = "corpus=") -> Sequence[str]:
    """Return the passages' ids; raise UserError where an index holds other passages than another one or the corpus.

    Texts are compared as well where an index knows their fingerprint, and then the order of the passages.

    Args:
      indexes: the index of each model; None for a model that has none.
      corpus: the corpus; None where the indexes alone tell the passages.
      name: the corpus's name in the error.
    """
    texts, ids = (None, None) if corpus is None else (corpus.fingerprint(), corpus.ids)
    for index in indexes:
        if index is None:
            continue
        fingerprint = index.facts().get("texts_fingerprint")
        if fingerprint is None or texts is None:
            listed, _ = index.listing()
            same = ids is None or set(listed) == set(ids)
            ids = listed if ids is None else ids
        else:
            same = fingerprint == texts
        if not same:
            raise UserError(f"{index.name}: was encoded from other passages than {name}; encode the same corpus")
        texts, name = fingerprint or texts, f"those in {index.name}"
    assert ids is not None
    return ids


def run_of(
    search: Search, questions: Sequence[Question], k: int, own_questions: Collection[str] = ()
) -> dict[str, dict[str, float]]:
    """Search, and leave out the passages that are the questions themselves.

    Args:
      own_questions: the ids of the questions that are passages themselves, see `jaxretr.data.question_identity.own_ids`.

    Returns:
      {question id: {passage id: score}} with k passages per question, or fewer where the search finds fewer.
    """
    # One more is searched for in place of the question itself.
    scores, ids = search(questions, k + bool(own_questions))
    # Equal scores stay in the search's order, as in a run that is written.
    run = {
        question.id: dict(zip(names, strictly_decreasing(values[: len(names)]).tolist(), strict=True))
        for question, names, values in zip(questions, ids, scores, strict=True)
    }
    return {id: dict(list(hits.items())[:k]) for id, hits in without_own(run, own_questions).items()}


def depth(names: Sequence[str]) -> int:
    """The number of passages that these metrics need; at least 100, and 1000 for a metric without a cut."""
    cuts = [re.fullmatch(r"[^@]+@(\d+)", name.strip()) for name in names]
    return max(100, *(int(cut[1]) if cut else 1000 for cut in cuts))


def cut_of_answers(name: str) -> int:
    """The k of acc@k; raises UsageError for another metric."""
    parsed = re.fullmatch(r"acc@([1-9]\d*)", name.lower())
    if parsed is None:
        raise UsageError(f"{name}: answers are measured with acc@1, acc@20 and so on; other metrics need qrels")
    return int(parsed[1])


@dataclass(frozen=True, repr=False, eq=False)
class TestSet:
    """The questions that systems are measured on, by judgements or by answers in the passages' texts; a `Measure`.

    Attributes:
      questions: the questions, with their answers if there are no judgements; () for runs that are measured by judgements
        alone.
      corpus: the passages; empty likewise.
      qrels: the judgements; None: Acc@k of each question, 0 or 1, by its answers.
      match: the way to match answers, "string" or "regex".
      relevance_level: the lowest grade that counts as relevant, except for ndcg.
      source: the place that the questions come from, for people.
    """

    __test__ = False  # pytest takes the name for its own

    questions: Sequence[Question]
    corpus: Corpus
    qrels: metrics.Qrels | None = None
    match: Match = "string"
    relevance_level: int = 1
    source: str = ""

    def __post_init__(self):
        check_choice(get_args(Match), match=self.match)

    @functools.cached_property
    def own_questions(self) -> frozenset[str]:
        """The ids of the questions that are passages themselves, which do not count as found."""
        return own_ids(self.questions, self.corpus, self.qrels)

    def search(self, search: Search, k: int, texts: Sequence[str] | None = None) -> Run:
        """Find k passages for each question, without the question itself; see `run_of`.

        Args:
          texts: other texts of the questions, such as with typos; None: their own.
        """
        questions = self.questions
        if texts is not None:
            questions = [dataclasses.replace(each, text=text) for each, text in zip(questions, texts, strict=True)]
        return run_of(search, questions, k, self.own_questions)

    def others(self, run: Run, names: Sequence[str], name: str) -> Run:
        """Leave out a run's hits that are the question itself; warn where fewer hits are left than these metrics look at."""
        kept = without_own(run, self.own_questions)
        cuts = {int(cut) for _, _, cut in (metric.partition("@") for metric in names) if cut}
        short = [id for id in self.own_questions if id in run and len(kept[id]) < len(run[id]) and len(run[id]) in cuts]
        if short and len(run[short[0]]) < len(self.corpus):
            log.warning(
                "%s: without the question itself %d questions have one hit less than the metrics look at (%d); search one "
                "deeper",
                name,
                len(short),
                len(run[short[0]]),
            )
        return kept

    @property
    def texts(self) -> list[str]:
        """The texts of the questions."""
        return [question.text for question in self.questions]

    @property
    def measure(self) -> Measure:
        """The measure alone: by judgements, it does not keep the passages in memory."""
        return self if self.qrels is None else dataclasses.replace(self, questions=(), corpus=Corpus([], [], []))

    def __call__(self, run: Run, names: Sequence[str], name: str = "the run") -> Values:
        known = [question.id for question in self.questions] if self.qrels is None else self.qrels
        if run.keys().isdisjoint(known):
            what = "answers" if self.qrels is None else "judgements"
            raise UserError(
                f"{name} and the {what} have no question in common, for instance {next(iter(run), '')!r} and "
                f"{next(iter(known), '')!r}; give the {what} of the run's questions"
            )
        if self.qrels is not None:
            return metrics.evaluate(self.qrels, run, names, per_query=True, relevance_level=self.relevance_level)[1]
        cuts = {metric: cut_of_answers(metric) for metric in names}
        hits = [self._first_hit(question, run, max(cuts.values())) for question in self.questions]
        return {
            metric: {q.id: float(hit is not None and hit < cut) for q, hit in zip(self.questions, hits, strict=True)}
            for metric, cut in cuts.items()
        }

    @functools.cached_property
    def _matcher(self) -> AnswerMatcher:
        return AnswerMatcher(self.match)

    @functools.cached_property
    def _has_answer(self) -> dict[str, dict[str, bool]]:
        """{question id: {passage id: whether its text has an answer}}; the same pairs come up in run after run."""
        return {}

    def _first_hit(self, question: Question, run: Run, k: int) -> int | None:
        """The rank, from 0, of the first passage with an answer among the k best, ranked as trec_eval ranks them."""
        ranked, known = ranked_ids(run.get(question.id, {}), k), self._has_answer.setdefault(question.id, {})
        if missing := next((id for id in ranked if id not in known and id not in self.corpus), None):
            raise UserError(f"passage '{missing}' of the run is not in the corpus; give the corpus that was searched")
        for rank, id in enumerate(ranked):
            if id not in known:
                known[id] = self._matcher.has_answer(self.corpus.texts[self.corpus.row(id)], question.answers)
            if known[id]:
                return rank
        return None


def warn_of_own(run: Run, qrels: metrics.Qrels, name: str) -> None:
    """Warn where most first hits seem to be the question itself, which only the texts can tell."""
    best = {id: max(run[id], key=run[id].__getitem__) for id in qrels if run.get(id)}
    suspects = [id for id, first in best.items() if first == id and qrels[id].get(id, 0) <= 0]
    if 2 * len(suspects) > len(best):
        log.warning(
            "%s: the first hit of %d of %d questions has the question's own id and is not relevant; if the corpus contains "
            "the questions, give corpus and queries as well, so that they are left out",
            name,
            len(suspects),
            len(best),
        )


def warn_of_missing(questions: Collection[str], run: Collection[str], name: str) -> None:
    """Warns of questions, by their ids, that a run lacks: they count as 0."""
    missing = [question_id for question_id in questions if question_id not in run]
    if missing:
        log.warning(
            "%s lacks %d of %d questions (%s, ...): they count as 0", name, len(missing), len(questions), missing[0]
        )
