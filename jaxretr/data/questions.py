"""Questions with optional answers, and the readers of their public formats."""

import ast
import csv
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jaxretr.data.csv_tables import tsv_rows
from jaxretr.data.source import Input, Source
from jaxretr.data.text_rows import (
    BadRows,
    RowError,
    check_utf8,
    filled_lines,
    find_input,
    first_line,
    json_rows,
    missing_field,
    numbered_lines,
    parsed,
    string_field,
)
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.notes import note

_log = logging.getLogger(__name__)

_ID_FIELDS = ("_id", "id", "qId", "qid", "query_id")
_TEXT_FIELDS = ("text", "question", "query", "qText")
_ANSWER_FIELDS = ("answers", "answer")
_HEADER_IDS = ("_id", "id", "qid", "query_id", "query-id")


@dataclass(frozen=True, slots=True)
class Question:
    """One question; `answers` is empty if none are known."""

    id: str
    text: str
    answers: tuple[str, ...] = ()


def read_questions(path: Input, *, skip_bad: bool = False, trec_ids: bool = False) -> list[Question]:
    """Read questions, in the file's order.

    Formats, each also gzipped:
      JSON lines: BEIR's {_id, text, metadata.answers?}; "question" or "query" for the text, "answers" or "answer"
        at the top level (a list of strings, or one string).
      One JSON array of such objects: DPR's training files, WebQuestions ({qId, qText, answers}).
      DPR's `question<TAB>['answer', ...]` with csv quoting; the second column is a Python literal, a list or one
        string (CuratedTREC's patterns), read with ast.literal_eval.
      `id<TAB>text` (leading spaces of the text are removed): without a header nothing is quoted (MS MARCO), with one
        fields have csv quoting.
      Plain text, one question a line (.txt).
    A question without an id gets its row number, counted from 0 (blank lines do not count, bad rows do). A question
    with an empty text keeps its row, since published sets judge such questions, too; a warning counts them.

    Args:
      path: a file, or a folder with queries.jsonl or queries.jsonl.gz.
      skip_bad: whether bad rows and repeated ids are skipped, with one warning that counts them.
      trec_ids: whether ids that a TREC run cannot represent are bad rows.

    Raises:
      UserError: a bad row or a repeated id (as `path:line: what; remedy`), no questions, or no such file.
    """
    bad = BadRows(find_input(path, "queries.jsonl"), skip_bad)
    questions: list[Question] = []
    line_of_id: dict[str, int] = {}
    empty: list[int] = []
    for line, question in bad.good(question_rows(bad.path)):
        id = question.id
        if id in line_of_id:
            first = f"{bad.unit} {line_of_id[id]}"
            bad.add(line, f"duplicate id '{id}' (first on {first}); give every question an id of its own")
            continue
        if trec_ids and not bad.takes_trec_id(line, id):
            continue
        line_of_id[id] = line
        questions.append(question)
        if not question.text.strip():
            empty.append(line)
    bad.finish(len(questions), "questions", "give a file with at least one question")
    if empty:
        note(_log.warning, "%s:%d: the question is empty, the first of %d; kept", bad.path, empty[0], len(empty))
    return questions


def question_rows(path: Source) -> Iterator[tuple[int, Question | RowError]]:
    """Return (line number, question or the row's fault) for the rows of a file; see `read_questions`."""
    head = first_line(path)
    suffix = path.suffix
    named_text = suffix in (".txt", ".tsv", ".csv")
    if suffix in (".jsonl", ".ndjson", ".json") or (not named_text and head.lstrip()[:1] in ("{", "[")):
        return parsed(json_rows(path), _json_row)
    if "\t" in head:
        if _has_answers(head):
            return parsed(tsv_rows(path, 2), _answer_row)
        names = [name.strip().strip('"').lower() for name in head.split("\t")]
        has_header = len(names) == 2 and names[0] in _HEADER_IDS and names[1] in map(str.lower, _TEXT_FIELDS)
        if has_header:
            return parsed(islice(tsv_rows(path, 2), 1, None), _id_row)
        if names[0] in _HEADER_IDS:
            texts = ", ".join(_TEXT_FIELDS)
            note(_log.warning, "%s:1: is read as a question; of a header, the second name is one of %s", path, texts)
        rows = ((number, line.split("\t")) for number, line in numbered_lines(path) if line.strip(" \r"))
        return parsed(rows, _id_row)
    if suffix == ".txt" or not head:
        return parsed(filled_lines(path), _plain_row)
    raise UserError(
        f"{path}:1: not a question file (neither JSON nor tab-separated columns); give BEIR jsonl, id<TAB>text, "
        f"question<TAB>['answer'], or name it .txt when every line is a question"
    )


def _json_row(row: dict[str, Any], number: int, _: int) -> Question:
    text = string_field(row, _TEXT_FIELDS)
    if text is None:
        raise missing_field(row, _TEXT_FIELDS)
    id = string_field(row, _ID_FIELDS, allow_int=True)
    if id is not None and not id.strip():
        raise RowError("the id is empty; give it a value or leave the field out")
    metadata = row.get("metadata")
    places = (row, metadata) if isinstance(metadata, dict) else (row,)
    found = (place[name] for place in places for name in _ANSWER_FIELDS if place.get(name) is not None)
    return Question(str(number) if id is None else id, text, _answers(next(found, [])))


def _has_answers(head: str) -> bool:
    """Whether a file's first line is DPR's `question<TAB>answers` rather than `id<TAB>text`."""
    fields = next(csv.reader([head], "excel-tab"), [])
    if len(fields) != 2:
        return False
    try:
        value = _literal(fields[1])
    except RowError:
        # A list that does not parse is reported as a broken list; it is not the text of a question.
        return fields[1].strip().startswith("[") and " " in fields[0].strip()
    # A text in quotes or brackets is a literal, too: only a first column of several words makes it an answer.
    return isinstance(value, list) or (isinstance(value, str | tuple) and " " in fields[0].strip())


def _literal(text: str) -> Any:
    with warnings.catch_warnings():
        # Patterns contain escapes such as \d, which Python's literals do not know and keep as they are.
        warnings.simplefilter("ignore")
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise RowError("the answers are not a Python list of strings; write them as ['a', 'b']") from None


def _answer_row(fields: list[str], number: int, _: int) -> Question:
    if len(fields) != 2:
        raise RowError(f"{len(fields)} columns instead of question<TAB>['answer']; check its tabs")
    check_utf8(fields[0] + fields[1])
    return Question(str(number), fields[0], _answers(_literal(fields[1])))


def _id_row(fields: list[str], *_: int) -> Question:
    if len(fields) != 2:
        raise RowError(f"{len(fields)} columns instead of id<TAB>text; check its tabs")
    check_utf8(fields[0] + fields[1])
    if not fields[0].strip():
        raise RowError("the id is empty; give every question an id")
    return Question(fields[0], fields[1].lstrip())


def _plain_row(line: str, number: int, _: int) -> Question:
    check_utf8(line)
    return Question(str(number), line.strip())


def _answers(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and all(isinstance(answer, str) for answer in value):
        return tuple(value)
    raise RowError("the answers are not a list of strings; write them as strings in a list")
