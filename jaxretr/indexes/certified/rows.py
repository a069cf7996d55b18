"""The rows of a `ScannIndex`: vectors, codes and leaves, ids; read through memory maps, changed in memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxretr.data.arrays import read_array, write_array
from jaxretr.embeddings.index_folder import read_ids, write_ids
from jaxretr.indexes.certified.worker import CODES, TOKENS
from jaxretr.indexes.exact.host_rows import release

VECTORS = "vectors.npy"
IDS = "ids.jsonl"

# Bytes of the pieces in which arrays are read and written.
_PIECE_BYTES = 8 << 20

# Bytes of vectors up to which all of them may be held while recall is measured.
_LEAST_HELD = 64 << 20


class Columns:
    """The vectors, codes and leaves of some rows, an array each.

    Attributes:
      vectors: float32 [M, D].
      codes: uint8 [M, C], or None where there is no engine (few rows).
      tokens: the leaf of each row, int32 [M], or None where there is no tree.
    """

    def __init__(self, vectors: np.ndarray, codes: np.ndarray | None, tokens: np.ndarray | None):
        self.vectors, self.codes, self.tokens = vectors, codes, tokens

    def named(self) -> Iterator[tuple[str, np.ndarray]]:
        """The arrays that there are, by their files' names."""
        columns = ((VECTORS, self.vectors), (CODES, self.codes), (TOKENS, self.tokens))
        return ((name, values) for name, values in columns if values is not None)


class Rows:
    """The N rows of an index in their order, as they are now: on disk, and added or removed since.

    Attributes:
      base: the rows on disk.
      added: the rows that were added since, in memory.
      slots: the place of each row, int64 [N]: in `base`, or from its length on in `added`.
      ids: N ids.
    """

    def __init__(self, base: Columns, ids: list[str]):
        self.base = base
        self.added = Columns(*(None if each is None else each[:0].copy() for each in _all(base)))  # pyright: ignore
        _freeze(self.added)
        self.slots = np.arange(len(base.vectors))
        self.ids = ids
        self._row_of: dict[str, int] | None = None

    @classmethod
    def read(
        cls, folder: Path, rows: int, dim: int, code_size: int | None, tree: bool, ids: list[str] | None = None
    ) -> "Rows":
        """Memory-maps the files of a folder; the ids are those of its file by default.

        Raises:
          UserError: one is missing or contains something else.
        """
        remedy = "build the index again"
        vectors = read_array(folder / VECTORS, np.float32, (rows, dim), remedy)
        codes = None if code_size is None else read_array(folder / CODES, np.uint8, (rows, code_size), remedy)
        tokens = read_array(folder / TOKENS, np.int32, (rows,), remedy) if tree else None
        return cls(Columns(vectors, codes, tokens), ids or read_ids(folder / IDS, rows, remedy))

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def changed(self) -> bool:
        """Whether the rows differ from the files."""
        base = len(self.base.vectors)
        return len(self.slots) != base or not np.array_equal(self.slots, np.arange(base))

    def row_of(self) -> dict[str, int]:
        """The number of the row of each id."""
        if self._row_of is None:
            self._row_of = {name: row for row, name in enumerate(self.ids)}
        return self._row_of

    def put(self, columns: Columns, ids: Sequence[str]) -> int:
        """Add rows at the end, or in the place of rows with the same ids; return how many took a place."""
        first = len(self.base.vectors) + len(self.added.vectors)
        pairs = zip(_all(self.added), _all(columns), strict=True)
        self.added = Columns(*(None if old is None else np.concatenate([old, new]) for old, new in pairs))  # pyright: ignore
        _freeze(self.added)
        row_of, fresh = self.row_of(), []
        for slot, name in enumerate(ids, start=first):
            if name in row_of:
                self.slots[row_of[name]] = slot
            else:
                row_of[name] = len(self.ids)
                self.ids.append(name)
                fresh.append(slot)
        self.slots = np.concatenate([self.slots, np.array(fresh, np.int64)])
        return len(ids) - len(fresh)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove the rows of ids, all of which are there; the others close up."""
        row_of = self.row_of()
        mask = np.ones(len(self.slots), bool)
        mask[[row_of[name] for name in ids]] = False
        self.slots = self.slots[mask]
        self.ids = [name for name, keep in zip(self.ids, mask.tolist(), strict=True) if keep]
        self._row_of = None

    def vector(self, row: int) -> NDArray[np.float32]:
        """The vector of a row, a copy."""
        return self._gathered(self.base.vectors, self.added.vectors, self.slots[row : row + 1])[0]

    def vector_blocks(
        self, rows: NDArray[np.int64] | None = None, slots: NDArray[np.int64] | None = None
    ) -> Iterator[np.ndarray]:
        """Yield all vectors in the order of rows, [n, D] at a time, each block a copy or a piece of the map.

        Args:
          rows: those that are wanted, ascending; all by default.
          slots: with `rows`, where the vectors are, if not where `slots` says.
        """
        if rows is None:
            yield from self._blocks(self.base.vectors, self.added.vectors)
            return
        slots = self.slots if slots is None else slots
        size = max(1, _PIECE_BYTES // max(1, self.base.vectors[:1].nbytes))
        for start in range(0, len(rows), size):
            yield self._gathered(self.base.vectors, self.added.vectors, slots[rows[start : start + size]])

    def slots_of_timing(self, parts: int = 2) -> NDArray[np.int64] | None:
        """The slots from which timed searches read the vectors: all in one part of the file.

        The scores are wrong then, and the time is right: neighbours are no closer to each other in the file than before,
        and the part is larger than a processor's caches.

        Args:
          parts: parts that the file is divided into, of which one is read.

        Returns:
          Slots, int64 [N]; None where all vectors may be held.
        """
        rows, dim = self.base.vectors.shape
        held = vectors_in_memory(rows, dim, parts)
        return None if held == len(self.base.vectors) else self.slots % held

    def release(self) -> None:
        """Give back the pages of the vectors' file that were read; they count as this process's memory."""
        release(self.base.vectors)

    def write(self, folder: Path, names: Sequence[str]) -> None:
        """Write files of `names` with the rows as they are, a piece at a time."""
        added = dict(self.added.named())
        for name, base in self.base.named():
            if name in names:
                shape = (len(self), *base.shape[1:])
                write_array(folder / name, shape, base.dtype, self._blocks(base, added[name]))
        if IDS in names:
            write_ids(folder / IDS, self.ids)

    def _blocks(self, base: np.ndarray, added: np.ndarray) -> Iterator[np.ndarray]:
        size = max(1, _PIECE_BYTES // max(1, base[:1].nbytes))
        for start in range(0, len(self), size):
            yield self._gathered(base, added, self.slots[start : start + size])
            release(base)

    @staticmethod
    def _gathered(base: np.ndarray, added: np.ndarray, slots: NDArray[np.int64]) -> np.ndarray:
        if (
            len(slots)
            and slots[-1] < len(base)
            and slots[-1] - slots[0] + 1 == len(slots)
            and (np.diff(slots) == 1).all()
        ):
            return base[slots[0] : slots[-1] + 1]
        out = np.empty((len(slots), *base.shape[1:]), base.dtype)
        old = slots < len(base)
        out[old] = base[slots[old]]
        out[~old] = added[slots[~old] - len(base)]
        return out


def vectors_in_memory(rows: int, dim: int, parts: int = 2) -> int:
    """The most vectors that measuring holds, whose pages count as this process's memory: a part, if there are many."""
    return max(-(-rows // parts), min(rows, _LEAST_HELD // (4 * dim)))


def _all(columns: Columns) -> tuple[np.ndarray | None, ...]:
    return columns.vectors, columns.codes, columns.tokens


def _freeze(columns: Columns) -> None:
    """Make arrays read-only like the memory maps, so that the compiled loops see one type."""
    for _, values in columns.named():
        values.flags.writeable = False
