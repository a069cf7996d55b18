"""Texts on disk, mapped into memory: tens of millions of passages or training queries."""

import hashlib
import itertools
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, SupportsIndex, overload

import numpy as np

from jaxretr.data.arrays import map_rows, read_array, write_header
from jaxretr.runtime.storage.files import atomic_write, sha256

QUERIES = "queries"
"""The name of the texts of a `QueryStore`."""

# Offsets that are buffered before they are written.
_BUFFERED = 1 << 16

# Texts that are decoded at a time when all are read.
_DECODED = 10_000


class MappedTexts(Sequence[str]):
    """N texts in two files: a text takes no memory of the process until it is read.

    NAME.bin has their UTF-8 bytes, one text after another, NAME-offsets.npy the place where each begins, and where the
    last ends, int64 [N + 1]. `write_texts` makes them.
    """

    def __init__(self, folder: str | Path, name: str, remedy: str):
        """Open the files.

        Raises:
          UserError: one is missing or damaged; it ends with the remedy.
        """
        self._texts, self._places = texts_files(folder, name)
        offsets = read_array(self._places, np.int64, (None,), remedy)
        # Plain arrays over the same memory, which are faster to slice than memmap objects.
        self._offsets = np.asarray(offsets)
        self._bytes = np.asarray(map_rows(self._texts, offsets, np.uint8, remedy))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} texts)"

    @overload
    def __getitem__(self, place: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> str | list[str]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return self._some(start, stop) if step == 1 else [self[at] for at in range(start, stop, step)]
        at = range(len(self))[place]  # Counts from the end if it is negative; raises IndexError.
        return self._bytes[self._offsets[at] : self._offsets[at + 1]].tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _DECODED):
            yield from self._some(start, min(start + _DECODED, len(self)))

    def _some(self, start: int, stop: int) -> list[str]:
        if start >= stop:
            return []
        offsets = self._offsets[start : stop + 1].tolist()
        content = self._bytes[offsets[0] : offsets[-1]].tobytes()
        places = itertools.pairwise(offset - offsets[0] for offset in offsets)
        return [content[first:last].decode("utf-8", "surrogatepass") for first, last in places]

    def fingerprint(self) -> str:
        """Return a sha256 (hexadecimal) over the texts."""
        digest = hashlib.sha256()
        for path in (self._places, self._texts):
            digest.update(bytes.fromhex(sha256(path)))
        return digest.hexdigest()


class QueryStore(MappedTexts):
    """The texts queries.bin and queries-offsets.npy of a folder."""

    def __init__(self, folder: str | Path):
        """Open a store.

        Raises:
          UserError: a file of it is missing or damaged.
        """
        super().__init__(folder, QUERIES, "make the queries again")


class TextsWriter:
    """Writes texts one after another: their UTF-8 bytes, and where each begins, int64 [N + 1]."""

    def __init__(self, texts: IO[bytes], offsets: IO[bytes]):
        self._texts, self._offsets = texts, offsets
        self._unwritten = array("q", [0])
        self._bytes = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, text: str) -> None:
        """Add a text; half a surrogate pair, which JSON may contain, is kept as it is."""
        self._bytes += self._texts.write(text.encode("utf-8", "surrogatepass"))
        self._count += 1
        self._unwritten.append(self._bytes)
        if len(self._unwritten) >= _BUFFERED:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        self._offsets.write(np.frombuffer(self._unwritten, np.int64).astype("<i8").tobytes())
        self._unwritten = array("q")


def texts_files(folder: str | Path, name: str) -> tuple[Path, Path]:
    """The files of the texts of this name in a folder, and of their offsets."""
    return Path(folder) / f"{name}.bin", Path(folder) / f"{name}-offsets.npy"


@contextmanager
def write_texts(folder: str | Path, name: str = QUERIES) -> Iterator[TextsWriter]:
    """Write texts one by one; their files appear when the block ends, and not at all if it fails.

    Args:
      folder: created if missing; texts of this name in it are replaced.
      name: the name of the files.

    Yields:
      The writer.
    """
    of_texts, of_offsets = texts_files(folder, name)
    with atomic_write(of_texts, "wb") as texts, atomic_write(of_offsets, "wb") as offsets:
        # numpy pads the header for any number of rows, so the last header fits in the place of the first.
        write_header(offsets, (1,), np.int64)
        yield (writer := TextsWriter(texts, offsets))
        writer.flush()
        offsets.seek(0)
        write_header(offsets, (len(writer) + 1,), np.int64)
