"""An engine over the rows of an index as they are now: searches, and codes of new rows."""

import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxretr.errors import UserError
from jaxretr.search.scann import worker
from jaxretr.search.scann.engine import Engine, Proposer
from jaxretr.search.scann.exact_scores import Anywhere, Reading
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
        reading: Reading | None = None,
    ) -> tuple[np.ndarray, NDArray[np.int64]]:
        """Finds about the k best rows of each question.

        Args:
          queries: [B, D], finite.
          k: at most N.
          leaves: of the tree that are searched, 0 where there is none.
          candidates: that are scored exactly; three for each result where k is more than the index was tuned for.
          threads: to divide the questions among.
          reading: how vectors are read; by default wherever they are.

        Returns:
          scores float32 [B, k], descending, and rows int64 [B, k].
        """
        reading = reading or Anywhere(self._rows)
        candidates = self.wanted(k, candidates)
        size = self._batch(candidates, threads)
        parts = [
            self._search_part(queries[start : start + size], k, leaves, candidates, threads, reading)
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

    def _search_part(self, queries: np.ndarray, k: int, leaves: int, candidates: int, threads: int, reading: Reading):
        found, approximate = self.candidates(queries, leaves, candidates, threads)
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
        reading: Reading | None = None,
    ) -> tuple[np.ndarray, NDArray[np.int64]]:
        """Finds about the k best of the allowed rows of each question.

        Args:
          queries: [B, D], finite.
          k: at most the number of allowed rows.
          allowed: bool [N].
          leaves, threads, reading: see `search`.
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
