"""Run files: read in TREC's, DPR's, MS MARCO's and Tevatron's formats and ours; what writes them is in search/runs.py."""

import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

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
from jaxretr.search.runs import Hits, strictly_decreasing, write_dpr_json, write_jsonl, write_trec

__all__ = [
    "Hits",
    "read_run",
    "read_trec",
    "strictly_decreasing",
    "write_dpr_json",
    "write_jsonl",
    "write_trec",
]

Path = str | os.PathLike[str]

_PASSAGE_IDS = ("id", "passage_id", "psg_id", "docid", "_id")


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
                raise RowError(f'field "{name}" is not a list of passages; is it a run?')
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
            else "an id with white space is not allowed in a TREC run; write the run with --format jsonl"
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
