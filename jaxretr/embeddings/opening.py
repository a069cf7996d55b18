"""Opening an embedding store, whose every byte is checked before its numbers are used."""

from collections.abc import Sequence
from pathlib import Path

from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.runtime.progress import Progress


def open_store(folder: str | Path, share: bool = False) -> EmbeddingStore:
    """Open a complete store and compare it with its hashes, showing progress; about 1 GB a second on each core.

    Of a store in a bucket each shard is compared when it is fetched, and not before: nothing is read twice.

    Args:
      share: check only the shards of this process's share.

    Raises:
      UserError: there is none, it is incomplete, or a byte was changed.
    """
    store = EmbeddingStore.open(folder)
    if store.local:
        verify_store(store, store.meta.share if share else None)
    return store


def verify_store(store: EmbeddingStore, shards: Sequence[int] | None = None) -> None:
    """Read a store, or some shards of it, and compare them with their hashes, showing progress.

    Raises:
      UserError: a byte was changed.
    """
    shards = range(store.meta.shards) if shards is None else shards
    with Progress(len(store.row_numbers(shards)), store.meta.side, "verified") as progress:
        store.verify(progress.advance, shards)
