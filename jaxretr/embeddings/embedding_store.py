"""The embedding store: a folder of shards that an interrupted `jaxretr encode` resumes.

It holds

  meta.json                        model, texts and settings; written first, and never again
  ids.jsonl                        one JSON string a row
  embeddings-00000-of-00003.npy    a shard: float32, float16, bfloat16 (its bits as uint16) or int8, [rows, D]
  scales-00000-of-00003.npy        of an int8 shard, float32 [rows]: a row is its integers times its scale
  entries-..., counts-....npy      of sparse vectors, of which the first file has only the numbers that are not 0, [P]:
                                   their dimensions, uint16 or int32 [P], and how many each row has, int32 [rows]
  embeddings-00000-of-00003.json   the shard's record: sha256 of its files, and the address of the store it belongs to
  ids.json                         the same of the ids

The address is a sha256 over all that decides the numbers: model, texts, settings. Each file appears whole or not at
all, and a shard counts only once it has a record: so any number of processes and hosts can write one store, and none of
them writes to another's file. The arrays are read through memory maps; of a store in a bucket, through those of local
copies of single shards (`ShardCache`).
"""

import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from jaxretr.data.arrays import read_array, write_npy
from jaxretr.embeddings.index_folder import read_ids, write_ids
from jaxretr.embeddings.vector_files import (
    SparseRows,
    StoredDtype,
    bytes_a_row,
    dequantise,
    entry_dtype,
    is_sparse,
    quantise,
)
from jaxretr.models.embed import Side
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.json_dataclass import dataclass_from
from jaxretr.runtime.parallel.hosts import wait_for_all
from jaxretr.runtime.storage import sealed_folder
from jaxretr.runtime.storage.files import write_whole
from jaxretr.runtime.storage.paths import as_path, is_remote
from jaxretr.runtime.storage.shard_cache import ShardCache

META = "meta.json"
IDS = "ids.jsonl"
IDS_RECORD = "ids.json"

_KIND = ("jaxretr-embeddings", 2)
_AGAIN = "run the same `jaxretr encode` command again to replace it"

# Rows of a piece of an int8 shard, which is made float32 a piece at a time.
PIECE_ROWS = 65_536

# Bytes that readers get at a time, where shards are smaller: a search costs something for every block.
_BLOCK_BYTES = 32 * 2**20

# An interrupted run loses a shard: a thousandth of the corpus, or the fewest rows that an encoder is fast with: on a CPU
# some 30 batches, so that most are full and of rows of one length, and as many on each accelerator.
_SHARDS = 1024
_FEWEST_ROWS = {"cpu": 256}
_FEWEST_ROWS_ELSEWHERE = 16_384
# The most rows and bytes of a shard: memory holds a few shards.
_MOST_ROWS = 50_000
_MOST_BYTES = 128 * 2**20

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StoreMeta:
    """The content of meta.json.

    Attributes:
      side: the tower, "passage" or "question".
      model: the model's name as the user gave it, for messages.
      model_fingerprint: the fingerprint of weights, configuration and tokenizer.
      texts_fingerprint: the fingerprint of ids and texts in their order.
      rows, dim: N and D.
      dtype: the dtype of the stored numbers.
      compute: the dtype of the encoder's matmuls, "float32" or "bfloat16".
      shard_rows: rows of every shard but the last.
    """

    side: Side
    model: str
    model_fingerprint: str
    texts_fingerprint: str
    rows: int
    dim: int
    dtype: StoredDtype
    compute: str
    shard_rows: int

    @property
    def shards(self) -> int:
        """The number of shards of the whole store."""
        return -(-self.rows // self.shard_rows)

    @property
    def share(self) -> range:
        """The shards that this process of a run encodes or searches; all, if it is alone."""
        return range(jax.process_index(), self.shards, jax.process_count())

    @property
    def address(self) -> str:
        """A sha256 (hexadecimal) over everything that decides the numbers; the model's name does not."""
        return hashlib.sha256(json.dumps({**dataclasses.asdict(self), "model": None}).encode()).hexdigest()

    @property
    def bytes(self) -> int:
        """The size of the shards on disk, in bytes, without the ids."""
        return self.rows * bytes_a_row(self.dim, self.dtype)

    def span(self, shard: int) -> tuple[int, int]:
        """The rows [start, stop) of a shard."""
        start = shard * self.shard_rows
        return start, min(start + self.shard_rows, self.rows)


def default_shard_rows(rows: int, dim: int) -> int:
    """The default number of rows of a shard, which does not depend on the rows encoded already nor on the speed."""
    platform = jax.default_backend()
    # All devices of an accelerator's host share a batch; those of a CPU share its cores.
    fewest = _FEWEST_ROWS.get(platform) or _FEWEST_ROWS_ELSEWHERE * jax.local_device_count()
    most = max(1, min(_MOST_ROWS, _MOST_BYTES // (4 * dim)))
    return min(max(fewest, -(-rows // _SHARDS)), most)


class EmbeddingStore:
    """A store that is being written (`begin`) or that is complete (`open`).

    Attributes:
      folder: the store's folder.
      meta: the description of its content.
    """

    def __init__(self, folder: Path, meta: StoreMeta, cut: Sequence[int | None]):
        """Use `begin` or `open`."""
        self.folder = folder
        # Where it stays when the working directory changes; `folder` is the user's own word for it.
        self._place = folder if is_remote(folder) else folder.absolute()
        self.meta = meta
        self._cut = list(cut)
        self._cache = ShardCache(folder, meta.bytes) if is_remote(folder) else None

    def __repr__(self) -> str:
        meta, missing = self.meta, len([cut for cut in self._cut if cut is None])
        state = f", {missing} of them missing" if missing else ""
        return (
            f"EmbeddingStore('{self.folder}', {meta.rows} {meta.side}s, {meta.dim} dimensions, {meta.dtype}, "
            f"{meta.shards} shards{state}, of {meta.model})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A store in a bucket gets a cache of its own again.
        return EmbeddingStore, (self._place, self.meta, self._cut)

    @staticmethod
    def begun_shard_rows(folder: str | Path) -> int | None:
        """The rows of a shard of the store that was begun in a folder; None where there is none."""
        return _read_meta(as_path(folder)).shard_rows if is_store(folder) else None

    @classmethod
    def begin(
        cls,
        folder: str | Path,
        meta: StoreMeta,
        ids: Iterable[str],
        *,
        option: str = "out",
        shards: Sequence[int] | None = None,
    ) -> "EmbeddingStore":
        """Make the folder, or resume one that was begun with the same model and texts.

        Shards that are there are read and compared with their sha256; what was removed or damaged counts as missing.
        In a run of several processes all must call this, and each looks at its own share.

        Args:
          folder: new, empty, or a store; on a disk or in a bucket (gs://... or s3://...).
          meta: the description of the whole store.
          ids: N ids; read only where they are not written yet.
          option: the parameter by which the user named the folder, for errors.
          shards: the shards to look at, while processes that are not of this run may write others; None: its share.

        Raises:
          UserError: the folder holds something else or another model's or other texts' embeddings, or cannot be
            written.
          UsageError: `shards` in a run of several processes, or a shard that the store does not have.
        """
        if shards is not None and jax.process_count() > 1:
            raise UsageError("shards: the processes of a run share them already; leave it out")
        if wrong := [shard for shard in shards or () if shard not in range(meta.shards)]:
            raise UsageError(f"shards: {wrong[0]}: the store has {meta.shards}, counted from 0; give some of these")
        folder = as_path(folder)
        store = cls(folder, meta, [None] * meta.shards)
        if jax.process_index() == 0:
            store._prepare(ids, option, alone=shards is None)
        wait_for_all("the store's folder")
        share = meta.share if shards is None else shards
        for shard, cut in zip(share, store._map(store._cut_if_whole, share), strict=True):
            store._cut[shard] = cut
        return store

    @classmethod
    def open(cls, folder: str | Path) -> "EmbeddingStore":
        """Open a complete store for reading; look at headers and sizes only, see `verify`.

        Of a store in a bucket a shard is compared with its sha256 whenever a copy of it is fetched.

        Raises:
          UserError: there is none, it is incomplete, or it is damaged.
        """
        folder = as_path(folder)
        store = cls(folder, meta := _read_meta(folder), [])
        # Counted in what is there, and not shard by shard: meta.json may name any number of them.
        records = re.compile(rf"embeddings-(\d{{5,}})-of-{meta.shards:05d}\.json")
        found = [match for match in map(records.fullmatch, _names(folder)) if match and int(match[1]) < meta.shards]
        if missing := meta.shards - len(found):
            raise UserError(
                f"{folder}: {missing} of {meta.shards} shards are not finished; "
                "run the same `jaxretr encode` command again to complete it"
            )
        store._cut = list(store._map(lambda shard: store._record(shard)["truncated"], range(meta.shards)))
        for shard in range(meta.shards) if store.local else ():
            store._files(shard)
        return store

    @property
    def local(self) -> bool:
        """Whether the store lies on a disk, and not in a bucket."""
        return self._cache is None

    def verify(self, advance: Callable[[int], None] = lambda rows: None, shards: Iterable[int] | None = None) -> None:
        """Read everything and compare it with the sha256 that it was written with.

        Args:
          advance: called with the number of rows that were compared since the last call.
          shards: the shards to verify; None: all.

        Raises:
          UserError: a byte was changed, in one line that names all such files.
        """
        problems = sealed_folder.changes(self._place, self._ids_record()["sha256"])
        shards = list(range(self.meta.shards) if shards is None else shards)
        of_shards = self._map(lambda shard: sealed_folder.changes(self._place, self._record(shard)["sha256"]), shards)
        for (start, stop), changed in zip(map(self.meta.span, shards), of_shards, strict=True):
            problems += changed
            advance(stop - start)
        if problems:
            raise UserError(f"{self.folder}: {', '.join(problems)}; {_AGAIN}")

    @property
    def bytes(self) -> int:
        """The size of the shards on disk, without the ids; of sparse vectors in a bucket an estimate."""
        if not (self.local and is_sparse(self.meta.dtype)):
            return self.meta.bytes
        return sum(path.stat().st_size for shard in range(self.meta.shards) for path in self._paths(shard))

    def missing(self, shards: Iterable[int] | None = None) -> list[int]:
        """The numbers, in their order, of the shards of this process's share, or of some, that are not finished."""
        return [
            shard for shard in sorted(self.meta.share if shards is None else set(shards)) if self._cut[shard] is None
        ]

    @property
    def cut(self) -> int:
        """The number of texts of the finished shards that were cut at the model's maximum length."""
        return sum(cut or 0 for cut in self._cut)

    def write(self, shard: int, embeddings: np.ndarray, cut: int) -> None:
        """Write a shard, and then its record.

        Args:
          shard: the shard's number.
          embeddings: float32 [rows of the shard, D].
          cut: the number of its texts that were cut.

        Raises:
          UserError: a number is not finite or too large for the store's dtype, or the folder cannot be written.
        """
        dtype = self.meta.dtype
        stored = np.dtype("float32" if dtype == "int8" or is_sparse(dtype) else dtype)
        with np.errstate(over="ignore"):  # Reported in the next lines, with its row.
            values = np.ascontiguousarray(embeddings, stored)
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            row = self.meta.span(shard)[0] + int(np.argmin(finite))
            remedy = "use dtype=float32 in another folder" if dtype == "float16" else "check the model"
            raise UserError(f"{self._paths(shard)[0]}: row {row}: its embedding is not a finite {stored}; {remedy}")
        arrays = quantise(values) if dtype.endswith("int8") else (values,)
        if is_sparse(dtype):
            rows = SparseRows.of(arrays[0])
            arrays = (rows.weights, *arrays[1:], rows.entries, rows.counts)
        for path, array in zip(self._paths(shard), arrays, strict=True):
            write_whole(path, functools.partial(write_npy, values=array), "wb")
        self._write_record(self._record_path(shard), self._paths(shard), truncated=cut)
        self._cut[shard] = cut

    def row_numbers(self, shards: Iterable[int]) -> np.ndarray:
        """The numbers of some shards' rows, int64 [n]."""
        return np.concatenate([np.empty(0, np.int64), *(np.arange(*self.meta.span(shard)) for shard in shards)])

    def read_ids(self, shards: Iterable[int] | None = None) -> list[str]:
        """The ids of all rows, or of those of some shards, which ascend.

        Raises:
          UserError: the file is missing or damaged.
        """
        path, wanted = self._place / IDS, None
        if self._cache is not None:
            [path] = self._cache.get(self._ids_record()["sha256"], _AGAIN)
        remedy = "remove it and run `jaxretr encode` again"
        # Before anything of that many rows is made: the shortest line is "" and its end.
        if path.is_file() and path.stat().st_size < 3 * self.meta.rows:
            raise UserError(f"{path}: too short for the ids of {self.meta.rows} rows; {remedy}")
        if shards is not None:
            wanted = np.zeros(self.meta.rows, bool)
            wanted[self.row_numbers(shards)] = True
        return read_ids(path, self.meta.rows, remedy, wanted)

    @property
    def block_rows(self) -> int:
        """The most rows of a block that `blocks` yields."""
        rows = self.meta.shard_rows
        if self.meta.dtype == "int8":
            rows = min(rows, PIECE_ROWS)
        return rows * self._shards_a_block

    @property
    def _shards_a_block(self) -> int:
        dtype = self.meta.dtype if self.meta.dtype in ("float16", "bfloat16") else "float32"
        return max(1, _BLOCK_BYTES // (self.meta.shard_rows * bytes_a_row(self.meta.dim, dtype)))

    def blocks(self, shards: Iterable[int] | None = None) -> Iterator[np.ndarray]:
        """Yield the rows of all shards, or of some, as arrays [n, D].

        They are memory maps, or pieces of int8 as float32; small shards are copied together to one array.
        """
        count, gathered = self._shards_a_block, []
        for piece in self._pieces(range(self.meta.shards) if shards is None else shards):
            gathered.append(piece)
            if len(gathered) == count:
                yield piece if count == 1 else np.concatenate(gathered)
                gathered = []
        if gathered:
            yield gathered[0] if len(gathered) == 1 else np.concatenate(gathered)

    def _pieces(self, shards: Iterable[int]) -> Iterator[np.ndarray]:
        """Yield whole shards, or pieces of large int8 shards."""
        for arrays in self._shards(shards):
            if len(arrays) == 1:
                yield arrays[0]
                continue
            for start in range(0, len(arrays[0]), PIECE_ROWS):
                yield dequantise(*(array[start : start + PIECE_ROWS] for array in arrays))

    def _shards(self, shards: Iterable[int]) -> Iterator[list[np.ndarray]]:
        """Yield the memory maps of shards; from a bucket the next one is fetched while one is used."""
        if self._cache is None:
            yield from map(self._arrays, shards)
            return
        with ThreadPoolExecutor(1, "fetch") as thread:
            yield from one_ahead(thread, map(self._arrays, shards))

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Read rows [start, stop), as many of them as there are; float32 [n, D]."""
        found = [np.empty((0, self.meta.dim), np.float32)]
        for shard in range(start // self.meta.shard_rows, self.meta.shards):
            first, _ = self.meta.span(shard)
            if first >= stop:
                break
            arrays = [array[max(start - first, 0) : stop - first] for array in self._arrays(shard)]
            found.append(dequantise(*arrays) if len(arrays) == 2 else arrays[0].astype(np.float32))
        return np.concatenate(found)

    # ---- files -------------------------------------------------------------------------------------------------------

    def _prepare(self, ids: Iterable[str], option: str, *, alone: bool) -> None:
        folder = self.folder
        try:
            if self.local:
                folder.mkdir(parents=True, exist_ok=True)
                # Remains of a killed process; complete files have no such name. Another's that runs may be among them.
                for leftover in folder.glob(".*.part") if alone else ():
                    leftover.unlink(missing_ok=True)
            names = sorted(_names(folder))
        except OSError as error:
            raise UserError(
                f"{folder}: cannot be written ({error.strerror}); give another folder as {option}="
            ) from error
        if META in names:
            _check_same(folder, _read_meta(folder), self.meta, option)
        elif names:
            raise UserError(f"{folder}: holds something else ({names[0]}); give a new or empty folder as {option}=")
        else:
            sealed_folder.write_description(folder / META, _KIND, dataclasses.asdict(self.meta))
        if not self._ids_are_whole():
            write_ids(folder / IDS, ids)
            self._write_record(folder / IDS_RECORD, [folder / IDS])

    def _ids_are_whole(self) -> bool:
        try:
            return not sealed_folder.changes(self._place, self._ids_record()["sha256"])
        except UserError:
            return False

    @property
    def _parts(self) -> list[str]:
        """The names of a shard's files, in the order in which they are written."""
        scales = ["scales"] if self.meta.dtype.endswith("int8") else []
        return ["embeddings", *scales, *(["entries", "counts"] if is_sparse(self.meta.dtype) else [])]

    def _paths(self, shard: int) -> list[Path]:
        return [self._place / f"{name}-{shard:05d}-of-{self.meta.shards:05d}.npy" for name in self._parts]

    def _record_path(self, shard: int) -> Path:
        return self._place / f"embeddings-{shard:05d}-of-{self.meta.shards:05d}.json"

    def _write_record(self, path: Path, files: Sequence[Path], **facts: int) -> None:
        found = sealed_folder.hashes(self._place, [file.name for file in files])
        sealed_folder.write_record(path, {"store": self.meta.address, "sha256": found, **facts})

    def _record(self, shard: int) -> dict[str, Any]:
        path = self._record_path(shard)
        record = self._read_record(path, self._paths(shard))
        start, stop = self.meta.span(shard)
        cut = record.get("truncated")
        if type(cut) is not int or not 0 <= cut <= stop - start:
            raise UserError(f"{path}: 'truncated' is {cut!r} of {stop - start} texts; {_AGAIN}")
        return record

    def _ids_record(self) -> dict[str, Any]:
        return self._read_record(self._place / IDS_RECORD, [self._place / IDS])

    def _read_record(self, path: Path, files: Sequence[Path]) -> dict[str, Any]:
        """Read a record, which vouches for exactly these files: no other file is read because it says so."""
        record = sealed_folder.read_record(path, _AGAIN)
        if record.get("store") != self.meta.address:
            raise UserError(f"{path}: belongs to another store (another model, other texts or settings); {_AGAIN}")
        found = record.get("sha256")
        if not isinstance(found, dict) or found.keys() != {file.name for file in files}:
            raise UserError(f"{path}: 'sha256' does not name {', '.join(file.name for file in files)}; {_AGAIN}")
        return record

    def _arrays(self, shard: int) -> list[np.ndarray]:
        """The shard's memory maps, its numbers and the scales of int8; sparse vectors as an array of all dimensions."""
        if not is_sparse(self.meta.dtype):
            return self._files(shard)
        return [self.sparse_rows(shard).dense(self.meta.dim)]

    def sparse_rows(self, shard: int) -> SparseRows:
        """The sparse vectors of a shard, whose weights are float32."""
        numbers, *scales, entries, counts = self._files(shard)
        if len(entries) and entries.max() >= self.meta.dim:
            raise UserError(f"{self._paths(shard)[-2]}: a dimension of {entries.max()} in {self.meta.dim}; {_AGAIN}")
        weights = numbers.astype(np.float32)
        return SparseRows(entries, weights * np.repeat(scales[0], counts) if scales else weights, counts)

    def _files(self, shard: int) -> list[np.ndarray]:
        """The memory maps of a shard's files."""
        start, stop = self.meta.span(shard)
        shapes = {"embeddings": (stop - start, self.meta.dim), "scales": (stop - start,)}
        paths = self._paths(shard)
        if self._cache is not None:
            digests = self._record(shard)["sha256"]
            paths = self._cache.get({path.name: digests[path.name] for path in paths}, _AGAIN)
        dtypes = {"embeddings": self.meta.dtype.removeprefix("sparse-"), "scales": "float32"}
        if is_sparse(self.meta.dtype):
            counts = read_array(paths[-1], "int32", (stop - start,), _AGAIN)
            present = (int(counts.sum(dtype=np.int64)),)
            shapes |= {"embeddings": present, "entries": present, "counts": counts.shape}
            dtypes |= {"entries": entry_dtype(self.meta.dim).name, "counts": "int32"}
        return [
            read_array(path, dtypes[name], shapes[name], _AGAIN) for path, name in zip(paths, self._parts, strict=True)
        ]

    def _cut_if_whole(self, shard: int) -> int | None:
        """The number of texts of a shard that were cut; None where the shard has to be written (again)."""
        try:
            record = self._record(shard)
            if self.local:
                self._files(shard)
        except UserError:
            return None
        return None if sealed_folder.changes(self._place, record["sha256"]) else record["truncated"]

    def _map(self, function: Callable[[int], T], shards: Iterable[int]) -> Iterator[T]:
        # Hashing lets other threads run.
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            yield from threads.map(function, shards)


def one_ahead(thread: ThreadPoolExecutor, items: Iterator[T]) -> Iterator[T]:
    """Yield the items, while the thread makes the next one."""
    end = object()
    coming = thread.submit(next, items, end)
    while (item := coming.result()) is not end:
        coming = thread.submit(next, items, end)
        yield item  # pyright: ignore[reportReturnType]


def is_store(folder: str | Path) -> bool:
    """Whether a folder's meta.json is an embedding store's, rather than an exact index's or another program's."""
    return sealed_folder.is_described(as_path(folder) / META, _KIND[0])


def _names(folder: Path) -> set[str]:
    """The names in a folder; in a bucket by a single request, whatever the number of shards."""
    return set(sealed_folder.names(folder)) if is_remote(folder) else {path.name for path in folder.iterdir()}


def _read_meta(folder: Path) -> StoreMeta:
    path = folder / META
    if not path.is_file():
        raise UserError(f"{path}: no store is there; run `jaxretr encode` first")
    content = sealed_folder.read_description(path, _KIND, "encode into another folder", sealed=True)
    meta: StoreMeta = dataclass_from(StoreMeta, content, str(path))
    if wrong := next((name for name in ("rows", "dim", "shard_rows") if getattr(meta, name) < 1), None):
        raise UserError(
            f"{path}: '{wrong}' is {getattr(meta, wrong)}, but must be at least 1; encode into another folder"
        )
    return meta


def _check_same(folder: Path, found: StoreMeta, wanted: StoreMeta, option: str) -> None:
    another = f"give another folder as {option}="
    if found.model_fingerprint != wanted.model_fingerprint:
        raise UserError(f"{folder}: holds embeddings of another model ({found.model}) than {wanted.model}; {another}")
    if found.side != wanted.side or found.texts_fingerprint != wanted.texts_fingerprint:
        raise UserError(f"{folder}: holds embeddings of other texts ({found.side}s); {another}")
    if (found.rows, found.dim) != (wanted.rows, wanted.dim):
        raise UserError(
            f"{folder / META}: says {found.rows} rows of {found.dim} dimensions, but there are {wanted.rows} of "
            f"{wanted.dim}; {another}"
        )
    for name in ("dtype", "compute", "shard_rows"):
        if getattr(found, name) != getattr(wanted, name):
            raise UserError(
                f"{folder}: was begun with {name}={getattr(found, name)}, not {getattr(wanted, name)}; "
                f"use that again, or {another}"
            )
