"""Lists of the ways in which words are misspelt."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from jaxretr.assets import MISSPELLINGS
from jaxretr.data.source import Input
from jaxretr.data.text_rows import RowError, check_utf8, find_input, first_character, numbered_lines
from jaxretr.runtime.errors import UserError


def read_misspellings(path: str | Path | None = None) -> Mapping[str, tuple[str, ...]]:
    """Read a list of misspellings.

    Formats, each also gzipped: one JSON object {word: [misspellings]}, or lines `misspelling->word[, word2]` as in
    codespell's dictionary, where a remark of several words may follow the last comma.

    Args:
      path: the file; None for the list that comes with the package.

    Returns:
      {word: its misspellings}, all lower-case, each one once and in the order of the file. Words that are several
      (`a lot`) are left out, since texts are looked up word by word; so is what differs by its case alone.

    Raises:
      UserError: there is no such file, or it holds something else; with the line.
    """
    return _packaged() if path is None else _read(find_input(path))


@lru_cache(maxsize=1)
def _packaged() -> Mapping[str, tuple[str, ...]]:
    return _read(MISSPELLINGS)


def _read(path: Input) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    is_json = first_character(path) in ("{", "[")
    for word, wrong in _of_json(path) if is_json else _of_lines(path):
        if len(word.split()) == 1 and word != wrong:
            found.setdefault(word, {})[wrong] = None
    if not found:
        raise UserError(f"{path}:1: no misspellings; give {{word: [misspellings]}} or lines misspelling->word")
    return {word: tuple(wrong) for word, wrong in found.items()}


def _of_json(path: Input) -> Iterator[tuple[str, str]]:
    text = "\n".join(line for _, line in _lines(path))
    try:
        table = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: broken JSON ({error.msg}); give {{word: [misspellings]}}") from None
    except RecursionError:
        raise UserError(f"{path}:1: JSON that is nested too deeply; give {{word: [misspellings]}}") from None
    if not isinstance(table, dict):
        raise UserError(f"{path}:1: a JSON array, no object; give {{word: [misspellings]}}")
    for word, misspellings in table.items():
        try:
            if not isinstance(misspellings, list) or not all(isinstance(wrong, str) for wrong in misspellings):
                raise RowError(f"the value of '{word}' is not a list of strings; give {{word: [misspellings]}}")
            for wrong in misspellings:
                yield _entry(word, wrong)
        except RowError as error:
            raise UserError(f"{path}:{_line_of(text, word)}: {error}") from None


def _of_lines(path: Input) -> Iterator[tuple[str, str]]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        wrong, arrow, words = line.partition("->")
        first, *others = words.split(",")
        # After the last comma there is nothing, another word, or the reason why the entry is to be used with care.
        if others and len(others[-1].split()) > 1:
            others.pop()
        try:
            if not arrow:
                raise RowError("no '->' in it; write misspelling->word")
            for word in (first, *(other for other in others if other.strip())):
                yield _entry(word, wrong)
        except RowError as error:
            raise UserError(f"{path}:{number}: {error}") from None


def _entry(word: str, wrong: str) -> tuple[str, str]:
    word, wrong = word.strip().lower(), wrong.strip().lower()
    if not word or not wrong:
        raise RowError("an empty spelling; give both the word and its misspelling")
    if len(wrong.split()) > 1:
        raise RowError(f"the misspelling '{wrong}' is several words; give misspellings of one word")
    if any("\ud800" <= character <= "\udfff" for character in wrong):
        raise RowError("a lone surrogate escape (\\ud800 to \\udfff) is not a character; repair the spelling")
    return word, wrong


def _line_of(text: str, key: str) -> int:
    """The line of a key; 1 where it is written with escapes."""
    match = re.search(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:", text)
    return text.count("\n", 0, match.start()) + 1 if match else 1


def _lines(path: Input) -> Iterator[tuple[int, str]]:
    for number, line in numbered_lines(path):
        try:
            check_utf8(line)
        except RowError as error:
            raise UserError(f"{path}:{number}: {error}") from None
        yield number, line
