"""The beginning of a file, by which its format is detected."""

from functools import cached_property
from itertools import islice
from typing import Any

from jaxretr.data.csv_tables import csv_rows
from jaxretr.data.source import Source
from jaxretr.data.text_rows import (
    RowError,
    first_character,
    first_line,
    json_bracket,
    json_rows,
    numbered_lines,
)
from jaxretr.runtime.errors import UserError

_ROWS_LOOKED_AT = 200


class Head:
    """The first rows of a file: objects of JSON, or columns of a table.

    Attributes:
      path: the file.
      suffix: its lower-case suffix, without a final .gz.
      row: the first object of JSON lines; empty in other files.
      element: the first object of a JSON array; empty in other files.
      objects: the first objects of JSON lines or an array.
      fields: the first line of a table, split at its tabs, or else at white space; empty for .csv.
      table: the first rows of a tab-separated table.
      names: the first of these in lower case and without quotes: the columns' names, if there is a header.
      columns: the columns by name: those of JSON lines, or of the first line of a .csv or tab-separated table.

    Raises:
      UserError: the file is empty, or its first row is not JSON where it should be.
    """

    def __init__(self, path: Source):
        if not first_character(path):
            raise UserError(f"{path}: is empty; give a file with at least one row")
        self.path = path
        self.suffix = path.suffix
        self.row: dict[str, Any] = {}
        self.element: dict[str, Any] = {}
        self.objects: list[dict[str, Any]] = []
        self.table: list[list[str]] = []
        self.fields: list[str] = []
        self.names: list[str] = []
        self.columns: dict[str, Any] = {}
        if (bracket := json_bracket(path)) or self.suffix in (".jsonl", ".ndjson", ".json"):
            self._look_at_json(is_array=bracket == "[")
        elif self.suffix == ".csv":
            _, names = next(csv_rows(path))
            self.columns = {} if isinstance(names, RowError) else dict.fromkeys(names, "")
        elif "\t" in (line := first_line(path)):
            lines = islice(numbered_lines(path), _ROWS_LOOKED_AT)
            self.table = [line.split("\t") for _, line in lines if line.strip()]
            self.fields = self.names = [name.strip().strip('"').lower() for name in self.table[0]]
            self.columns = dict.fromkeys(self.names, "")
        else:
            self.fields = line.split()

    def _look_at_json(self, is_array: bool) -> None:
        numbered = list(islice(json_rows(self.path), _ROWS_LOOKED_AT))
        self.objects = [row for _, row in numbered if isinstance(row, dict)]
        if not numbered:
            raise UserError(f"{self.path}: an empty array; give a file with at least one row")
        if not self.objects:
            raise UserError(f"{self.path}:{numbered[0][0]}: {numbered[0][1]}")
        if is_array:
            self.element = self.objects[0]
        else:
            self.row = self.columns = self.objects[0]

    def number_in(self, column: int, columns: int) -> bool:
        """Whether the first line has this number of columns, and in the one with index `column` a number."""
        return len(self.fields) == columns and is_number(self.fields[column])

    @cached_property
    def three_columns(self) -> str:
        """The format of a table of three columns without a header; empty for another table."""
        if len(self.names) != 3:
            return ""
        rows = [row for row in self.table if len(row) == 3]
        if any(" " in field.strip() for row in rows for field in row):
            return "triples"
        if not all(is_number(row[2]) for row in rows):
            return "triples-ids"
        last, ranked = [float(row[2]) for row in rows], _are_ranks(rows)
        whole = all(value.is_integer() for value in last)
        if whole and not ranked and all(0 <= value <= 4 for value in last):
            return "qrels"
        return "run" if ranked or not whole else "triples-ids"


def _are_ranks(rows: list[list[str]]) -> bool:
    """Whether the last column counts from 1 for every question, and for some question further."""
    following: dict[str, int] = {}
    for query, _, rank in rows:
        if rank.strip() != str(following.setdefault(query, 1)):
            return False
        following[query] += 1
    return any(count > 2 for count in following.values())


def is_number(text: str) -> bool:
    """Whether a text is a number as Python reads it."""
    try:
        float(text)
    except ValueError:
        return False
    return True
