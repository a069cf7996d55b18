"""Exact search over a corpus of embeddings: resident on the devices, or streamed through them from the host."""

import functools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxretr.embeddings import index_folder
from jaxretr.indexes.exact import first_pass as rounding
from jaxretr.indexes.exact.host_rows import (
    checked_matrix,
    embedding_matrix,
    put_matrix,
    read_rows,
    scaled_questions,
    unscaled,
)
from jaxretr.indexes.exact.slabs import Slab, cut_to_slabs, search_slabs
from jaxretr.indexes.filters import FilterOptions, Filters, Metadata, Where
from jaxretr.indexes.topk import BLOCK_ROWS, NO_ROW
from jaxretr.runtime.errors import UsageError, UserError, check_rows, did_you_mean, require_at_least
from jaxretr.runtime.parallel.mesh import DATA, make_mesh, padded_rows, put_rows, to_host

log = logging.getLogger(__name__)

# Bytes of the slabs in which an index with a first pass reads its unrounded rows to measure its recall.
_SLAB_BYTES = 128 * 2**20


class ExactIndex:
    """Exact maximum inner product search; equal scores are ordered by row, the lowest first.

    Scores are inner products of the float32 questions with the stored embeddings. On a CPU they are float64 sums in a
    fixed order, rounded to float32: a question and a row have the same score, and a question the same result, whatever
    the batch, the devices and the place of the row. Accelerators sum in float32: there rows that are equal to the bit
    may have scores that differ in the last bits, and are then ordered by these.
    """

    def __init__(
        self,
        embeddings: np.ndarray | jax.Array,
        ids: Sequence[str] | None = None,
        *,
        metadata: Metadata | None = None,
        dtype: str = "float32",
        first_pass: str | None = None,
        mesh: Mesh | None = None,
        block_rows: int = BLOCK_ROWS,
        max_device_bytes: int | None = None,
        source: str = "embeddings",
    ):
        """Put the embeddings on the devices, or keep them on the host if they are too large.

        Args:
          embeddings: passage embeddings [N, D]; a memory map is read a few MB at a time.
          ids: N different strings; "0", "1", ... by default.
          metadata: field -> N strings, numbers, truth values or None, for `search(where=...)`.
          dtype: stored as "float32" or "bfloat16".
          first_pass: "bfloat16" or "int8": the devices hold the rows rounded to that, and what a search finds there is
            scored again with the rows as they are, which stay on the host (so do not change the array; a memory map
            takes no memory). Exact where an error bound proves it, which `search_proven` tells for each question and
            the log in sum; `first_pass_recall` measures the rest. None: the search itself is exact.
          mesh: devices to search on, rows sharded over its "data" axis; all local devices by default.
          block_rows: rows scored at a time on each device, at most, where it goes block by block; GPUs mostly do not.
          max_device_bytes: bytes of embeddings that one device may hold. A larger corpus stays where it is (so do not
            change the array) and every search streams it through the devices; results are the same.
          source: the embeddings' name in errors.

        Raises:
          UserError: wrong shapes or types, NaN or infinity, ids that repeat or do not match the rows, or metadata that
            does not.
          UsageError: unknown dtype or first_pass, or a budget too small for any slice of the corpus or for a first
            pass.
        """
        self._dtype = _storage_dtype(dtype)
        self.first_pass = kind = rounding.check_kind(first_pass)
        self._mesh = make_mesh(jax.local_devices()) if mesh is None else mesh
        self._block_rows = _positive("block_rows", block_rows)
        embeddings = embedding_matrix(embeddings, source)
        self._shape = n, dim = embeddings.shape
        if not n:
            raise UserError(f"{source}: no rows to index; encode at least one passage")
        if n >= NO_ROW:
            raise UserError(f"{source}: {n} rows are more than the {NO_ROW - 1} of one index; split the corpus")
        self._ids = None if ids is None else unique_ids(ids, n)
        self._filters = Filters(n, self._ids, metadata)
        self._source = source
        self._max_device_bytes = max_device_bytes
        read = functools.partial(read_rows, embeddings, dtype=self._dtype, source=source)
        total = padded_rows(n, self._mesh)
        resident = self._dtype if kind is None else np.dtype(jnp.dtype(kind))
        fits = max_device_bytes is None or _device_bytes(total, dim, resident, self._mesh) <= max_device_bytes
        # Resident on the devices are all rows or none, as they are or rounded.
        self._rows: jax.Array | None = None
        self._rounded: rounding.FirstPass | None = None
        # The host's array, which every search streams, or reads for the exact scores after a first pass.
        self._host: np.ndarray | None = None if fits and kind is None else embeddings
        self._slab_rows = _slab_rows(dim, self._dtype, self._mesh, 2 * _SLAB_BYTES)
        if kind is not None:
            if not fits:
                raise UsageError(
                    f"max_device_bytes={max_device_bytes} is too small for a first pass in {kind}, which stays on the "
                    "devices; search without one"
                )
            exact = functools.partial(read_rows, embeddings, dtype=np.dtype(np.float32), source=source)
            self._rounded = rounding.round_rows(self._mesh, exact, (total, dim), kind)
        elif fits:
            self._rows = put_matrix(self._mesh, read, (total, dim), self._dtype)
        elif max_device_bytes is not None:
            self._slab_rows = _slab_rows(dim, self._dtype, self._mesh, max_device_bytes)

    def __repr__(self) -> str:
        rounded = f", first pass in {self.first_pass}" if self.first_pass else ""
        place = "on the host" if self._rows is None else f"on {self._mesh.size} {self._mesh.devices.flat[0].platform}"
        return f"ExactIndex({len(self)} passages, {self.dim} dimensions, {self._dtype.name}{rounded}, {place})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Rows and ids; the devices are those of the process that reads them.
        rows = np.empty(self._shape, self._dtype)
        for start, piece in self._pieces():
            rows[start : start + len(piece)] = piece[: len(self) - start].view(self._dtype)  # may be bits
        settings = {
            "metadata": self.metadata,
            "dtype": self._dtype.name,
            "first_pass": self.first_pass,
            "block_rows": self._block_rows,
            "max_device_bytes": self._max_device_bytes,
        }
        return functools.partial(ExactIndex, **settings), (rows, self._ids)

    def __len__(self) -> int:
        return self._shape[0]

    @property
    def ids(self) -> list[str]:
        """The ids of the N passages, in the order of rows."""
        return [str(row) for row in range(len(self))] if self._ids is None else self._ids

    @property
    def metadata(self) -> Metadata:
        """The metadata: field -> N values."""
        return self._filters.metadata

    @property
    def dim(self) -> int:
        """D, the embeddings' dimensions."""
        return self._shape[1]

    def search(
        self,
        queries: np.ndarray | jax.Array,
        k: int = 10,
        *,
        allow: Iterable[str] | None = None,
        deny: Iterable[str] | None = None,
        where: Where | None = None,
    ) -> tuple[np.ndarray, list[list[str]]]:
        """Find the k passages with the highest inner product for each question.

        Args:
          queries: question embeddings [B, D], cast to float32; any number of them.
          k: results per question; as many are returned as there are rows that may be found, if that is less.
          allow: ids that may be found; all by default.
          deny: ids that may not be found.
          where: field -> the value that a row must have there, several of which it must have one, or bounds such as
            {"gte": 2020, "lt": 2024} or {"not_in": [...]}; see `jaxretr.indexes.filters.conditions_of`. Fields are those
            of `metadata`; a value that no row has matches nothing.

        Returns:
          scores float32 [B, k'], descending, and for each question the ids in the same order; k' is the smaller one of
          k and of the number of rows that may be found, which is the same for all questions.

        Raises:
          UserError: wrong shape, NaN or infinity in the questions, k < 1, or an id or a field that is not there.
        """
        scores, rows = self.search_rows(queries, k, allow=allow, deny=deny, where=where)
        name = str if self._ids is None else self._ids.__getitem__
        return scores, [[name(row) for row in question_rows] for question_rows in rows.tolist()]

    def search_rows(
        self, queries: np.ndarray | jax.Array, k: int = 10, **filters: Unpack[FilterOptions]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Search as `search` does, and return row numbers, int64 [B, k'], in place of ids."""
        scores, rows, proven = self.search_proven(queries, k, **filters)
        if not proven.all():
            log.info(
                "%d of %d questions are not proven exact after the first pass; first_pass_recall measures them",
                np.count_nonzero(~proven),
                len(proven),
            )
        return scores, rows

    def search_proven(
        self, queries: np.ndarray | jax.Array, k: int = 10, **filters: Unpack[FilterOptions]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Search like `search_rows`, and tell which results are proven exact, bool [B]: all without a first pass."""
        queries = checked_matrix(queries, self.dim)
        mask = self._filters.mask(**filters)
        allowed_count = len(self) if mask is None else int(np.count_nonzero(mask))
        k = min(_positive("k", k), allowed_count)
        if not k:
            return (
                np.empty((len(queries), 0), np.float32),
                np.empty((len(queries), 0), np.int64),
                np.ones(len(queries), bool),
            )
        if self._rounded is not None:
            return self._two_passes(self._rounded, queries, k, mask, rounding.candidates(k, allowed_count))
        return *self._one_pass(queries, k, mask), np.ones(len(queries), bool)

    def _one_pass(self, queries: np.ndarray, k: int, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if self._rows is not None:
            slabs = iter([Slab(self._rows, len(self), self._put_mask(mask))])
        else:
            assert self._host is not None
            slabs = cut_to_slabs(
                self._mesh, [self._host], self._dtype, self._source, slab_rows=self._slab_rows, allowed=mask
            )
        return search_slabs(self._mesh, slabs, queries, k, self._block_rows)

    def _two_passes(
        self, rounded: rounding.FirstPass, queries: np.ndarray, k: int, mask: np.ndarray | None, count: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        assert self._host is not None
        query_dtype = rounded.query_dtype(self._mesh)
        exact, exponents = scaled_questions(queries)
        slabs = [Slab(rounded.rows, len(self), self._put_mask(mask), rounded.scales)]
        first, rows = search_slabs(self._mesh, slabs, exact.astype(np.float32), count, self._block_rows, query_dtype)
        scores, rows = rounding.rescore(self._host, exact, rows, k, self._dtype)
        allowed_count = len(self) if mask is None else np.count_nonzero(mask)
        proven = scores[:, -1] > first[:, -1] + rounded.slack(exact, query_dtype)
        return unscaled(scores, exponents), rows, proven | (count == allowed_count)

    def first_pass_recall(self, queries: np.ndarray | jax.Array, k: int = 10) -> float:
        """Measure what a first pass loses: the mean share of its results that belong to the true top k.

        Args:
          queries: question embeddings [B, D].
          k: results per question.

        Returns:
          From 0 to 1; 1 without a first pass. Results whose scores differ by the rounding of float32 count as equal.
        """
        if self._rounded is None:
            return 1.0
        queries = checked_matrix(queries, self.dim)
        scores, _ = self.search_rows(queries, k)
        true_scores, _ = self._one_pass(queries, scores.shape[1], None)
        lowest = true_scores[:, -1:] - 2.0**-21 * np.abs(true_scores).max(axis=1, keepdims=True)
        return float((scores >= lowest).mean()) if scores.size else 1.0

    def _put_mask(self, mask: np.ndarray | None) -> jax.Array | None:
        if mask is None:
            return None
        return put_rows(self._mesh, mask, (padded_rows(len(self), self._mesh),), np.bool_)

    def save(self, directory: str | os.PathLike) -> None:
        """Write the index to a folder, which appears complete or not at all and replaces an older index.

        With a mesh over several hosts all of them must call this; the first one writes, and holds all embeddings in
        its memory while it does.

        Raises:
          UserError: the folder contains something else, or cannot be written.
        """
        pieces = self._pieces()
        if self._mesh.is_multi_process and jax.process_index():
            return
        blocks = (piece for _, piece in pieces)
        index_folder.write(directory, self._shape, self._dtype, self._ids, self._filters.metadata, blocks)

    def _pieces(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first row, rows) that cover the index, in their order; padding may follow the last row."""
        if self._host is not None:
            read = functools.partial(read_rows, self._host, dtype=self._dtype, source=self._source)
            starts = range(0, len(self), self._block_rows)
            return ((start, read(start, start + self._block_rows)) for start in starts)
        assert self._rows is not None
        if not self._rows.is_fully_addressable:
            return iter([(0, to_host(self._rows))])

        def first(shard: jax.Shard) -> int:
            return shard.index[0].indices(len(self))[0]

        shards = sorted((shard for shard in self._rows.addressable_shards if shard.replica_id == 0), key=first)
        return ((first(shard), np.asarray(shard.data)) for shard in shards)

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike,
        *,
        first_pass: str | None = None,
        mesh: Mesh | None = None,
        block_rows: int = BLOCK_ROWS,
        max_device_bytes: int | None = None,
    ) -> "ExactIndex":
        """Read an index that `save` wrote; see the constructor for the arguments.

        Raises:
          UserError: the folder is missing, incomplete, damaged or of another format.
        """
        embeddings, ids, metadata = index_folder.read(directory)
        return cls(
            embeddings,
            ids,
            metadata=metadata,
            dtype=embeddings.dtype.name,
            first_pass=first_pass,
            mesh=mesh,
            block_rows=block_rows,
            max_device_bytes=max_device_bytes,
            source=str(Path(directory) / index_folder.EMBEDDINGS),
        )


def search_blocks(
    blocks: Iterable[np.ndarray],
    queries: np.ndarray | jax.Array,
    k: int = 10,
    *,
    allowed: np.ndarray | None = None,
    mesh: Mesh | None = None,
    block_rows: int = BLOCK_ROWS,
    source: str = "blocks",
) -> tuple[np.ndarray, np.ndarray]:
    """Search a corpus of any size that comes as blocks of rows; each block passes the devices once.

    Gives exactly what an `ExactIndex` of the concatenated blocks gives.

    Args:
      blocks: host arrays [n, D], in the order of rows; at most two are on the devices at a time. A block larger than
        the first one is cut.
      queries: question embeddings [B, D], cast to float32.
      k: results per question; as many are returned as there are rows that may be found, if that is less.
      allowed: bool [N], the rows that may be found, see `filters.Filters.mask`; all by default.
      mesh, block_rows: see `ExactIndex`.
      source: the blocks' name in errors.

    Returns:
      scores float32 [B, k'], descending, and rows int64 [B, k'] counted over all blocks; k' is the smaller one of k and
      of the number of rows that may be found.

    Raises:
      UserError: wrong shapes, NaN or infinity, no rows at all, another number of rows than `allowed` has, or k < 1.
    """
    mesh = make_mesh(jax.local_devices()) if mesh is None else mesh
    queries = checked_matrix(queries, None)
    k = _positive("k", k)
    slabs = cut_to_slabs(mesh, blocks, np.dtype(np.float32), source, dim=queries.shape[1], allowed=allowed)
    scores, rows = search_slabs(mesh, slabs, queries, k, _positive("block_rows", block_rows))
    hit_count = scores.shape[1] if allowed is None else min(scores.shape[1], int(np.count_nonzero(allowed)))
    return scores[:, :hit_count], rows[:, :hit_count]


def _storage_dtype(name: str) -> np.dtype:
    if name not in index_folder.DTYPES:
        raise UsageError(
            f"dtype={name!r} is none of {', '.join(index_folder.DTYPES)}{did_you_mean(str(name), index_folder.DTYPES)}"
        )
    return np.dtype(jnp.dtype(name))


def _positive(name: str, value: int) -> int:
    require_at_least(1, **{name: value})
    return int(value)


def _device_bytes(rows: int, dim: int, dtype: np.dtype, mesh: Mesh) -> int:
    return rows // mesh.shape[DATA] * dim * dtype.itemsize


def _slab_rows(dim: int, dtype: np.dtype, mesh: Mesh, max_device_bytes: int) -> int:
    """Return the largest slab of which two fit the budget: one is searched while the next one arrives."""
    unit = padded_rows(1, mesh)
    needed = 2 * _device_bytes(unit, dim, dtype, mesh)
    if max_device_bytes < needed:
        raise UsageError(f"max_device_bytes={max_device_bytes} is too small; this index needs at least {needed}")
    return max_device_bytes // needed * unit


def unique_ids(ids: Sequence[str], n: int, source: str = "ids") -> list[str]:
    """Return ids as a list; raise UserError if they are not n different strings."""
    if isinstance(ids, np.ndarray):
        ids = np.atleast_1d(ids).tolist()
    check_rows(source, ids)
    ids = [str(name) if isinstance(name, np.str_) else name for name in ids]
    if len(ids) != n:
        raise UserError(f"{source}: {len(ids)} ids for {n} embeddings; give one id for each row")
    if len(set(map(type, ids)) - {str}):
        row = next(row for row, name in enumerate(ids) if type(name) is not str)
        raise UserError(f"{source}: row {row} has {ids[row]!r}, which is not a string; ids are strings")
    if len(set(ids)) != n:
        seen: dict[str, int] = {}
        for row, name in enumerate(ids):
            if seen.setdefault(name, row) != row:
                raise UserError(f"{source}: {name!r} is at rows {seen[name]} and {row}; ids must differ")
    return ids
