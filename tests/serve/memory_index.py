"""A writable index in memory, for tests of what is around it."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxretr.indexes.filters import Column, Value, conditions_of
from jaxretr.indexes.index import (
    Document,
    Findings,
    Hit,
    SearchOptions,
    Standing,
    StorageFull,
    Written,
    find_unchanging,
)
from jaxretr.runtime.errors import UnavailableError, UserError


class MemoryIndex:
    """Documents and vectors in dictionaries; `full` makes it refuse writes as a full disk does, `away` as a lost database."""

    def __init__(self, name: str, dim: int):
        self.name, self._dim = name, dim
        self._rows: dict[str, tuple[Document, np.ndarray]] = {}
        self._lock = threading.RLock()
        self._sequence = 0
        self.full = self.away = False
        self.closed = False

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def standing(self) -> Standing:
        return Standing(None, None)

    def is_exact(self, options: SearchOptions) -> bool:
        return True

    def __len__(self) -> int:
        self._reach()
        return len(self._rows)

    def _reach(self) -> None:
        if self.away:
            raise UnavailableError("the database cannot be reached")

    def search(self, vectors: np.ndarray, k: int, options: SearchOptions) -> list[list[Hit]]:
        assert not self.closed
        self._reach()
        if options.target_recall is not None:
            raise UserError("target_recall: this index is searched exactly; leave it out")
        with self._lock:
            rows = [row for row in self._rows.values() if _passes(row[0], options)]
        found = []
        for vector in vectors:
            scores = [float(np.dot(vector, row)) for _, row in rows]
            order = sorted(range(len(rows)), key=lambda n: -scores[n])[:k]
            found.append([Hit(rows[n][0].id, scores[n]) for n in order])
        return found

    def find(self, vectors: np.ndarray, k: int, options: SearchOptions, **reading: bool) -> Findings:
        with self._lock:
            return find_unchanging(self, vectors, k, options, **reading)

    def listing(self, fields: Sequence[str] = (), *, share: bool = False) -> tuple[list[str], dict[str, list[Value]]]:
        found = [document for document, _ in self._rows.values()]
        return [each.id for each in found], {name: [each.metadata.get(name) for each in found] for name in fields}

    def documents(self, ids: Sequence[str]) -> list[Document | None]:
        return [self._rows[id][0] if id in self._rows else None for id in ids]

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        return np.array([self._rows[id][1] for id in ids], np.float32).reshape(-1, self.dim)

    def facts(self) -> dict[str, Any]:
        fields = sorted({field for document, _ in self._rows.values() for field in document.metadata})
        return {
            "engine": "memory",
            "passages": len(self),
            "dim": self.dim,
            "model": None,
            "model_fingerprint": None,
            "writable": True,
            "bytes": 0,
            "fields": fields,
        }

    def close(self) -> None:
        self.closed = True

    def upsert(self, documents: Sequence[Document], vectors: np.ndarray) -> Written:
        assert vectors.shape == (len(documents), self.dim)
        assert vectors.dtype == np.float32
        if self.full:
            raise StorageFull("the disk is full; nothing was written, and reading goes on")
        with self._lock:
            replaced = sum(document.id in self._rows for document in documents)
            self._rows.update({document.id: (document, row) for document, row in zip(documents, vectors, strict=True)})
            self._sequence += 1
            return Written(self._sequence, added=len(documents) - replaced, replaced=replaced)

    def delete(self, ids: Sequence[str]) -> Written:
        with self._lock:
            deleted = sum(self._rows.pop(id, None) is not None for id in ids)
            self._sequence += 1
            return Written(self._sequence, deleted=deleted)


def _passes(document: Document, options: SearchOptions) -> bool:
    if document.id in options.deny or (options.allow is not None and document.id not in options.allow):
        return False
    conditions = conditions_of(options.where)
    return all(Column([document.metadata.get(field)]).mask(wanted)[0] for field, wanted in conditions.items())
