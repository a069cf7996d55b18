"""`jaxretr verify`: whether a folder still gives what it was written with: an export, or an embedding store."""

import argparse

from jaxretr.commands.stores import open_store
from jaxretr.encoding_store import is_store
from jaxretr.errors import UsageError
from jaxretr.export.verify import verify


def run(args: argparse.Namespace) -> None:
    """Verifies, and says what agrees."""
    said = verify_store(args) if is_store(args.folder) else verify(args.folder, args.library)
    print(f"{args.folder}: intact; {said}")


def verify_store(args: argparse.Namespace) -> str:
    """Compares an embedding store with its hashes."""
    if args.library is not None:
        raise UsageError(f"{args.folder}: is an embedding store, which {args.library} does not read; leave --with out")
    store = open_store(args.folder)
    return (
        f"{store.meta.rows} {store.meta.side}s in {store.meta.shards} shards, of {store.meta.model}; all hashes agree"
    )
