"""Formats with lists of passages for each question: DPR, dpr-scale, and both versions of Tevatron's."""

from collections.abc import Callable, Iterator
from typing import Any

from jaxretr.data.corpus import Corpus
from jaxretr.data.formats.example_rows import ExampleRows, json_bytes
from jaxretr.data.formats.examples import (
    Candidate,
    Example,
    Row,
    answers_field,
    finite_score,
    ids_field,
    objects_field,
)
from jaxretr.data.formats.format import Format, Lookup
from jaxretr.data.formats.head import Head
from jaxretr.data.source import Source
from jaxretr.data.text_rows import RowError, json_array, json_lines, missing_field, parsed, string_field

# DPR's own files have passage_id (Natural Questions) and psg_id (TriviaQA).
_IDS = ("passage_id", "psg_id", "id", "docid", "_id")
_SCORES = ("score", "relevance")
_QUESTIONS = ("question", "query", "query_text")
_QUESTION_IDS = ("id", "_id", "question_id", "query_id", "qid")

_DPR = ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs")
_TEVATRON = ("positive_passages", "negative_passages")
_TEVATRON_IDS = ("positive_document_ids", "negative_document_ids")


class Dpr(Format):
    """DPR's training set: one JSON array of questions."""

    name = "dpr"
    title = "DPR training set (a JSON array with positive_ctxs)"
    has_passages = has_scores = True
    begin, between, end = b"[\n", b",\n", b"\n]\n"

    def detect(self, head: Head) -> bool:
        return not head.element.keys().isdisjoint(_DPR)

    def read(self, file: Source, lookup: Lookup) -> Iterator[Row]:
        return _examples(json_array(file), _DPR, lambda row, name: _passages(row, name, lookup.corpus))

    def lines(self, example: Example, rows: ExampleRows) -> list[bytes]:
        return [_dpr_line(example, rows, lambda candidate: rows.passage(candidate, example, "passage_id"))]


class DprScale(Format):
    """dpr-scale's training set: lines of DPR's objects, in which a passage may be a row of the corpus (docidx)."""

    name = "dpr-scale"
    title = "dpr-scale training set (JSON lines with positive_ctxs)"
    has_passages = has_scores = True

    def detect(self, head: Head) -> bool:
        return not head.row.keys().isdisjoint(_DPR)

    def read(self, file: Source, lookup: Lookup) -> Iterator[Row]:
        return _examples(json_lines(file), _DPR, lambda row, name: _passages(row, name, lookup.corpus))

    def lines(self, example: Example, rows: ExampleRows) -> list[bytes]:
        def passage(candidate: Candidate) -> dict[str, Any]:
            if rows.corpus is None or candidate.id is None or candidate.id not in rows.corpus:
                return rows.passage(candidate, example, "id")
            row: dict[str, Any] = {"docidx": rows.corpus.row(candidate.id)}
            return row if candidate.score is None else row | {"score": candidate.score}

        return [_dpr_line(example, rows, passage)]


class Tevatron(Format):
    """Tevatron's training set, version 1, with the passages."""

    name = "tevatron"
    title = "Tevatron training set, version 1 (positive_passages)"
    has_passages = has_scores = True

    def detect(self, head: Head) -> bool:
        return not head.row.keys().isdisjoint(_TEVATRON)

    def read(self, file: Source, lookup: Lookup) -> Iterator[Row]:
        return _examples(json_lines(file), _TEVATRON, _passages)

    def lines(self, example: Example, rows: ExampleRows) -> list[bytes]:
        row: dict[str, Any] = {"query_id": example.id, "query": example.question}
        if example.answers:
            row["answers"] = list(example.answers)
        for name, found in zip(_TEVATRON, (example.positives, rows.negatives(example)), strict=True):
            row[name] = [rows.passage(each, example, "docid") for each in found]
        return [json_bytes(row)]


class Tevatron2(Format):
    """Tevatron's training set, version 2: ids of passages, and scores where a passage has one (as `jaxretr.mine`)."""

    name = "tevatron2"
    title = "Tevatron training set, version 2 (positive_document_ids)"
    bare_ids = has_scores = True

    def detect(self, head: Head) -> bool:
        return not head.row.keys().isdisjoint(_TEVATRON_IDS)

    def read(self, file: Source, lookup: Lookup) -> Iterator[Row]:
        return _examples(
            json_lines(file),
            _TEVATRON_IDS,
            lambda row, name: ids_field(row, name, f"{name.removesuffix('_document_ids')}_scores"),
        )

    def lines(self, example: Example, rows: ExampleRows) -> list[bytes]:
        rows.without_answers(example)
        kinds = {"positive": example.positives, "negative": rows.negatives(example)}
        row: dict[str, Any] = {"query_id": example.id, "query_text": example.question, "query_image": None}
        row |= {f"{kind}_document_ids": [rows.id(each, example) for each in found] for kind, found in kinds.items()}
        if any(each.score is not None for found in kinds.values() for each in found):
            row |= {f"{kind}_scores": [each.score for each in found] for kind, found in kinds.items()}
        return [json_bytes(row)]


def _examples(
    rows: Iterator[tuple[int, dict[str, Any] | RowError]],
    lists: tuple[str, ...],
    candidates: Callable[[dict[str, Any], str], tuple[Candidate, ...]],
) -> Iterator[Row]:
    """Return the examples of objects; `candidates` reads a list of an object by its name."""

    def parse(row: dict[str, Any], number: int, line: int) -> Example:
        question = string_field(row, _QUESTIONS)
        if question is None and row.get("query_image"):
            raise RowError("a query_image without a query_text; only text is trained on: leave such rows out")
        if question is None:
            raise missing_field(row, _QUESTIONS)
        if row.keys().isdisjoint(lists):
            raise missing_field(row, lists)
        found = [candidates(row, name) for name in lists]
        id = string_field(row, _QUESTION_IDS, allow_int=True)
        return Example(id or str(number), question, answers_field(row), *found, line=line)

    return parsed(rows, parse)


def _passages(row: dict[str, Any], name: str, corpus: Corpus | None = None) -> tuple[Candidate, ...]:
    """Return a list of passages; only DPR's formats have docidx, the rows of a `corpus`."""
    return tuple(_passage(element, name, corpus) for element in objects_field(row, name))


def _passage(row: dict[str, Any], where: str, corpus: Corpus | None) -> Candidate:
    id, text = string_field(row, _IDS, allow_int=True), string_field(row, ("text", "contents"))
    score_name = next((name for name in _SCORES if row.get(name) is not None), "score")
    score = finite_score(row.get(score_name), score_name)
    if row.get("docidx") is not None:
        id = _id_of_row(row["docidx"], id, corpus)
    if text is None and not id:
        raise RowError(f'a passage in "{where}" has neither a text nor an id; give it one of them')
    return Candidate(id or None, string_field(row, ("title",)) or "", text, score)


def _id_of_row(docidx: Any, id: str | None, corpus: Corpus | None) -> str:
    remedy = "give the corpus that the file was made from"
    if type(docidx) is not int:
        raise RowError(f'field "docidx" is {str(docidx)[:40]!r}, not a row of the corpus; write a whole number from 0')
    if corpus is None:
        raise RowError(f"docidx {docidx} is a row of a corpus; {remedy}")
    if not 0 <= docidx < len(corpus):
        raise RowError(f"docidx {docidx} in a corpus of {len(corpus)} rows; {remedy}")
    found = corpus.ids[docidx]
    if id and id in corpus and id != found:
        raise RowError(f"docidx {docidx} is passage '{found}' in the corpus, not '{id}'; {remedy}")
    return found


def _dpr_line(example: Example, rows: ExampleRows, passage: Callable[[Candidate], dict[str, Any]]) -> bytes:
    # The id of a row without one is its number: writing it would only make the file differ from the one read.
    row: dict[str, Any] = {} if example.id == str(rows.written) else {"id": example.id}
    row |= {"question": example.question, "answers": list(example.answers)}
    for name, found in (
        ("positive_ctxs", example.positives),
        ("negative_ctxs", example.other_negatives),
        ("hard_negative_ctxs", example.negatives),
    ):
        row[name] = [passage(each) for each in found]
    return json_bytes(row)
