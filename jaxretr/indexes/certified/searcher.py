"""An engine over the rows of an index as they are now: searches, and codes of new rows."""

import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes.certified import worker
from jaxretr.indexes.certified.engine import Engine, Proposed, Proposer
from jaxretr.indexes.certified.exact_scores import Anywhere, Reading
from jaxretr.indexes.certified.layout import MANIFEST, Facts
from jaxretr.indexes.certified.rows import VECTORS, Columns, Rows
from jaxretr.runtime.errors import UserError

# Candidates for each result, where more results are asked for than the settings were tuned for.
_CANDIDATES_A_RESULT = 3

# Factor of the candidates that are asked for with a filter, because the number of allowed ones among them varies.
_SPARE = 1.5

# Factors of the leaves and candidates of a second attempt where few candidates are allowed, before all rows are scored.
_MORE_LEAVES, _MORE_CANDIDATES = 4, 8

# Questions that a thread takes at a time where there is no engine, and candidates of all questions in any case.
_QUESTIONS = 256
_PROPOSED = 1 << 20


class Searcher:
    """Searches rows that may change; the engine reads its files when it is first asked, and again after a change.

    Attributes:
      folder: the folder of the index's files.
    """

    def __init__(self, folder: Path, facts: Facts, rows: Rows):
        """Take the folder, the facts and the rows of an index; `rows` may be changed later."""
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
        """Find about the k best rows of each question.

        Args:
          queries: [B, D], finite.
          k: at most N.
          leaves: leaves of the tree to search, 0 where there is no tree.
          candidates: rows to score exactly; three for each result where k is more than the index was tuned for.
          threads: threads to divide the questions among.
          reading: the way to read vectors; by default each where it is.

        Returns:
          scores float32 [B, k], descending, and rows int64 [B, k].
        """
        reading = reading or Anywhere(self._rows)
        candidates = self.candidate_count(k, candidates)
        size = max(len(queries), 1) if reading.at_once else self._batch(candidates, threads)
        parts = [
            self._search_part(queries[start : start + size], k, leaves, candidates, threads, reading)
            for start in range(0, max(len(queries), 1), size)
        ]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def candidate_count(self, k: int, candidates: int) -> int:
        """The number of candidates that a search for k results scores; `candidates` is that for the index's own k."""
        if k > self._facts.k:
            candidates = max(candidates, _CANDIDATES_A_RESULT * k)
        return min(max(candidates, k), len(self._rows))

    def _batch(self, count: int, threads: int) -> int:
        """The number of questions that the engine is asked at a time, each for `count` candidates."""
        batch = _QUESTIONS if self._engine is None else self._engine.batch
        return max(1, min(batch * threads, _PROPOSED // count))

    def _search_part(self, queries: np.ndarray, k: int, leaves: int, candidates: int, threads: int, reading: Reading):
        proposed = self.candidates(queries, leaves, candidates, threads)
        scores, rows, counts = reading.rescored(queries, proposed, k, threads)
        # The leaves that were searched may hold fewer than k passages: then all leaves are.
        short = np.flatnonzero(counts < k)
        if len(short):
            proposed = self.candidates(queries[short], self._facts.leaves, candidates, threads)
            scores[short], rows[short], counts[short] = reading.rescored(queries[short], proposed, k, threads)
        # An engine may give up on a question, such as one of zeros: then every passage is scored.
        for question in np.flatnonzero(counts < k):
            part, everything = slice(question, question + 1), np.arange(len(self._rows), dtype=np.uint32)[None]
            none = np.zeros(everything.shape, np.float32)
            scores[part], rows[part], _ = reading.rescored(queries[part], (everything, none), k, 1)
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
        """Find about the k best of the allowed rows of each question; return what `search` returns.

        Args:
          queries: [B, D], finite.
          k: at most the number of allowed rows.
          allowed: the rows that may be found, bool [N].
          leaves, threads, reading: see `search`.
          candidates: the least number of allowed rows to score exactly; see `search`.
        """
        if self._engine is None:
            return self.exact(queries, k, allowed)
        reading = reading or Anywhere(self._rows)
        n, allowed_count = len(self._rows), int(np.count_nonzero(allowed))
        candidates = min(self.candidate_count(k, candidates), allowed_count)
        asked_for = min(round(_SPARE * candidates), allowed_count)
        count = asked_for if self._engine.knows_filters else min(n, -(-asked_for * n // allowed_count))
        scores, rows = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        pending = np.arange(len(queries))  # the questions that are not answered yet
        wider = min(_MORE_LEAVES * leaves, self._facts.leaves), min(_MORE_CANDIDATES * count, n)
        for leaf_count, batch_count in ((leaves, count), wider):
            # The best rows, or the leaves that were searched, may hold few that are allowed, and better ones be elsewhere.
            short = []
            size = self._batch(batch_count, threads)
            for part in (pending[start : start + size] for start in range(0, len(pending), size)):
                questions = queries[part]
                proposer = self._current(self._engine)
                candidate_rows, approximate = proposer.propose(questions, batch_count, leaf_count, threads, allowed)
                # `is_candidate` [b, at most some_count]: the candidates that exist and that the filter allows.
                is_candidate = ~np.isnan(approximate)
                is_candidate[is_candidate] = allowed[candidate_rows[is_candidate]]
                proposed = candidate_rows, np.where(is_candidate, approximate, np.float32(np.nan))
                scores[part], rows[part], _ = reading.rescored(questions, proposed, k, threads)
                short.append(part[np.count_nonzero(is_candidate, axis=1) < candidates])
            pending = np.concatenate([pending[:0], *short])
        # Both attempts proposed too few: score all allowed rows.
        if len(pending):
            scores[pending], rows[pending] = reading.exact(queries[pending], k, allowed)
        return scores, rows

    def exact(
        self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_]
    ) -> tuple[np.ndarray, NDArray[np.int64]]:
        """Score all allowed rows; see `search_allowed`."""
        return Anywhere(self._rows).exact(queries, k, allowed)

    def prepare(self) -> None:
        """Let the engine read its files now, and not in the first search."""
        if self._engine is not None:
            self._current(self._engine)

    def candidates(self, queries: np.ndarray, leaves: int, count: int, threads: int) -> Proposed:
        """The engine's candidates, at most `count` of each question."""
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
        """Make codes and leaves of new rows [M, D], by the tree and the codebook of the index."""
        if self._engine is None:
            return Columns(passages, None, None)
        self.check_not_replaced()
        with tempfile.TemporaryDirectory(prefix="jaxretr-scann-") as scratch:
            folder = Path(scratch)
            np.save(folder / VECTORS, passages)
            self._engine.encode(folder / VECTORS, self.folder, folder, tree=self._facts.tree)
            tokens = np.load(folder / worker.TOKENS) if self._facts.tree else None
            return Columns(passages, np.load(folder / worker.CODES), tokens)

    def was_replaced(self) -> bool:
        """Whether another index was saved under the folder's name."""
        return _stamp(self.folder) != self._stamp

    def check_not_replaced(self) -> None:
        """Raise UserError if another index was saved there, whose engine files would not fit these rows."""
        if self.was_replaced():
            raise UserError(f"{self.folder}: was replaced since it was loaded; load it again")


def _stamp(folder: Path) -> tuple[int, int] | None:
    """A mark that tells a saved folder from its successor; None for a folder that is still being made."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns
