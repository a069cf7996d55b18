"""An embedding store of vectors that are in memory already: drawn at random, or made by another program."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxretr.errors import UsageError
from jaxretr.stores.embedding_store import EmbeddingStore, StoreMeta, default_shard_rows


def store_vectors(
    folder: str | Path,
    vectors: np.ndarray,
    ids: Sequence[str],
    *,
    model: str,
    model_fingerprint: str,
    texts_fingerprint: str,
    shard_rows: int | None = None,
) -> EmbeddingStore:
    """Write a complete store of passages in one process.

    Args:
      folder: new or empty, or a store of the same vectors that was begun.
      vectors: the passages' vectors, float32 [N, D].
      ids: N ids.
      model: the model's name in messages.
      model_fingerprint: that of the model that made the vectors; programs that encode questions compare it with theirs.
      texts_fingerprint: that of the ids and texts; exports with texts compare it with the corpus.
      shard_rows: rows per file; None: `default_shard_rows`.

    Returns:
      The store.

    Raises:
      UsageError: the ids and the vectors are not the same number.
      UserError: a number is not finite, or the folder holds something else or cannot be written.
    """
    if len(ids) != len(vectors):
        raise UsageError(f"ids: {len(ids)} for {len(vectors)} vectors; give one id per vector")
    rows, dim = vectors.shape
    meta = StoreMeta(
        side="passage",
        model=model,
        model_fingerprint=model_fingerprint,
        texts_fingerprint=texts_fingerprint,
        rows=rows,
        dim=dim,
        dtype="float32",
        compute="float32",
        shard_rows=shard_rows or default_shard_rows(rows, dim),
    )
    store = EmbeddingStore.begin(folder, meta, ids)
    for shard in store.missing():
        store.write(shard, vectors[slice(*meta.span(shard))], 0)
    return EmbeddingStore.open(folder)
