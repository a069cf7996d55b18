"""The embedding store: a folder of shards that an interrupted `jaxretr encode` goes on with.

It holds embeddings-00000-of-00003.npy and so on (float32 or float16, [rows, D]), ids.jsonl (one JSON string a row), and
meta.json, which names the model and the texts by fingerprint and lists the shards that are finished. Each file appears
whole or not at all, and a shard counts only once meta.json lists it.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from jaxretr.data.corpus import Corpus, content_fingerprint
from jaxretr.data.questions import Question
from jaxretr.data.tokens import tokenizer_fingerprint
from jaxretr.errors import UserError
from jaxretr.files import atomic_write
from jaxretr.json_dataclass import dataclass_from
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder, Side
from jaxretr.search.index_folder import read_ids

META = "meta.json"
IDS = "ids.jsonl"

_FORMAT = "jaxretr-embeddings"
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class StoreMeta:
    """What meta.json says.

    Attributes:
      side: the tower, "passage" or "question".
      model: the model's name as the user gave it, for messages.
      model_fingerprint: of weights, configuration and tokenizer.
      texts_fingerprint: of ids and texts in their order.
      rows, dim: N and D.
      dtype: of the stored numbers, "float32" or "float16".
      compute: of the encoder's matmuls, "float32" or "bfloat16".
      shard_rows: rows of every shard but the last.
      truncated: for each shard how many of its texts were cut at the model's maximum length; None: not finished.
    """

    side: Side
    model: str
    model_fingerprint: str
    texts_fingerprint: str
    rows: int
    dim: int
    dtype: str
    compute: str
    shard_rows: int
    truncated: tuple[int | None, ...] = ()

    @property
    def shards(self) -> int:
        """How many shards the whole store has."""
        return -(-self.rows // self.shard_rows)


class EmbeddingStore:
    """A store that is being written (`begin`) or that is complete (`open`)."""

    def __init__(self, folder: Path, meta: StoreMeta):
        """Use `begin` or `open`."""
        self.folder = folder
        self.meta = meta

    @classmethod
    def begin(cls, folder: str | Path, meta: StoreMeta, ids: Sequence[str]) -> "EmbeddingStore":
        """Makes the folder, or goes on with one that the same model and texts were begun in.

        Args:
          folder: new, empty, or a store.
          meta: of the whole store; its `truncated` is not looked at.
          ids: N ids.

        Raises:
          UserError: the folder holds something else or another model's or other texts' embeddings, or cannot be
            written.
        """
        folder = Path(folder).expanduser()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # What a killed process left behind; complete files have no such name.
            for leftover in folder.glob(".*.part"):
                leftover.unlink(missing_ok=True)
            names = sorted(entry.name for entry in folder.iterdir())
        except OSError as error:
            raise UserError(f"{folder}: cannot be written ({error.strerror}); give another --out folder") from error
        meta = dataclasses.replace(meta, truncated=(None,) * meta.shards)
        if META in names:
            found = _read_meta(folder)
            _check_same(folder, found, meta)
            meta = dataclasses.replace(meta, truncated=found.truncated)
        elif set(names) - {IDS}:
            raise UserError(f"{folder}: holds something else ({names[0]}); give a new or empty --out folder")
        store = cls(folder, meta)
        if META not in names or IDS not in names:
            with atomic_write(folder / IDS) as file:
                file.writelines(json.dumps(name) + "\n" for name in ids)
        # A listed shard that has been removed or damaged since is encoded again.
        store._update([cut if store._is_whole(shard) else None for shard, cut in enumerate(meta.truncated)])
        return store

    @classmethod
    def open(cls, folder: str | Path) -> "EmbeddingStore":
        """Opens a complete store for reading.

        Raises:
          UserError: there is none, it is incomplete, or it is damaged.
        """
        store = cls(Path(folder).expanduser(), _read_meta(Path(folder).expanduser()))
        missing = store.missing()
        if missing:
            raise UserError(
                f"{store.folder}: {len(missing)} of {store.meta.shards} shards are not finished; "
                "run the same `jaxretr encode` command again to complete it"
            )
        for shard in range(store.meta.shards):
            store._array(shard)
        return store

    def missing(self) -> list[int]:
        """The numbers of the shards that are not finished."""
        return [shard for shard, cut in enumerate(self.meta.truncated) if cut is None]

    def span(self, shard: int) -> tuple[int, int]:
        """The rows [start, stop) of a shard."""
        start = shard * self.meta.shard_rows
        return start, min(start + self.meta.shard_rows, self.meta.rows)

    @property
    def cut(self) -> int:
        """How many texts of the finished shards were cut at the model's maximum length."""
        return sum(cut or 0 for cut in self.meta.truncated)

    def write(self, shard: int, embeddings: np.ndarray, cut: int) -> None:
        """Writes a shard and lists it as finished.

        Args:
          shard: its number.
          embeddings: float32 [rows of the shard, D].
          cut: how many of its texts were cut.

        Raises:
          UserError: a number is not finite or too large for the store's dtype, or the folder cannot be written.
        """
        with np.errstate(over="ignore"):  # Reported in the next lines, with its row.
            values = np.ascontiguousarray(embeddings, self.meta.dtype)
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            row = self.span(shard)[0] + int(np.argmin(finite))
            remedy = "; check the model" if self.meta.dtype == "float32" else "; use --dtype float32 in another folder"
            raise UserError(f"{self._path(shard)}: row {row}: its embedding is no finite {self.meta.dtype}{remedy}")
        with atomic_write(self._path(shard), "wb") as file:
            # Not np.save: on a full disk it raises an error that has lost the operating system's reason.
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
            file.write(values.data)
        self._update([cut if number == shard else old for number, old in enumerate(self.meta.truncated)])

    def read_ids(self) -> list[str]:
        """The ids of all rows.

        Raises:
          UserError: the file is missing or damaged.
        """
        return read_ids(self.folder / IDS, self.meta.rows, "remove it and run `jaxretr encode` again")

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields the shards as memory maps [rows, D], in the order of the rows."""
        for shard in range(self.meta.shards):
            yield self._array(shard)

    def _path(self, shard: int) -> Path:
        return self.folder / f"embeddings-{shard:05d}-of-{self.meta.shards:05d}.npy"

    def _array(self, shard: int) -> np.ndarray:
        path = self._path(shard)
        again = "run the same `jaxretr encode` command again to replace it"
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path}: cannot be read ({_first_line(error)}); {again}") from error
        start, stop = self.span(shard)
        if array.shape != (stop - start, self.meta.dim) or array.dtype != self.meta.dtype:
            raise UserError(
                f"{path}: holds {array.dtype} {list(array.shape)}, but {META} says {self.meta.dtype} "
                f"{[stop - start, self.meta.dim]}; {again}"
            )
        return array

    def _is_whole(self, shard: int) -> bool:
        try:
            self._array(shard)
        except UserError:
            return False
        return True

    def _update(self, truncated: Sequence[int | None]) -> None:
        self.meta = dataclasses.replace(self.meta, truncated=tuple(truncated))
        with atomic_write(self.folder / META) as file:
            json.dump({"format": _FORMAT, "version": _VERSION, **dataclasses.asdict(self.meta)}, file, indent=1)


def model_fingerprint(encoder: DualEncoder | CombinedEncoder, side: Side = "passage") -> str:
    """A sha256 (hexadecimal) over all that decides an encoder's embeddings of one side.

    A dual encoder has one for both sides, over both towers. A combined encoder's weights decide its questions' vectors
    alone, so passages that were encoded with some weights are those of the same parts with any others.
    """
    if isinstance(encoder, CombinedEncoder):
        parts = [model_fingerprint(part) for part in encoder.parts]
        weights = encoder.config.weights if side == "question" else None
        return hashlib.sha256(json.dumps([encoder.config.how, parts, weights]).encode()).hexdigest()
    config = dataclasses.asdict(encoder.config)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"):
        config["bert"].pop(name)  # Only training heeds these.
    if encoder.config.embedding_size == encoder.config.full_size:
        config.pop("truncate_dim")  # Nothing is cut; and older stores' fingerprints know nothing of it.
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    digest.update(tokenizer_fingerprint(encoder.tokenizer).encode())
    leaves: dict[str, Any] = flatten_dict(encoder.params, sep=".")  # pyright: ignore[reportAssignmentType]
    for name in sorted(leaves):
        array = np.ascontiguousarray(leaves[name], np.float32)
        digest.update(f"{name}{array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()


def texts_fingerprint(content: Corpus | Sequence[Question]) -> str:
    """A sha256 (hexadecimal) over ids and texts (and titles), in their order."""
    if isinstance(content, Corpus):
        return content.fingerprint()
    return content_fingerprint([question.id for question in content], [question.text for question in content])


def is_store(folder: str | Path) -> bool:
    """Whether a folder's meta.json is an embedding store's, rather than an exact index's or nobody's."""
    try:
        content = json.loads((Path(folder).expanduser() / META).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == _FORMAT


def _read_meta(folder: Path) -> StoreMeta:
    path = folder / META
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no readable store ({_first_line(error)}); run `jaxretr encode` first") from error
    another = f"{path}: not the description of a {_FORMAT} version {_VERSION}; give another folder"
    if not isinstance(content, dict) or (content.pop("format", None), content.pop("version", None)) != (
        _FORMAT,
        _VERSION,
    ):
        raise UserError(another)
    meta: StoreMeta = dataclass_from(StoreMeta, content, str(path))
    if len(meta.truncated) != meta.shards:
        raise UserError(another)
    return meta


def _check_same(folder: Path, found: StoreMeta, wanted: StoreMeta) -> None:
    if found.model_fingerprint != wanted.model_fingerprint:
        raise UserError(
            f"{folder}: holds embeddings of another model ({found.model}) than {wanted.model}; give another --out folder"
        )
    if found.side != wanted.side or found.texts_fingerprint != wanted.texts_fingerprint:
        raise UserError(f"{folder}: holds embeddings of other texts ({found.side}s); give another --out folder")
    for name in ("dtype", "compute", "shard_rows"):
        if getattr(found, name) != getattr(wanted, name):
            option = "--" + name.replace("_", "-")
            raise UserError(
                f"{folder}: was begun with {option} {getattr(found, name)}, not {getattr(wanted, name)}; "
                "use that again, or give another --out folder"
            )


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0]
