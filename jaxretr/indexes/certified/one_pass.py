"""Searches of many questions in one pass over the vectors, for measuring recall with little memory."""

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes.certified.exact_scores import Rescored, score_candidates
from jaxretr.indexes.certified.rows import Rows
from jaxretr.indexes.certified.searcher import Searcher


class OnePass:
    """A `Reading` that holds one block of the vectors at a time.

    A search reads the vectors of its candidates wherever they are; a few hundred questions read most of a corpus, and
    what a process has read of a file counts as its memory.
    """

    def __init__(self, rows: Rows):
        """Take the rows whose vectors are read."""
        self._rows = rows

    def rescored(
        self,
        queries: NDArray[np.float32],
        found: NDArray[np.uint32],
        approximate: NDArray[np.float32],
        k: int,
        threads: int,
    ) -> Rescored:
        """Score candidates; see `Reading.rescored`."""
        exact = np.full(found.shape, -np.inf, np.float32)
        first = 0
        for block in self._rows.vector_blocks():
            values = np.asarray(block).view()
            values.flags.writeable = False  # one type for the compiled loop
            score_candidates(queries, found, approximate, values, first, exact)
            first += len(values)
        best = np.lexsort((found, -exact), axis=-1)[:, :k]
        scores = np.full((len(queries), k), -np.inf, np.float32)
        names = np.full((len(queries), k), -1, np.int64)
        scores[:, : best.shape[1]] = np.take_along_axis(exact, best, axis=1)
        names[:, : best.shape[1]] = np.take_along_axis(found, best, axis=1)
        return scores, names, np.minimum((~np.isnan(approximate)).sum(axis=1), k)

    def exact(
        self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Score all allowed rows; see `Reading.exact`."""
        from jaxretr.indexes.exact import search_blocks  # It imports JAX.

        return search_blocks(self._rows.vector_blocks(), queries, k, allowed=allowed)


def search_in_one_pass(
    searcher: Searcher,
    rows: Rows,
    queries: NDArray[np.float32],
    k: int,
    leaves: int,
    candidates: int,
    threads: int,
) -> tuple[np.ndarray, NDArray[np.int64]]:
    """Find what `Searcher.search` finds; see `OnePass`.

    Args:
      searcher: over `rows`.
      rows: the vectors.
      queries, k, leaves, candidates, threads: see `Searcher.search`.

    Returns:
      scores float32 [B, k], descending, and rows int64 [B, k].
    """
    found, approximate = searcher.candidates(queries, leaves, searcher.wanted(k, candidates), threads)
    scores, names, counts = OnePass(rows).rescored(queries, found, approximate, k, threads)
    # The engine proposed too few candidates, for instance from leaves that hold fewer than k passages.
    if len(short := np.flatnonzero(counts < k)):
        scores[short], names[short] = searcher.search(queries[short], k, leaves, candidates, threads)
    return scores, names
