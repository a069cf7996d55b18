"""The compiled search of slabs: rows on the devices, all of a corpus or one part of it after another."""

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxretr.indexes.exact.host_rows import embedding_matrix, put_matrix, read_rows, scaled_questions, unscaled
from jaxretr.indexes.exact.host_search import HostSearch
from jaxretr.indexes.topk import NO_ROW, merge_topk, search_step
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.mesh import DATA, padded_rows, put_rows, replicate, to_host
from jaxretr.runtime.parallel.programs import device_jit

# Batches of questions are padded to one of these sizes, so that few programs are compiled; longer ones are cut.
QUERY_BUCKETS = (1, 8, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Slab:
    """Rows on the devices, sharded over the data axis.

    Attributes:
      rows: [n, D], padding included.
      count: the number of real rows; those after them are padding.
      allowed: bool [n], the rows that may be found; None: all.
      scales: float32 [n] of int8 rows, else None.
    """

    rows: jax.Array
    count: int
    allowed: jax.Array | None = None
    scales: jax.Array | None = None


@functools.partial(device_jit, static_argnames=("mesh", "k", "block_rows"))
def search_slab(queries, rows, num_valid, allowed=None, scales=None, *, mesh: Mesh, k: int, block_rows: int):
    """Return scores [B, k] and rows of the slab [B, k], on every device."""
    by_row = PartitionSpec(DATA)
    options = {name: array for name, array in (("allowed", allowed), ("scales", scales)) if array is not None}

    def step(queries, rows, num_valid, options):
        return search_step(queries, rows, k, num_valid=num_valid, block_rows=block_rows, **options)

    specs = (PartitionSpec(), by_row, PartitionSpec(), by_row)
    return jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())(queries, rows, num_valid, options)


@jax.jit
def _merge_slab(best, slab_best, first):
    scores, rows = slab_best
    return merge_topk(best[0], best[1], scores, jnp.where(rows == NO_ROW, NO_ROW, rows + first))


def search_slabs(
    mesh: Mesh, slabs: Iterable[Slab], queries: np.ndarray, k: int, block_rows: int, query_dtype: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Search slabs one after the other and merge as it goes.

    While one slab is searched the host reads the next one and sends it: two are on the devices.

    Args:
      slabs: in the order of rows.
      queries: float32 [B, D].
      k: results per question.
      block_rows: rows scored at a time.
      query_dtype: the dtype that the questions are rounded to on the devices; None: they are not rounded.

    Returns:
      scores float32 [B, k'] and rows int64 [B, k'] counted over all slabs; k' is k or the number of rows, if that is
      less. Where fewer rows are allowed the rest is -inf and NO_ROW.
    """
    # No questions are searched as one, so that the result gets its shape like any other.
    starts = range(0, max(len(queries), 1), QUERY_BUCKETS[-1])
    chunks = [queries[start : start + QUERY_BUCKETS[-1]] for start in starts]
    searches: list[_HostSearch | _CompiledSearch] = []
    n = 0
    for slab in slabs:
        searches = searches or [
            _HostSearch(chunk, k) if _on_host(mesh) else _CompiledSearch(mesh, chunk, k, block_rows, query_dtype)
            for chunk in chunks
        ]
        before = None
        for search in searches:
            search.add(slab, n)
            # Two batches at most are under way: each takes memory for its scores.
            if before is not None:
                before.wait()
            before = search
        n += slab.count
        if n >= NO_ROW:
            raise UserError(f"blocks: more than {NO_ROW - 1} rows; search the corpus in parts")
    if not n:
        raise UserError("blocks: no rows to search; give at least one")
    k = min(k, n)
    results = [search.result() for search in searches]
    scores, rows = (np.concatenate([part[i][:, :k] for part in results])[: len(queries)] for i in (0, 1))
    return scores, rows.astype(np.int64)


class _CompiledSearch:
    """The k best rows of all slabs for a batch of questions, by a program on the slabs' devices."""

    def __init__(self, mesh: Mesh, queries: np.ndarray, k: int, block_rows: int, query_dtype: str | None):
        scaled, self._exponents = scaled_questions(queries)
        padded = _padded_queries(scaled.astype(np.float32))
        self._queries = replicate(mesh, padded if query_dtype is None else padded.astype(jnp.dtype(query_dtype)))
        self._program = functools.partial(search_slab, mesh=mesh, k=k, block_rows=block_rows)
        self._best: tuple[jax.Array, jax.Array] | None = None
        self._count = len(queries)

    def add(self, slab: Slab, first: int) -> None:
        """Queue the search of a slab whose first row has this number."""
        slab_best = self._program(self._queries, slab.rows, np.int32(slab.count), slab.allowed, slab.scales)
        # Wait for the slab before this one: without this the host would queue the whole corpus on the devices.
        self.wait()
        self._best = slab_best if self._best is None else _merge_slab(self._best, slab_best, np.int32(first))

    def wait(self) -> None:
        """Wait for the slabs so far."""
        jax.block_until_ready(self._best)

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Return scores float32 [B, k] and rows int32 [B, k]; missing ones are -inf and NO_ROW."""
        assert self._best is not None
        scores, rows = (to_host(part)[: self._count] for part in self._best)
        return unscaled(scores, self._exponents), rows


class _HostSearch:
    """The k best rows of all slabs for a batch of questions, by this process's processor; see `HostSearch`."""

    def __init__(self, queries: np.ndarray, k: int):
        self._search = HostSearch(queries, k)

    def add(self, slab: Slab, first: int) -> None:
        """Search a slab whose first row has this number."""
        allowed, scales = (None if part is None else np.asarray(part) for part in (slab.allowed, slab.scales))
        shards = {shard.index[0].indices(len(slab.rows))[0]: shard.data for shard in slab.rows.addressable_shards}
        for start, shard in sorted(shards.items()):
            rows = np.asarray(shard)[: max(0, slab.count - start)]  # a view of the device's memory, without padding
            if len(rows):
                mask, scale = (None if part is None else part[start : start + len(rows)] for part in (allowed, scales))
                self._search.add(rows, first + start, mask, scale)

    def wait(self) -> None:
        """Return at once: nothing is under way."""

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Return scores float32 [B, k] and rows int32 [B, k]; missing ones are -inf and NO_ROW."""
        return self._search.result()


def _on_host(mesh: Mesh) -> bool:
    """Whether the slabs' devices are this process's processor, on which `HostSearch` is faster than XLA."""
    return mesh.devices.flat[0].platform == "cpu" and not mesh.is_multi_process


def cut_to_slabs(
    mesh: Mesh,
    blocks: Iterable[np.ndarray],
    dtype: np.dtype,
    source: str,
    *,
    slab_rows: int | None = None,
    dim: int | None = None,
    allowed: np.ndarray | None = None,
) -> Iterator[Slab]:
    """Cut host blocks into slabs of one shape and put them on the devices.

    Args:
      blocks: [n, D], in the order of rows.
      dtype: the dtype of the rows on the devices.
      source: the blocks' name in errors.
      slab_rows: rows of every slab; None: as many as the first block has.
      dim: the D that they must have; None: any.
      allowed: bool [N] over all blocks; None: all.

    Raises:
      UserError: another D, NaN or infinity, or more or fewer rows than `allowed` has.
    """
    first = 0
    for block in blocks:
        block = embedding_matrix(block, source)
        if dim is not None and block.shape[1] != dim:
            raise UserError(
                f"{source}: the block from row {first} on has {block.shape[1]} columns, the questions have {dim};"
                " encode both with the same model"
            )
        slab_rows = slab_rows or padded_rows(len(block), mesh)
        for start in range(0, len(block), slab_rows):
            piece = block[start : start + slab_rows]
            read = functools.partial(read_rows, piece, dtype=dtype, source=source, first=first)
            rows = put_matrix(mesh, read, (slab_rows, block.shape[1]), dtype)
            mask = None
            if allowed is not None:
                if first + len(piece) > len(allowed):
                    raise UserError(f"{source}: more rows than the {len(allowed)} that `allowed` is about")
                mask = put_rows(mesh, allowed[first : first + len(piece)], (slab_rows,), np.bool_)
            yield Slab(rows, len(piece), mask)
            first += len(piece)
    if allowed is not None and first != len(allowed):
        raise UserError(f"{source}: {first} rows, but `allowed` is about {len(allowed)}")


def _padded_queries(queries: np.ndarray) -> np.ndarray:
    size = next(bucket for bucket in QUERY_BUCKETS if bucket >= len(queries))
    return np.pad(queries, ((0, size - len(queries)), (0, 0)))
