"""The kind of index that `jaxretr encode` writes: an embedding store of passages, searched exactly."""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.embeddings.opening import open_store, verify_store
from jaxretr.embeddings.vector_files import is_sparse
from jaxretr.indexes.checks import check_store
from jaxretr.indexes.exact import ExactIndex, search_blocks, unique_ids
from jaxretr.indexes.exact.saved import announce, as_index
from jaxretr.indexes.exact.shares import merge_hits
from jaxretr.indexes.filters import Filters
from jaxretr.indexes.index import Opening
from jaxretr.indexes.read_only import ReadOnlyIndex
from jaxretr.runtime.progress import Progress


def open(place: str, opening: Opening) -> ReadOnlyIndex:
    """Open an embedding store of passages, and put it in memory, or for one search stream it through the devices.

    Raises:
      UserError: it is incomplete or damaged, or another model made it.
    """
    store = open_store(place, share=opening.once)
    if opening.once or is_sparse(store.meta.dtype):
        return streamed(store, opening)
    meta = store.meta
    check_store(store, opening.encoder)
    dtype = "bfloat16" if meta.dtype == "bfloat16" else "float32"
    size = announce(place, meta.rows, meta.dim, opening, dtype=dtype)
    blocks = list(store.blocks())
    embeddings = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    index = ExactIndex(embeddings, store.read_ids(), dtype=dtype, source=place)
    return as_index(index, opening, lambda rows: _rows(store, rows), bytes=size, **_facts(store))


def streamed(store: EmbeddingStore, opening: Opening) -> ReadOnlyIndex:
    """A store as an `Index` whose every search reads its files, with several processes each its share of them.

    Sparse vectors are put into an inverted index, in memory.

    Raises:
      UserError: it holds no passages, another model made it, or an id occurs twice.
    """
    meta = store.meta
    check_store(store, opening.encoder)
    if is_sparse(meta.dtype):
        from jaxretr.indexes.exact import sparse  # Numba takes half a second to import.

        return sparse.as_index(store, opening, _facts(store), lambda rows: _rows(store, rows))
    numbers = store.row_numbers(meta.share)
    ids = unique_ids(store.read_ids(meta.share), len(numbers), str(store.folder))
    known = Filters(len(ids), ids)
    size = announce(str(store.folder), len(ids), meta.dim, opening, slab_rows=store.block_rows)

    return ReadOnlyIndex(
        ids,
        meta.dim,
        opening,
        search=lambda vectors, k, _, filters: search_store(store, ids, vectors, k, known.mask(**filters)),
        rows=lambda rows: _rows(store, numbers[list(rows)]),
        facts={"engine": "exact", "bytes": size, "passages": meta.rows, **_facts(store)},
        all_ids=None if len(ids) == meta.rows else store.read_ids,
    )


def _facts(store: EmbeddingStore) -> dict[str, str]:
    meta = store.meta
    return {
        "model": meta.model,
        "model_fingerprint": meta.model_fingerprint,
        "address": meta.address,
        "texts_fingerprint": meta.texts_fingerprint,
    }


def _rows(store: EmbeddingStore, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    """The vectors of some rows, float32 [n, D]; those of a run of consecutive rows are read at once."""
    numbers = np.asarray(rows, np.int64)
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    blocks = [store.rows(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]
    return np.concatenate([np.empty((0, store.meta.dim), np.float32), *blocks])


def verify(place: str) -> str:
    """Compare a store with its hashes; return a summary of what agrees.

    Raises:
      UserError: it is incomplete, or a byte was changed.
    """
    store = EmbeddingStore.open(place)
    verify_store(store)
    meta = store.meta
    return f"{meta.rows} {meta.side}s in {meta.shards} shards, of {meta.model}; all hashes agree"


def search_store(
    store: EmbeddingStore, ids: Sequence[str], queries: np.ndarray, k: int, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, list[list[str]]]:
    """Search a store by streaming its shards through the devices once.

    With several processes, all of which must call this, each streams its share of the shards through its own devices.

    Args:
      store: N passages.
      ids: the ids of this process's share, which is all N where it is alone.
      queries: float32 [B, D].
      k: hits per question.
      allowed: bool, as long as `ids`: the passages that may be found; None: all.

    Returns:
      Scores float32 [B, k'], descending, and the ids of the hits; k' is k, or the number of passages that may be found
      if that is less.
    """
    meta, share = store.meta, store.meta.share
    scores, rows = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
    with Progress(len(ids), "passage", "searched") as progress:

        def blocks() -> Iterator[np.ndarray]:
            for block in store.blocks(share):
                yield block
                progress.advance(len(block))

        if ids and (allowed is None or allowed.any()):
            scores, rows = search_blocks(blocks(), queries, k, allowed=allowed, source=str(store.folder))

    def place(row: int) -> int:
        """The place of a store's row among the rows of the share, whose shards are full except for the store's last."""
        shard, offset = divmod(row, meta.shard_rows)
        return share.index(shard) * meta.shard_rows + offset

    numbers = np.asarray(share)[rows // meta.shard_rows] * meta.shard_rows + rows % meta.shard_rows if ids else rows
    return merge_hits(scores, numbers, lambda row: ids[place(row)], k)
