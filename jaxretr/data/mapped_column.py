"""A column of strings on disk that is mapped into memory, and the one who writes it."""

import itertools
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import SupportsIndex, overload

import numpy as np

# Rows that are decoded at a time by those who read a column from the first to the last.
_ROWS = 10_000


class MappedColumn(Sequence[str]):
    """N strings in two files: their UTF-8 bytes, and int64 [N + 1] offsets into these."""

    def __init__(self, folder: Path, name: str):
        self._offsets = np.memmap(folder / f"{name}.offsets", np.int64, "r")
        stored = (folder / f"{name}.bytes").stat().st_size
        if stored != self._offsets[-1]:
            raise ValueError(f"{name}.bytes has {stored} bytes, not {self._offsets[-1]}")
        # An empty file cannot be mapped.
        self._bytes = np.memmap(folder / f"{name}.bytes", np.uint8, "r") if stored else np.empty(0, np.uint8)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, place: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> str | list[str]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return self._some(start, stop) if step == 1 else [self[row] for row in range(start, stop, step)]
        row = operator.index(place)
        row += len(self) if row < 0 else 0
        if not 0 <= row < len(self):
            raise IndexError(place)
        return self._some(row, row + 1)[0]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _ROWS):
            yield from self._some(start, min(start + _ROWS, len(self)))

    def _some(self, start: int, stop: int) -> list[str]:
        if start >= stop:
            return []
        offsets = self._offsets[start : stop + 1].tolist()
        content = self._bytes[offsets[0] : offsets[-1]].tobytes()
        places = [offset - offsets[0] for offset in offsets]
        return [content[first:last].decode() for first, last in itertools.pairwise(places)]


class ColumnWriter:
    """Writes the files of a `MappedColumn`, one string after the other."""

    def __init__(self, folder: Path, name: str):
        self._end = 0
        self._bytes = open(folder / f"{name}.bytes", "wb")  # noqa: SIM115 -- closed by __exit__
        self._offsets = open(folder / f"{name}.offsets", "wb")  # noqa: SIM115
        self._offsets.write(bytes(8))

    def add(self, text: str) -> None:
        """Writes a string behind the others."""
        self._end += self._bytes.write(text.encode())
        self._offsets.write(np.int64(self._end).tobytes())

    def __enter__(self) -> "ColumnWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bytes.close()
        self._offsets.close()
