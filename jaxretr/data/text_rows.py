"""Numbered rows of text files: gzip, invalid bytes, JSON, and bad rows."""

import codecs
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, NoReturn, TypeVar

from jaxretr.data import source
from jaxretr.data.source import Input, NamedSource, Source, source_of
from jaxretr.runtime.errors import UserError, did_you_mean
from jaxretr.runtime.notes import note

_log = logging.getLogger(__name__)

T = TypeVar("T")
Parsed = TypeVar("Parsed")

# JSON arrays are not read with ijson: it tells no line numbers, refuses NaN, and knows no lone surrogates.
# Bytes of a JSON array in memory, besides an element; and the distance from the end of a cut text within which JSON's
# reader may stop: at an escape, a word, or a number's sign or exponent.
_BLOCK_BYTES = 1 << 22
_LONGEST_TOKEN = 16

# Bytes that are read to determine a file's format.
_HEAD_BYTES = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*")
_BEHIND = tuple(" \t\n\r,]")


# Lines without texts: TREC's run, whose tag does not end as a line of JSON does, its judgements, and three columns.
_NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
_IDS_AND_NUMBERS = re.compile(
    rf'\s*(\S+\s+){{3}}-?\d+\s+{_NUMBER}\s+\S*[^][{{}}:,"\s]\s*'
    rf"|\s*\S+\s+Q?0\s+\S+\s+-?\d+\s*|[^\t]+\t[^\t]+\t *{_NUMBER} *",
    re.ASCII,
)


class RowError(ValueError):
    """An error of one row: the fault and its remedy, without its place."""


class BadRows:
    """Stops at the first bad row, or counts bad rows if they are skipped.

    Attributes:
      unit: what the numbers of rows count: lines of a file, or rows of named data, of which a table may have several lines each.
    """

    def __init__(self, path: Source, skip: bool):
        self.path = path
        self.unit = "row" if isinstance(path, NamedSource) else "line"
        self.skip = skip
        self.count = 0
        self.first = ""

    def add(self, line: int, problem: str | RowError) -> None:
        """Take one bad row.

        Raises:
          UserError: bad rows are not to be skipped.
        """
        message = f"{self.path}:{line}: {problem}"
        if not self.skip:
            raise UserError(message)
        self.count += 1
        self.first = self.first or message

    def good(self, rows: Iterable[tuple[int, T | RowError]]) -> Iterator[tuple[int, T]]:
        """Yield (line number, row) for the good ones of a file's rows; take the others."""
        for line, row in rows:
            if isinstance(row, RowError):
                self.add(line, row)
            else:
                yield line, row

    def takes_trec_id(self, line: int, id: str) -> bool:
        """Whether a TREC run can represent an id; a row whose id it cannot is a bad row."""
        try:
            check_trec_id(id)
        except RowError as error:
            self.add(line, error)
            return False
        return True

    def finish(self, kept: int, rows: str, remedy: str) -> None:
        """Report skipped rows.

        Raises:
          UserError: no row is left.
        """
        self.report(kept)
        if not kept:
            after = f" besides {self.count} bad rows (the first: {self.first})" if self.count else ""
            raise UserError(f"{self.path}: no {rows}{after}; {remedy}")

    def report(self, kept: int) -> None:
        """Log one warning if rows were skipped."""
        if self.count:
            note(
                _log.warning, "%s: skipped %d bad rows, kept %d; the first: %s", self.path, self.count, kept, self.first
            )


def find_input(path: Input, stem: str = "") -> Source:
    """Return the file to read, see `FileSource.file`; for a named data set, the table that stands for it."""
    return source_of(path).file(stem)


def numbered_lines(path: Input) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a UTF-8 file, gzip or not.

    Lines end at LF or CRLF only: U+2028 and the like are characters of the text. Invalid UTF-8
    comes through as lone surrogates, so that one bad line costs one row; `check_utf8` finds it.

    Raises:
      UserError: the file cannot be read, or its gzip stream is damaged (no later row could be trusted).
    """
    for number, raw in numbered_bytes(path):
        yield number, raw.decode("utf-8", errors="surrogateescape")


def lines_with_ends(path: Input) -> Iterator[tuple[int, str]]:
    """Yield the lines of `numbered_lines` with their ends, which are text inside a quoted field."""
    for number, raw in source_of(path).pieces():
        yield number, raw.decode("utf-8", errors="surrogateescape").removeprefix("\ufeff" if number == 1 else "")


def filled_lines(path: Input) -> Iterator[tuple[int, str]]:
    """Yield the lines of `numbered_lines` that are not blank."""
    return ((number, line) for number, line in numbered_lines(path) if line.strip())


def numbered_bytes(path: Input) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of `numbered_lines` as bytes; read a file once, so that it may be a pipe."""
    for number, raw in source_of(path).pieces():
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        yield number, raw.removesuffix(b"\n").removesuffix(b"\r")


def first_line(path: Input) -> str:
    """Return the first line that is not blank, only its beginning if it is very long, or an empty string."""
    for number, raw in source_of(path).pieces(_HEAD_BYTES, cut_lines=True):
        raw = raw.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").removesuffix(b"\n").removesuffix(b"\r")
        if (text := raw.decode("utf-8", errors="surrogateescape")).strip():
            return text
    return ""


def first_character(path: Input) -> str:
    """Return the first character that is not white space, or an empty string: a JSON array may be one long line."""
    for _, raw in source_of(path).pieces(4096):
        if text := raw.removeprefix(codecs.BOM_UTF8).decode("utf-8", errors="replace").lstrip():
            return text[0]
    return ""


def json_bracket(path: Input) -> str:
    """Return the bracket that a file of JSON begins with; "" for another, a run whose first id begins with one included."""
    first = first_character(path)
    return first if first in ("[", "{") and not _IDS_AND_NUMBERS.fullmatch(first_line(path)) else ""


def check_utf8(line: str) -> None:
    """Raise RowError if a line of `numbered_lines` contained invalid UTF-8."""
    if line.isascii():
        return
    try:
        line.encode()
    except UnicodeEncodeError as error:
        byte = ord(line[error.start]) - 0xDC00
        raise RowError(
            f"not valid UTF-8 (byte 0x{byte:02x} at character {error.start + 1}); convert the file to UTF-8"
        ) from None


def listed_ids(path: Input) -> Iterator[tuple[int, str]]:
    """Yield (line number, id) of a UTF-8 file, gzip or not, with one id a line, exactly as written; skip empty lines.

    Raises:
      UserError: the file cannot be read, or a line is not UTF-8.
    """
    for number, name in numbered_lines(find_input(path)):
        try:
            check_utf8(name)
        except RowError as error:
            raise UserError(f"{path}:{number}: {error}") from None
        if name:
            yield number, name


def check_trec_id(id: str) -> None:
    """Raise RowError for an id that a TREC run cannot represent."""
    if what := trec_problem(id):
        raise RowError(f"the id {id!r} {what}, which a TREC run cannot represent; rename it, or write format=jsonl")


def trec_problem(column: str) -> str:
    """The fault that keeps a column out of a TREC run, or "". A run may begin with any of its ids."""
    if column.split() != [column]:
        return "contains white space" if column else "is empty"
    return "contains a NUL" if "\0" in column else "begins with a byte order mark" if column[0] == "\ufeff" else ""


def json_object(line: str) -> dict[str, Any]:
    """Parse a line that is one JSON object; RowError if it is not."""
    check_utf8(line)
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowError(f"broken JSON ({error}); write one whole object per line") from None
    return _checked_object(row, line)


def parsed(
    rows: Iterable[tuple[int, T | RowError]], parse: Callable[[T, int, int], Parsed]
) -> Iterator[tuple[int, Parsed | RowError]]:
    """Yield the results of `parse` for a file's rows, and in the place of bad rows their faults.

    Args:
      rows: (line number, row or its fault).
      parse: a function of (row, row number from 0, line number); a RowError that it raises is yielded.
    """
    for number, (line, row) in enumerate(rows):
        try:
            if isinstance(row, RowError):
                raise row
            yield line, parse(row, number, line)
        except RowError as error:
            yield line, error


def json_lines(path: Input) -> Iterator[tuple[int, dict[str, Any] | RowError]]:
    """Return (line number, object) for every line that is not blank; a RowError for a line that is not an object.

    For a named data set these are the numbers of its rows, and the rows.
    """
    place = source_of(path)
    if isinstance(place, NamedSource):
        return place.rows()
    return parsed(filled_lines(path), lambda line, *_: json_object(line))


def json_array(path: Input) -> Iterator[tuple[int, dict[str, Any] | RowError]]:
    """Yield (line number, object) for every element of a file that is one JSON array.

    A RowError takes the place of an element that is not an object. The file is read as the elements are consumed:
    DPR's training sets may be larger than the memory.

    Raises:
      UserError: the JSON itself is broken, so that the following elements cannot be found.
    """
    text = _JsonSource(source_of(path))
    text.next_character()
    text.advance(text.at + 1)  # the bracket
    if text.next_character() == "]":
        return
    while True:
        text.next_character()
        number = text.line
        row, element = text.element()
        try:
            yield number, _checked_object(row, element)
        except RowError as error:
            yield number, error
        if text.next_character() == "]":
            return
        text.advance(text.at + 1)  # the comma


def json_rows(path: Input) -> Iterator[tuple[int, dict[str, Any] | RowError]]:
    """Return the rows of `json_array` or of `json_lines`, whichever a file is."""
    return json_array(path) if json_bracket(path) == "[" else json_lines(path)


class _JsonSource:
    """A JSON file read on demand: no more than an element and a block are in memory."""

    def __init__(self, path: Source):
        self.path = path
        self.blocks = _checked_blocks(path)
        self.decoder = json.JSONDecoder()
        # All of `text` before `at` has been taken; `line` is that of `at`.
        self.text, self.at, self.line = "", 0, 1

    def more(self) -> bool:
        """Read on until the remaining text has doubled; False at the end of the file."""
        left = len(self.text) - self.at
        if left > source.LONGEST_BYTES:
            self.fail(f"the element that begins here is longer than {source.LONGEST_BYTES} characters")
        blocks = [self.text[self.at :]]
        for block in self.blocks:
            blocks.append(block)
            left -= len(block)
            if left <= 0:
                break
        self.text, self.at = "".join(blocks), 0
        return len(blocks) > 1

    def advance(self, end: int) -> None:
        """Take the text before `end`."""
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def next_character(self) -> str:
        """Take white space, and return the next character without taking it; empty at the end of the file."""
        while True:
            match = _SPACE.match(self.text, self.at)
            assert match is not None
            self.advance(match.end())
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def element(self) -> tuple[Any, str]:
        """Take the value that begins here; return it and its source."""
        while True:
            try:
                row, end = self.decoder.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                # Either the text ends too early, which is found at its end, or the file is broken.
                cut = error.msg.startswith("Unterminated") or error.pos > len(self.text.rstrip()) - _LONGEST_TOKEN
                if cut and self.more():
                    continue
                line = self.line + self.text.count("\n", self.at, error.pos)
                self.fail(f"{error.msg} on line {line}")
            except (ValueError, RecursionError) as error:  # A number of thousands of digits, lists without end.
                self.fail(error)
            else:
                # A number that the text cuts (2.5e, where 2.5e10 follows) is read as a shorter one.
                if self.text[end : end + 1] in _BEHIND or len(self.text) - end > _LONGEST_TOKEN or not self.more():
                    break
        source = self.text[self.at : end]
        line = self.line
        self.advance(end)
        if self.next_character() not in (",", "]"):
            self.line = line
            self.fail("expected ',' or ']' after the element that begins here")
        return row, source

    def fail(self, problem: object) -> NoReturn:
        """Raise the error of a broken file."""
        raise UserError(
            f"{self.path}:{self.line}: broken JSON array ({problem}); repair or fetch the file again"
        ) from None


def _checked_blocks(path: Source) -> Iterator[str]:
    """Yield a UTF-8 file in blocks of text; UserError if it is not valid."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    line = 1
    # The end comes as an empty piece: the file may be cut inside a character.
    for raw in chain((raw for _, raw in path.pieces(_BLOCK_BYTES)), [b""]):
        text = decoder.decode(raw, final=not raw)
        try:
            check_utf8(text)
        except RowError:
            bad = next(at for at, character in enumerate(text) if "\udc80" <= character <= "\udcff")
            line += text.count("\n", 0, bad)
            try:
                check_utf8(text[text.rfind("\n", 0, bad) + 1 : bad + 1])
            except RowError as error:
                raise UserError(f"{path}:{line}: {error}") from None
        line += text.count("\n")
        yield text


def _checked_object(row: Any, source: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise RowError(f"{_kind(row)} instead of a JSON object; write one object per row")
    if "\\ud" in source or "\\uD" in source:
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise RowError("a lone surrogate escape (\\ud800 to \\udfff) is not a character; repair the text") from None
    return row


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def string_field(row: dict[str, Any], names: tuple[str, ...], *, allow_int: bool = False) -> str | None:
    """Return the string under the first of `names` that the row has with a value, or None.

    Args:
      row: a parsed JSON object.
      names: the field's names, the preferred one first.
      allow_int: whether an integer is taken as its decimal digits (ids).

    Raises:
      RowError: the value is not a string.
    """
    for name in names:
        value = row.get(name)
        if value is None:
            continue
        if isinstance(value, str):
            return value
        if allow_int and type(value) is int:
            return str(value)
        raise RowError(f'field "{name}" is {_kind(value)}, not a string; make it one')
    return None


def missing_field(row: dict[str, Any], names: tuple[str, ...]) -> RowError:
    """Return the error for a row that has a value under none of `names`."""
    null = [name for name in names if name in row]
    if null:
        return RowError(f'field "{null[0]}" is null; give it a value')
    near = did_you_mean(names[0], row)
    return RowError(f'no field "{names[0]}"{near or "; add it"}')
