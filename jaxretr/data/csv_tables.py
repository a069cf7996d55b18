"""Tables with csv quoting, .csv and .tsv: their rows read and written."""

import csv
import json
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, cast

from jaxretr.data.source import Input
from jaxretr.data.text_rows import RowError, lines_with_ends

TABLES = {".csv": ",", ".tsv": "\t"}
"""Suffixes of tables with csv quoting, and their delimiters."""

CARRIAGE_RETURNS = "has carriage returns outside of quotes; where they end its lines, convert them: tr '\\r' '\\n'"
"""The fault of a row of a table that an old program for the Mac wrote."""

# A quoted field may span lines; so many characters are kept to look for its end, and to be read again if there is none.
_LONGEST_FIELD = 1 << 24

# The csv module refuses fields over 128 KiB; whole documents are longer. (The limit is one for the process.)
csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))


def tsv_rows(path: Input, columns: int | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of a tab-separated file with csv quoting; blank lines are skipped.

    A field that begins with a quotation mark is read as csv reads it, with the tabs and line breaks in it, if it closes
    properly and its row has the right number of columns. Otherwise nothing is quoted: the line is split at its tabs and
    its quotes are text (`"so" he said`). Once a file has such a line, a field ends before a line that has the tabs of a
    whole row: the quote of one row could find its partner in another, and the rows between would be lost.

    Args:
      path: the file, gzipped or not.
      columns: the number of fields of a row; None: that of the first row. Rows with another number are yielded as well.
    """
    return cast(Iterator[tuple[int, list[str]]], _table_rows(path, "\t", columns))


def csv_rows(path: Input) -> Iterator[tuple[int, list[str] | RowError]]:
    """Yield (number of its first line, fields) for every row of a comma-separated file; a field may span lines."""
    return _table_rows(path, ",", None)


def csv_line(fields: Iterable[Any], delimiter: str = "\t") -> str:
    """Return fields (lists as JSON) as a row with csv quoting, and its line end; Python's csv reads it as ours does.

    csv.writer is not used: before Python 3.11.9 and 3.12.3 it leaves a field with a bare carriage return unquoted.
    """
    texts = (
        json.dumps(field) if isinstance(field, list | dict) else "" if field is None else str(field) for field in fields
    )
    return (
        delimiter.join(_quoted(text) if any(map(text.__contains__, (delimiter, *'"\r\n'))) else text for text in texts)
        + "\n"
    )


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _table_rows(path: Input, delimiter: str, columns: int | None) -> Iterator[tuple[int, list[str] | RowError]]:
    lines = _Lines(lines_with_ends(path))
    quoted_as_csv = True
    while (numbered := lines.next()) is not None:
        number, line = numbered
        if not line.strip(" \r\n"):
            continue
        fields: list[str] | RowError
        if '"' not in line and (delimiter == "\t" or "\r" not in line[:-2]):
            fields = _without_end(line).split(delimiter)
        else:
            taken: list[tuple[int, str]] = []
            tabs = columns - 1 if columns is not None and columns > 1 and not quoted_as_csv else None
            try:
                fields = next(csv.reader(lines.of_row(line, taken, tabs), delimiter=delimiter, strict=True))
            except csv.Error as error:
                fields = RowError(
                    CARRIAGE_RETURNS
                    if "new-line character" in str(error)
                    else f"broken csv ({error}); close the quotes and double those inside a field"
                )
            wrong = isinstance(fields, RowError) or (delimiter == "\t" and len(fields) != (columns or len(fields)))
            if wrong:
                lines.give_back(taken)
            if wrong and delimiter == "\t":
                quoted_as_csv = False
                fields = _without_end(line).split(delimiter)
        if columns is None and not isinstance(fields, RowError):
            columns = len(fields)
        yield number, fields


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


class _Lines:
    """Numbered lines with their ends, which can be given back."""

    def __init__(self, lines: Iterator[tuple[int, str]]):
        self._lines = lines
        self._pending: deque[tuple[int, str]] = deque()

    def next(self) -> tuple[int, str] | None:
        """Take a line; None at the end."""
        return self._pending.popleft() if self._pending else next(self._lines, None)

    def give_back(self, taken: list[tuple[int, str]]) -> None:
        """Put lines back before the others."""
        self._pending.extendleft(reversed(taken))

    def of_row(self, line: str, taken: list[tuple[int, str]], tabs: int | None) -> Iterator[str]:
        """Yield a line and, as long as csv's reader asks for more, those after it.

        Args:
          taken: the list to which the other lines are added.
          tabs: a line with this number of tabs is not of the row, and ends it; None: no line does.
        """
        yield line
        left = _LONGEST_FIELD
        while left > 0 and (numbered := self.next()) is not None:
            if numbered[1].count("\t") == tabs:
                self.give_back([numbered])
                return
            taken.append(numbered)
            left -= len(numbered[1])
            yield numbered[1]
