"""The hits of a search, and writing them as a run file in TREC's format, DPR's, or lines of JSON."""

import functools
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
from numpy.typing import NDArray

from jaxretr.data.answer_matching import AnswerMatcher, Match
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.data.text_rows import trec_problem
from jaxretr.runtime.errors import UsageError, UserError, did_you_mean, is_number, no_rows, path_text
from jaxretr.runtime.storage.files import atomic_write

Path = str | os.PathLike[str]
Queries = str | pathlib.Path | Sequence[str] | Sequence[Question]
RunFormat = Literal["trec", "dpr", "jsonl"]

# What `jaxretr.data.named.documents` puts behind a document's id.
_PASSAGE = re.compile(r"#\d+$")


@dataclass(frozen=True)
class Hits:
    """The passages found for one question, best first.

    Attributes:
      question_id: the question's id.
      ids: ids of the K passages.
      scores: their scores, float32 [K].
    """

    question_id: str
    ids: list[str]
    scores: NDArray[np.float32]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.scores):
            raise ValueError(f"question '{self.question_id}': {len(self.ids)} ids but {len(self.scores)} scores")


class Corpus(Protocol):
    """Passages as columns of N rows."""

    @property
    def ids(self) -> Sequence[str]: ...
    @property
    def titles(self) -> Sequence[str]: ...
    @property
    def texts(self) -> Sequence[str]: ...


def questions_of(queries: Queries, trec_ids: bool = False) -> list[Question]:
    """Return the questions of a file, or those given; texts alone get the ids "0", "1", ...

    Raises:
      UserError: the file cannot be read, what is given is a dict, or `trec_ids` and an id in it does not fit a TREC run.
    """
    if isinstance(queries, str | pathlib.Path):
        return read_questions(queries, trec_ids=trec_ids)
    if isinstance(queries, Mapping):  # Its ids would be searched for.
        raise UserError("questions: a list is expected, not a dict; give Question(id, text) to keep ids")
    if isinstance(queries, bytes) or not isinstance(queries, Iterable):
        raise UserError(
            f"questions: a {type(queries).__name__} is neither a path nor a list; give a file, or a list of texts"
        )
    if why := no_rows(queries):
        raise UserError(f"questions: {why}")
    questions = [
        question if isinstance(question, Question) else Question(str(number), question)
        for number, question in enumerate(queries)
    ]
    if wrong := next((each for each in questions if not isinstance(each.text, str)), None):
        raise UserError(f"questions: {wrong.text!r:.60} is no text; give texts, or Question(id, text)")
    return questions


@dataclass(frozen=True, eq=False, repr=False)
class SearchRun(Mapping[str, dict[str, float]]):
    """The hits of a search, {question id: {passage id: score}}, best first, as `metrics.evaluate` takes them.

    Attributes:
      hits: the hits of each question, in the order of the questions.
      questions: the questions.
      passages: titles and texts of the hits, if the index holds them and they were read; None: `save` is given a corpus.
    """

    hits: Sequence[Hits]
    questions: Sequence[Question]
    passages: Corpus | None = None

    @functools.cached_property
    def _of_question(self) -> dict[str, Hits]:
        return {found.question_id: found for found in self.hits}

    @property
    def num_hits(self) -> int:
        """The number of hits of all questions together."""
        return sum(len(found.ids) for found in self.hits)

    def __getitem__(self, question_id: str) -> dict[str, float]:
        found = self._of_question[question_id]
        # Equal scores stay in the search's order, as `save` writes them.
        return dict(zip(found.ids, strictly_decreasing(found.scores).tolist(), strict=True))

    def __iter__(self) -> Iterator[str]:
        return iter(self._of_question)

    def __len__(self) -> int:
        return len(self._of_question)

    def __repr__(self) -> str:
        return f"SearchRun({len(self)} questions, {self.num_hits} hits)"

    def of_documents(self) -> "SearchRun":
        """Return the run of the documents whose passages were found, each by its best one: DOCUMENT#3 is of DOCUMENT.

        Passages have such ids where `files:PATH[words=N]` cut documents; another id is a document's own.
        """
        hits = []
        for found in self.hits:
            best: dict[str, float] = {}
            for id, score in zip(found.ids, found.scores.tolist(), strict=True):
                best.setdefault(_PASSAGE.sub("", id), score)
            hits.append(Hits(found.question_id, list(best), np.fromiter(best.values(), np.float32, len(best))))
        return SearchRun(hits, self.questions)

    def save(self, path: Path, *, format: RunFormat = "trec", corpus: Corpus | Path | None = None) -> None:
        """Write the run to a file, which appears complete or not at all.

        Args:
          path: the file.
          format: "trec" for trec_eval, "dpr" for DPR's results with texts and answers, "jsonl" for lines of JSON.
          corpus: the passages, or their file; "dpr" and "jsonl" take titles and texts from it, or from `passages`.

        Raises:
          UsageError: an unknown format, or one that needs a corpus.
          UserError: an id or a score that the format cannot represent, or the file cannot be written.
        """
        formats = get_args(RunFormat)
        if format not in formats:
            raise UsageError(f"format={format!r}{did_you_mean(format, formats)} ({', '.join(formats)})")
        place = pathlib.Path(path_text(path)).expanduser()
        if format == "trec":
            write_trec(place, self.hits)
            return
        corpus = self.passages if corpus is None else corpus
        if corpus is None:
            raise UsageError(f"format={format!r} needs the passages' titles; give the corpus as well")
        passages = read_corpus(pathlib.Path(corpus)) if isinstance(corpus, str | os.PathLike) else corpus
        write = write_dpr_json if format == "dpr" else write_jsonl
        write(place, self.questions, passages, self.hits)


def write_trec(path: Path, run: Mapping[str, Mapping[str, float]] | Iterable[Hits], tag: str = "jaxretr") -> None:
    """Write a TREC run in which the order GIVEN is the order that trec_eval sees.

    trec_eval ignores the rank, reads scores in single precision and orders equal ones by passage id, descending. So the
    scores are written strictly decreasing: with 9 digits, which give back every float32 exactly, and a score that would
    not be below the one before it is written as the largest float32 that is. Scores that already decrease stay as they
    are; give the hits of a question best first (a dict in its order), or their scores are lost.

    Args:
      path: the file to write, whole or not at all.
      run: {question id: {passage id: score}}, or the hits of each question.
      tag: the name of the system, the sixth column.

    Raises:
      UserError: an id or the tag is empty or contains white space, a score is not finite, a passage or a question
        occurs twice, or the file cannot be written.
    """
    _check_column("the tag", tag)
    seen: set[str] = set()
    with atomic_write(path, "wb") as file:
        for hits in _as_hits(run):
            _check_column("the question id", hits.question_id)
            if hits.question_id in seen:
                raise UserError(f"question '{hits.question_id}' occurs twice in the run: a TREC run cannot hold that")
            seen.add(hits.question_id)
            if len(set(hits.ids)) != len(hits.ids):
                raise UserError(f"question '{hits.question_id}' has a passage twice: a TREC run cannot hold that")
            lines = []
            scores = strictly_decreasing(finite(hits)).tolist()
            for rank, (passage_id, score) in enumerate(zip(hits.ids, scores, strict=True), start=1):
                _check_column("the passage id", passage_id)
                lines.append(f"{hits.question_id} Q0 {passage_id} {rank} {score:.9g} {tag}\n")
            file.write("".join(lines).encode())


def strictly_decreasing(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Lower each score that is not below the one before it, by as little as float32 allows.

    Args:
      scores: float32 [K], best first.

    Returns:
      float32 [K], strictly decreasing; a score that was already below the (lowered) one before it is unchanged.
    """
    if (scores[1:] < scores[:-1]).all():
        return scores
    lowered = scores.copy()
    for index in range(1, len(lowered)):
        below = np.nextafter(lowered[index - 1], np.float32(-np.inf))
        lowered[index] = min(lowered[index], below)
    return lowered


def write_jsonl(path: Path, questions: Iterable[Question], corpus: Corpus, hits: Iterable[Hits]) -> None:
    """Write one JSON object a question: {question_id, question, hits: [{id, title, score}]}, best first.

    Scores are made to decrease as `write_trec` does it, so that every format is read in the order given.

    Args:
      path: the file to write, whole or not at all.
      questions: at least the questions of `hits`.
      corpus: at least the passages of `hits`.
      hits: the found passages of each question, written in this order.

    Raises:
      UserError: a question or passage is unknown, a score is not finite, or the file cannot be written.
    """
    with atomic_write(path, "wb") as file:
        for hit, question, rows in joined(questions, corpus, hits):
            found = [
                # Through str: the shortest decimal that is this float32, 0.1 and not 0.10000000149011612.
                {"id": passage_id, "title": corpus.titles[row], "score": float(str(score))}
                for passage_id, row, score in zip(hit.ids, rows, strictly_decreasing(finite(hit)), strict=True)
            ]
            file.write(to_json({"question_id": hit.question_id, "question": question.text, "hits": found}) + b"\n")


def write_dpr_json(
    path: Path, questions: Iterable[Question], corpus: Corpus, hits: Iterable[Hits], match: Match = "string"
) -> None:
    """Write DPR's results: a JSON array of {id, question, answers, ctxs: [{id, title, text, score, has_answer}]}.

    The question's id is ours, and ignored by DPR. The score is a string, as DPR writes it. `has_answer` is false wherever
    a question's answers are not known. Scores are made to decrease as `write_trec` does it.

    Args:
      path, questions, corpus, hits: see `write_jsonl`.
      match: the way to match answers, see `AnswerMatcher`.

    Raises:
      UserError: a question or passage is unknown, a score is not finite, or the file cannot be written.
    """
    matcher = AnswerMatcher(match)
    with atomic_write(path, "wb") as file:
        file.write(b"[")
        for number, (hit, question, rows) in enumerate(joined(questions, corpus, hits)):
            contexts = [
                {
                    "id": passage_id,
                    "title": corpus.titles[row],
                    "text": corpus.texts[row],
                    "score": str(score),
                    "has_answer": matcher.has_answer(corpus.texts[row], question.answers),
                }
                for passage_id, row, score in zip(hit.ids, rows, strictly_decreasing(finite(hit)), strict=True)
            ]
            file.write(b",\n" if number else b"\n")
            row = {"id": question.id, "question": question.text, "answers": list(question.answers), "ctxs": contexts}
            file.write(to_json(row))
        file.write(b"\n]\n")


def _as_hits(run: Mapping[str, Mapping[str, float]] | Iterable[Hits]) -> Iterator[Hits]:
    if isinstance(run, Mapping):
        for question_id, scores in cast(Mapping[str, Mapping[str, float]], run).items():
            yield Hits(question_id, list(scores), single_precision(scores))
    else:
        yield from run


def joined(
    questions: Iterable[Question], corpus: Corpus, hits: Iterable[Hits]
) -> Iterator[tuple[Hits, Question, list[int]]]:
    """Yield each question's hits, the question, and the corpus rows of its passages."""
    hits = list(hits)
    question_of_id = {question.id: question for question in questions}
    # Only of the passages that were found: a dict of 21 million ids would take gigabytes.
    found = {passage_id for hit in hits for passage_id in hit.ids}
    passage_rows = {passage_id: row for row, passage_id in enumerate(corpus.ids) if passage_id in found}
    for hit in hits:
        question = question_of_id.get(hit.question_id)
        if question is None:
            raise UserError(f"question '{hit.question_id}' has hits but is not among the questions")
        missing = next((passage_id for passage_id in hit.ids if passage_id not in passage_rows), None)
        if missing is not None:
            raise UserError(
                f"passage '{missing}', found for question '{hit.question_id}', is not in the corpus; "
                "give the corpus that was searched"
            )
        yield hit, question, [passage_rows[passage_id] for passage_id in hit.ids]


def finite(hits: Hits) -> NDArray[np.float32]:
    scores = np.asarray(hits.scores, np.float32)
    if not np.isfinite(scores).all():
        passage_id = hits.ids[int((~np.isfinite(scores)).argmax())]
        raise UserError(f"the score of passage '{passage_id}' for question '{hits.question_id}' is not a finite number")
    return scores


def _check_column(what: str, value: str) -> None:
    if problem := trec_problem(value):
        raise UserError(f"{what} {value!r} {problem}: a TREC run cannot hold it")


def to_json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair, as JSON input may hold: escaped, it survives
        return json.dumps(value).encode()


def single_precision(scores: Mapping[str, float]) -> NDArray[np.float32]:
    """Return the scores, in their order, as trec_eval reads them: float32 [K], infinite where that overflows.

    A score that is not a number becomes NaN.
    """
    with np.errstate(over="ignore"):
        try:
            return np.fromiter(scores.values(), np.float32, len(scores))
        except (TypeError, ValueError, OverflowError):
            numbers = (score if is_number(score) else math.nan for score in scores.values())
            return np.fromiter(numbers, np.float32, len(scores))


def checked_scores(scores: Mapping[str, float], question_id: str | None = None) -> NDArray[np.float32]:
    """Return `single_precision`; UserError for a score that is not a number, which names the question."""
    single = single_precision(scores)
    if np.isnan(single).any():
        of_question = "" if question_id is None else f" for question '{question_id}'"
        passage_id = list(scores)[int(np.isnan(single).argmax())]
        raise UserError(f"the score of passage '{passage_id}'{of_question} is not a number")
    return single


def ranked_ids(scores: Mapping[str, float], depth: int | None = None, question_id: str | None = None) -> list[str]:
    """Rank one question of a run as trec_eval does: by float32 score, equal ones by id (in byte order), both descending.

    Args:
      scores: {passage id: score}.
      depth: the most passages to return; None: all.
      question_id: the question, for the error.

    Raises:
      UserError: a score is not a number, or an id is no text, so that equal scores have no order.
    """
    single = checked_scores(scores, question_id)
    # Python orders strings by code point, which is the order of their UTF-8 bytes, and therefore that of C's strcmp.
    try:
        ranked = sorted(zip(single.tolist(), scores, strict=True), reverse=True)
    except TypeError:
        wrong = next(id for id in scores if not isinstance(id, str))
        raise UserError(f"the passage id {wrong!r} is no text; give every id as one") from None
    return [passage_id for _, passage_id in ranked[:depth]]
