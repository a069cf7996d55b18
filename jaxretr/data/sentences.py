"""Texts to sentences: sentencex's rules (MIT, no model), with two of its gaps closed."""

import re

import sentencex

# A space of several bytes behind an initial ("A.<no-break space>B.") makes sentencex 1.0.32 panic, and half a surrogate
# pair is no text to it. It gets to see plain spaces in their place; one character for one, so that places agree.
_NOT_FOR_THE_LIBRARY = re.compile(r"[^\S\x00-\x7f]|[\ud800-\udfff]")

# It takes a full stop before a digit for a decimal point, also the stops that Chinese and Japanese write.
_STOP_BEFORE_DIGIT = re.compile(r"(?<=[。！？｡])(?=\d)")  # noqa: RUF001


def split_sentences(text: str) -> list[str]:
    """Splits a text into sentences.

    English abbreviations ("Dr.", "U.S.", "e.g.", initials) end none; the stops of Chinese and Japanese (。！？) do. What
    is in quotes stays in one piece. A text that begins or ends within a sentence gives that part as a piece.

    Args:
      text: any text.

    Returns:
      The sentences in their order, stripped of white space, none empty. Nothing else is changed or left out.
    """
    if text.isascii():  # nothing of the below, at half the time
        return [sentence for piece in _pieces(text) if (sentence := piece.strip())]
    sentences = []
    start = 0
    for piece in _pieces(_NOT_FOR_THE_LIBRARY.sub(" ", text)):
        stop = start + len(piece)
        sentences += [part for each in _STOP_BEFORE_DIGIT.split(text[start:stop]) if (part := each.strip())]
        start = stop
    return sentences


def _pieces(text: str) -> list[str]:
    """Returns pieces that together are the text."""
    # The language decides which abbreviations are known; the stops of all languages count in each.
    return sentencex.segment("en", text)  # pyright: ignore[reportAttributeAccessIssue]
