"""An embedding store of vectors that are in memory already, as if a model had made them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxretr.embeddings.embedding_store import EmbeddingStore, StoreMeta


def store_vectors(
    folder: Path,
    vectors: np.ndarray,
    ids: Sequence[str],
    *,
    model: str,
    model_fingerprint: str,
    texts_fingerprint: str,
    shard_rows: int,
) -> EmbeddingStore:
    """Writes a store of passages' vectors, float32 [N, D], and N ids; returns it."""
    meta = StoreMeta(
        side="passage",
        model=model,
        model_fingerprint=model_fingerprint,
        texts_fingerprint=texts_fingerprint,
        rows=len(vectors),
        dim=vectors.shape[1],
        dtype="float32",
        compute="float32",
        shard_rows=shard_rows,
    )
    store = EmbeddingStore.begin(folder, meta, ids)
    for shard in store.missing():
        store.write(shard, vectors[slice(*meta.span(shard))], 0)
    return EmbeddingStore.open(folder)
