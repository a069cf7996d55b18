"""A corpus's tokens on the devices without padding: copied there from a store, or their shapes in a plan."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxretr.data.token_store import TokenStore
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.mesh import DATA, put_rows
from jaxretr.training.state import CorpusTokens

# Largest number of ids in one part, so that an int32 can number them.
_MOST_IDS = 2**31 - 1
# Multiple that lengths of parts are rounded up to, so that corpora of about the same size compile the same programs.
_UNIT = 4096


class EstimatedRows(NamedTuple):
    """Rows of a plan, in place of a `TokenStore`: their number and length, without their tokens."""

    num_rows: int
    longest: int
    """Largest number of ids of a row."""
    mean: float
    """Mean number of ids of a row."""
    dtype: Any
    """Integer type of the ids."""


def corpus_tokens(store: TokenStore | EstimatedRows, rows: int, mesh: Mesh) -> CorpusTokens:
    """Put a store's rows on the devices, and empty rows up to `rows`; each host reads only its own.

    Args:
      store: store of at most `rows` rows. Of estimated ones the result has the shapes alone; the devices' shares of them
        are assumed to be equal.
      rows: N, a multiple of the data axis (see `padded_rows`).
    """
    if isinstance(store, EstimatedRows):
        return _shapes(store, rows, mesh)
    layout = Layout(store.offsets, rows, width_of(store), mesh.shape[DATA])
    bounds, length = layout.bounds, layout.length

    def flat(start: int, stop: int) -> np.ndarray:
        part = start // length  # A device asks only for its own part.
        return store.ids[bounds[part] : bounds[part + 1]]

    def table(start: int, stop: int) -> np.ndarray:
        filled = np.zeros((stop - start, length), store.dtype)
        for row, part in zip(filled, range(start, stop), strict=True):
            ids = store.ids[bounds[part] : bounds[part + 1]]
            row[: len(ids)] = ids
        return filled

    return CorpusTokens(
        put_rows(mesh, flat if len(layout.shape) == 1 else table, layout.shape, store.dtype),
        put_rows(mesh, layout.offsets, (rows,), np.int32),
        put_rows(mesh, store.lengths, (rows,), np.int32),
        layout.width,
    )


class Layout:
    """Layout of the ids of rows on the devices (`CorpusTokens`).

    Attributes:
      width: number of columns that hold the longest row.
      length: M, the number of ids of a part.
      bounds: the first id of every part, and the end of the last, int64 [devices * S + 1].
      shape: shape of the array of ids.
    """

    def __init__(self, offsets: np.ndarray, rows: int, width: int, devices: int):
        """Divide the rows into parts.

        Args:
          offsets: start of each row among the ids, and the end of the last, int64 [up to N + 1].
          rows: N; rows without an offset are empty.
        """

        def bounds(parts: int) -> np.ndarray:
            return offsets[np.minimum(np.arange(parts + 1) * (rows // parts), len(offsets) - 1)]

        parts, self.length = _parts(devices, width, lambda parts: int(np.diff(bounds(parts)).max()))
        self.width, self.bounds, self.shape = width, bounds(devices * parts), _ids_shape(devices, parts, self.length)
        self._offsets, self._rows = offsets, rows // (devices * parts)

    def offsets(self, start: int, stop: int) -> np.ndarray:
        """Return the start of rows in their parts, int32 [up to stop - start]; empty rows at the end are left out."""
        present = np.arange(start, min(stop, len(self._offsets) - 1))
        return (self._offsets[present] - self.bounds[present // self._rows]).astype(np.int32)


def _shapes(store: EstimatedRows, rows: int, mesh: Mesh) -> CorpusTokens:
    width, devices, ids = columns(store.longest), mesh.shape[DATA], store.mean * store.num_rows
    parts, length = _parts(devices, width, lambda parts: math.ceil(ids / parts))
    numbers = abstract_rows(mesh, np.int32, rows)
    return CorpusTokens(abstract_rows(mesh, store.dtype, *_ids_shape(devices, parts, length)), numbers, numbers, width)


def _parts(devices: int, width: int, fullest: Callable[[int], int]) -> tuple[int, int]:
    """Return S, the number of parts that the ids of a device are in, and M, the number of ids of each.

    M is that of the fullest of all parts, `fullest(devices * S)`, and room to read `width` ids from the start of its last row.
    """
    parts = 1
    while (length := -(-(fullest(devices * parts) + width) // _UNIT) * _UNIT) > _MOST_IDS:
        parts *= 2
    return parts, length


def abstract_rows(mesh: Mesh, dtype: Any, *shape: int) -> Any:
    """Return the shape of an array that is split by row."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, sharding.ROWS))


def _ids_shape(devices: int, parts: int, length: int) -> tuple[int, ...]:
    # On TPUs an array [1, M] takes twice the memory of [M].
    return (devices * length,) if parts == 1 else (devices * parts, length)


def width_of(store: TokenStore) -> int:
    """Return the number of columns that hold a store's longest row."""
    return columns(store.max_row_length)


def columns(longest: int) -> int:
    """Return the length of a longest row, rounded up so that few widths are ever compiled."""
    return -(-max(1, longest) // 8) * 8
