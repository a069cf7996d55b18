"""Shapes of the batches in which a T5 scores pairs that come a few at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# The shortest padded passage. From there on there are two lengths per octave: 64, 96, 128, 192 and so on.
_PASSAGE = 64

# Length in tokens that few questions exceed; the decoder is a small part of the work.
_QUESTION = 32

# Numbers of pairs of a batch.
_ROWS = (8, 32)


@dataclass(frozen=True)
class T5Shapes:
    """Shapes of batches, so few that all of their programs can be compiled in advance, at the price of some padding.

    Attributes:
      passages: padded lengths of passages, ascending; the last holds every passage.
      questions: padded lengths of questions, ascending; the last holds every question.
      rows: numbers of pairs of a batch, ascending.
    """

    passages: tuple[int, ...]
    questions: tuple[int, ...]
    rows: tuple[int, ...] = _ROWS

    @classmethod
    def of(cls, passage_length: int, question_length: int) -> "T5Shapes":
        """Return the shapes for passages and questions of at most so many tokens."""
        passages, length = [], _PASSAGE
        while length < passage_length:
            passages += [length, length * 3 // 2]
            length *= 2
        passages = [*(length for length in passages if length < passage_length), passage_length]
        return cls(tuple(passages), tuple(sorted({min(_QUESTION, question_length), question_length})))

    def passage(self, tokens: int) -> int:
        """Return the padded length of passages whose longest has so many tokens."""
        return next(length for length in self.passages if length >= tokens)

    def question(self, tokens: int) -> int:
        """Return the padded length of questions whose longest has so many tokens."""
        return next(length for length in self.questions if length >= tokens)

    def batches(self, order: Sequence[int]) -> Iterator[tuple[Sequence[int], int]]:
        """Divide pairs into batches; yields the pairs of each, and the number of rows to which it is filled up."""
        few, many = self.rows
        start = 0
        while (left := len(order) - start) > 0:
            # Two small batches cost less than a large one that is half full.
            rows = many if left > 2 * few else few
            yield order[start : start + rows], rows
            start += rows

    def every(self) -> list[tuple[int, int, int]]:
        """Return all (rows, passage length, question length) that batches can have."""
        return [
            (rows, passage, question) for rows in self.rows for passage in self.passages for question in self.questions
        ]
