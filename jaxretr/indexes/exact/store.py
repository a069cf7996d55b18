"""The kind of index that `jaxretr encode` writes: an embedding store of passages, searched exactly."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.embeddings.opening import open_store, verify_store
from jaxretr.embeddings.vector_files import is_sparse
from jaxretr.indexes.checks import check_store
from jaxretr.indexes.exact import ExactIndex, search_blocks, unique_ids
from jaxretr.indexes.exact.saved import announce, as_index
from jaxretr.indexes.exact.shares import merge_hits
from jaxretr.indexes.filters import FilterOptions, Filters
from jaxretr.indexes.index import Opening, SearchOptions
from jaxretr.indexes.read_only import ReadOnlyIndex, ScoredIds
from jaxretr.indexes.topk import NO_ROW
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
    share = meta.share if opening.once else range(meta.shards)
    numbers = store.row_numbers(share)
    ids = unique_ids(store.read_ids(share), len(numbers), str(store.folder))
    known = Filters(len(ids), ids)
    find: Callable[..., tuple[np.ndarray, np.ndarray]] = partial(_search_files, store, share, len(ids))
    facts: dict[str, Any] = {"engine": "exact"}
    if is_sparse(meta.dtype):
        from jaxretr.indexes.exact import sparse  # Numba takes half a second to import.

        facts = {"engine": "sparse", "bytes": 0, "postings": 0}
        if ids:
            index = sparse.of_store(store, share)
            find, facts = index.search_rows, {**facts, "bytes": 8 * index.postings, "postings": index.postings}
    else:
        facts["bytes"] = announce(str(store.folder), len(ids), meta.dim, opening, slab_rows=store.block_rows)

    def name(row: int) -> str:
        """The id of one of the store's rows, of this share, whose shards are full except for the store's last."""
        shard, offset = divmod(row, meta.shard_rows)
        return ids[share.index(shard) * meta.shard_rows + offset]

    def search(vectors: np.ndarray, k: int, _: SearchOptions, filters: FilterOptions) -> ScoredIds:
        mask = known.mask(**filters)
        scores, rows = np.empty((len(vectors), 0), np.float32), np.empty((len(vectors), 0), np.int64)
        if ids and (mask is None or mask.any()):
            scores, rows = find(vectors, k, mask)
        return merge_hits(scores, np.where(rows < 0, NO_ROW, numbers[rows]), name, k)

    return ReadOnlyIndex(
        ids,
        meta.dim,
        opening,
        search=search,
        rows=lambda rows: _rows(store, numbers[list(rows)]),
        facts={**facts, "passages": meta.rows, **_facts(store)},
        all_ids=None if len(ids) == meta.rows else store.read_ids,
    )


def _search_files(
    store: EmbeddingStore, share: range, count: int, queries: np.ndarray, k: int, allowed: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Search some shards, of `count` rows, by streaming them through this process's devices once; see `search_blocks`."""
    with Progress(count, "passage", "searched") as progress:

        def blocks() -> Iterator[np.ndarray]:
            for block in store.blocks(share):
                yield block
                progress.advance(len(block))

        return search_blocks(blocks(), queries, k, allowed=allowed, source=str(store.folder))


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
