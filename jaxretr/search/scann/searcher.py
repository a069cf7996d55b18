"""An engine over the rows of an index as they are now: candidates, their exact scores, codes of new rows."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from jaxretr.errors import UserError
from jaxretr.parallel.numba_loops import compiled
from jaxretr.search.scann import worker
from jaxretr.search.scann.engine import Engine, Proposer
from jaxretr.search.scann.layout import MANIFEST, Facts
from jaxretr.search.scann.rows import VECTORS, Columns, Rows

# Candidates for each result, where more results are asked for than the settings were tuned for.
_CANDIDATES_A_RESULT = 3

# With a filter so many times the candidates are asked for: how many of them are allowed varies.
_SPARE = 1.5

# Where few candidates are allowed, so many times as many leaves and candidates are tried before every allowed row is scored.
_MORE_LEAVES, _MORE_CANDIDATES = 4, 8

# Questions that a thread takes at a time where there is no engine, and candidates of all questions in any case.
_QUESTIONS = 256
_PROPOSED = 1 << 20


class Searcher:
    """Searches rows that may change; the engine reads its files when it is first asked, and again after a change.

    Attributes:
      folder: where the files are.
    """

    def __init__(self, folder: Path, facts: Facts, rows: Rows):
        """Of an index of these facts; `rows` may be changed later."""
        self.folder = folder
        self._facts, self._rows = facts, rows
        self._stamp = _stamp(folder)
        self._scratch: tempfile.TemporaryDirectory | None = None
        self._engine = facts.used_engine()
        self._proposer: Proposer | None = None
        self._searched: object = None  # the slots of the rows that it was made of

    def search(
        self,
        queries: NDArray[np.float32],
        k: int,
        leaves: int,
        candidates: int,
        threads: int,
        slots: NDArray[np.int64] | None = None,
    ) -> tuple[np.ndarray, NDArray[np.int64]]:
        """Finds about the k best rows of each question.

        Args:
          queries: [B, D], finite.
          k: at most N.
          leaves: of the tree that are searched, 0 where there is none.
          candidates: that are scored exactly; three for each result where k is more than the index was tuned for.
          threads: to divide the questions among.
          slots: where the vectors of the rows are, if it shall be elsewhere than `Rows.slots` says.

        Returns:
          scores float32 [B, k], descending, and rows int64 [B, k].
        """
        candidates = self.wanted(k, candidates)
        size = self._batch(candidates, threads)
        parts = [
            self._search_part(queries[start : start + size], k, leaves, candidates, threads, slots)
            for start in range(0, max(len(queries), 1), size)
        ]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def wanted(self, k: int, candidates: int) -> int:
        """How many candidates a search for k results scores, where so many are for the k of the index."""
        if k > self._facts.k:
            candidates = max(candidates, _CANDIDATES_A_RESULT * k)
        return min(max(candidates, k), len(self._rows))

    def _batch(self, count: int, threads: int) -> int:
        """How many questions are proposed for at a time, with so many candidates each."""
        batch = _QUESTIONS if self._engine is None else self._engine.batch
        return max(1, min(batch * threads, _PROPOSED // count))

    def _search_part(self, queries: np.ndarray, k: int, leaves: int, candidates: int, threads: int, slots):
        found, approximate = self.candidates(queries, leaves, candidates, threads)
        reading = Anywhere(self._rows, slots)
        scores, rows, counts = reading.rescored(queries, found, approximate, k, threads)
        # The leaves that were searched may hold fewer than k passages: then all leaves are.
        short = np.flatnonzero(counts < k)
        if len(short):
            found, approximate = self.candidates(queries[short], self._facts.leaves, candidates, threads)
            scores[short], rows[short], counts[short] = reading.rescored(queries[short], found, approximate, k, threads)
        # An engine may give up on a question, such as one of zeros: then every passage is scored.
        for question in np.flatnonzero(counts < k):
            one, everything = slice(question, question + 1), np.arange(len(self._rows), dtype=np.uint32)[None]
            none = np.zeros(everything.shape, np.float32)
            scores[one], rows[one], _ = reading.rescored(queries[one], everything, none, k, 1)
        return scores, rows

    def search_allowed(
        self,
        queries: NDArray[np.float32],
        k: int,
        allowed: NDArray[np.bool_],
        leaves: int,
        candidates: int,
        threads: int,
        reading: "Reading | None" = None,
    ) -> tuple[np.ndarray, NDArray[np.int64]]:
        """Finds about the k best of the allowed rows of each question.

        Args:
          queries: [B, D], finite.
          k: at most the number of allowed rows.
          allowed: bool [N].
          leaves, threads: see `search`.
          reading: how vectors are read; by default wherever they are.
          candidates: allowed ones that are scored exactly, at least; see `search`.

        Returns:
          scores float32 [B, k], descending, and rows int64 [B, k].
        """
        if self._engine is None:
            return self.exact(queries, k, allowed)
        reading = reading or Anywhere(self._rows)
        n, there = len(self._rows), int(np.count_nonzero(allowed))
        candidates = min(self.wanted(k, candidates), there)
        asked_for = min(round(_SPARE * candidates), there)
        count = asked_for if self._engine.knows_filters else min(n, -(-asked_for * n // there))
        scores, rows = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        left = np.arange(len(queries))
        wider = min(_MORE_LEAVES * leaves, self._facts.leaves), min(_MORE_CANDIDATES * count, n)
        for some_leaves, some_count in ((leaves, count), wider):
            # The best rows, or the leaves that were searched, may hold few that are allowed, and better ones be elsewhere.
            few = []
            size = self._batch(some_count, threads)
            for some in (left[start : start + size] for start in range(0, len(left), size)):
                asked = queries[some]
                proposer = self._current(self._engine)
                found, approximate = proposer.propose(asked, some_count, some_leaves, threads, allowed)
                passing = ~np.isnan(approximate)
                passing[passing] = allowed[found[passing]]
                proposed = np.where(passing, approximate, np.float32(np.nan))
                scores[some], rows[some], _ = reading.rescored(asked, found, proposed, k, threads)
                few.append(some[np.count_nonzero(passing, axis=1) < candidates])
            left = np.concatenate([left[:0], *few])
        if len(left):
            scores[left], rows[left] = reading.exact(queries[left], k, allowed)
        return scores, rows

    def exact(
        self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_]
    ) -> tuple[np.ndarray, NDArray[np.int64]]:
        """Scores all allowed rows; see `search_allowed`."""
        return Anywhere(self._rows).exact(queries, k, allowed)

    def prepare(self) -> None:
        """Lets the engine read its files now, and not in the first search."""
        if self._engine is not None:
            self._current(self._engine)

    def candidates(self, queries: np.ndarray, leaves: int, count: int, threads: int) -> tuple[np.ndarray, np.ndarray]:
        """What the engine proposes: rows uint32 [B, at most count] and its scores float32, NaN where there is none."""
        if self._engine is None or not len(queries):
            shape = len(queries), len(self._rows)
            return np.broadcast_to(np.arange(shape[1], dtype=np.uint32), shape).copy(), np.zeros(shape, np.float32)
        return self._current(self._engine).propose(queries, count, leaves, threads)

    def _current(self, engine: Engine) -> Proposer:
        """The engine over the rows as they are now."""
        if self._searched is not self._rows.slots:
            self.check_not_replaced()
            self._proposer = None  # before the next one: not two in memory
            folder = self.folder
            if self._rows.changed:
                self._scratch = tempfile.TemporaryDirectory(prefix="jaxretr-scann-")
                folder = Path(self._scratch.name)
                for name in self._facts.model_files():
                    os.symlink((self.folder / name).absolute(), folder / name)
                self._rows.write(folder, [worker.CODES, worker.TOKENS])
            self._proposer = engine.open(folder, self._facts.tree)
            self._searched = self._rows.slots
        assert self._proposer is not None
        return self._proposer

    def encoded(self, passages: NDArray[np.float32]) -> Columns:
        """New rows [M, D] with codes and leaves, by the tree and the codebook that there are."""
        if self._engine is None:
            return Columns(passages, None, None)
        self.check_not_replaced()
        with tempfile.TemporaryDirectory(prefix="jaxretr-scann-") as made:
            folder = Path(made)
            np.save(folder / VECTORS, passages)
            self._engine.encode(folder / VECTORS, self.folder, folder, tree=self._facts.tree)
            tokens = np.load(folder / worker.TOKENS) if self._facts.tree else None
            return Columns(passages, np.load(folder / worker.CODES), tokens)

    def was_replaced(self) -> bool:
        """Whether another index was saved under the folder's name."""
        return _stamp(self.folder) != self._stamp

    def check_not_replaced(self) -> None:
        """Raises UserError if so: the engine's files, opened when they are needed, would not be those of the rows."""
        if self.was_replaced():
            raise UserError(f"{self.folder}: was replaced since it was loaded; load it again")


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Tells a saved folder from its successor; None for one that is still being made."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


# ---- how vectors are read --------------------------------------------------------------------------------------------

Rescored = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]
"""scores float32 [B, k], descending, rows int64 [B, k], and how many are real, int64 [B]."""


class Reading(Protocol):
    """Exact scores of an index's rows."""

    def rescored(
        self,
        queries: NDArray[np.float32],
        found: NDArray[np.uint32],
        approximate: NDArray[np.float32],
        k: int,
        threads: int,
    ) -> Rescored:
        """Scores candidates [B, R] and keeps the k best of each question; those without an approximate score are none."""
        ...

    def exact(
        self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores all allowed rows; see `Searcher.search_allowed`."""
        ...


class Anywhere:
    """A `Reading` of each vector where it is, which is the fastest.

    Args:
      rows: whose vectors.
      slots: where they are, if it shall be elsewhere than `Rows.slots` says.
    """

    def __init__(self, rows: Rows, slots: NDArray[np.int64] | None = None):
        self._rows, self._slots = rows, rows.slots if slots is None else slots

    def rescored(
        self,
        queries: NDArray[np.float32],
        found: NDArray[np.uint32],
        approximate: NDArray[np.float32],
        k: int,
        threads: int,
    ) -> Rescored:
        """See `Reading`."""
        # A plain array: Numba does not know memory maps.
        base = np.asarray(self._rows.base.vectors)
        return _rescored(queries, found, approximate, base, self._rows.added.vectors, self._slots, k, threads)

    def exact(
        self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """See `Reading`."""
        from jaxretr.search.exact import search_blocks  # It imports JAX.

        rows = np.flatnonzero(allowed)
        scores, places = search_blocks(self._rows.vector_blocks(rows, self._slots), queries, k)
        return scores, rows[places]


# ---- exact scores of candidates: by Numba, straight from the memory-mapped vectors ----------------------------------


def _rescored(
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
      approximate: the engine's scores of them [B, R]; NaN where there is no candidate.
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
        _rescore_rows(
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


# Rows that are asked of the memory ahead of the one that is scored: it takes some 30 times as long to come as to be scored.
_AHEAD = 4

_CACHE_LINE = 64


@intrinsic
def _fetch(typingctx, address):
    """Asks the memory for the cache line of an address, without waiting for it."""

    def code(context, builder, signature, arguments):
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, near, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(function, [builder.inttoptr(arguments[0], byte), read, near, data])
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
def _rescore_rows(queries, found, approximate, base, added, slots, scores, rows, counts):
    dim = queries.shape[1]
    k = scores.shape[1]
    names = np.empty(found.shape[1], np.int64)
    places = np.empty(found.shape[1], np.int64)
    first, size = np.uintp(base.ctypes.data), np.uintp(base.itemsize * dim)
    lines = -(-base.itemsize * dim // _CACHE_LINE)
    for b in range(len(queries)):
        n = 0
        for j in range(found.shape[1]):
            if approximate[b, j] == approximate[b, j]:
                names[n] = found[b, j]
                places[n] = slots[names[n]]
                n += 1
        query = queries[b]
        kept = 0
        for j in range(n):
            if j + _AHEAD < n and places[j + _AHEAD] < len(base):
                start = first + np.uintp(places[j + _AHEAD]) * size
                for line in range(lines):
                    _fetch(start + np.uintp(line * _CACHE_LINE))  # pyright: ignore[reportCallIssue]
            slot = places[j]
            row = base[slot] if slot < len(base) else added[slot - len(base)]
            total = _product(query, row)
            # Candidates come in about the order of their scores: the place is near the end of the list.
            place = kept
            while place > 0 and _before(total, names[j], scores[b, place - 1], rows[b, place - 1]):
                place -= 1
            if place < k:
                kept = min(kept + 1, k)
                for later in range(kept - 1, place, -1):
                    scores[b, later] = scores[b, later - 1]
                    rows[b, later] = rows[b, later - 1]
                scores[b, place] = total
                rows[b, place] = names[j]
        counts[b] = kept


@compiled()
def _before(score, row, other, other_row):
    """Whether a row comes before another one: the higher score, of equal ones the lower row, NaN last."""
    return score > other or (score == other and row < other_row) or (score == score and other != other)


@compiled(fastmath={"reassoc", "contract", "nsz"})
def score_candidates(queries, found, approximate, block, first, exact):
    """Scores the candidates among the rows first, first + 1, ... of a block exactly, into `exact` [B, R]."""
    last = first + len(block)
    for b in range(len(queries)):
        for j in range(found.shape[1]):
            row = found[b, j]
            if first <= row < last and approximate[b, j] == approximate[b, j]:
                exact[b, j] = _product(queries[b], block[row - first])
