"""Exact search over a corpus of embeddings: resident on the devices, or streamed through them from the host."""

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxretr.errors import UsageError, UserError, did_you_mean
from jaxretr.parallel.mesh import DATA, make_mesh, padded_rows, put_rows, replicate, to_host
from jaxretr.search import index_folder
from jaxretr.search.topk import BLOCK_ROWS, NO_ROW, merge_topk, search_step

# Batches of questions are padded to one of these sizes, so that few programs are compiled; longer ones are cut.
_QUERY_BUCKETS = (1, 8, 32, 128, 512)


class ExactIndex:
    """Exact maximum inner product search; equal scores are ordered by row, the lowest first.

    Scores are fp32 inner products of the fp32 questions with the stored embeddings.
    """

    def __init__(
        self,
        embeddings: np.ndarray | jax.Array,
        ids: Sequence[str] | None = None,
        *,
        dtype: str = "float32",
        mesh: Mesh | None = None,
        block_rows: int = BLOCK_ROWS,
        max_device_bytes: int | None = None,
    ):
        """Puts the embeddings on the devices, or keeps them on the host when they are too large.

        Args:
          embeddings: passage embeddings [N, D]; a memory map is read one device's shard at a time.
          ids: N different strings; "0", "1", ... by default.
          dtype: stored as "float32" or "bfloat16".
          mesh: devices to search on, rows sharded over its "data" axis; all local devices by default.
          block_rows: rows scored at a time on each device.
          max_device_bytes: bytes of embeddings that one device may hold. A larger corpus stays where it is (so do not
            change the array) and every search streams it through the devices; results are the same.

        Raises:
          UserError: wrong shapes or types, NaN or infinity, or ids that repeat or do not match the rows.
          UsageError: unknown dtype, or a budget too small for any slice of the corpus.
        """
        self._init(embeddings, ids, "embeddings", dtype, mesh, block_rows, max_device_bytes)

    def _init(self, embeddings, ids, source, dtype, mesh, block_rows, max_device_bytes):
        self._dtype = _storage_dtype(dtype)
        self._mesh = make_mesh(jax.local_devices()) if mesh is None else mesh
        self._block_rows = _positive("block_rows", block_rows)
        embeddings = _embedding_matrix(embeddings, source)
        self._shape = n, dim = embeddings.shape
        if not n:
            raise UserError(f"{source}: no rows to index; encode at least one passage")
        if n >= NO_ROW:
            raise UserError(f"{source}: {n} rows are more than the {NO_ROW - 1} of one index; split the corpus")
        self._ids = None if ids is None else _unique_ids(ids, n)
        read = functools.partial(_read_rows, embeddings, dtype=self._dtype, source=source)
        total = padded_rows(n, self._mesh)
        # One of the two: rows resident on the devices, or the host's array that every search streams.
        self._rows: jax.Array | None = None
        self._host: np.ndarray | None = None
        if max_device_bytes is None or _device_bytes(total, dim, self._dtype, self._mesh) <= max_device_bytes:
            self._rows = put_rows(self._mesh, read, (total, dim), self._dtype)
        else:
            self._host, self._source = embeddings, source
            self._slab_rows = _slab_rows(dim, self._dtype, self._mesh, max_device_bytes)

    def __len__(self) -> int:
        return self._shape[0]

    def search(self, queries: np.ndarray | jax.Array, k: int = 10) -> tuple[np.ndarray, list[list[str]]]:
        """Finds the k passages with the highest inner product for each question.

        Args:
          queries: question embeddings [B, D], cast to float32.
          k: results a question; at most N are returned.

        Returns:
          scores float32 [B, min(k, N)], descending, and for each question the ids in the same order.

        Raises:
          UserError: wrong shape, NaN or infinity in the questions, or k < 1.
        """
        scores, rows = self.search_rows(queries, k)
        name = str if self._ids is None else self._ids.__getitem__
        return scores, [[name(row) for row in found] for found in rows.tolist()]

    def search_rows(self, queries: np.ndarray | jax.Array, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Like `search`, but returns row numbers, int64 [B, min(k, N)], in place of ids."""
        n, dim = self._shape
        k = min(_positive("k", k), n)
        queries = _query_matrix(queries, dim)
        if self._host is not None:
            slabs = _slabs(self._mesh, [self._host], self._dtype, self._source, self._slab_rows)
        else:
            assert self._rows is not None
            slabs = iter([(self._rows, n)])
        return _search_slabs(self._mesh, slabs, queries, k, self._block_rows)

    def save(self, directory: str | os.PathLike) -> None:
        """Writes the index to a folder, which appears complete or not at all and replaces an older index.

        With a mesh over several hosts all of them must call this; the first one writes, and holds all embeddings in
        its memory while it does.

        Raises:
          UserError: the folder holds something else, or cannot be written.
        """
        pieces = self._pieces()
        if self._mesh.is_multi_process and jax.process_index():
            return
        index_folder.write(directory, self._shape, self._dtype, self._ids, pieces)

    def _pieces(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (first row, rows) that cover the index; padding may follow the last row."""
        if self._host is not None:
            read = functools.partial(_read_rows, self._host, dtype=self._dtype, source=self._source)
            starts = range(0, len(self), self._block_rows)
            return ((start, read(start, start + self._block_rows)) for start in starts)
        assert self._rows is not None
        if not self._rows.is_fully_addressable:
            return iter([(0, to_host(self._rows))])
        shards = [shard for shard in self._rows.addressable_shards if shard.replica_id == 0]
        return ((shard.index[0].indices(len(self))[0], np.asarray(shard.data)) for shard in shards)

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike,
        *,
        mesh: Mesh | None = None,
        block_rows: int = BLOCK_ROWS,
        max_device_bytes: int | None = None,
    ) -> "ExactIndex":
        """Reads an index that `save` wrote; see the constructor for the arguments.

        Raises:
          UserError: the folder is missing, incomplete, damaged or of another format.
        """
        embeddings, ids = index_folder.read(directory)
        index = cls.__new__(cls)
        source = str(Path(directory) / index_folder.EMBEDDINGS)
        index._init(embeddings, ids, source, embeddings.dtype.name, mesh, block_rows, max_device_bytes)
        return index


def search_blocks(
    blocks: Iterable[np.ndarray],
    queries: np.ndarray | jax.Array,
    k: int = 10,
    *,
    dtype: str = "float32",
    mesh: Mesh | None = None,
    block_rows: int = BLOCK_ROWS,
) -> tuple[np.ndarray, np.ndarray]:
    """Searches a corpus of any size that comes as blocks of rows; each block passes the devices once.

    Gives exactly what an `ExactIndex` of the concatenated blocks gives.

    Args:
      blocks: host arrays [n, D], in the order of rows; at most two are on the devices at a time. A block larger than
        the first one is cut.
      queries: question embeddings [B, D], cast to float32.
      k: results a question; at most as many as there are rows are returned.
      dtype, mesh, block_rows: see `ExactIndex`.

    Returns:
      scores float32 [B, min(k, N)], descending, and rows int64 [B, min(k, N)] counted over all blocks.

    Raises:
      UserError: wrong shapes, NaN or infinity, no rows at all, or k < 1.
    """
    storage = _storage_dtype(dtype)
    mesh = make_mesh(jax.local_devices()) if mesh is None else mesh
    queries = _query_matrix(queries, None)
    slabs = _slabs(mesh, blocks, storage, "blocks", None, queries.shape[1])
    return _search_slabs(mesh, slabs, queries, _positive("k", k), _positive("block_rows", block_rows))


@functools.partial(jax.jit, static_argnames=("mesh", "k", "block_rows"))
def _search_slab(queries, rows, num_valid, *, mesh: Mesh, k: int, block_rows: int):
    """Returns scores [B, k] and rows of the slab [B, k], on every device."""
    step = functools.partial(_sharded_step, k=k, block_rows=block_rows)
    specs = (PartitionSpec(), PartitionSpec(DATA), PartitionSpec())
    return jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())(queries, rows, num_valid)


def _sharded_step(queries, rows, num_valid, *, k: int, block_rows: int):
    return search_step(queries, rows, k, num_valid=num_valid, block_rows=block_rows)


@jax.jit
def _merge_slab(best, found, first):
    scores, rows = found
    return merge_topk(best[0], best[1], scores, jnp.where(rows == NO_ROW, NO_ROW, rows + first))


def _search_slabs(
    mesh: Mesh, slabs: Iterator[tuple[jax.Array, int]], queries: np.ndarray, k: int, block_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Searches slabs (sharded rows, number of valid rows) one after the other and merges as it goes."""
    batch = len(queries)
    # No questions are padded to one, so that the result gets its shape like any other.
    starts = range(0, max(batch, 1), _QUERY_BUCKETS[-1])
    chunks = [replicate(mesh, _padded_queries(queries[i : i + _QUERY_BUCKETS[-1]])) for i in starts]
    best: list = []
    n = 0
    for rows, count in slabs:
        found = [_search_slab(q, rows, np.int32(count), mesh=mesh, k=k, block_rows=block_rows) for q in chunks]
        # Wait for the slab before this one: without this the host would queue the whole corpus on the devices.
        jax.block_until_ready(best)
        best = [_merge_slab(old, new, np.int32(n)) for old, new in zip(best, found, strict=True)] if best else found
        n += count
        if n >= NO_ROW:
            raise UserError(f"blocks: more than {NO_ROW - 1} rows; search the corpus in parts")
    if not n:
        raise UserError("blocks: no rows to search; give at least one")
    k = min(k, n)
    scores, rows = (np.concatenate([to_host(part[i]) for part in best])[:batch, :k] for i in (0, 1))
    return scores, rows.astype(np.int64)


def _slabs(
    mesh: Mesh,
    blocks: Iterable[np.ndarray],
    dtype: np.dtype,
    source: str,
    slab_rows: int | None,
    dim: int | None = None,
) -> Iterator[tuple[jax.Array, int]]:
    """Cuts host blocks into slabs of one shape (by default that of the first block) and puts them on the devices."""
    first = 0
    for block in blocks:
        block = _embedding_matrix(block, source)
        if dim is not None and block.shape[1] != dim:
            raise UserError(
                f"{source}: the block from row {first} on has {block.shape[1]} columns, the questions have {dim};"
                " encode both with the same model"
            )
        slab_rows = slab_rows or padded_rows(len(block), mesh)
        for start in range(0, len(block), slab_rows):
            piece = block[start : start + slab_rows]
            read = functools.partial(_read_rows, piece, dtype=dtype, source=source, first=first)
            yield put_rows(mesh, read, (slab_rows, block.shape[1]), dtype), len(piece)
            first += len(piece)


def _read_rows(rows: np.ndarray, start: int, stop: int, *, dtype: np.dtype, source: str, first: int = 0) -> np.ndarray:
    """Returns rows [start, stop) in the storage dtype, always a copy; the corpus row of rows[0] is `first`."""
    with np.errstate(over="ignore"):  # reported below
        values = np.array(rows[start:stop], dtype=dtype)
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        row = first + start + int(np.argmin(finite))
        raise UserError(
            f"{source}: row {row} holds NaN, infinity or a number too large for {dtype.name}; encode it again"
        )
    return values


def _embedding_matrix(embeddings: np.ndarray | jax.Array, source: str) -> np.ndarray:
    array = to_host(embeddings) if isinstance(embeddings, jax.Array) else np.asanyarray(embeddings)
    numeric = jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)
    if array.ndim != 2 or not array.shape[1] or not numeric:
        raise UserError(f"{source}: expected numbers [rows, dimensions], got {array.dtype} {list(array.shape)}")
    return array


def _query_matrix(queries: np.ndarray | jax.Array, dim: int | None) -> np.ndarray:
    queries = _embedding_matrix(queries, "queries")
    if dim is not None and queries.shape[1] != dim:
        raise UserError(
            f"queries: {queries.shape[1]} columns, but the index has {dim}; encode both with the same model"
        )
    return _read_rows(queries, 0, len(queries), dtype=np.dtype(np.float32), source="queries")


def _padded_queries(queries: np.ndarray) -> np.ndarray:
    size = next(bucket for bucket in _QUERY_BUCKETS if bucket >= len(queries))
    return np.pad(queries, ((0, size - len(queries)), (0, 0)))


def _storage_dtype(name: str) -> np.dtype:
    if name not in index_folder.DTYPES:
        raise UsageError(
            f"dtype={name!r} is none of {', '.join(index_folder.DTYPES)}{did_you_mean(str(name), index_folder.DTYPES)}"
        )
    return np.dtype(jnp.dtype(name))


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise UserError(f"{name}={value} must be at least 1")
    return int(value)


def _device_bytes(rows: int, dim: int, dtype: np.dtype, mesh: Mesh) -> int:
    return rows // mesh.shape[DATA] * dim * dtype.itemsize


def _slab_rows(dim: int, dtype: np.dtype, mesh: Mesh, max_device_bytes: int) -> int:
    """Returns the largest slab of which two fit the budget: one is searched while the next one arrives."""
    unit = padded_rows(1, mesh)
    needed = 2 * _device_bytes(unit, dim, dtype, mesh)
    if max_device_bytes < needed:
        raise UsageError(f"max_device_bytes={max_device_bytes} is too small; this index needs at least {needed}")
    return max_device_bytes // needed * unit


def _unique_ids(ids: Sequence[str], n: int) -> list[str]:
    ids = list(ids)
    if len(ids) != n:
        raise UserError(f"ids: {len(ids)} ids for {n} embeddings; give one id for each row")
    if len(set(map(type, ids)) - {str}):
        row = next(row for row, name in enumerate(ids) if type(name) is not str)
        raise UserError(f"ids: row {row} has {ids[row]!r}, which is not a string; ids are strings")
    if len(set(ids)) != n:
        seen: dict[str, int] = {}
        for row, name in enumerate(ids):
            if seen.setdefault(name, row) != row:
                raise UserError(f"ids: {name!r} stands at row {seen[name]} and at row {row}; ids must differ")
    return ids
