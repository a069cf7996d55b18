"""What a search finds for questions, and writing it as a run file: TREC's format, or lines of JSON."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from jaxretr.data.questions import Question
from jaxretr.errors import UserError
from jaxretr.storage.files import atomic_write

Path = str | os.PathLike[str]


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


def write_trec(path: Path, run: Mapping[str, Mapping[str, float]] | Iterable[Hits], tag: str = "jaxretr") -> None:
    """Writes a TREC run in which the order GIVEN is the order that trec_eval sees.

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
    """Lowers each score that is not below the one before it, by as little as float32 allows.

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
    """Writes one JSON object a question: {question_id, question, hits: [{id, title, score}]}, best first.

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
                for passage_id, row, score in zip(hit.ids, rows, finite(hit), strict=True)
            ]
            file.write(to_json({"question_id": hit.question_id, "question": question.text, "hits": found}) + b"\n")


def _as_hits(run: Mapping[str, Mapping[str, float]] | Iterable[Hits]) -> Iterator[Hits]:
    if isinstance(run, Mapping):
        for question_id, scores in cast(Mapping[str, Mapping[str, float]], run).items():
            yield Hits(question_id, list(scores), single_precision(scores))
    else:
        yield from run


def joined(
    questions: Iterable[Question], corpus: Corpus, hits: Iterable[Hits]
) -> Iterator[tuple[Hits, Question, list[int]]]:
    """Yields each question's hits, the question, and the corpus rows of its passages."""
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
    if value.split() != [value]:
        raise UserError(f"{what} {value!r} is empty or contains white space: a TREC run cannot hold it")


def to_json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair, as JSON input may hold: escaped, it survives
        return json.dumps(value).encode()


def single_precision(scores: Mapping[str, float]) -> NDArray[np.float32]:
    """Returns the scores, in their order, as trec_eval reads them: float32 [K], infinite where that overflows."""
    with np.errstate(over="ignore"):
        return np.fromiter(scores.values(), np.float32, len(scores))
