"""Exact scores of candidates and of allowed rows, straight from the memory-mapped vectors.

Loops that share a loop are in this one file, because of Numba's cache.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from jaxretr.indexes.certified.engine import Proposed
from jaxretr.indexes.certified.rows import Rows
from jaxretr.runtime.parallel.numba_loops import compiled

Rescored = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]
"""Scores float32 [B, k], descending, rows int64 [B, k], and the number of real hits, int64 [B]."""


class Anywhere:
    """Exact scores of an index's rows by reading each vector where it is, which is the fastest.

    Args:
      rows: the rows whose vectors are read.
      slots: the places to read them from, if other than `Rows.slots`.

    Attributes:
      at_once: whether all questions of a search are given at once, since every call reads all vectors.
    """

    at_once = False

    def __init__(self, rows: Rows, slots: NDArray[np.int64] | None = None):
        self._rows, self._slots = rows, rows.slots if slots is None else slots

    def rescored(self, queries: NDArray[np.float32], proposed: Proposed, k: int, threads: int) -> Rescored:
        """Score candidates, and keep each question's k best, equal scores by row."""
        (candidates, approximate), batch = proposed, len(queries)
        # A plain array: Numba does not know memory maps.
        base, added = np.asarray(self._rows.base.vectors), self._rows.added.vectors
        scores = np.full((batch, k), -np.inf, np.float32)
        rows = np.full((batch, k), -1, np.int64)
        counts = np.zeros(batch, np.int64)

        def rescore(part: slice) -> None:
            arrays = queries[part], candidates[part], approximate[part]
            _rescore_rows(*arrays, base, added, self._slots, scores[part], rows[part], counts[part])

        if threads < 2 or batch < 2 * threads:
            rescore(slice(0, batch))
            return scores, rows, counts
        size = -(-batch // threads)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(rescore, [slice(start, start + size) for start in range(0, batch, size)]))
        return scores, rows, counts

    def exact(
        self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Score all allowed rows; see `Searcher.search_allowed`."""
        from jaxretr.indexes.exact import search_blocks  # It imports JAX.

        rows = np.flatnonzero(allowed)
        scores, places = search_blocks(self._rows.vector_blocks(rows, self._slots), queries, k)
        return scores, rows[places]


class OnePass:
    """The same by reading all vectors in their order, a block at a time, for measuring with little memory.

    A search reads the vectors of its candidates wherever they are; a few hundred questions read most of a corpus, and
    what a process has read of a file counts as its memory.
    """

    at_once = True

    def __init__(self, rows: Rows):
        """Take the rows whose vectors are read."""
        self._rows = rows

    def rescored(self, queries: NDArray[np.float32], proposed: Proposed, k: int, threads: int) -> Rescored:
        """Score candidates; see `Anywhere.rescored`."""
        candidates, approximate = proposed
        exact = np.full(candidates.shape, -np.inf, np.float32)
        first = 0
        for block in self._rows.vector_blocks():
            values = np.asarray(block).view()
            values.flags.writeable = False  # one type for the compiled loop
            score_candidates(queries, candidates, approximate, values, first, exact)
            first += len(values)
        best = np.lexsort((candidates, -exact), axis=-1)[:, :k]
        scores = np.full((len(queries), k), -np.inf, np.float32)
        names = np.full((len(queries), k), -1, np.int64)
        scores[:, : best.shape[1]] = np.take_along_axis(exact, best, axis=1)
        names[:, : best.shape[1]] = np.take_along_axis(candidates, best, axis=1)
        return scores, names, np.minimum((~np.isnan(approximate)).sum(axis=1), k)

    def exact(
        self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Score all allowed rows; see `Anywhere.exact`."""
        from jaxretr.indexes.exact import search_blocks  # It imports JAX.

        return search_blocks(self._rows.vector_blocks(), queries, k, allowed=allowed)


Reading = Anywhere | OnePass
"""The way in which vectors are read for exact scores."""


# ---- by Numba --------------------------------------------------------------------------------------------------------

# Rows that are asked of the memory ahead of the one that is scored: it takes some 30 times as long to come as to be scored.
_AHEAD = 4

_CACHE_LINE = 64


@intrinsic
def _fetch(typingctx, address):
    """Ask the memory for the cache line of an address, without waiting for it."""

    def code(context, builder, signature, arguments):
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, locality, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(function, [builder.inttoptr(arguments[0], byte), read, locality, data])
        return context.get_dummy_value()

    return types.void(types.uintp), code


# Sums in any order and with fused additions, as a matrix product has them; NaN stays NaN.
@compiled(fastmath={"reassoc", "contract", "nsz"})
def _product(query, row):
    """The inner product of float32 numbers."""
    total = np.float32(0)
    for d in range(len(query)):
        total += query[d] * row[d]
    return total


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _rescore_rows(queries, candidates, approximate, base, added, slots, scores, rows, counts):
    dim = queries.shape[1]
    k = scores.shape[1]
    names = np.empty(candidates.shape[1], np.int64)
    places = np.empty(candidates.shape[1], np.int64)
    first, size = np.uintp(base.ctypes.data), np.uintp(base.itemsize * dim)
    lines = -(-base.itemsize * dim // _CACHE_LINE)
    for b in range(len(queries)):
        # `names` and `places` [n]: the candidates' rows and the slots of their vectors, without the missing ones (NaN).
        n = 0
        for j in range(candidates.shape[1]):
            if approximate[b, j] == approximate[b, j]:
                names[n] = candidates[b, j]
                places[n] = slots[names[n]]
                n += 1
        # `scores` and `rows` [kept]: the best so far, in their order.
        query = queries[b]
        count = 0
        for j in range(n):
            if j + _AHEAD < n and places[j + _AHEAD] < len(base):
                start = first + np.uintp(places[j + _AHEAD]) * size
                for line in range(lines):
                    _fetch(start + np.uintp(line * _CACHE_LINE))  # pyright: ignore[reportCallIssue]
            slot = places[j]
            row = base[slot] if slot < len(base) else added[slot - len(base)]
            total = _product(query, row)
            # Candidates come in about the order of their scores: the place is near the end of the list.
            place = count
            while place > 0 and _before(total, names[j], scores[b, place - 1], rows[b, place - 1]):
                place -= 1
            if place < k:
                count = min(count + 1, k)
                for later in range(count - 1, place, -1):
                    scores[b, later] = scores[b, later - 1]
                    rows[b, later] = rows[b, later - 1]
                scores[b, place] = total
                rows[b, place] = names[j]
        counts[b] = count


@compiled()
def _before(score, row, other, other_row):
    """Whether a row comes before another one: the higher score, of equal ones the lower row, NaN last."""
    return score > other or (score == other and row < other_row) or (score == score and other != other)


@compiled(fastmath={"reassoc", "contract", "nsz"})
def score_candidates(queries, candidates, approximate, block, first, exact):
    """Score the candidates among the rows first, first + 1, ... of a block exactly, into `exact` [B, R]."""
    last = first + len(block)
    for b in range(len(queries)):
        for j in range(candidates.shape[1]):
            row = candidates[b, j]
            if first <= row < last and approximate[b, j] == approximate[b, j]:
                exact[b, j] = _product(queries[b], block[row - first])
