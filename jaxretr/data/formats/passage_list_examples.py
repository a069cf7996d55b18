"""Training formats that list passages as objects: DPR's JSON, dpr-scale's and Tevatron's lines of JSON."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jaxretr.data.corpus import Corpus
from jaxretr.data.formats.examples import Candidate, Example, Row, answers_field, finite_score, objects_field
from jaxretr.data.text_rows import RowError, json_array, json_lines, missing_field, string_field

# DPR's own files say passage_id (Natural Questions) and psg_id (TriviaQA).
_IDS = ("passage_id", "psg_id", "id", "docid", "_id")
_SCORES = ("score", "relevance")
_QUESTIONS = ("question", "query", "query_text")
_QUESTION_IDS = ("id", "_id", "question_id", "query_id", "qid")

_DPR_LISTS = ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs")
_TEVATRON_LISTS = ("positive_passages", "negative_passages")
_TEVATRON2_LISTS = ("positive_document_ids", "negative_document_ids")


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_dpr(path: Path, corpus: Corpus | None) -> Iterator[Row]:
    """Yields the examples of DPR's JSON array."""
    return _examples(json_array(path), _DPR_LISTS, corpus)


def read_dpr_scale(path: Path, corpus: Corpus | None) -> Iterator[Row]:
    """Yields the examples of dpr-scale's lines; a {"docidx": n} is row n of the corpus, counted from 0."""
    return _examples(json_lines(path), _DPR_LISTS, corpus)


def read_tevatron(path: Path) -> Iterator[Row]:
    """Yields the examples of Tevatron's first format, which holds the passages."""
    return _examples(json_lines(path), _TEVATRON_LISTS, None)


def read_tevatron2(path: Path) -> Iterator[Row]:
    """Yields the examples of Tevatron's second format, which holds the passages' ids."""
    return _examples(json_lines(path), _TEVATRON2_LISTS, None)


def _examples(
    rows: Iterable[tuple[int, dict[str, Any] | RowError]], lists: tuple[str, ...], corpus: Corpus | None
) -> Iterator[Row]:
    for row_number, (line, row) in enumerate(rows):
        if isinstance(row, RowError):
            yield line, row
            continue
        try:
            yield line, _example(row, row_number, line, lists, corpus)
        except RowError as error:
            yield line, error


def _example(row: dict[str, Any], row_number: int, line: int, lists: tuple[str, ...], corpus: Corpus | None) -> Example:
    question = string_field(row, _QUESTIONS)
    if question is None and row.get("query_image"):
        raise RowError("a query_image without a query_text; only text is trained on: leave such rows out")
    if question is None:
        raise missing_field(row, _QUESTIONS)
    if not any(name in row for name in lists):
        raise missing_field(row, lists)
    kinds = []
    for name in lists:
        if name.endswith("_ids"):
            kinds.append(_ids(row, name))
        else:
            kinds.append(tuple(_candidate(element, name, corpus) for element in objects_field(row, name)))
    id = string_field(row, _QUESTION_IDS, allow_int=True)
    return Example(id or str(row_number), question, answers_field(row), *kinds, line=line)


def _ids(row: dict[str, Any], name: str) -> tuple[Candidate, ...]:
    value = row.get(name) or []
    if not isinstance(value, list) or not all(isinstance(id, str) or type(id) is int for id in value):
        raise RowError(f'field "{name}" is no list of ids; write ["id", ...]')
    return tuple(Candidate(str(id), "", None) for id in value)


def _candidate(row: dict[str, Any], where: str, corpus: Corpus | None) -> Candidate:
    id, text = string_field(row, _IDS, allow_int=True), string_field(row, ("text", "contents"))
    score_name = next((name for name in _SCORES if row.get(name) is not None), "score")
    score = finite_score(row.get(score_name), score_name)
    if row.get("docidx") is not None:
        id = _id_of_row(row["docidx"], id, corpus)
    if text is None and not id:
        raise RowError(f'a passage in "{where}" has neither a text nor an id; give it one of them')
    return Candidate(id or None, string_field(row, ("title",)) or "", text, score)


def _id_of_row(docidx: Any, id: str | None, corpus: Corpus | None) -> str:
    if type(docidx) is not int:
        raise RowError(f'field "docidx" is {str(docidx)[:40]!r}, not a row of the corpus; write a whole number from 0')
    if corpus is None:
        raise RowError(f"docidx {docidx} is a row of a corpus; give the corpus that the file was made from")
    if not 0 <= docidx < len(corpus):
        raise RowError(
            f"docidx {docidx} in a corpus of {len(corpus)} rows; give the corpus that the file was made from"
        )
    found = corpus.ids[docidx]
    if id and id in corpus and id != found:
        raise RowError(
            f"docidx {docidx} is passage '{found}' in the corpus, not '{id}'; give the corpus that the file was made from"
        )
    return found
