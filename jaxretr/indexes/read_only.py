"""`ReadOnlyIndex`: passages that do not change, as an `Index`, of a function that searches them."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from jaxretr.data.mapped_corpus import mapped_corpus
from jaxretr.indexes.checks import warn_of_other_texts
from jaxretr.indexes.filters import FilterOptions, Value
from jaxretr.indexes.index import Document, Hit, Index, Opening, SearchOptions, Standing, find_unchanging
from jaxretr.runtime.errors import UserError, check_rows
from jaxretr.runtime.storage.paths import cache_root

ScoredIds = tuple[np.ndarray, list[list[str]]]
"""Scores float32 [B, k'], descending, and the ids of the hits."""

Search = Callable[[np.ndarray, int, SearchOptions, FilterOptions], ScoredIds]


class ReadOnlyIndex:
    """N passages that do not change.

    Args:
      ids: N ids; of a share of the passages where several processes search an index together.
      dim: D.
      opening: the index's name, and the corpus with the passages' texts.
      search: a function (questions float32 [B, D], k, options, filters whose ids are there) -> found.
      rows: a function that gives the vectors of rows, float32 [n, D].
      facts: the facts of `Index.facts`, without those that all kinds have.
      metadata: field -> N values.
      all_ids: a function that reads the ids of all passages; None: `ids` are all.

    Raises:
      UserError: the corpus lacks passages of the index.
    """

    def __init__(
        self,
        ids: Sequence[str],
        dim: int,
        opening: Opening,
        *,
        search: Search,
        rows: Callable[[Sequence[int]], np.ndarray],
        facts: Mapping[str, Any],
        metadata: Mapping[str, Sequence[Value]] | None = None,
        all_ids: Callable[[], Sequence[str]] | None = None,
    ):
        self.name, self._ids, self._dim = opening.name, list(ids), dim
        self._read = 0  # the row after those that `vectors` last gave
        self._search, self._rows, self._facts = search, rows, dict(facts)
        self._metadata, self._all_ids = metadata or {}, all_ids
        corpus = opening.corpus
        self._corpus = None if corpus is None else mapped_corpus(corpus, cache_root() / "corpora")
        if self._corpus is not None:
            if missing := sum(id not in self._corpus for id in ids):
                raise UserError(f"{corpus}: lacks {missing} of the {len(ids)} passages of {self.name}; give its corpus")
            warn_of_other_texts(self._corpus, self._facts, corpus, self.name)

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def standing(self) -> Standing:
        return Standing(self._facts["model"], self._facts["model_fingerprint"])

    def __len__(self) -> int:
        return self._facts.get("passages", len(self._ids))

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return dict(zip(self._ids, range(len(self._ids)), strict=True))

    def is_exact(self, options: SearchOptions) -> bool:
        return options.exact or not self._facts.get("targets")

    def search(self, vectors: np.ndarray, k: int, options: SearchOptions) -> list[list[Hit]]:
        scores, ids = self.search_ids(vectors, k, options)
        return [list(map(Hit, *each)) for each in zip(ids, scores.tolist(), strict=True)]

    def search_ids(self, vectors: np.ndarray, k: int, options: SearchOptions) -> ScoredIds:
        """Search without an object for each hit; see `Index.search`."""
        if options.target_recall is not None and not self._facts.get("targets"):
            raise UserError("target_recall: this index is searched exactly; leave it out")
        filters: FilterOptions = {"where": options.where or None}
        if options.allow is not None:
            filters["allow"] = [id for id in options.allow if id in self._row_of]
        if options.deny and (deny := [id for id in options.deny if id in self._row_of]):
            filters["deny"] = deny
        return self._search(vectors, k, options, filters)

    find = find_unchanging

    def listing(
        self, fields: Sequence[str] = (), *, share: bool = False
    ) -> tuple[Sequence[str], Mapping[str, Sequence[Value]]]:
        ids = self._ids if share or self._all_ids is None else self._all_ids()
        return ids, {field: self._metadata[field] for field in fields}

    def documents(self, ids: Sequence[str]) -> list[Document | None]:
        check_rows("ids", ids)
        return [None if (row := self._row_of.get(id)) is None else self._document(id, row) for id in ids]

    def _document(self, id: str, row: int) -> Document:
        metadata = {field: values[row] for field, values in self._metadata.items()}
        if self._corpus is None:
            return Document(id, "", "", metadata)
        passage = self._corpus[self._corpus.row(id)]
        return Document(id, passage.title, passage.text, metadata)

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        check_rows("ids", ids)
        ids = list(ids)
        for start in {self._read, 0}:
            # Whoever reads all in their order needs no dictionary of them.
            if ids == self._ids[start : start + len(ids)]:
                self._read = start + len(ids)
                return self._rows(range(start, self._read))
        for id in ids:
            if id not in self._row_of:
                raise UserError(f"{self.name}: no passage {id[:80]!r}; give ids of this index")
        return self._rows([self._row_of[id] for id in ids])

    def facts(self) -> dict[str, Any]:
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


def search_ids(index: Index, vectors: np.ndarray, k: int, options: SearchOptions) -> ScoredIds:
    """Search an index of any kind; scores behind a question's last hit do not count."""
    if isinstance(index, ReadOnlyIndex):
        return index.search_ids(vectors, k, options)
    hits = index.search(vectors, k, options)
    scores = np.full((len(hits), max(map(len, hits), default=0)), -np.inf, np.float32)
    for row, each in zip(scores, hits, strict=True):
        row[: len(each)] = [hit.score for hit in each]
    return scores, [[hit.id for hit in each] for each in hits]
