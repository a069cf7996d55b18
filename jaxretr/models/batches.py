"""Batches of rows of token ids: their shapes, and the division of rows into them."""

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from jaxretr.models.backbones.packed_rows import ROW, room_for_texts

# Padding to a multiple of 16 instead of 64 saves a seventh of the time for passages of 20 to 250 tokens.
_BUCKET = 16

# About the length at which a token's attention, whose time grows with the length, takes as long as the rest of its layer.
_ATTENTION_LENGTH = 4000

# The time of a batch with a loop of layers, in that of the same batch with unrolled ones; smaller batches should not
# have one, because the copies of the weights take more of their time.
_LOOP, _LEAST_LOOP_TOKENS = 1.03, 512

# Numbers of lengths that a job can have, see `Shapes.steps`, where it takes as long as so many programs.
_STEPS, _PROGRAMS = (1, 2, None), 10

# Largest factor by which a batch's rows are filled up where the batch can be divided instead.
_MOST_FILLING = 1.5


@dataclass(frozen=True)
class Costs:
    """The costs of a kind of device that decide how texts are batched.

    Attributes:
      batch_tokens: tokens of one batch on one device, as many as stay in a CPU's cache (8 rows of 128) or keep an
        accelerator busy.
      small_batch_tokens: the same of jobs that do not fill one such batch on each device.
      program_tokens: tokens that are encoded in the time in which one program is compiled, by a tower of BERT-base's
        size unless `for_tower` has replaced them.
      loop_tokens: the same of a program whose layers are a loop, where others are unrolled; see `for_tower`.
      fills: whether the last batch is filled up to a full one, where a program more costs more than padding does.
      in_advance: `Shapes.steps` and `ratio` of programs that are all compiled in advance.
      unrolled: whether each layer's weights are arrays of their own. On CPUs a loop copies them out of a stack at every
        call; elsewhere the copy should take no time, and unrolled layers take several times as long to compile.
    """

    batch_tokens: int
    small_batch_tokens: int
    program_tokens: int
    fills: bool
    in_advance: tuple[int, int]
    unrolled: bool
    loop_tokens: int = 0

    def tokens_of_batch(self, tokens: int) -> int:
        """Return the tokens of one batch for a job of so many tokens on each device."""
        return self.small_batch_tokens if tokens < self.batch_tokens else self.batch_tokens

    def for_tower(self, layers: int, weights: int) -> "Costs":
        """Return the costs of a tower: a token takes as long as its matmuls, a program as long for every width.

        Args:
          layers: number of layers, which take four fifths of the time to compile BERT-base's twelve apart.
          weights: number of the weights of their matmuls.
        """
        tokens = self.program_tokens * 85_000_000 / max(weights, 1)
        apart = (3 + layers) / (3 + 12) if self.unrolled else 1.0
        return replace(self, program_tokens=int(tokens * apart), loop_tokens=int(tokens))

    def soonest(self, shapes: "Shapes", lengths: Sequence[int], share: float) -> "Shapes":
        """Return shapes with the `steps` and `loops` with which a job takes the least time, compiling included.

        Args:
          shapes: the other facts of the job's shapes.
          lengths: tokens of its texts, or of a part of them.
          share: that part's share of the job.
        """
        lengths = sorted(lengths, reverse=True)
        found: dict[float, Shapes] = {}
        # Small jobs, of which there may be many, share the fewest programs.
        small = sum(lengths) / share / shapes.devices < _PROGRAMS * self.program_tokens
        for steps in _STEPS[:1] if small else _STEPS:
            chosen = replace(shapes, steps=steps)
            sizes = [(rows, length) for _, rows, length in chosen.divided(lengths)]
            tokens = sum(rows * length * (1 + length / _ATTENTION_LENGTH) for rows, length in sizes)
            tokens, programs = tokens / share / shapes.devices, len(set(sizes))
            found.setdefault(tokens + self.program_tokens * programs, chosen)
            if self.unrolled:
                found.setdefault(_LOOP * tokens + self.loop_tokens * programs, replace(chosen, loops=True))
        return found[min(found)]


# A CPU takes half a second for a program of MiniLM, and one for BERT-base's layers. Encoding with the shape of
# all-MiniLM-L6-v2 on two cores (AVX-512), in seconds, first and then with all programs in memory, by `steps`:
#   tokens   1           2           None
#   19,000    3.3,  2.0   4.7,  1.4   7.6,  1.4
#   75,000    8.3,  6.7   8.5,  5.4  11.4,  5.0
#  187,000   18.3, 18.3  19.0, 15.7  18.9, 12.3
# A GPU takes 2 to 4 seconds for a program, at 1.9 million tokens a second (BERT-base, one H100).
CPU_COSTS = Costs(1024, 1024, 520, fills=False, in_advance=(4, 4), unrolled=True)
ACCELERATOR_COSTS = Costs(65536, 8192, 5_000_000, fills=True, in_advance=(1, 2), unrolled=False)


class Batch(NamedTuple):
    """Rows of one program call, padded or packed (see backbones/packed_rows.py).

    Attributes:
      positions: places of the texts' results among all of the job, int [b].
      slots: places of the same texts' results among those of the call, int [b].
      tokens: int32 [B, L], with zeros where there is no text.
      lengths: int32 [B], or [B, M] of packed rows; 0 where there is no text.
      loops: whether the layers are a loop where they can be unrolled.
    """

    positions: np.ndarray
    slots: np.ndarray
    tokens: np.ndarray
    lengths: np.ndarray
    loops: bool = False


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
      loops: whether batches that are not small have a loop of layers, which takes less time to compile.
    """

    max_length: int
    devices: int
    batch_tokens: int
    batch_rows: int | None = None
    steps: int | None = None
    ratio: int | None = 2
    loops: bool = False

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

    def first(self) -> "Shapes":
        """Return some of the shapes, one row on each device of few lengths, with which any text can be computed."""
        return replace(self, batch_rows=self.devices, steps=1)

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

    def empty(self, rows: int, length: int) -> Batch:
        """Return a batch of this shape without results, whose texts are one token each."""
        none = np.arange(0)
        return Batch(none, none, np.zeros((rows, length), np.int32), np.ones(rows, np.int32))

    def divided(self, lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield each batch's number of texts, rows and padded length, for texts of these lengths in descending order."""
        done = 0
        while done < len(lengths):
            length = self.length(lengths[done])
            count, rows = self.taken(len(lengths) - done, length)
            yield count, rows, length
            done += count

    def batches(self, ids: Sequence[Sequence[int]], start: int) -> list[Batch]:
        """Divide rows of token ids into batches, the longest first.

        Args:
          ids: one list of token ids per row.
          start: position of the first row among all rows of the job.
        """
        order = np.argsort([-len(row) for row in ids], kind="stable")
        batches = []
        done = 0
        for count, rows, length in self.divided([len(ids[place]) for place in order]):
            chosen = order[done : done + count]
            tokens, lengths = np.zeros((rows, length), np.int32), np.zeros(rows, np.int32)
            for row, position in enumerate(chosen):
                lengths[row] = len(ids[position])
                tokens[row, : lengths[row]] = ids[position]
            loops = self.loops and tokens.size >= _LEAST_LOOP_TOKENS
            batches.append(Batch(start + chosen, np.arange(count), tokens, lengths, loops))
            done += count
        return batches


@dataclass(frozen=True)
class PackedShapes:
    """Rule for batches of packed rows, which have one of a few shapes whatever the texts' lengths are.

    Attributes:
      width: tokens of a row, at least those of the longest text.
      rows: numbers of rows that a batch can have, ascending.
    """

    width: int
    rows: tuple[int, ...]

    @classmethod
    def of(cls, max_length: int, devices: int, *batch_tokens: int) -> "PackedShapes":
        """Return the shapes of batches with about so many tokens on each device, for texts of at most `max_length`."""
        width = max(ROW, _BUCKET * -(-max_length // _BUCKET))
        return cls(width, tuple(sorted({devices * max(1, tokens // width) for tokens in batch_tokens})))

    @property
    def texts(self) -> int:
        """M, the largest number of texts in a row."""
        return room_for_texts(self.width)

    def length(self, tokens: int) -> int:
        """Return the tokens that a text of so many costs: there is no padding."""
        return tokens

    def first(self) -> "PackedShapes":
        """Return the smallest shape, with which any text can be computed."""
        return replace(self, rows=self.rows[:1])

    def every(self) -> list[tuple[int, int]]:
        """Return all (rows, length) that batches can have."""
        return [(rows, self.width) for rows in self.rows]

    def empty(self, rows: int, width: int) -> Batch:
        """Return a batch of this shape without results, whose texts are one token each."""
        none = np.arange(0)
        return Batch(none, none, np.zeros((rows, width), np.int32), np.ones((rows, self.texts), np.int32))

    def batches(self, ids: Sequence[Sequence[int]], start: int) -> list[Batch]:
        """Divide rows of token ids into batches; a text without tokens becomes one of the token 0.

        Args:
          ids: one list of token ids per text.
          start: position of the first text among all of the job.
        """
        packed = self._packed([max(1, len(row)) for row in ids])
        batches, done = [], 0
        while done < len(packed):
            left = len(packed) - done
            rows = next((rows for rows in self.rows if rows >= left), self.rows[-1])
            tokens, lengths = np.zeros((rows, self.width), np.int32), np.zeros((rows, self.texts), np.int32)
            positions, slots = [], []
            for row, texts in enumerate(packed[done : done + rows]):
                place = 0
                for number, text in enumerate(texts):
                    tokens[row, place : place + len(ids[text])] = ids[text]
                    lengths[row, number] = max(1, len(ids[text]))
                    place += lengths[row, number]
                    positions.append(start + text)
                    slots.append(row * self.texts + number)
            batches.append(Batch(np.array(positions), np.array(slots), tokens, lengths))
            done += rows
        return batches

    def _packed(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return the texts of each row: again and again the longest one that still fits (best fit, decreasing)."""
        waiting = defaultdict[int, list[int]](list)
        for text in reversed(range(len(lengths))):
            waiting[lengths[text]].append(text)
        left = sorted(waiting)  # the lengths of which there are texts
        rows = []
        while left:
            row, room = [], self.width
            while len(row) < self.texts and (place := bisect.bisect_right(left, room)):
                length = left[place - 1]
                row.append(waiting[length].pop())
                room -= length
                if not waiting[length]:
                    del left[place - 1]
            rows.append(row)
        return rows


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
