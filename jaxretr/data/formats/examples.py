"""One example of supervised training: a question with passages that answer it and passages that do not."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from jaxretr.data.text_rows import RowError


@dataclass(frozen=True, slots=True)
class Candidate:
    """One passage of an example: an id of the corpus, a text, or both.

    Attributes:
      id: its id; None if the file gives none.
      title: its title; empty if there is none.
      text: its text; None: only the id is known.
      score: a teacher's score; None if the file gives none.
      grade: its grade for the question; None if the file has no judgements.
    """

    id: str | None
    title: str
    text: str | None
    score: float | None = None
    grade: int | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """One question and its passages.

    Attributes:
      id: the question's id; its row number, counted from 0, if the file gives none.
      question: the question's text.
      answers: empty if none are known.
      positives: passages that answer it.
      negatives: hard negatives.
      other_negatives: DPR's negative_ctxs, used if there is no hard negative.
      line: the line in the file, counted from 1, for messages.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    positives: tuple[Candidate, ...]
    negatives: tuple[Candidate, ...]
    other_negatives: tuple[Candidate, ...] = ()
    line: int = 0

    @property
    def lists(self) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...], tuple[Candidate, ...]]:
        """The three lists of passages: positives, hard negatives and other negatives."""
        return self.positives, self.negatives, self.other_negatives

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The passages of the three lists."""
        return (*self.positives, *self.negatives, *self.other_negatives)


# A row of a file: its line number, and the example or the row's fault.
Row = tuple[int, Example | RowError]


# The largest float32.
_LARGEST = (2 - 2**-23) * 2.0**127


def finite_score(value: Any, name: str) -> float | None:
    """Return a score, a number or its decimal digits as a string; None for null and not-a-number.

    Raises:
      RowError: the value is neither, or a float32 cannot hold it.
    """
    if value is None:
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        score = float(value)
    except (ValueError, OverflowError):
        raise RowError(f'field "{name}" is {str(value)[:40]!r}, not a number; write a number or null') from None
    if not math.isfinite(score):
        return None
    if abs(score) > _LARGEST:
        raise RowError(f'field "{name}" is {str(value)[:40]!r}, too large for float32; write a smaller number or null')
    return score


def objects_field(row: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the list of objects under `name`, empty if there is none; RowError if it is something else."""
    value = row.get(name) or []
    if not isinstance(value, list) or not all(isinstance(element, dict) for element in value):
        raise RowError(f'field "{name}" is not a list of passages; write [{{"title": ..., "text": ...}}, ...]')
    return value


def ids_field(row: dict[str, Any], name: str, scores_name: str) -> tuple[Candidate, ...]:
    """Return the passages whose ids are listed under `name`, with the scores under `scores_name`, if it is there.

    Raises:
      RowError: one is not a list, or they differ in length.
    """
    ids, scores = row.get(name) or [], row.get(scores_name)
    if not isinstance(ids, list) or not all(isinstance(id, str) or type(id) is int for id in ids):
        raise RowError(f'field "{name}" is not a list of ids; write ["id", ...]')
    if scores is None:
        scores = [None] * len(ids)
    if not isinstance(scores, list) or len(scores) != len(ids):
        raise RowError(f'field "{scores_name}" is not a list of {len(ids)} numbers; give every document a score')
    return tuple(
        Candidate(str(id), "", None, finite_score(score, scores_name)) for id, score in zip(ids, scores, strict=True)
    )


def answers_field(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the answers of a row, if any; RowError if they are not strings."""
    value = row.get("answers", row.get("answer"))
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(answer, str) for answer in value):
        raise RowError("the answers are not a list of strings; write them as strings in a list")
    return tuple(value)


def joined(examples: Iterable[Example]) -> Iterator[Example]:
    """Yield one example for every question id, in the order of their first rows, with the passages of all its rows.

    All examples are kept in memory. A passage of several rows occurs once in the result.
    """
    first: dict[str, Example] = {}
    kinds: dict[str, tuple[dict[Candidate, None], ...]] = {}
    for example in examples:
        first.setdefault(example.id, example)
        found = kinds.setdefault(example.id, ({}, {}, {}))
        for of_kind, candidates in zip(found, example.lists, strict=True):
            of_kind.update(dict.fromkeys(candidates))
    for id, example in first.items():
        positives, negatives, others = (tuple(of_kind) for of_kind in kinds[id])
        yield replace(example, positives=positives, negatives=negatives, other_negatives=others)
