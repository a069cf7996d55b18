"""The exact scores of candidates, and the best of them: compiled by Numba, straight from the memory-mapped vectors."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from jaxretr.parallel.numba_loops import compiled


def rescore(
    queries: NDArray[np.float32],
    found: NDArray[np.uint32],
    approximate: NDArray[np.float32],
    base: NDArray[np.float32],
    added: NDArray[np.float32],
    slots: NDArray[np.int64],
    k: int,
    threads: int = 1,
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Scores candidates exactly and keeps the k best of each question, equal scores by row.

    Args:
      queries: [B, D].
      found: candidate rows [B, R], no row twice.
      approximate: ScaNN's scores of them [B, R]; NaN where there is no candidate.
      base, added: vectors [M, D] and [A, D].
      slots: where the vector of each row is, [N]: in `base`, or from M on in `added`.
      k: at most R.
      threads: to divide the questions among.

    Returns:
      scores float32 [B, k], descending, rows int64 [B, k], and how many are real, int64 [B].
    """
    batch = len(queries)
    scores = np.full((batch, k), -np.inf, np.float32)
    rows = np.full((batch, k), -1, np.int64)
    counts = np.zeros(batch, np.int64)

    def piece(start: int, stop: int) -> None:
        each = slice(start, stop)
        _rescore(
            *(queries[each], found[each], approximate[each], base, added, slots),
            *(scores[each], rows[each], counts[each]),
        )

    if threads < 2 or batch < 2 * threads:
        piece(0, batch)
        return scores, rows, counts
    size = -(-batch // threads)
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(piece, start, min(start + size, batch)) for start in range(0, batch, size)]:
            done.result()
    return scores, rows, counts


# Sums in any order and with fused additions, as a matrix product has them; NaN stays NaN.
@compiled(fastmath={"reassoc", "contract", "nsz"})
def _rescore(queries, found, approximate, base, added, slots, scores, rows, counts):
    dim = queries.shape[1]
    k = scores.shape[1]
    names = np.empty(found.shape[1], np.int64)
    values = np.empty(found.shape[1], np.float32)
    for b in range(len(queries)):
        n = 0
        for j in range(found.shape[1]):
            if approximate[b, j] == approximate[b, j]:
                names[n] = found[b, j]
                n += 1
        # In the order of rows, so that a stable sort leaves equal scores by row.
        ordered = np.sort(names[:n])
        query = queries[b]
        for j in range(n):
            slot = slots[ordered[j]]
            total = np.float32(0)
            if slot < len(base):
                for d in range(dim):
                    total += query[d] * base[slot, d]
            else:
                for d in range(dim):
                    total += query[d] * added[slot - len(base), d]
            values[j] = -total
        order = np.argsort(values[:n], kind="mergesort")
        kept = min(k, n)
        for j in range(kept):
            scores[b, j] = -values[order[j]]
            rows[b, j] = ordered[order[j]]
        counts[b] = kept
