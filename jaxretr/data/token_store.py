"""Token ids on disk: tokenised once, then memory-mapped, keyed by everything that decides their content."""

import functools
import hashlib
import json
import random
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxretr.data.arrays import map_rows, read_array, read_chunk, write_chunk, write_npy
from jaxretr.data.corpus import Corpus, content_fingerprint
from jaxretr.data.prompts import Prompt, RowPrompts
from jaxretr.data.tokens import (
    Rows,
    Template,
    template_rows,
    tokenizer_fingerprint,
    vocabulary_size,
)
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.progress import Progress
from jaxretr.runtime.storage.files import AGAIN, atomic_write, made_once, write_json
from jaxretr.runtime.storage.sealed_folder import read_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FORMAT_VERSION = 1

# Rows whose ids are counted at a time.
_COUNTED_ROWS = 65_536


def ids_dtype(vocabulary: int) -> np.dtype:
    """Return the dtype of the stored ids for a vocabulary of this size."""
    return np.dtype(np.uint16 if vocabulary <= 65535 else np.int32)


class TokenStore:
    """Rows of token ids of different lengths in a folder, mapped into memory.

    The folder contains ids.bin (all rows, concatenated), offsets.npy (int64 [N+1], where each row begins) and
    meta.json. `build` makes one, or opens it if it exists.

    Attributes:
      folder: its folder.
      num_rows: N.
      ids: the ids of all rows, one row after another, in the store's dtype.
      offsets: the beginning of each row, and the end of the last, int64 [N+1].
      max_row_length: the number of ids of the longest row.
      lengths: the number of ids of every row, int32 [N].
      truncated: rows that lost ids to the length limit when the store was built.
      dtype: uint16 if the vocabulary has at most 65,535 entries, otherwise int32.
    """

    def __init__(self, folder: str | Path):
        """Open a store.

        Raises:
          UserError: there is none, or a file of it is damaged or cannot be read.
        """
        self.folder = Path(folder)
        path = self.folder / "meta.json"
        meta = read_object(path, AGAIN)
        try:
            self.dtype, rows, count = np.dtype(meta["dtype"]), int(meta["num_rows"]), int(meta["num_ids"])
            self.truncated = int(meta["truncated"])
            if meta["format"] != _FORMAT_VERSION or self.dtype not in (np.uint16, np.int32):
                raise ValueError("it is of another format")
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: does not describe a token store ({error}); {AGAIN}") from error
        self.content = str(meta.get("content", self.folder.name))
        self.offsets = read_array(self.folder / "offsets.npy", np.int64, (rows + 1,), AGAIN, mapped=False)
        self.ids = map_rows(self.folder / "ids.bin", self.offsets, self.dtype, AGAIN)
        steps = np.diff(self.offsets)
        if len(self.ids) != count or (steps < 0).any():
            raise UserError(f"{self.folder / 'offsets.npy'}: has wrong values; {AGAIN}")
        self.lengths = steps.astype(np.int32)
        self.num_rows = len(self.lengths)
        self.max_row_length = int(self.lengths.max(initial=0))

    @classmethod
    def build(
        cls,
        folder_root: str | Path,
        content: Corpus | Sequence[str],
        tokenizer: "PreTrainedTokenizerBase",
        template: Template,
        max_length: int,
        *,
        prompt: Prompt = "",
        workers: int | None = None,
        chunk_rows: int = 50_000,
    ) -> "TokenStore":
        """Tokenise a corpus or questions, or open the store if that is done already.

        The store's folder is named by a sha256 of content, tokenizer, template, length, prompt and format, so a change of
        any of them makes another store. Finished chunks are kept next to it until it is complete: a killed build
        continues after them. Several processes may build the same store at once, and share its chunks.

        Args:
          folder_root: the folder of all stores; created if missing.
          content: a corpus for the passage templates, texts for the question templates.
          tokenizer: a tokenizer that `load_tokenizer` gave.
          max_length: the most ids of a row.
          prompt: the text to put before every text (see `template_rows`); T5's templates take none.
          workers: chunks in progress at once. The Rust library uses all cores for each chunk; a second worker (the
            default) keeps it busy while the first turns its ids into arrays.
          chunk_rows: rows per chunk, which is the most that a kill loses.

        Raises:
          UserError: the folder cannot be written; finished chunks remain, nothing half-written does.
          UsageError: `chunk_rows` or `workers` below 1.
        """
        template = Template(template)
        columns, fingerprint = _columns(content, template)
        if chunk_rows < 1 or (workers is not None and workers < 1):
            raise UsageError(f"{chunk_rows} rows a chunk, {workers} workers; use at least 1 of each")
        what = {
            "format": _FORMAT_VERSION,
            "content": fingerprint,
            "tokenizer": tokenizer_fingerprint(tokenizer),
            "template": str(template),
            "max_length": max_length,
            **({"prompt": prompt.blocks if isinstance(prompt, RowPrompts) else prompt} if prompt else {}),
        }
        key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
        target = Path(folder_root).expanduser() / key
        parts = target.with_name(f"{key}.parts")
        build = _Build(parts, columns, tokenizer, template, max_length, prompt, chunk_rows, workers or 2)

        def make(partial: Path) -> None:
            build.tokenise()
            build.assemble(partial, what)

        store = made_once(target, cls, make)
        shutil.rmtree(parts, ignore_errors=True)
        return store

    def __len__(self) -> int:
        return self.num_rows

    def row(self, i: int) -> np.ndarray:
        """Return the ids of row i, in the store's dtype; the array is a read-only view of the file."""
        if not 0 <= i < self.num_rows:
            raise IndexError(f"row {i} of {self.num_rows}")
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def select(self, rows: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return some rows as a rectangle: tokens [n, width] in the store's dtype, padded with 0, lengths int32 [n]."""
        tokens = np.zeros((len(rows), width), self.dtype)
        lengths = self.lengths[rows]
        tokens[np.arange(width) < lengths[:, None]] = np.concatenate([self.row(int(row)) for row in rows])
        return tokens, lengths

    def padded(self, start: int, stop: int, width: int, pad_id: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return rows start to stop as a rectangle; rows after the last are padding of length 0.

        Args:
          start: the first row.
          stop: one after the last row; may exceed `num_rows`.
          width: columns L; at least the longest of these rows.
          pad_id: the id that fills the rest of each row.

        Returns:
          tokens [stop - start, width] in the store's dtype, lengths int32 [stop - start].
        """
        if not 0 <= start <= stop:
            raise ValueError(f"rows {start} to {stop}: not a range")
        first, last = min(start, self.num_rows), min(stop, self.num_rows)
        lengths = np.zeros(stop - start, np.int32)
        lengths[: last - first] = self.lengths[first:last]
        if lengths.max(initial=0) > width:
            longest = start + int(lengths.argmax())
            raise ValueError(f"row {longest} has {lengths.max()} ids, more than the width {width}")
        tokens = np.full((stop - start, width), pad_id, self.dtype)
        # Row-major order on both sides: the ids fall into their places without a loop.
        filled = np.arange(width) < lengths[:, None]
        tokens[filled] = self.ids[self.offsets[first] : self.offsets[last]]
        return tokens, lengths


# ---- reading rows ----------------------------------------------------------------------------------------------------


def random_windows(
    store: TokenStore, rows: np.ndarray, width: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Read documents for a language model; of one longer than `width` a window, drawn in each call.

    Args:
      store: documents that begin and end with a special token ([CLS], [SEP]), which every window keeps.
      rows: the rows to read, int [B].
      width: L, the most ids of a row.
      rng: draws the beginnings of windows, all places equally likely.

    Returns:
      tokens [B, L] in the store's dtype, padded with 0 on the right, and lengths int32 [B].
    """
    tokens, lengths = np.zeros((len(rows), width), store.dtype), np.zeros(len(rows), np.int32)
    begins = rng.random(len(rows))  # One draw a row, so that a document's length moves no other's window.
    for number, row in enumerate(rows):
        ids = store.row(int(row))
        if (spare := len(ids) - width) > 0:
            begin = 1 + int(begins[number] * (spare + 1))
            ids = np.concatenate([ids[:1], ids[begin : begin + width - 2], ids[-1:]])
        tokens[number, : len(ids)], lengths[number] = ids, len(ids)
    return tokens, lengths


def document_frequencies(store: TokenStore, vocabulary: int) -> np.ndarray:
    """Count the rows that contain each id, int64 [V].

    Args:
      store: rows of ids below `vocabulary`.
      vocabulary: V.
    """
    counts = np.zeros(vocabulary, np.int64)
    width = max(1, store.max_row_length)
    for start in range(0, len(store), _COUNTED_ROWS):
        stop = min(start + _COUNTED_ROWS, len(store))
        tokens, lengths = store.padded(start, stop, width)
        # After a row's end its first id is repeated, which counts once anyway. Empty rows count nothing.
        tokens, lengths = tokens[lengths > 0], lengths[lengths > 0]
        filled = np.sort(np.where(np.arange(width) < lengths[:, None], tokens, tokens[:, :1]), axis=1)
        first = np.ones(filled.shape, bool)
        first[:, 1:] = filled[:, 1:] != filled[:, :-1]
        counts += np.bincount(filled[first], minlength=vocabulary)
    return counts


# ---- building --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Build:
    """One build of one store: chunks into `parts`, then all of them into the store's folder."""

    parts: Path
    columns: tuple[Sequence[str], ...]
    tokenizer: "PreTrainedTokenizerBase"
    template: Template
    max_length: int
    prompt: Prompt
    chunk_rows: int
    workers: int

    @functools.cached_property
    def dtype(self) -> np.dtype:
        return ids_dtype(vocabulary_size(self.tokenizer))

    @property
    def num_rows(self) -> int:
        return len(self.columns[0])

    def _read(self, start: int) -> tuple[np.ndarray, int, np.ndarray] | None:
        """Return (lengths, truncated, ids) of the chunk from this row on; None where it is missing or damaged."""
        wanted = (np.int32, (self._stop(start) - start,)), (np.int64, (1,)), (self.dtype, (None,))
        found = read_chunk(self._part(start), *wanted)
        if found is None or found[0].sum() != len(found[2]):
            return None
        return found[0], int(found[1][0]), found[2]

    def _part(self, start: int) -> Path:
        return self.parts / f"{start:012d}-{self._stop(start):012d}.npys"

    def _stop(self, start: int) -> int:
        return min(start + self.chunk_rows, self.num_rows)

    def _rows(self, start: int, stop: int) -> Rows:
        columns = [column[start:stop] for column in self.columns]
        prompt = self.prompt if isinstance(self.prompt, str) else self.prompt[start:stop]
        return template_rows(self.template, self.tokenizer, columns, self.max_length, prompt)

    def tokenise(self) -> None:
        """Write the chunks that are missing."""
        # No rows yet: an unsuitable tokenizer or length fails before anything is written, and the tokenizer is set up
        # before several threads use it.
        self._rows(0, 0)
        missing = [start for start in range(0, self.num_rows, self.chunk_rows) if self._read(start) is None]
        # Each process takes them in another order, so that they meet only at the end.
        random.SystemRandom().shuffle(missing)
        with Progress(self.num_rows, "row", "tokenised") as shown:
            if missing:
                shown.skip(self.num_rows - sum(self._stop(start) - start for start in missing))
            pool = ThreadPoolExecutor(self.workers)
            try:
                for done in as_completed([pool.submit(self._tokenise_chunk, start) for start in missing]):
                    shown.advance(done.result())
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _tokenise_chunk(self, start: int) -> int:
        if self._read(start) is None:
            rows = self._rows(start, self._stop(start))
            lengths = np.fromiter(map(len, rows.ids), np.int32, len(rows.ids))
            ids = np.fromiter(chain.from_iterable(rows.ids), self.dtype, int(lengths.sum()))
            write_chunk(self._part(start), lengths, np.array([rows.truncated], np.int64), ids)
        return self._stop(start) - start

    def assemble(self, folder: Path, what: dict) -> None:
        """Write the store of all chunks; `what`: the facts that name it."""
        lengths, truncated = [np.zeros(1, np.int64)], 0
        with atomic_write(folder / "ids.bin", "wb") as file:
            for start in range(0, self.num_rows, self.chunk_rows):
                if (part := self._read(start)) is None:
                    raise UserError(f"{self._part(start)}: was removed or damaged; build the store again")
                lengths.append(part[0])
                truncated += part[1]
                file.write(part[2].data)
        offsets = np.cumsum(np.concatenate(lengths), dtype=np.int64)
        with atomic_write(folder / "offsets.npy", "wb") as file:
            write_npy(file, offsets)
        meta = {
            "dtype": self.dtype.name,
            "num_rows": self.num_rows,
            "num_ids": int(offsets[-1]),
            "truncated": truncated,
        }
        write_json(folder / "meta.json", what | meta, indent=2)


def _columns(content: Corpus | Sequence[str], template: Template) -> tuple[tuple[Sequence[str], ...], str]:
    if isinstance(content, Corpus) != template.reads_passages or isinstance(content, str):
        needed = "a Corpus" if template.reads_passages else "a list of texts"
        raise TypeError(f"the template {template} is made of {needed}, not of a {type(content).__name__}")
    if isinstance(content, Corpus):
        return (content.titles, content.texts), content.fingerprint()
    return (content,), content_fingerprint(content)
