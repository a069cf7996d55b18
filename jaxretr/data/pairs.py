"""Pairs of a question and a passage, and files with one in each row."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from jaxretr.data.csv_tables import TABLES, csv_line
from jaxretr.data.formats.columns import named_rows
from jaxretr.data.source import source_of
from jaxretr.data.text_rows import (
    BadRows,
    first_character,
    missing_field,
    parsed,
    string_field,
)
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.files import atomic_write

_QUESTIONS = ("query", "question")
_PASSAGES = ("passage", "text")


class Pair(NamedTuple):
    """A question and a passage."""

    question: str
    title: str
    text: str


def is_pair_file(path: str | Path) -> bool:
    """Whether a file has rows {query, passage}, with "question" or "text" for these and perhaps a title.

    Rows with further passages ("positive", "negative_1", "pos", "neg") are those of a training set.
    """
    source = source_of(path)
    if source.is_dir() or (source.file().suffix not in TABLES and first_character(source) != "{"):
        return False
    row = next((row for _, row in islice(named_rows(source), 1)), None)
    if not isinstance(row, dict):
        return False
    kinds = (_QUESTIONS, _PASSAGES)
    one_of_each = all(sum(isinstance(row.get(name), str) for name in names) == 1 for names in kinds)
    return one_of_each and not any(name.lower().startswith(("pos", "neg")) for name in row)


def read_pair_rows(path: str | Path) -> Iterator[tuple[dict[str, Any], Pair]]:
    """Yield each row with all its fields, and its pair.

    Args:
      path: JSON lines, or .csv or .tsv with a header; gzipped or not.

    Raises:
      UserError: a bad row (as `path:line: what; remedy`).
    """
    bad = BadRows(source_of(path).file(), skip=False)
    for _, row in bad.good(parsed(named_rows(bad.path), lambda row, *_: (row, _pair(row)))):
        yield row


def _pair(row: dict[str, Any]) -> Pair:
    found = []
    for names in (_QUESTIONS, _PASSAGES):
        value = string_field(row, names)
        if value is None:
            raise missing_field(row, names)
        found.append(value)
    question, text = found
    return Pair(question, string_field(row, ("title",)) or "", text)


def write_pair_rows(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as JSON lines, or as a table with the first row's columns where the name ends in .csv or .tsv.

    Returns:
      The number of rows that were written.

    Raises:
      UserError: a row has no place in the table, or the file cannot be written.
    """
    delimiter = TABLES.get(source_of(path).suffix)
    with atomic_write(path, "w") as file:
        header, count = [], 0
        for count, row in enumerate(rows, start=1):
            if delimiter is None:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                continue
            if not header:
                header = list(row)
                file.write(csv_line(header, delimiter))
            if further := sorted(row.keys() - set(header)):
                raise UserError(
                    f"{path}: row {count} has the field '{further[0]}', for which the first row makes no column; end the "
                    "name in .jsonl, or give every row the same fields"
                )
            file.write(csv_line(map(row.get, header), delimiter))
    return count
