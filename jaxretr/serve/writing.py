"""Writes: documents are checked and embedded, and the index acknowledges them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from jaxretr.indexes.index import Document, Index, Writable, Written
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.serve.embedding import Embedding
from jaxretr.serve.indexes import Indexes
from jaxretr.serve.problems import Invalid, ReadOnly
from jaxretr.serve.requests import DocumentIn
from jaxretr.serve.threads import Threads


class Writing:
    """Answers requests to write an index.

    Args:
      embedding: the encoders, which make vectors of documents.
      threads: the pools in which indexes are called.
    """

    def __init__(self, embedding: Embedding, indexes: Indexes, threads: Threads):
        self._embedding, self._indexes, self._threads = embedding, indexes, threads

    async def upsert(
        self, name: str, documents: Sequence[DocumentIn], vectors: Sequence[Sequence[float]] | None
    ) -> Written:
        """Add or replace documents; see `Service.upsert`.

        Raises:
          ModelChanged: the index was moved to another model while the documents were embedded.
        """
        _check_documents(documents)
        passages = [Document(each.id, each.title, each.text, each.metadata) for each in documents]
        async with self._indexes.used(name) as index:
            target = _writable(name, index)
            if vectors is not None:
                matrix = _matrix(vectors, len(documents), index.dim)
                return await self._threads.write(partial(target.upsert, passages, matrix))
            model = self._embedding.of(index.standing)
            texts = [{"title": each.title, "text": each.text} for each in documents]
            result = await self._embedding.embed("passage", texts, model=model)
            model_option = {"model_fingerprint": model.fingerprint} if isinstance(index, LiveIndex) else {}
            written = await self._threads.write(partial(target.upsert, passages, result.vectors, **model_option))
            return replace(written, truncated=result.cut)

    async def delete(self, name: str, ids: Sequence[str]) -> Written:
        """Remove documents; see `Service.delete`."""
        async with self._indexes.used(name) as index:
            return await self._threads.write(partial(_writable(name, index).delete, list(dict.fromkeys(ids))))


def _writable(name: str, index: Index) -> Writable:
    if not isinstance(index, Writable):
        raise ReadOnly(
            f"the index {name!r} is read-only; convert it with jaxretr export --to live, and serve the result"
        )
    return index


def _check_documents(documents: Sequence[DocumentIn]) -> None:
    """Refuse ids that repeat, and documents without any text."""
    seen: set[str] = set()
    for number, document in enumerate(documents):
        if document.id in seen:
            raise Invalid(
                f"documents.{number}.id: {document.id[:80]!r} occurs twice; give each id once", f"documents.{number}.id"
            )
        seen.add(document.id)
        if not document.text and not document.title:
            raise Invalid(f"documents.{number}: neither title nor text; give one of them", f"documents.{number}")


def _matrix(vectors: Sequence[Sequence[float]], count: int, dim: int) -> np.ndarray:
    """The vectors of a request, float32 [count, dim]."""
    if len(vectors) != count:
        raise Invalid(f"{len(vectors)} vectors for {count} documents; give one each", "vectors")
    for number, vector in enumerate(vectors):
        if len(vector) != dim:
            raise Invalid(
                f"vectors.{number}: {len(vector)} numbers for an index of {dim} dimensions", f"vectors.{number}"
            )
    with np.errstate(over="ignore"):
        matrix = np.array(vectors, np.float32).reshape(count, dim)
    if not np.isfinite(matrix).all():
        raise Invalid("vectors: a number is too large for float32", "vectors")
    return matrix
