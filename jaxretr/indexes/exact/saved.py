"""The kind of index that `ExactIndex.save` writes: a folder of vectors, ids and metadata, searched exactly."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.embeddings import index_folder
from jaxretr.indexes.checks import check_model
from jaxretr.indexes.exact import ExactIndex
from jaxretr.indexes.exact.footprint import estimate
from jaxretr.indexes.index import Opening
from jaxretr.indexes.read_only import ReadOnlyIndex
from jaxretr.runtime.parallel import memory
from jaxretr.runtime.parallel.mesh import make_mesh


def open(place: str, opening: Opening) -> ReadOnlyIndex:
    """Open a folder of `ExactIndex.save`.

    Raises:
      UserError: it is damaged, or its vectors are not of the encoder's size.
    """
    meta = index_folder.describe(place)
    check_model(place, meta["dim"], None, None, opening.encoder)
    size = announce(place, meta["rows"], meta["dim"], opening, dtype=meta["dtype"])
    stored, ids, metadata = index_folder.read(place)
    source = str(Path(place) / index_folder.EMBEDDINGS)
    index = ExactIndex(stored, ids, metadata=metadata, dtype=stored.dtype.name, mesh=make_mesh(), source=source)
    return as_index(index, opening, lambda rows: stored[list(rows)], bytes=size)


def as_index(
    index: ExactIndex, opening: Opening, rows: Callable[[Sequence[int]], np.ndarray] | None = None, **facts: Any
) -> ReadOnlyIndex:
    """An `ExactIndex` as an `Index`.

    Args:
      opening: its name, and the file of its texts.
      rows: a function that gives the vectors of rows [n, D]; by default they are read from the devices, all of them.
      facts: facts that differ from those of vectors in memory of which nothing is known.
    """

    def of_devices(rows: Sequence[int]) -> np.ndarray:
        return index.__reduce__()[1][0][list(rows)]

    vectors_of = rows or of_devices
    return ReadOnlyIndex(
        index.ids,
        index.dim,
        opening,
        search=lambda vectors, k, _, filters: index.search(vectors, k, **filters),
        rows=lambda numbers: np.asarray(vectors_of(numbers), np.float32).reshape(-1, index.dim),
        facts={"engine": "exact", "model": None, "model_fingerprint": None, "bytes": 0, **facts},
        metadata=index.metadata,
    )


def announce(place: str, rows: int, dim: int, opening: Opening, **how: Any) -> int:
    """Log the memory that an exact search takes; return the bytes of its rows.

    Args:
      place: the name of the index in the log.
      rows, dim: N and D.
      opening: how many questions and hits a search has.
      how: further arguments of `estimate`.
    """
    needed = estimate(rows, dim, questions=opening.questions, k=min(opening.k, rows), **how)
    what = "the search of " if opening.once else f"{place}: "
    memory.announce(f"{what}{rows} passages of {dim} dimensions", needed.memory)
    return needed.rows
