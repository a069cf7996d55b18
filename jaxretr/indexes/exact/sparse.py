"""Exact search of learned sparse vectors (SPLADE) by an inverted index, whose words are the vectors' dimensions."""

import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.embeddings.vector_files import SparseRows
from jaxretr.indexes.bm25.postings import Postings, Statistics
from jaxretr.models.text_encoder import TextEncoder
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.progress import Progress

# Passages whose vectors exist with all their dimensions at a time.
_ROWS = 512

# Postings of a part of `SparseIndexes`, about.
_POSTINGS = 1 << 22


class SparseIndex:
    """The inverted index of N sparse vectors without negative numbers, in memory: 8 bytes a number that is not 0.

    A passage's score is the inner product with the question, a float32 sum from the rarest dimension to the most common
    one. A passage that shares no dimension with the question, whose score is 0, is not a hit.

    Args:
      rows: the vectors, in parts.
      dim: D.

    Raises:
      UserError: a value is negative.
    """

    def __init__(self, rows: Iterable[SparseRows], dim: int):
        parts = list(rows)
        entries, weights, counts = map(np.concatenate, zip(*parts, strict=True))
        if len(weights) and weights.min() < 0:
            raise UserError("sparse vectors have no negative numbers; give a sparse encoder's")
        holders = np.bincount(entries, minlength=dim)
        self._order = Statistics(holders, len(counts), len(entries)).order()
        self._postings = Postings.of_weights(self._order[entries], weights, counts, np.sort(holders))
        self.dim, self.postings = dim, len(entries)

    def __len__(self) -> int:
        return self._postings.num_passages

    def search_rows(
        self, queries: np.ndarray, k: int, allowed: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the k best passages of each question; equal scores are ordered by row, the lowest first.

        Args:
          queries: float [B, D], not negative.
          k: passages per question; where k is above N, N are returned.
          allowed: the rows that may be found, bool [N]; None: all.

        Returns:
          Scores, float32 [B, min(k, N)], descending, and rows, int64 [B, min(k, N)]; -inf and -1 behind a question's last
          hit.

        Raises:
          UserError: questions of another shape, or with negative or infinite numbers.
        """
        vectors = np.asarray(queries, np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise UserError(f"questions have the shape {list(vectors.shape)}; give [B, {self.dim}]")
        if not (np.isfinite(vectors).all() and (vectors >= 0).all()):
            raise UserError(
                "questions: a sparse vector has finite numbers that are not negative; give a sparse encoder's"
            )
        questions, entries = np.nonzero(vectors)
        words = self._order[entries]
        ends = np.concatenate([[0], np.cumsum(np.bincount(questions, minlength=len(vectors)))])
        place = np.lexsort((words, questions))
        scores, rows = self._postings.search(
            words[place],
            ends,
            min(k, len(self)),
            threads=os.cpu_count() or 1,
            weights=vectors[questions, entries][place],
            allowed=allowed,
        )
        scores[rows < 0] = -np.inf
        return scores, rows


class SparseIndexes:
    """`SparseIndex` in parts, of which each is built alone: building one takes several times the memory that it has then."""

    def __init__(self, rows: Iterable[SparseRows], dim: int):
        self._parts, group, postings = list[SparseIndex](), list[SparseRows](), 0
        for block in rows:
            group.append(block)
            postings += len(block.entries)
            if postings >= _POSTINGS:
                self._parts.append(SparseIndex(group, dim))
                group, postings = [], 0
        if group:
            self._parts.append(SparseIndex(group, dim))

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def search_rows(
        self, queries: np.ndarray, k: int, allowed: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        scores, rows, first = list[np.ndarray](), list[np.ndarray](), 0
        for part in self._parts:
            of_part = None if allowed is None else allowed[first : first + len(part)]
            found, own = part.search_rows(queries, k, of_part)
            scores.append(found)
            rows.append(np.where(own < 0, own, own + first))
            first += len(part)
        joined, all_rows = np.concatenate(scores, axis=1), np.concatenate(rows, axis=1)
        best = np.argsort(-joined, axis=1, kind="stable")[:, :k]  # Of equal scores the lowest row is first already.
        return np.take_along_axis(joined, best, axis=1), np.take_along_axis(all_rows, best, axis=1)


def rows_of_corpus(encoder: TextEncoder, corpus: Corpus, batch_size: int | None) -> list[SparseRows]:
    """Encode a corpus with a sparse encoder, block by block."""
    spans = [range(start, min(start + _ROWS, len(corpus))) for start in range(0, len(corpus), _ROWS)]
    with Progress(len(corpus), "passage", "encoded") as progress:
        pieces = ([corpus[row] for row in span] for span in spans)
        found = encoder.encode_pieces(
            "passage", pieces, batch_size=batch_size, total=len(corpus), advance=progress.advance
        )
        return [SparseRows.of(vectors) for vectors, _ in found]


def of_corpus(
    encoder: TextEncoder, corpus: Corpus, batch_size: int | None
) -> Callable[[np.ndarray, int], tuple[np.ndarray, Sequence[Sequence[str]]]]:
    """Encode a corpus with a sparse encoder; return a function that finds the ids of k passages for vectors [B, D]."""
    index = SparseIndex(rows_of_corpus(encoder, corpus, batch_size), encoder.config.embedding_size)

    def search(vectors: np.ndarray, k: int) -> tuple[np.ndarray, Sequence[Sequence[str]]]:
        scores, rows = index.search_rows(vectors, k)
        return scores, [[corpus.ids[row] for row in of_question if row >= 0] for of_question in rows.tolist()]

    return search


def of_store(store: EmbeddingStore, shards: Iterable[int]) -> SparseIndex:
    """Return the index of some shards of a store of sparse vectors."""
    return SparseIndex(map(store.sparse_rows, shards), store.meta.dim)
