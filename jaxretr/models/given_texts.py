"""Questions and passages as callers give them to a model, checked before a tokenizer sees them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxretr.runtime.errors import UsageError, UserError, did_you_mean, no_rows

Passages = Sequence[Mapping[str, str] | str | Any]
"""Mappings with "text" and perhaps "title", objects with both, or texts alone."""


class GivenPassage(NamedTuple):
    """A passage as it was given, with an empty title where it has none."""

    title: str
    text: str


def given_list(values: Any, name: str) -> list[Any]:
    """Return the rows of a parameter, by its name; UserError for what has none in an order."""
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        raise UserError(f"{name}: a list is expected, not {type(values).__name__}; put a single one into a list")
    if why := no_rows(values):
        raise UserError(f"{name}: {why}")
    return list(values)


def given_texts(values: Any, name: str) -> list[str]:
    """Return the texts of a parameter, by its name; UserError for one that is none, with its place."""
    return [_text(value, f"{name}[{index}]") for index, value in enumerate(given_list(values, name))]


def given_passages(values: Any) -> list[GivenPassage]:
    """Return `Passages` with their titles; a missing title and None are an empty one.

    Raises:
      UserError: an element is none of these; the message names its index.
    """
    return [_passage(value, index) for index, value in enumerate(given_list(values, "passages"))]


def given_pairs(questions: Any, passages: Any) -> tuple[list[str], list[GivenPassage]]:
    """Return questions and the passage of each.

    Raises:
      UserError: as `given_texts` and `given_passages`.
      UsageError: the two have different lengths.
    """
    texts, given = given_texts(questions, "questions"), given_passages(passages)
    if len(texts) != len(given):
        raise UsageError(f"{len(texts)} questions and {len(given)} passages; give one passage a question")
    return texts, given


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: a text is expected, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # The tokenizer would fail at it without saying where.
        raise UserError(f"{where}: half of a surrogate pair at character {error.start}; remove it") from error
    return value


def _passage(value: Any, index: int) -> GivenPassage:
    where = f"passages[{index}]"
    if isinstance(value, str):
        return GivenPassage("", _text(value, where))
    if isinstance(value, Mapping):
        if "text" not in value:
            hint = did_you_mean("text", map(str, value)) or "; give {'title': ..., 'text': ...}"
            raise UserError(f"{where}: has no 'text'{hint}")
        title, text = value.get("title"), value["text"]
    elif hasattr(value, "title") and hasattr(value, "text"):
        title, text = value.title, value.text
    else:
        raise UserError(f"{where}: a passage is expected, not {type(value).__name__}; give {{'title', 'text'}}")
    return GivenPassage("" if title is None else _text(title, f"{where}.title"), _text(text, f"{where}.text"))
