"""Batches of rows of token ids: their shapes, and the division of rows into them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# Padding to a multiple of 16 instead of 64 saves a seventh of the time for passages of 20 to 250 tokens.
_BUCKET = 16

# Largest factor by which a batch's rows are filled up where the batch can be divided instead.
_MOST_FILLING = 1.5


class Batch(NamedTuple):
    """Rows of one program call.

    Attributes:
      positions: places of the real rows' results, int [b].
      tokens: int32 [B, L], B >= b; padded with zeros.
      lengths: int32 [B]; 0 in the rows that fill the batch up.
    """

    positions: np.ndarray
    tokens: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True)
class Shapes:
    """Rule for the (rows, length) of a job's batches.

    Attributes:
      max_length: length of the longest row.
      devices: number of devices, of which the number of rows is a multiple.
      batch_tokens: number of tokens per batch, about, on each device.
      batch_rows: number of rows per batch, instead of `batch_tokens`.
      steps: number of lengths between a power of two and the next, for few shapes rather than little padding, with few
        numbers of rows; None: every multiple of 16, and full batches.
      ratio: with `steps`, the numbers of rows are the powers of this, and that of a full batch; None: that one only.
    """

    max_length: int
    devices: int
    batch_tokens: int
    batch_rows: int | None = None
    steps: int | None = None
    ratio: int | None = 2

    def length(self, tokens: int) -> int:
        """Return the padded length of a batch whose longest row has so many tokens."""
        bucket = _BUCKET
        if self.steps is not None:
            bucket = max(bucket, _power_of_two(max(tokens, 1)) // (2 * self.steps))
        return min(bucket * -(-max(tokens, 1) // bucket), self.max_length)

    def rows(self, length: int) -> int:
        """Return the number of rows of a full batch of that padded length."""
        rows = self.devices * max(1, self.batch_tokens // length) if self.batch_rows is None else self.batch_rows
        return -(-rows // self.devices) * self.devices

    def taken(self, left: int, length: int) -> tuple[int, int]:
        """Return the number of the remaining rows that the next batch takes, and the number that it is filled up to."""
        full = self.rows(length)
        if self.steps is None or left >= full:
            return min(left, full), full
        sizes = self._sizes(full)
        above = next(size for size in sizes if size >= left)
        # With large steps two small batches are faster than one with much padding.
        if self.ratio and self.ratio > 2 and above > _MOST_FILLING * left and left > sizes[0]:
            below = max(size for size in sizes if size <= left)
            return below, below
        return left, above

    def every(self) -> list[tuple[int, int]]:
        """Return all (rows, length) that batches can have; they are few only with `steps`."""
        lengths = sorted({self.length(tokens) for tokens in range(1, self.max_length + 1)})
        return [(rows, length) for length in lengths for rows in self._sizes(self.rows(length))]

    def _sizes(self, full: int) -> list[int]:
        """Return the numbers of rows that batches can have, ascending."""
        sizes = []
        while self.steps is not None and self.ratio is not None and self.devices * self.ratio ** len(sizes) < full:
            sizes.append(self.devices * self.ratio ** len(sizes))
        return [*sizes, full]


def make_batches(ids: Sequence[Sequence[int]], start: int, shapes: Shapes) -> list[Batch]:
    """Divide rows of token ids into batches, the longest first.

    Args:
      ids: one list of token ids per row.
      start: position of the first row among all rows of the job.
      shapes: shapes of the batches.
    """
    order = np.argsort([-len(row) for row in ids], kind="stable")
    batches = []
    done = 0
    while done < len(order):
        length = shapes.length(len(ids[order[done]]))
        count, rows = shapes.taken(len(order) - done, length)
        chosen = order[done : done + count]
        tokens, lengths = np.zeros((rows, length), np.int32), np.zeros(rows, np.int32)
        for row, position in enumerate(chosen):
            lengths[row] = len(ids[position])
            tokens[row, : lengths[row]] = ids[position]
        batches.append(Batch(start + chosen, tokens, lengths))
        done += len(chosen)
    return batches


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
