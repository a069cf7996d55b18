"""A search of many questions in one pass over the vectors, for measuring what is found within little memory."""

import numpy as np
from numpy.typing import NDArray

from jaxretr.search.scann.rows import Rows
from jaxretr.search.scann.searcher import Searcher, score_candidates


def search_in_one_pass(
    searcher: Searcher,
    rows: Rows,
    queries: NDArray[np.float32],
    k: int,
    leaves: int,
    candidates: int,
    threads: int,
) -> tuple[np.ndarray, NDArray[np.int64]]:
    """Finds what `Searcher.search` finds, but holds one block of the vectors at a time.

    A search reads the vectors of its candidates wherever they are; a few hundred questions read most of a corpus, and
    what a process has read of a file counts as its memory.

    Args:
      searcher: over `rows`.
      rows: the vectors.
      queries, k, leaves, candidates, threads: see `Searcher.search`.

    Returns:
      scores float32 [B, k], descending, and rows int64 [B, k].
    """
    found, approximate = searcher.candidates(queries, leaves, searcher.wanted(k, candidates), threads)
    exact = np.full(found.shape, -np.inf, np.float32)
    first = 0
    for block in rows.vector_blocks():
        values = np.asarray(block).view()
        values.flags.writeable = False  # one type for the compiled loop
        score_candidates(queries, found, approximate, values, first, exact)
        first += len(values)
    best = np.lexsort((found, -exact), axis=-1)[:, :k]
    scores = np.full((len(queries), k), -np.inf, np.float32)
    names = np.full((len(queries), k), -1, np.int64)
    scores[:, : best.shape[1]] = np.take_along_axis(exact, best, axis=1)
    names[:, : best.shape[1]] = np.take_along_axis(found, best, axis=1)
    # Too few candidates, as where the leaves hold fewer than k passages.
    short = np.flatnonzero((~np.isnan(approximate)).sum(axis=1) < k)
    if len(short):
        scores[short], names[short] = searcher.search(queries[short], k, leaves, candidates, threads)
    return scores, names
