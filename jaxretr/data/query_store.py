"""Texts on disk, mapped into memory: for tens of millions of training queries."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, SupportsIndex, overload

import numpy as np

from jaxretr.errors import UserError
from jaxretr.storage.files import atomic_write

TEXTS = "queries.bin"
OFFSETS = "queries-offsets.npy"

# Offsets that wait to be written.
_BUFFERED = 1 << 16


class QueryStore(Sequence[str]):
    """Texts in a folder: queries.bin (UTF-8, one behind the other) and queries-offsets.npy (int64 [Q + 1]).

    Both are mapped into memory, so a query takes no memory of the process until it is asked for. Make one with
    `write_queries`.
    """

    def __init__(self, folder: str | Path):
        """Opens a store.

        Raises:
          UserError: a file of it is missing or damaged.
        """
        self.folder = Path(folder)
        try:
            offsets = np.load(self.folder / OFFSETS, mmap_mode="r", allow_pickle=False)
            size = (self.folder / TEXTS).stat().st_size
            if offsets.ndim != 1 or offsets.dtype != np.int64 or not len(offsets):
                raise ValueError(f"{OFFSETS} holds {offsets.dtype} {list(offsets.shape)}")
            if offsets[0] != 0 or offsets[-1] != size:
                raise ValueError(f"{TEXTS} has {size} bytes, not {offsets[-1]}")
            # An empty file cannot be mapped.
            texts = np.memmap(self.folder / TEXTS, np.uint8, "r") if size else np.empty(0, np.uint8)
        except (OSError, ValueError, EOFError) as error:
            what = " ".join(str(getattr(error, "strerror", None) or error).split())
            where = self.folder if not isinstance(error, OSError) or error.filename is None else error.filename
            raise UserError(f"{where}: no whole store of queries ({what}); make it again") from error
        # The same memory; cutting a plain array is faster than cutting a memmap object.
        self._offsets, self._bytes = np.asarray(offsets), np.asarray(texts)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, i: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: SupportsIndex | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[at] for at in range(*i.indices(len(self)))]
        at = range(len(self))[i]  # from the end where it is negative; IndexError where there is none
        return self._bytes[self._offsets[at] : self._offsets[at + 1]].tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _BUFFERED):
            yield from self[start : start + _BUFFERED]

    def fingerprint(self) -> str:
        """Returns a sha256 (hexadecimal) over the texts."""
        digest = hashlib.sha256()
        for name in (OFFSETS, TEXTS):
            with open(self.folder / name, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()


class QueryStoreWriter:
    """Takes the texts of a store that `write_queries` makes."""

    def __init__(self, texts: IO[bytes], offsets: IO[bytes]):
        self._texts, self._offsets = texts, offsets
        self._unwritten = array("q", [0])
        self._bytes = 0
        self._count = 0
        self._write_header()

    def __len__(self) -> int:
        return self._count

    def append(self, text: str) -> None:
        """Adds a text behind the others; half a surrogate pair, as JSON may hold, is kept as it is."""
        self._bytes += self._texts.write(text.encode("utf-8", "surrogatepass"))
        self._count += 1
        self._unwritten.append(self._bytes)
        if len(self._unwritten) >= _BUFFERED:
            self._flush()

    def finish(self) -> None:
        """Writes what is left, and the header for the number of texts that there are."""
        self._flush()
        self._offsets.seek(0)
        self._write_header()

    def _flush(self) -> None:
        self._offsets.write(np.frombuffer(self._unwritten, np.int64).astype("<i8").tobytes())
        self._unwritten = array("q")

    def _write_header(self) -> None:
        # numpy pads a header for any number of rows, so the last one fits in the first one's place.
        header: dict[str, Any] = {"descr": "<i8", "fortran_order": False, "shape": (self._count + 1,)}
        np.lib.format.write_array_header_1_0(self._offsets, header)


@contextmanager
def write_queries(folder: str | Path) -> Iterator[QueryStoreWriter]:
    """Writes a store text by text; its files are there when the block ends, and not at all when it fails.

    Args:
      folder: made when missing; a store that it holds is replaced.

    Yields:
      What takes the texts.
    """
    folder = Path(folder)
    with atomic_write(folder / TEXTS, "wb") as texts, atomic_write(folder / OFFSETS, "wb") as offsets:
        writer = QueryStoreWriter(texts, offsets)
        yield writer
        writer.finish()
