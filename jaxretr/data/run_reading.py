"""Readers of run files in TREC's, DPR's, MS MARCO's and Tevatron's formats and ours; runs.py has the writers."""

import os
import pathlib
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxretr.data.questions import Question
from jaxretr.data.runs import Hits, strictly_decreasing, write_dpr_json, write_jsonl, write_trec
from jaxretr.data.text_rows import (
    RowError,
    check_trec_id,
    check_utf8,
    first_line,
    json_bracket,
    json_rows,
    missing_field,
    numbered_bytes,
    numbered_lines,
    string_field,
)
from jaxretr.runtime.errors import UserError

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


_QUESTION_IDS = ("question_id", "id", "query_id", "_id")
_QUESTION_TEXTS = ("question", "query")


def read_run(
    path: Path, *, questions: Sequence[Question] | None = None, trec_ids: bool = False, count: bool = False
) -> dict[str, dict[str, float]]:
    """Read a run in any of the formats, told from the content.

    Formats:
      TREC, see `read_trec`.
      DPR's results, a JSON array or lines of {id?, question, answers, ctxs: [{id, score}]}. Rows without ids, as DPR
        writes them, are found among `questions` by their text, equal texts in their order. Without scores the order ranks.
      Lines of {question_id, hits: [{id, score}]}, as `write_jsonl` writes them.
      MS MARCO's `question-id<TAB>passage-id<TAB>rank` and Tevatron's with a score in place of the rank, see
        `_are_ranks`.

    Args:
      path: the file, gzipped or not.
      questions: the questions that were searched, for a run without ids of its questions.
      trec_ids: whether a row is bad with an id that `write_trec` refuses.
      count: whether rows are only counted: questions without ids get their position.

    Returns:
      {question id: {passage id: score}} in the file's order; a rank r, counted from 1, becomes the score -r.

    Raises:
      UserError: the file cannot be read or holds no hit, a row is bad (`path:line: ...`), or it can be ranks and scores.
    """
    file = pathlib.Path(path)
    if not file.is_file():
        # The content of a pipe can be read only once.
        return read_trec(path, trec_ids=trec_ids)
    if json_bracket(file):
        run = _read_json(file, json_rows(file), questions, trec_ids, count)
    elif first_line(file).count("\t") == 2:
        run = _read_three_columns(file, trec_ids)
    else:
        return read_trec(file, trec_ids=trec_ids)
    if not any(run.values()):
        raise UserError(f"{path}: the run is empty; give one with at least one passage")
    return run


def _read_json(
    path: pathlib.Path,
    rows: Iterator[tuple[int, dict[str, Any] | RowError]],
    questions: Sequence[Question] | None,
    trec_ids: bool,
    count: bool,
) -> dict[str, dict[str, float]]:
    run: dict[str, dict[str, float]] = {}
    ids_of_text: defaultdict[str, deque[str]] = defaultdict(deque)
    for question in questions or ():
        ids_of_text[_joined_by(question.text)].append(question.id)
    for position, (line, row) in enumerate(rows):
        try:
            if isinstance(row, RowError):
                raise row
            name = "hits" if "hits" in row else "ctxs"
            if not isinstance(row.get(name), list) or not all(isinstance(hit, dict) for hit in row[name]):
                raise RowError(f'field "{name}" is not a list of passages; is it a run?')
            question_id = string_field(row, _QUESTION_IDS, allow_int=True)
            if not question_id:
                question_id = str(position) if count else _id_by_text(row, None if questions is None else ids_of_text)
            if question_id in run:
                raise RowError(f"question '{question_id}' occurs twice; remove one row")
            hits = run[question_id] = {}
            for rank, hit in enumerate(row[name], start=1):
                id = string_field(hit, _PASSAGE_IDS, allow_int=True)
                if id is None:
                    raise missing_field(hit, _PASSAGE_IDS)
                if id in hits:
                    raise RowError(f"passage '{id}' occurs twice for question '{question_id}'; remove one")
                if (hit.get("score") is None) != (row[name][0].get("score") is None):
                    raise RowError(
                        f"passage '{id}' has no score, or the first alone has none; give one to all or to none"
                    )
                hits[id] = -float(rank) if hit.get("score") is None else _score(hit["score"])
            if trec_ids:
                _check_trec_ids(question_id, hits)
        except RowError as error:
            raise UserError(f"{path}:{line}: {error}") from None
    return run


def has_question_ids(path: Path) -> bool:
    """Whether a run's first question has an id (DPR's results have none); True if it is missing or unreadable."""
    file = pathlib.Path(path)
    if not file.is_file() or not json_bracket(file):
        return True
    _, row = next(json_rows(file), (0, RowError()))
    return isinstance(row, RowError) or any(row.get(name) is not None for name in _QUESTION_IDS)


def _id_by_text(row: dict[str, Any], ids_of_text: Mapping[str, deque[str]] | None) -> str:
    """Take the id of a question that has only a text."""
    if ids_of_text is None:
        raise RowError(
            "the question has no id, and its position may be another question's; give the questions that were searched, "
            "where queries= can be given, or a run with ids"
        )
    text = string_field(row, _QUESTION_TEXTS)
    if text is None:
        raise missing_field(row, _QUESTION_TEXTS)
    if not (ids := ids_of_text[_joined_by(text)]):
        raise RowError(
            f"'{text[:60]}' is not among the questions, or more often here; give the ones that were searched"
        )
    return ids.popleft()


def _joined_by(text: str) -> str:
    """A question's text in the form of DPR's reader, which writes other apostrophes than its file has."""
    return text.replace("\u2019", "'").strip()


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
    if _are_ranks(path, run):
        # From 1 also where they begin at 0: a score of 0 means that a passage shares no word with the question.
        before = min(rank for hits in run.values() for rank in hits.values()) - 1
        return {question_id: {id: before - rank for id, rank in hits.items()} for question_id, hits in run.items()}
    return run


def _are_ranks(path: pathlib.Path, run: dict[str, dict[str, float]]) -> bool:
    """Whether the third column has ranks, of which the lowest is the best, and not scores.

    Runs are written best first. So whole numbers that rise in every question, from 1 or 0 on, are ranks, with gaps or
    not, and so are 1 to n in any other order than the reverse, MS MARCO's format. Numbers with a fraction, negative ones,
    ones that fall and others with ties are scores.

    Raises:
      UserError: they can be both: n to 1, rows in no order with gaps, or numbers that rise with ties or from elsewhere.
    """
    lists = {question_id: list(hits.values()) for question_id, hits in run.items()}
    numbers = [number for each in lists.values() for number in each]
    if not all(number >= 0 and number.is_integer() for number in numbers):
        return False
    lists = {question_id: each for question_id, each in lists.items() if len(each) > 1}
    rise = all(each == sorted(each) for each in lists.values())
    fall = all(each == sorted(each, reverse=True) for each in lists.values())
    tied = any(len(set(each)) < len(each) for each in lists.values())
    # Includes hits that are alone or all equal: the ranking is the same.
    if (rise and fall) or (tied and not rise):
        return False
    first, longest = min(numbers), max(map(len, lists.values()))
    counted = all(sorted(each) == [*range(int(first), int(first) + len(each))] for each in lists.values())
    # With two hits, 0 and 1 are grades as well.
    if not tied and ((rise and (first == 1 or (first == 0 and longest > 2))) or (counted and first == 1 and not fall)):
        return True
    if fall and not (counted and first <= 1):
        return False
    question_id, found = next(iter(lists.items()))
    shown = ", ".join(f"{number:g}" for number in found[:3])
    raise UserError(
        f"{path}: {shown} of question '{question_id}' can be ranks or scores; give the run in TREC's format, 'question-id "
        "Q0 passage-id rank score tag'"
    )


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
    """Read a TREC run: lines of `question-id Q0 passage-id rank score tag`, separated by white space.

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
        # Splits bytes, at C's white space only. In a str a no-break space inside an id would split too.
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
            else "an id with white space is not allowed in a TREC run; write the run with format=jsonl"
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
