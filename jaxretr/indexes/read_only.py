"""Indexes that are only read: embedding stores, exact indexes and ScaNN folders."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.embeddings import index_folder
from jaxretr.embeddings.encoding import Encoder, name_of
from jaxretr.embeddings.opening import open_store
from jaxretr.indexes.exact import ExactIndex, search_blocks
from jaxretr.indexes.exact.footprint import estimate
from jaxretr.indexes.filters import FilterOptions, Filters, Value
from jaxretr.indexes.recall import as_dict
from jaxretr.indexes.searching import check_dim, check_scann, check_store
from jaxretr.indexes.served import Document, Hit, SearchOptions, Standing, find_unchanging
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel import memory

if TYPE_CHECKING:
    from jaxretr.indexes.certified.index import ScannIndex

log = logging.getLogger(__name__)

Found = tuple[np.ndarray, np.ndarray]
"""Scores float32 [B, k'], descending, and rows int64 [B, k']."""

Search = Callable[[np.ndarray, int, SearchOptions, FilterOptions], Found]

# Questions of one search, and hits of each, for the estimate of its memory.
_QUESTIONS, _K = 64, 100


class ReadOnlyIndex:
    """N passages that do not change.

    Args:
      name: its name in requests.
      ids: N ids.
      dim: D.
      search: a function (questions float32 [B, D], k, options, filters whose ids are there) -> found.
      rows: a function that gives the vectors of rows, float32 [n, D].
      facts: the facts of `ServedIndex.facts`, without those that all kinds have.
      metadata: field -> N values.
      corpus: the passages' texts; None: there are none.
      where: the corpus's file, for errors.

    Raises:
      UserError: the corpus lacks passages of the index.
    """

    def __init__(
        self,
        name: str,
        ids: Sequence[str],
        dim: int,
        *,
        search: Search,
        rows: Callable[[Sequence[int]], np.ndarray],
        facts: Mapping[str, Any],
        metadata: Mapping[str, Sequence[Value]] | None = None,
        corpus: Corpus | None = None,
        where: str = "corpus",
    ):
        self.name, self._ids, self._dim = name, ids, dim
        self._search, self._rows, self._facts = search, rows, dict(facts)
        self._row_of = dict(zip(ids, range(len(ids)), strict=True))
        self._metadata = metadata or {}
        self._corpus = corpus
        if corpus is not None and (missing := sum(id not in corpus for id in ids)):
            raise UserError(f"{where}: lacks {missing} of the {len(ids)} passages of {name}; give its corpus")

    @property
    def dim(self) -> int:
        """The vectors' dimensions, D."""
        return self._dim

    @property
    def standing(self) -> Standing:
        """The index's standing; see `ServedIndex`."""
        return Standing(self._facts["model"], self._facts["model_fingerprint"])

    def __len__(self) -> int:
        return len(self._ids)

    def is_exact(self, options: SearchOptions) -> bool:
        """Implement `ServedIndex.is_exact`."""
        return options.exact or not self._facts.get("targets")

    def search(self, vectors: np.ndarray, k: int, options: SearchOptions) -> list[list[Hit]]:
        """Implement `ServedIndex.search`."""
        filters: FilterOptions = {"where": options.where or None}
        if options.allow is not None:
            filters["allow"] = [id for id in options.allow if id in self._row_of]
        if deny := [id for id in options.deny if id in self._row_of]:
            filters["deny"] = deny
        scores, rows = self._search(vectors, k, options, filters)
        return [
            [Hit(self._ids[int(row)], score) for row, score in zip(*each, strict=True)]
            for each in zip(rows.tolist(), scores.tolist(), strict=True)
        ]

    find = find_unchanging

    def documents(self, ids: Sequence[str]) -> list[Document | None]:
        """Implement `ServedIndex.documents`."""
        return [None if (row := self._row_of.get(id)) is None else self._document(id, row) for id in ids]

    def _document(self, id: str, row: int) -> Document:
        metadata = {field: values[row] for field, values in self._metadata.items()}
        if self._corpus is None:
            return Document(id, "", "", metadata)
        passage = self._corpus[self._corpus.row(id)]
        return Document(id, passage.title, passage.text, metadata)

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        """Implement `ServedIndex.vectors`."""
        for id in ids:
            if id not in self._row_of:
                raise UserError(f"{self.name}: no passage {id[:80]!r}; give ids of this index")
        return self._rows([self._row_of[id] for id in ids])

    def facts(self) -> dict[str, Any]:
        """Implement `ServedIndex.facts`."""
        return {
            "passages": len(self),
            "dim": self.dim,
            "writable": False,
            "texts": self._corpus is not None,
            "fields": list(self._metadata),
            **self._facts,
        }

    def close(self) -> None:
        """Do nothing: nothing is open that needs closing."""


def open_exact(name: str, folder: Path, encoder: Encoder, corpus: Corpus | None, where: str) -> ReadOnlyIndex:
    """Open a folder of `ExactIndex.save`.

    Raises:
      UserError: it is damaged, or its vectors are not of the encoder's size.
    """
    meta = index_folder.describe(folder)
    check_dim(folder, meta["dim"], None, encoder, name_of(encoder))
    size = _announce(str(folder), meta["rows"], meta["dim"], meta["dtype"])
    stored, ids, metadata = index_folder.read(folder)
    log.info("%s does not state which model made it; make sure that it was %s", folder, name_of(encoder))
    index = ExactIndex(stored, ids, metadata=metadata, dtype=stored.dtype.name, source=str(folder))
    return ReadOnlyIndex(
        name,
        index.ids,
        index.dim,
        search=_exact(index),
        rows=lambda rows: np.asarray(stored[list(rows)], np.float32).reshape(-1, index.dim),
        facts={"engine": "exact", "model": None, "model_fingerprint": None, "bytes": size},
        metadata=metadata,
        corpus=corpus,
        where=where,
    )


def open_embeddings(name: str, folder: str, encoder: Encoder, corpus: Corpus | None, where: str) -> ReadOnlyIndex:
    """Open an embedding store of passages, and put it in memory.

    Raises:
      UserError: it is incomplete or damaged, or another model made it.
    """
    store = open_store(folder)
    meta = store.meta
    check_store(store, encoder, name_of(encoder))
    dtype = "bfloat16" if meta.dtype == "bfloat16" else "float32"
    size = _announce(folder, meta.rows, meta.dim, dtype)
    blocks = list(store.blocks())
    embeddings = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    index = ExactIndex(embeddings, store.read_ids(), dtype=dtype, source=folder)

    def rows(wanted: Sequence[int]) -> np.ndarray:
        return np.concatenate([np.empty((0, meta.dim), np.float32), *(store.rows(row, row + 1) for row in wanted)])

    facts = {"engine": "exact", "model": meta.model, "model_fingerprint": meta.model_fingerprint, "bytes": size}
    return ReadOnlyIndex(
        name, index.ids, index.dim, search=_exact(index), rows=rows, facts=facts, corpus=corpus, where=where
    )


def _exact(index: ExactIndex) -> Search:
    def search(vectors: np.ndarray, k: int, options: SearchOptions, filters: FilterOptions) -> Found:
        if options.target_recall is not None:
            raise UserError("target_recall: this index is searched exactly; leave it out")
        return index.search_rows(vectors, k, **filters)

    return search


def _announce(folder: str, rows: int, dim: int, dtype: str) -> int:
    """Log the memory that an exact index takes; return the bytes of its rows."""
    needed = estimate(rows, dim, questions=_QUESTIONS, k=min(_K, rows), dtype=dtype)
    memory.announce(f"{folder}: {rows} passages of {dim} dimensions", needed.memory)
    return needed.rows


def open_scann(name: str, folder: Path, encoder: Encoder, corpus: Corpus | None, where: str) -> ReadOnlyIndex:
    """Open a folder of `jaxretr export --to scann`.

    Raises:
      UserError: it is damaged, or another model made it.
    """
    from jaxretr.indexes.certified.index import ScannIndex  # It needs Numba, which takes its time to import.

    index = ScannIndex.load(folder)
    check_scann(folder, index.facts, encoder, name_of(encoder))
    size = len(index) * index.facts.code_size
    memory.announce(f"{folder}: an approximate index of {len(index)} passages of {index.facts.dim} dimensions", size)

    ids = Filters(len(index), index.rows.ids)

    def search(vectors: np.ndarray, k: int, options: SearchOptions, filters: FilterOptions) -> Found:
        mask = ids.mask(**filters)
        if options.exact and (mask is None or mask.any()):
            return search_blocks(index.rows.vector_blocks(), vectors, k, allowed=mask, source=str(folder))
        return index.search_rows(vectors, k, target_recall=options.target_recall, allowed=mask)

    return ReadOnlyIndex(
        name,
        index.rows.ids,
        index.facts.dim,
        search=search,
        rows=lambda rows: np.array([index.rows.vector(row) for row in rows], np.float32).reshape(-1, index.facts.dim),
        facts={"engine": index.facts.engine, "bytes": size, **_scann_facts(index)},
        corpus=corpus,
        where=where,
    )


def _scann_facts(index: "ScannIndex") -> dict[str, Any]:
    facts = index.facts
    return {
        "model": facts.model,
        "model_fingerprint": facts.model_fingerprint,
        "targets": [setting.target for setting in facts.settings],
        "certificate": None if index.certificate is None else as_dict(index.certificate),
    }
