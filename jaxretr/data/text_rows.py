"""Numbered rows of text files: gzip, bad bytes, csv quoting, and what happens to a bad row."""

import csv
import gzip
import json
import logging
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

from jaxretr.errors import UserError, did_you_mean

_log = logging.getLogger(__name__)

# A quoted field may span lines, but an opening quote without its partner must not swallow the file.
_MAX_LINES_OF_A_FIELD = 1000

# The csv module refuses fields over 128 KiB; whole documents are longer. (The limit is one for the process.)
csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))


class RowError(ValueError):
    """What is wrong with one row, and what to do, without its place."""


class BadRows:
    """Stops at the first bad row, or counts the bad rows when the caller asked to skip them."""

    def __init__(self, path: Path, skip: bool):
        self.path = path
        self.skip = skip
        self.count = 0
        self.first = ""

    def add(self, line: int, problem: str | RowError) -> None:
        """Takes one bad row.

        Raises:
          UserError: bad rows are not to be skipped.
        """
        message = f"{self.path}:{line}: {problem}"
        if not self.skip:
            raise UserError(message)
        self.count += 1
        self.first = self.first or message

    def report(self, kept: int) -> None:
        """Logs one warning when rows were skipped."""
        if self.count:
            _log.warning("%s: skipped %d bad rows, kept %d; the first: %s", self.path, self.count, kept, self.first)


def find_input(path: str | Path, stem: str = "") -> Path:
    """Returns the file to read: `path` itself, or `<stem>` or `<stem>.gz` inside it when it is a folder.

    Raises:
      UserError: there is no such file; the message names the nearest one.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        if not stem:
            raise UserError(f"{path}: is a folder; give a file")
        for name in (stem, f"{stem}.gz"):
            if (path / name).is_file():
                return path / name
        raise UserError(f"{path}: the folder holds neither {stem} nor {stem}.gz; give a file or a BEIR folder")
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{path}: no such file{did_you_mean(path.name, siblings) or '; check the path'}")
    return path


def bare_suffix(path: Path) -> str:
    """Returns the lower-case suffix of a file name without a final .gz: ".jsonl" for "corpus.jsonl.gz"."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end) of a UTF-8 file, gzip or not.

    Lines end at LF or CRLF only: U+2028 and the like are characters of the text. Bytes that are no UTF-8 come
    through as lone surrogates, so that one bad line costs one row; `check_utf8` finds them.

    Raises:
      UserError: the file cannot be read, or its gzip stream is damaged (no later row could be trusted).
    """
    number = 0
    try:
        with ExitStack() as stack:
            file = stack.enter_context(open(path, "rb"))
            stream: BinaryIO = file
            # By content, not by name: a renamed download still reads.
            if file.peek(2)[:2] == b"\x1f\x8b":
                stream = cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=file)))
            for raw in stream:
                number += 1
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                raw = raw.removesuffix(b"\n").removesuffix(b"\r")
                yield number, raw.decode("utf-8", errors="surrogateescape")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path}:{number + 1}: the gzip stream is cut short or damaged ({error}); fetch the file again"
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}); check the path and its rights") from error


def first_line(path: Path) -> str:
    """Returns the first line that is not blank, or an empty string."""
    return next((line for _, line in numbered_lines(path) if line.strip()), "")


def check_utf8(line: str) -> None:
    """Raises RowError when a line of `numbered_lines` held bytes that are no UTF-8."""
    if line.isascii():
        return
    try:
        line.encode()
    except UnicodeEncodeError as error:
        byte = ord(line[error.start]) - 0xDC00
        raise RowError(
            f"not valid UTF-8 (byte 0x{byte:02x} at character {error.start + 1}); convert the file to UTF-8"
        ) from None


def json_object(line: str) -> dict[str, Any]:
    """Parses a line that is one JSON object; RowError when it is not."""
    check_utf8(line)
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowError(f"broken JSON ({error}); write one whole object a line") from None
    return _checked_object(row, line)


def json_array(path: Path) -> Iterator[tuple[int, dict[str, Any] | RowError]]:
    """Yields (line number, object) for every element of a file that is one JSON array.

    An element that is no object comes as a RowError in its place.

    Raises:
      UserError: the JSON itself is broken, so that the elements behind it cannot be found.
    """
    lines = []
    for number, line in numbered_lines(path):
        try:
            check_utf8(line)
        except RowError as error:
            raise UserError(f"{path}:{number}: {error}") from None
        lines.append(line)
    text = "\n".join(lines)
    del lines
    decoder = json.JSONDecoder()

    def skip_space(at: int) -> int:
        while at < len(text) and text[at] in " \t\n\r":
            at += 1
        return at

    number, counted = 1, 0
    at = skip_space(skip_space(0) + 1)
    if text[at : at + 1] == "]":
        return
    while True:
        number += text.count("\n", counted, at)
        counted = at
        try:
            row, end = decoder.raw_decode(text, at)
            following = skip_space(end)
            if text[following : following + 1] not in (",", "]"):
                raise ValueError("expected ',' or ']' after the element that begins here")
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: broken JSON array ({error}); repair or fetch the file again") from None
        try:
            yield number, _checked_object(row, text[at:end])
        except RowError as error:
            yield number, error
        if text[following] == "]":
            return
        at = skip_space(following + 1)


def _checked_object(row: Any, source: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise RowError(f"{_kind(row)} where a JSON object was expected; write one object a row")
    if "\\ud" in source or "\\uD" in source:
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise RowError("a lone surrogate escape (\\ud800 to \\udfff) is no character; repair the text") from None
    return row


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def string_field(row: dict[str, Any], names: tuple[str, ...], *, allow_int: bool = False) -> str | None:
    """Returns the string under the first of `names` that the row has with a value, or None.

    Args:
      row: a parsed JSON object.
      names: the field's names, the preferred one first.
      allow_int: whether an integer is taken as its decimal digits (ids).

    Raises:
      RowError: the value is no string.
    """
    for name in names:
        value = row.get(name)
        if value is None:
            continue
        if isinstance(value, str):
            return value
        if allow_int and type(value) is int:
            return str(value)
        raise RowError(f'field "{name}" is {_kind(value)}, not a string; write it in quotes')
    return None


def missing_field(row: dict[str, Any], names: tuple[str, ...]) -> RowError:
    """Returns the error for a row that has a value under none of `names`."""
    null = [name for name in names if name in row]
    if null:
        return RowError(f'field "{null[0]}" is null; give it a value')
    near = did_you_mean(names[0], row)
    return RowError(f'no field "{names[0]}"{near or "; add it"}')


def tsv_rows(lines: Iterator[tuple[int, str]], columns: int) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number, fields) of a tab-separated file with csv quoting; blank lines are no rows.

    A line whose quotes do not follow csv (`"so" he said` unquoted) is split at its tabs and kept literally. A
    quoted field may hold line breaks, unless a line inside it is a whole row by its number of tabs: then the quote
    was a stray one, and swallowing that row would lose it.

    Args:
      lines: as `numbered_lines` yields them.
      columns: how many fields a row has; rows with another number are yielded all the same.
    """
    pending: deque[tuple[int, str]] = deque()

    def following() -> tuple[int, str] | None:
        return pending.popleft() if pending else next(lines, None)

    while (numbered := following()) is not None:
        number, line = numbered
        if not line.strip(" \r"):
            continue
        if '"' not in line:
            yield number, line.split("\t")
            continue
        taken: list[tuple[int, str]] = []
        try:
            fields = next(csv.reader(_field_lines(line, taken, pending, following, columns), "excel-tab", strict=True))
        except csv.Error:
            fields = []
        if len(fields) != columns:
            pending.extendleft(reversed(taken))
            fields = line.split("\t")
        yield number, fields


def _field_lines(line, taken, pending, following, columns) -> Iterator[str]:
    """Feeds the csv reader a line and, as long as a quote stays open, the lines behind it, noted in `taken`."""
    yield line + "\n"
    while len(taken) < _MAX_LINES_OF_A_FIELD and (numbered := following()) is not None:
        if numbered[1].count("\t") == columns - 1 and columns > 1:
            pending.appendleft(numbered)
            return
        taken.append(numbered)
        yield numbered[1] + "\n"
