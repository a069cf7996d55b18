"""Sentences of a text, and parts of a long one that are cut between them."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import regex
import sentencex

# A multi-byte space after an initial ("A.<no-break space>B.") makes sentencex 1.0.32 panic, and it rejects half a
# surrogate pair. Each is replaced by one plain space, so that positions stay the same.
_NOT_FOR_THE_LIBRARY = re.compile(r"[^\S\x00-\x7f]|[\ud800-\udfff]")

# sentencex takes a full stop before a digit for a decimal point, including the stops of Chinese and Japanese.
_STOP_BEFORE_DIGIT = re.compile(r"(?<=[。！？｡])(?=\d)")  # noqa: RUF001


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences.

    English abbreviations ("Dr.", "U.S.", "e.g.", initials) do not end a sentence; the stops of Chinese and Japanese
    (。！？) do. A quotation stays in one piece. A text that begins or ends within a sentence gives that part as a piece.

    Args:
      text: any text.

    Returns:
      The sentences in order, without surrounding white space, none empty. Nothing else is changed or left out.
    """
    if text.isascii():  # none of this is needed, in half the time
        return [sentence for piece in _pieces(text) if (sentence := piece.strip())]
    sentences = []
    start = 0
    for piece in _pieces(_NOT_FOR_THE_LIBRARY.sub(" ", text)):
        stop = start + len(piece)
        sentences += [part for each in _STOP_BEFORE_DIGIT.split(text[start:stop]) if (part := each.strip())]
        start = stop
    return sentences


def _pieces(text: str) -> list[str]:
    """Return pieces that together are the text."""
    # The language decides which abbreviations are known; the stops of all languages count in each.
    return sentencex.segment("en", text)  # pyright: ignore[reportAttributeAccessIssue]


# Texts without spaces: a character of Chinese or Japanese is a word here, and four, with their marks, of Thai, Lao, Burmese
# or Khmer.
_EAST, _SOUTH_EAST = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff", r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_WORD = regex.compile(rf"[^\s{_EAST}{_SOUTH_EAST}]+|[{_EAST}]|(?:(?=[{_SOUTH_EAST}])\X){{1,4}}")


class _Unit(NamedTuple):
    """A sentence, or a part of one that is too long: its place in the text, and its number of words."""

    start: int
    stop: int
    words: int


def cut(text: str, words: int, overlap: int = 0) -> list[str]:
    """Cut a text into parts of whole sentences.

    Args:
      text: any text.
      words: most words of a part, at least 1. A sentence with more is cut between words. Words are separated by white
        space; a character of Chinese or Japanese is one, as are four of Thai, Lao, Burmese or Khmer.
      overlap: sentences at the end of a part that the next one repeats, as far as it has room for others.

    Returns:
      Parts in order, as they stand in the text; one, if it has no more words.
    """
    units = list(_units(text, words))
    if len(units) <= 1:
        return [text.strip()]
    parts, first = [], 0
    while True:
        stop, room = first, words
        while stop < len(units) and units[stop].words <= room:
            room -= units[stop].words
            stop += 1
        parts.append(text[units[first].start : units[stop - 1].stop])
        if stop == len(units):
            return parts
        # What is repeated leaves room for the next unit, so that every part has something new.
        first, room = stop, words - units[stop].words
        for unit in reversed(units[max(stop - overlap, 0) : stop]):
            room -= unit.words
            if room < 0:
                break
            first -= 1


def _units(text: str, words: int) -> Iterator[_Unit]:
    start = 0
    for sentence in split_sentences(text):
        start = text.index(sentence, start)
        places = [(start + word.start(), start + word.end()) for word in _WORD.finditer(sentence)]
        for begin in range(0, len(places), words):
            some = places[begin : begin + words]
            yield _Unit(some[0][0], some[-1][1], len(some))
        start += len(sentence)
