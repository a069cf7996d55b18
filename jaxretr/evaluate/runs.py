"""Runs (ranked passages for questions) as files: TREC, DPR's results JSON, lines of JSON, MS MARCO's and Tevatron's."""

import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from jaxretr.data.questions import Question
from jaxretr.data.text_rows import (
    RowError,
    check_trec_id,
    check_utf8,
    first_character,
    first_line,
    json_array,
    json_lines,
    missing_field,
    numbered_bytes,
    numbered_lines,
    string_field,
)
from jaxretr.errors import UserError
from jaxretr.evaluate.answers import AnswerMatcher, Match
from jaxretr.evaluate.metrics import single_precision
from jaxretr.storage.files import atomic_write

Path = str | os.PathLike[str]

_PASSAGE_IDS = ("id", "passage_id", "psg_id", "docid", "_id")


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


def read_run(path: Path, *, trec_ids: bool = False) -> dict[str, dict[str, float]]:
    """Reads a run in any of the formats, told from the content.

    Formats:
      TREC, see `read_trec`.
      DPR's results, a JSON array or lines of {question, answers, ctxs: [{id, score}]}; a question's id is its "id",
        or its position counted from 0 where it has none. Without scores the order ranks.
      Lines of {question_id, hits: [{id, score}]}, as `write_jsonl` writes them.
      MS MARCO's `question-id<TAB>passage-id<TAB>rank` and Tevatron's with a score in place of the rank: whole numbers
        that for every question are 1 to the number of its passages are ranks.

    Args:
      path: the file, gzipped or not.
      trec_ids: whether a row is bad with an id that `write_trec` refuses.

    Returns:
      {question id: {passage id: score}} in the file's order; a rank r as the score -r.

    Raises:
      UserError: the file cannot be read or holds no hit, or a row is bad (`path:line: ...`).
    """
    file = pathlib.Path(path)
    if not file.is_file():
        # What comes through a pipe can be looked at only once.
        return read_trec(path, trec_ids=trec_ids)
    first = first_character(file)
    if first in ("[", "{"):
        run = _read_json(file, json_array(file) if first == "[" else json_lines(file), trec_ids)
    elif first_line(file).count("\t") == 2:
        run = _read_three_columns(file, trec_ids)
    else:
        return read_trec(file, trec_ids=trec_ids)
    if not any(run.values()):
        raise UserError(f"{path}: the run is empty; give one with at least one passage")
    return run


def _read_json(
    path: pathlib.Path, rows: Iterator[tuple[int, dict[str, Any] | RowError]], trec_ids: bool
) -> dict[str, dict[str, float]]:
    run: dict[str, dict[str, float]] = {}
    for position, (line, row) in enumerate(rows):
        try:
            if isinstance(row, RowError):
                raise row
            name = "hits" if "hits" in row else "ctxs"
            if not isinstance(row.get(name), list) or not all(isinstance(hit, dict) for hit in row[name]):
                raise RowError(f'field "{name}" is no list of passages; is it a run?')
            question_id = string_field(row, ("question_id", "id", "query_id", "_id"), allow_int=True) or str(position)
            if question_id in run:
                raise RowError(f"question '{question_id}' occurs twice; remove one row")
            hits = run[question_id] = {}
            for rank, hit in enumerate(row[name], start=1):
                id = string_field(hit, _PASSAGE_IDS, allow_int=True)
                if id is None:
                    raise missing_field(hit, _PASSAGE_IDS)
                if id in hits:
                    raise RowError(f"passage '{id}' occurs twice for question '{question_id}'; remove one")
                hits[id] = -float(rank) if hit.get("score") is None else _score(hit["score"])
            if trec_ids:
                _check_trec_ids(question_id, hits)
        except RowError as error:
            raise UserError(f"{path}:{line}: {error}") from None
    return run


def _read_three_columns(path: pathlib.Path, trec_ids: bool) -> dict[str, dict[str, float]]:
    run: dict[str, dict[str, float]] = {}
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            check_utf8(line)
            fields = [field.strip(" ") for field in line.split("\t")]
            if len(fields) != 3 or not all(fields):
                raise RowError("no question-id<TAB>passage-id<TAB>rank; is it a run?")
            question_id, id, value = fields
            hits = run.setdefault(question_id, {})
            if id in hits:
                raise RowError(f"passage '{id}' occurs twice for question '{question_id}'; remove one line")
            hits[id] = _score(value)
            if trec_ids:
                _check_trec_ids(question_id, [id])
        except RowError as error:
            raise UserError(f"{path}:{number}: {error}") from None
    if all(sorted(hits.values()) == list(range(1, len(hits) + 1)) for hits in run.values()):
        return {question_id: {id: -rank for id, rank in hits.items()} for question_id, hits in run.items()}
    return run


def _check_trec_ids(question_id: str, ids: Iterable[str]) -> None:
    check_trec_id(question_id)
    for id in ids:
        check_trec_id(id)


def _score(value: Any) -> float:
    try:
        score = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        score = float("nan")
    if score != score:
        raise RowError(f"the score {str(value)[:40]!r} is not a number; correct it")
    return score


def read_trec(path: Path, *, trec_ids: bool = False) -> dict[str, dict[str, float]]:
    """Reads a TREC run: lines of `question-id Q0 passage-id rank score tag`, separated by white space.

    As in trec_eval, the second, fourth and sixth columns are ignored: the score alone ranks. Blank lines are skipped.

    Args:
      path: the file, UTF-8, gzipped or not.
      trec_ids: whether a line is bad with an id that `write_trec` refuses: one with a no-break space, say.

    Returns:
      {question id: {passage id: score}} in the file's order.

    Raises:
      UserError: the file cannot be read or holds no hit, or a line is bad (`path:line: ...`).
    """
    run: dict[str, dict[str, float]] = {}
    for number, line in numbered_bytes(pathlib.Path(path)):
        # Split as bytes: C's white space only. In a str a no-break space inside an id would split too.
        if fields := line.split():
            _add_line(run, fields, f"{path}:{number}", trec_ids)
    if not run:
        raise UserError(f"{path}: the run is empty; expected lines of 'question-id Q0 passage-id rank score tag'")
    return run


def _add_line(run: dict[str, dict[str, float]], fields: list[bytes], where: str, trec_ids: bool) -> None:
    if len(fields) != 6:
        remedy = (
            "is it a TREC run?"
            if len(fields) < 6
            else "an id with white space cannot stand in a TREC run, but in one of `--format jsonl`"
        )
        raise UserError(
            f"{where}: expected 6 columns, 'question-id Q0 passage-id rank score tag', found {len(fields)}; {remedy}"
        )
    try:
        question_id, passage_id = fields[0].decode(), fields[2].decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: an id is not UTF-8; convert the file to UTF-8") from error
    try:
        score = float(fields[4])
    except ValueError:
        score = float("nan")
    if score != score:
        raise UserError(f"{where}: the score '{fields[4].decode(errors='replace')}' is not a number; correct the line")
    if trec_ids:
        try:
            _check_trec_ids(question_id, [passage_id])
        except RowError as error:
            raise UserError(f"{where}: {error}") from None
    hits = run.setdefault(question_id, {})
    if passage_id in hits:
        raise UserError(f"{where}: passage '{passage_id}' occurs twice for question '{question_id}'; remove one line")
    hits[passage_id] = score


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
            scores = strictly_decreasing(_finite(hits)).tolist()
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


def write_dpr_json(
    path: Path, questions: Iterable[Question], corpus: Corpus, hits: Iterable[Hits], match: Match = "string"
) -> None:
    """Writes DPR's results: a JSON array of {question, answers, ctxs: [{id, title, text, score, has_answer}]}.

    The score is a string, as DPR writes it. `has_answer` is false wherever a question's answers are not known.

    Args:
      path: the file to write, whole or not at all.
      questions: at least the questions of `hits`.
      corpus: at least the passages of `hits`.
      hits: the found passages of each question, written in this order.
      match: how answers are matched, see `jaxretr.evaluate.answers`.

    Raises:
      UserError: a question or passage is unknown, a score is not finite, or the file cannot be written.
    """
    matcher = AnswerMatcher(match)
    with atomic_write(path, "wb") as file:
        file.write(b"[")
        for number, (hit, question, rows) in enumerate(_joined(questions, corpus, hits)):
            contexts = [
                {
                    "id": passage_id,
                    "title": corpus.titles[row],
                    "text": corpus.texts[row],
                    "score": str(score),
                    "has_answer": matcher.has_answer(corpus.texts[row], question.answers),
                }
                for passage_id, row, score in zip(hit.ids, rows, _finite(hit), strict=True)
            ]
            file.write(b",\n" if number else b"\n")
            file.write(_json({"question": question.text, "answers": list(question.answers), "ctxs": contexts}))
        file.write(b"\n]\n")


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
        for hit, question, rows in _joined(questions, corpus, hits):
            found = [
                # Through str: the shortest decimal that is this float32, 0.1 and not 0.10000000149011612.
                {"id": passage_id, "title": corpus.titles[row], "score": float(str(score))}
                for passage_id, row, score in zip(hit.ids, rows, _finite(hit), strict=True)
            ]
            file.write(_json({"question_id": hit.question_id, "question": question.text, "hits": found}) + b"\n")


def _as_hits(run: Mapping[str, Mapping[str, float]] | Iterable[Hits]) -> Iterator[Hits]:
    if isinstance(run, Mapping):
        for question_id, scores in cast(Mapping[str, Mapping[str, float]], run).items():
            yield Hits(question_id, list(scores), single_precision(scores))
    else:
        yield from run


def _joined(
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


def _finite(hits: Hits) -> NDArray[np.float32]:
    scores = np.asarray(hits.scores, np.float32)
    if not np.isfinite(scores).all():
        passage_id = hits.ids[int((~np.isfinite(scores)).argmax())]
        raise UserError(f"the score of passage '{passage_id}' for question '{hits.question_id}' is not a finite number")
    return scores


def _check_column(what: str, value: str) -> None:
    if value.split() != [value]:
        raise UserError(f"{what} {value!r} is empty or contains white space: a TREC run cannot hold it")


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair, as JSON input may hold: escaped, it survives
        return json.dumps(value).encode()
