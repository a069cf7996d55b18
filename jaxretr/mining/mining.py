"""`jaxretr.mine`: hard negatives for training questions, from BM25, a model or a run."""

import json
import logging
import math
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxretr.data.corpus import Corpus, content_fingerprint, read_corpus
from jaxretr.data.made_of import write_record
from jaxretr.data.question_identity import own_rows, without_own_rows
from jaxretr.data.questions import Question
from jaxretr.data.run_reading import read_run
from jaxretr.data.runs import checked_scores, to_json
from jaxretr.data.text_rows import numbered_bytes
from jaxretr.data.training_set import Ragged, TrainingSet, load_training_set
from jaxretr.evaluate.answers import Match
from jaxretr.evaluate.metrics import check_by_question
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.indexes.bm25.words import Bm25Settings
from jaxretr.mining.negatives import (
    REASONS,
    Filters,
    Mined,
    MiningReport,
    Ranking,
    hard_negatives,
    rankings_of_run,
    warn_without_hits,
)
from jaxretr.runtime.errors import UsageError, UserError, at_least
from jaxretr.runtime.progress import Progress
from jaxretr.runtime.storage.files import atomic_write, check_output, open_descriptor, sha256

if TYPE_CHECKING:  # They bring JAX along, which mining with BM25 does without.
    from jaxretr.embeddings.encoding import Encoder
    from jaxretr.embeddings.kept_chunks import KeptChunks
    from jaxretr.indexes.reranking import AnyScorer

log = logging.getLogger(__name__)

Path_ = str | Path

# Questions searched at a time.
_BLOCK = 256


@dataclass(frozen=True, eq=False, repr=False)
class MinedSet:
    """Training questions with their hard negatives, B examples.

    Attributes:
      questions: B questions.
      corpus: the N passages to which the rows point.
      positives: corpus rows, int32, the given ones first; none is empty.
      positive_scores: float32, aligned with `positives`, the scorer's raw scores or the ranking's; nan if unknown.
      negatives: corpus rows, int32, the best ranked first; may be empty.
      negative_scores: float32, aligned with `negatives`, the scorer's raw scores or the ranking's.
      filters: the filters that passages had to pass.
      report: the numbers of passages that were kept and filtered.
      made_of: the corpus, the questions, the ranking and the scorer, as settings or hashes.
      kept: the folder of the scorer's scores, which `save` removes; None: there is none.
    """

    questions: Sequence[Question]
    corpus: Corpus
    positives: Ragged
    positive_scores: Ragged
    negatives: Ragged
    negative_scores: Ragged
    filters: Filters
    report: MiningReport
    made_of: Mapping[str, str]
    kept: "KeptChunks | None" = None

    def __len__(self) -> int:
        return len(self.questions)

    def __repr__(self) -> str:
        return f"MinedSet({len(self.negatives.values)} negatives of {len(self)} questions)"

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield each example as a row of Tevatron's second format, with scores that `distillation` trains with."""
        ids = self.corpus.ids
        for number, question in enumerate(self.questions):
            yield {
                "query_id": question.id,
                "query_text": question.text,
                "query_image": None,
                "positive_document_ids": [ids[row] for row in self.positives[number].tolist()],
                "negative_document_ids": [ids[row] for row in self.negatives[number].tolist()],
                "positive_scores": _numbers(self.positive_scores[number]),
                "negative_scores": _numbers(self.negative_scores[number]),
            }

    def save(self, path: Path_) -> None:
        """Write a training file in Tevatron's second format, whole or not at all, and its record (`data.made_of`).

        Raises:
          UserError: it cannot be written.
        """
        with atomic_write(Path(path).expanduser(), "wb") as file:
            for record in self.records():
                file.write(to_json(record) + b"\n")
        write_record(path, self.made_of)
        if self.kept is not None:
            self.kept.remove()

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.report.as_dict(), indent=2)

    def table(self) -> str:
        """The report for people."""
        report = self.report.as_dict()
        negatives, top, wanted = report["negatives"], report["positive_in_top"], self.filters.negatives
        lines = [
            f"{report['questions']} questions, {negatives['mean']:.2f} negatives each: "
            f"{negatives['questions_by_number'].get(str(wanted), 0)} have all {wanted}, "
            f"{report['questions_without_negatives']} have none"
        ]
        dropped = report["dropped"]
        lines += [
            f"dropped {dropped[key]} passages: {meaning} ({key})" for key, meaning in REASONS.items() if dropped[key]
        ]
        ranks = ", ".join(f"{name} {number}" for name, number in report["best_positive_ranks"].items())
        return "\n".join(
            [
                *lines,
                f"{100 * top['share']:.1f} % of the questions have a positive among the best {top['depth']}",
                f"questions by the rank of their best positive: {ranks}",
            ]
        )


def mine(
    train: Path_,
    *,
    corpus: Path_ | Corpus,
    split: str = "train",
    run: Path_ | Mapping[str, Mapping[str, float]] | None = None,
    model: "Encoder | Path_ | Callable[[], Encoder] | None" = None,
    negatives: int = 30,
    ranks: tuple[int, int] = (1, 100),
    depth: int | None = None,
    margin: float | None = None,
    relative_margin: float | None = None,
    answers: Match | None = "string",
    bm25: Bm25Settings | None = None,
    scorer: "AnyScorer | None" = None,
    max_score_share: float | None = None,
    score_margin: float | None = None,
    relabel_margin: float | None = None,
    skip_bad: bool = False,
    out: Path_ | None = None,
) -> MinedSet:
    """Find hard negatives: passages that BM25, a model or a run ranks high for a question, filtered.

    Args:
      train: questions with positives: any training file, or a BEIR folder.
      corpus: the passages, as for `jaxretr.encode`.
      split: split of a BEIR folder's qrels.
      run: a run to mine from instead of BM25. A file in any format that `read_run` reads, or
        {question id: {passage id: score}}.
      model: a dense or sparse model to mine with instead of BM25, by path or hub name. Or an encoder, or a function that
        loads one. The search is exact, in memory, and every positive has its score.
      negatives: negatives per question, at most; fewer if fewer hits pass the filters.
      ranks: first and last rank to draw from, counted from 1.
      depth: passages to rank, for the report; by default the last of `ranks`.
      margin: negatives score at most the best positive's score less this.
      relative_margin: negatives score at most the best positive's score less this share of it.
      answers: the way to recognise passages that contain an answer, which are dropped; None keeps them.
      bm25: BM25's settings.
      scorer: a cross-encoder or another scorer, what `load_scorer` takes, or a function that loads one: it scores the
        positives and the passages that pass all other filters, and its raw scores become those of the result.
      max_score_share: negatives have at most this share of the best positive's probability by the scorer: sigmoid(logit)
        for a cross-encoder, exp(mean log-likelihood of a token) for a language model; 0.95 is NV-Retriever's.
      score_margin: negatives score at most the best positive's raw score by the scorer less this.
      relabel_margin: passages that score at least the best positive's raw score by the scorer and this, all of those that
        pass the other filters, become positives of the question.
      skip_bad: skip and count bad rows, and positives that the corpus lacks.
      out: the training file to write. A scorer's scores are kept beside it until all are there, so that an interrupted call
        resumes.

    Raises:
      UsageError: arguments that contradict each other.
      UserError: a file cannot be read, or its ids do not match the corpus.
    """
    if (
        not isinstance(ranks, tuple | list)
        or len(ranks) != 2
        or not all(isinstance(rank, int | np.integer) for rank in ranks)
    ):
        raise UsageError(f"ranks={ranks!r}: give the first and the last one, such as (1, 100)")
    if not isinstance(run, str | Path | None):
        check_by_question("run", run)
    at_least(1, depth=depth)
    if not isinstance(bm25, Bm25Settings | None):
        raise UsageError(
            f"bm25: a {type(bm25).__name__} is no Bm25Settings; give jaxretr.indexes.bm25.words.Bm25Settings(...)"
        )
    filters = Filters(
        negatives=negatives,
        first_rank=int(ranks[0]),
        last_rank=int(ranks[1]),
        margin=margin,
        relative_margin=relative_margin,
        answers=answers,
    )
    depth = int(filters.last_rank if depth is None else depth)
    if depth < filters.last_rank:
        raise UsageError(f"depth={depth} ends before the ranks {filters.first_rank}:{filters.last_rank}; raise it")
    given = [name for name, value in (("run", run), ("model", model)) if value is not None]
    if len(given) > 1:
        raise UsageError("run= and model= both give the ranking; give one of them")
    if given and bm25 is not None:
        raise UsageError(
            f"k1=, b= and stemmer= of BM25 have no effect with {given[0]}=, which gives the ranking; leave them out"
        )

    limits = {"max_score_share": max_score_share, "score_margin": score_margin, "relabel_margin": relabel_margin}
    if scorer is None and (name := next((name for name, limit in limits.items() if limit is not None), None)):
        raise UsageError(f"{name}= is for the scores of a scorer: give scorer= as well, or leave it out")

    if out is not None:
        check_output(out, corpus, train, run)
    corpus = corpus if isinstance(corpus, Corpus) else read_corpus(corpus)
    training = load_training_set(train, corpus, split=split, skip_bad=skip_bad)
    questions, positives = _known_to_the_corpus(str(train), training, skip_bad)
    own = own_rows(questions, corpus, training.qrels)
    judge = None if scorer is None else _judge(scorer, *limits.values())
    ranking = None if run is None else "a run"
    if model is not None:
        from jaxretr.mining.dense import rankings_of_model

        rankings, ranking = rankings_of_model(model, questions, positives, own, corpus, depth)
    elif run is None:
        log.info("indexing %d passages", len(corpus))
        rankings = _rankings_of_bm25(
            Bm25Index.build(corpus, **asdict(bm25 or Bm25Settings())), questions, positives, own, depth
        )
    else:
        rankings = _rankings_of_run(run, questions, positives, own, corpus, depth)

    made_of = {
        "corpus": corpus.fingerprint(),
        "questions": content_fingerprint([each.id for each in questions], [each.text for each in questions]),
    }
    report, kept = MiningReport(min(depth, len(corpus))), None
    found, known = _Lists(), _Lists()
    with Progress(len(questions), "question", "mined") as progress:
        if judge is None:
            mined_of_all = hard_negatives(questions, positives, rankings, corpus, filters)
        else:
            candidates = hard_negatives(questions, positives, rankings, corpus, replace(filters, negatives=depth))
            made_of["scorer"] = judge.keywords["rule"].scorer.fingerprint()
            kept = None if out is None else _kept_beside(Path(out).expanduser(), made_of)
            mined_of_all = judge(candidates, questions, positives, corpus, negatives=filters.negatives, kept=kept)
        for number, mined in enumerate(mined_of_all, start=1):
            found.add(mined.rows, mined.scores)
            known.add(
                [*positives[number - 1], *mined.relabelled.tolist()],
                np.concatenate([mined.positive_scores, mined.relabelled_scores]),
            )
            report.add(mined)
            if number % _BLOCK == 0 or number == len(questions):
                progress.advance((number - 1) % _BLOCK + 1)
    if report.positive_scores_unknown:
        log.warning(
            "the positives of %d questions have no score in the run: with a margin nothing is kept for them",
            report.positive_scores_unknown,
        )
    if isinstance(run, str | Path) and Path(run).is_file():  # A pipe cannot be read again.
        ranking = f"{run}, sha256 {sha256(Path(run))}"
    made_of["ranking"] = ranking or str(bm25 or Bm25Settings())
    mined = MinedSet(questions, corpus, *known.ragged(), *found.ragged(), filters, report, made_of, kept)
    if out is not None:
        mined.save(out)
    return mined


def _judge(scorer: "AnyScorer", *limits: float | None) -> "partial[Iterator[Mined]]":
    """Load a scorer, and return `judged_by_scorer` with it. Mining without one does not import JAX."""
    from jaxretr.indexes.reranking import loaded_scorer
    from jaxretr.mining.scorer_filter import ScorerFilter, judged_by_scorer

    return partial(judged_by_scorer, rule=ScorerFilter(loaded_scorer(scorer), *limits))


def _kept_beside(out: Path, made_of: Mapping[str, str]) -> "KeptChunks | None":
    """Return the folder of an interrupted call's scores; a stream has none."""
    from jaxretr.embeddings.kept_chunks import KeptChunks

    return None if open_descriptor(out) is not None else KeptChunks.beside(out, "scores", made_of)


class _Lists:
    """Rows and scores of one question after the other, kept as numbers alone."""

    def __init__(self) -> None:
        self.offsets, self.rows, self.scores = array("q", [0]), array("i"), array("f")

    def add(self, rows: Sequence[int] | np.ndarray, scores: np.ndarray) -> None:
        self.rows.extend(int(row) for row in rows)
        self.scores.extend(scores.tolist())
        self.offsets.append(len(self.rows))

    def ragged(self) -> tuple[Ragged, Ragged]:
        offsets = np.array(self.offsets, np.int64)
        return Ragged(offsets, np.array(self.rows, np.int32)), Ragged(offsets, np.array(self.scores, np.float32))


def _known_to_the_corpus(path: str, training: TrainingSet, skip_bad: bool) -> tuple[list[Question], list[list[int]]]:
    """Return the questions and their positives' rows, without those that have no id in the corpus."""
    rows = [training.positives[number].tolist() for number in range(len(training))]
    unknown = [number for number, of_one in enumerate(rows) if max(of_one) >= training.corpus_rows]
    if unknown:
        problem = (
            f"{path}: {len(unknown)} questions have a positive passage that is not in the corpus "
            f"(the first: '{training.questions[unknown[0]].id}')"
        )
        if not skip_bad:
            raise UserError(
                f"{problem}, and mined passages are written as ids of the corpus; "
                "give the corpus that the file was made from, or leave them out with skip_bad=True"
            )
        rows = [[row for row in of_one if row < training.corpus_rows] for of_one in rows]
        left = sum(not of_one for of_one in rows)
        log.warning("%s; those positives are left out, and %d questions that have no other", problem, left)
        if left == len(rows):
            raise UserError(f"{path}: no positive passage is in the corpus; give the corpus that it was made from")
    kept = [number for number, of_one in enumerate(rows) if of_one]
    return [training.questions[number] for number in kept], [rows[number] for number in kept]


def _rankings_of_bm25(
    index: Bm25Index,
    questions: Sequence[Question],
    positives: Sequence[Sequence[int]],
    own: np.ndarray,
    depth: int,
) -> Iterator[Ranking]:
    # One more passage is ranked in place of a question that is one itself.
    deeper = depth + bool((own >= 0).any())
    for start in range(0, len(questions), _BLOCK):
        texts = [question.text for question in questions[start : start + _BLOCK]]
        wanted = positives[start : start + _BLOCK]
        scores, rows, of_positives = index.search_and_score(texts, deeper, wanted, threads=os.cpu_count() or 1)
        scores, rows = without_own_rows(scores, rows, own[start : start + _BLOCK], depth)
        yield from map(Ranking, rows, scores, of_positives)


def _rankings_of_run(
    run: Path_ | Mapping[str, Mapping[str, float]],
    questions: Sequence[Question],
    positives: Sequence[Sequence[int]],
    own: np.ndarray,
    corpus: Corpus,
    depth: int,
) -> Iterator[Ranking]:
    path = None if isinstance(run, Mapping) else Path(run)
    name = "the run" if path is None else str(path)
    found = run if isinstance(run, Mapping) else read_run(run, questions=questions)
    warn_without_hits(name, found, [question.id for question in questions], "training questions")
    row_of_id = {id: row for row, id in enumerate(corpus.ids)}
    for question in questions:
        checked_scores(hits := found.get(question.id, {}), question.id)
        for id in hits:
            if id not in row_of_id:
                where = name if path is None else _line_of_hit(path, question.id, id)
                raise UserError(f"{where}: passage '{id}' is not in the corpus; give the corpus that was searched")
    own_ids = {question.id for question, row in zip(questions, own.tolist(), strict=True) if row >= 0}
    return rankings_of_run(found, questions, positives, row_of_id, depth, own_ids)


def _line_of_hit(path: Path, question_id: str, passage_id: str) -> str:
    """The place at which a run names a passage: the file, and for a TREC run the line."""
    wanted = question_id.encode(), passage_id.encode()
    for number, line in numbered_bytes(path) if path.is_file() else ():
        if line.split()[:3:2] == [*wanted]:
            return f"{path}:{number}"
    return str(path)


def _numbers(scores: np.ndarray) -> list[float | None]:
    """Return float32 scores with the 9 digits that restore them; null for an unknown or infinite one."""
    return [float(f"{score:.9g}") if math.isfinite(score) else None for score in scores.tolist()]
