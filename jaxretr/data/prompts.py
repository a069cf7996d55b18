"""Texts put before the texts that a model reads: one for all rows, or one for each block of them."""

import bisect
import itertools
import operator
from collections.abc import Sequence


class RowPrompts:
    """Prompts of rows that differ: one for each block of consecutive rows.

    Attributes:
      blocks: prompts and numbers of rows, in the order of the rows.
    """

    def __init__(self, blocks: Sequence[tuple[str, int]]):
        self.blocks = list(blocks)
        self._ends = list(itertools.accumulate(rows for _, rows in self.blocks))

    def of(self, row: int) -> str:
        """Return the prompt of a row."""
        return self.blocks[bisect.bisect_right(self._ends, row)][0]

    def __getitem__(self, rows: slice) -> list[str]:
        return [self.of(row) for row in range(*rows.indices(self._ends[-1]))]


Prompt = str | RowPrompts
"""A text put before every text of a store: one for all rows, or one for each block of them."""


def times(prompt: Prompt, repeats: int) -> Prompt:
    """Return the prompt of rows that come `repeats` times, one round after the other."""
    return prompt if isinstance(prompt, str) else RowPrompts(prompt.blocks * repeats)


def prompted(prompt: str | Sequence[str], texts: Sequence[str]) -> Sequence[str]:
    """Put a prompt before each text: one for all, or one for each."""
    if isinstance(prompt, str):
        return [prompt + text for text in texts] if prompt else texts
    return [*map(operator.add, prompt, texts)]
