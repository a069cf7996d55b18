"""The plan of a certified index of a corpus, the resources that making it takes, and the file of its vectors."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from jaxretr.config import EngineName
from jaxretr.data.arrays import write_header
from jaxretr.indexes.certified.engines import engine_of
from jaxretr.indexes.certified.rows import vectors_in_memory
from jaxretr.indexes.exact import unique_ids
from jaxretr.indexes.exact.host_rows import read_rows
from jaxretr.runtime.errors import UserError, at_least
from jaxretr.runtime.parallel.machine import has_amx

# Fewer passages than these are scored all (a search of 1,000 takes no longer than ScaNN's own steps), or have no tree.
_NO_CODES_BELOW = 1_000
_NO_TREE_BELOW = 20_000

# ScaNN makes codes of pairs of dimensions.
_LEAST_DIMENSIONS = 4

# The sample is a share of the passages: what training holds, three times the sample, is then no more than the vectors.
_TRAIN_SHARE = 3
_LEAST_TRAIN_ROWS = 20_000
_MOST_TRAIN_ROWS = 250_000

# Bytes of a code in an engine's memory and, at most, on disk.
_CODE_IN_MEMORY = 0.5
_CODE_ON_DISK = 1

# Memory of measuring besides vectors and codes: loops that Numba reads, ScaNN, the questions' exact neighbours and
# their candidates; and for each row its id and its place.
_MEASURING_BYTES = 104 << 20
_ROW_BYTES = 150

# And XLA's where it finds those neighbours in bfloat16, by AMX.
_AMX_BYTES = 64 << 20

_CHECK_ROWS = 16_384


@dataclass(frozen=True)
class Plan:
    """The kind and the size of an index that is to be built.

    Attributes:
      rows, dim: N and D.
      kind: see `layout.Facts`.
      leaves: leaves of the tree; 1 without a tree.
      train_rows: passages that tree and codes are learnt from.
      engine: the engine that learns them.
    """

    rows: int
    dim: int
    kind: Literal["tree", "flat", "exact"]
    leaves: int
    train_rows: int
    engine: EngineName = "scann"

    def memory(self) -> int:
        """The most memory that making it takes, in bytes: this process's, or that of ScaNN's worker while there is one.

        The vectors stay on disk, but the pages of them that a process has read count as its memory; see `vectors_in_memory`.
        """
        fixed = _MEASURING_BYTES + _ROW_BYTES * self.rows + (_AMX_BYTES if has_amx() else 0)
        if self.kind == "exact":
            return 4 * self.rows * self.dim + fixed
        training = engine_of(self.engine).training_bytes(self.train_rows, self.dim, self.leaves)
        vectors = 4 * self.dim * vectors_in_memory(self.rows, self.dim)
        return max(training, vectors + int(_CODE_IN_MEMORY * self.rows * self._codes()) + fixed)

    def disk(self) -> int:
        """The size of the index's files, in bytes."""
        return self.rows * (4 * self.dim + _CODE_ON_DISK * self._codes() + 4 + 16)

    def _codes(self) -> int:
        """Codes of 4 bits that a row has."""
        return engine_of(self.engine).codes_a_row(self.dim)


def plan_of(rows: int, dim: int, leaves: int | None, train_rows: int | None, engine: EngineName = "scann") -> Plan:
    """Decide the kind and the size of an index.

    Args:
      rows, dim: N and D.
      leaves: leaves of the tree, 1 for no tree; None: the rows decide.
      train_rows: passages to learn from; None: the rows decide.

    Raises:
      UserError: a number that does not fit.
    """
    if not rows:
        raise UserError("passages: there are none to index; encode at least one")
    for name, value in (("num_leaves", leaves), ("train_size", train_rows)):
        at_least(1, **{name: value})
        if value is not None and value > rows:
            raise UserError(f"{name}={value} must be from 1 to the {rows} passages")
    if rows < _NO_CODES_BELOW or dim < _LEAST_DIMENSIONS:
        return Plan(rows, dim, "exact", 1, 0, engine)
    share = min(max(rows // _TRAIN_SHARE, _LEAST_TRAIN_ROWS), _MOST_TRAIN_ROWS, rows)
    sample = share if train_rows is None else train_rows
    if leaves is None:
        leaves = round(math.sqrt(rows)) if rows >= _NO_TREE_BELOW else 1
    if sample < max(256, 4 * leaves):
        raise UserError(
            f"train_size={sample} is too few to learn {leaves} leaves from; give {max(256, 4 * leaves)} or more"
        )
    return Plan(rows, dim, "tree" if leaves > 1 else "flat", leaves, sample, engine)


def check_ids(ids: Sequence[str] | None, n: int) -> list[str]:
    """Return n ids, "0", "1", ... by default; raises UserError where they repeat, are too many or no strings."""
    return [str(row) for row in range(n)] if ids is None else unique_ids(ids, n)


def write_vectors(path: Path, blocks: Iterable[np.ndarray], shape: tuple[int, int], source: str) -> None:
    """Write embeddings as one .npy file of float32, a block at a time.

    Args:
      blocks: [n, D], in the order of rows, in any dtype.
      shape: N and D.
      source: named in errors.

    Raises:
      UserError: NaN or infinity.
    """
    first = 0
    with open(path, "wb") as file:
        write_header(file, shape, np.float32)
        for block in blocks:
            for start in range(0, len(block), _CHECK_ROWS):
                piece = block[start : start + _CHECK_ROWS]
                values = read_rows(piece, 0, len(piece), dtype=np.dtype(np.float32), source=source, first=first)
                file.write(values.data)
                first += len(values)
