"""`jaxretr verify`: whether a folder still gives what it was written with: an export, or an embedding store."""

import argparse
from pathlib import Path

from jaxretr.errors import UsageError
from jaxretr.export.verify import verify
from jaxretr.storage.copies import local_copy
from jaxretr.stores import opening as stores
from jaxretr.stores.embedding_store import EmbeddingStore, is_store


def run(args: argparse.Namespace) -> None:
    """Verifies, and says what agrees."""
    said = verify_store(args) if is_store(args.folder) else verify(Path(local_copy(args.folder)), args.library)
    print(f"{args.folder}: intact; {said}")


def verify_store(args: argparse.Namespace) -> str:
    """Compares an embedding store with its hashes."""
    if args.library is not None:
        raise UsageError(f"{args.folder}: is an embedding store, which {args.library} does not read; leave --with out")
    store = EmbeddingStore.open(args.folder)
    stores.verify_store(store)
    return (
        f"{store.meta.rows} {store.meta.side}s in {store.meta.shards} shards, of {store.meta.model}; all hashes agree"
    )
