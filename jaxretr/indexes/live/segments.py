"""The rows of a live index in memory: a base, which a snapshot holds, and a tail of the rows written since.

Rows never change. Which of them are still there is recorded in masks, and each `View` has its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes.certified.index import ScannIndex
from jaxretr.indexes.filters import Column, Condition, Filters, Value
from jaxretr.indexes.live.database import Space

T = TypeVar("T")

# A Python string of a typical id and its places in a list and in a dictionary; a value's places in a field's column.
_ID_BYTES, _VALUE_BYTES = 60 + 8 + 100, 2 * 8 + 4

# Bytes of an engine in memory: per dimension of the codes, its program, and a row's number, leaf and norm.
_CODE_BYTES, _ENGINE_BYTES, _ENTRY_BYTES = 0.25, 32 << 20, 12


def estimate(rows: int, dim: int, columns: int = 0, *, approximate: bool) -> int:
    """Approximate bytes of memory of some rows; vectors count in full, even if they are a memory map.

    Args:
      rows, dim: N and D.
      columns: fields of the metadata.
      approximate: whether there is an approximate index over them.
    """
    plain = rows * (4 * dim + 8 + _ID_BYTES + columns * _VALUE_BYTES)
    return plain + (_ENGINE_BYTES + int(rows * (_CODE_BYTES * dim + _ENTRY_BYTES)) if approximate else 0)


@dataclass(frozen=True)
class Segment:
    """A segment of n rows in their order.

    Attributes:
      rows: the rows' numbers in the database, ascending, int64 [n].
      ids: n ids; empty for a row that was already gone when the segment was read.
      vectors: float32 [n, D]; a plain array, which may be a view of a memory map.
      columns: field -> the value of each row, None where it has none; at least n.
    """

    rows: NDArray[np.int64]
    ids: Sequence[str]
    vectors: NDArray[np.float32]
    columns: Mapping[str, Sequence[Value]]

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def _filters(self) -> Filters:
        return Filters(len(self), None, {name: values[: len(self)] for name, values in self.columns.items()})

    @cached_property
    def _places(self) -> dict[str, int]:
        """The last place of each id; earlier places in a tail hold rows that were replaced."""
        return {self.ids[place]: place for place in range(len(self))}

    def places(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The places of the rows with these ids, int64; ids that are not here are left out."""
        found = (self._places.get(name) for name in ids)
        return np.array([place for place in found if place is not None], np.int64)

    def positions(self, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """The places of the rows with these numbers, int64; numbers that are not here are left out."""
        wanted = np.asarray(rows, np.int64)
        places = np.searchsorted(self.rows, wanted)
        inside = places < len(self)
        inside[inside] = self.rows[places[inside]] == wanted[inside]
        return places[inside]

    def passing(self, conditions: Mapping[str, Condition]) -> NDArray[np.bool_]:
        """A mask of the rows that meet the conditions on fields, bool [n]; no row has a field that has no column here."""
        mask = self._filters.mask(where={name: conditions[name] for name in conditions if name in self.columns})
        mask = np.ones(len(self), bool) if mask is None else mask
        for name in conditions.keys() - self.columns.keys():
            mask &= Column([None]).mask(conditions[name])
        return mask

    @property
    def bytes(self) -> int:
        """Approximate bytes of memory; see `estimate`."""
        return estimate(len(self), self.vectors.shape[1], len(self.columns), approximate=False)


@dataclass(frozen=True)
class Base(Segment):
    """The rows of a snapshot.

    Attributes:
      space: the space of the vectors.
      sequence: the number of the last write that the snapshot knows.
      scann: an approximate index over the rows; None if they are few.
    """

    space: Space
    sequence: int = 0
    scann: ScannIndex | None = None

    @property
    def bytes(self) -> int:
        """Approximate bytes of memory, including the approximate index's; see `estimate`."""
        return estimate(len(self), self.vectors.shape[1], len(self.columns), approximate=self.scann is not None)


class TailRows:
    """Storage for a tail, which only grows: segments of its beginning stay valid."""

    def __init__(self, dim: int):
        """Make an empty storage for vectors of `dim` dimensions."""
        self._count = 0
        self._ids: list[str] = []
        self._columns: dict[str, list[Value]] = {}
        self._rows = np.empty(64, np.int64)
        self._vectors = np.empty((64, dim), np.float32)

    def append(
        self,
        rows: Sequence[int] | NDArray[np.int64],
        ids: Sequence[str],
        columns: Mapping[str, Sequence[Value]],
        vectors: NDArray[np.float32],
    ) -> None:
        """Add n rows, whose numbers are larger than all before; see `Segment`."""
        first, until = self._count, self._count + len(rows)
        if until > len(self._rows):
            room = max(until, 2 * len(self._rows))
            self._rows, self._vectors = _moved(self._rows, first, room), _moved(self._vectors, first, room)
        self._rows[first:until] = rows
        self._vectors[first:until] = vectors
        self._ids += ids
        for name, values in columns.items():
            self._columns.setdefault(name, []).extend([None] * (first - len(self._columns[name])))
            self._columns[name].extend(values)
        for values in self._columns.values():
            values.extend([None] * (until - len(values)))
        self._count = until

    def segment(self) -> Segment:
        """All rows so far."""
        n = self._count
        return Segment(self._rows[:n], _Beginning(self._ids, n), self._vectors[:n], dict(self._columns))


def columns_of(metadata: Sequence[Mapping[str, Value]]) -> dict[str, list[Value]]:
    """The fields of n documents as columns: field -> n values."""
    columns: dict[str, list[Value]] = {}
    known: dict[str, str] = {}  # Equal texts share one object.
    for place, values in enumerate(metadata):
        for name, value in values.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = [None] * len(metadata)
            column[place] = known.setdefault(value, value) if isinstance(value, str) else value
    return columns


def _moved(array: np.ndarray, count: int, room: int) -> np.ndarray:
    larger = np.empty((room, *array.shape[1:]), array.dtype)
    larger[:count] = array[:count]
    return larger


class _Beginning(Sequence[T]):
    """The first n items of a list that grows."""

    def __init__(self, items: list[T], count: int):
        self._items, self._count = items, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        return self._items[: self._count][place] if isinstance(place, slice) else self._items[place]
