"""Texts on disk, mapped into memory: tens of millions of passages or training queries."""

import hashlib
import itertools
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, SupportsIndex, overload

import numpy as np

from jaxretr.data.arrays import read_array, write_header
from jaxretr.runtime.errors import UserError, reason
from jaxretr.runtime.storage.files import atomic_write

TEXTS = "queries.bin"
OFFSETS = "queries-offsets.npy"

_AGAIN = "make the queries again"

# Offsets that are buffered before they are written.
_BUFFERED = 1 << 16


# Texts that are decoded at a time when all are read.
_DECODED = 10_000


class MappedTexts(Sequence[str]):
    """N texts in two arrays, which may be mapped files: a text takes no memory of the process until it is read."""

    def __init__(self, offsets: np.ndarray, content: np.ndarray):
        """
        Args:
          offsets: the place where each text begins in `content`, and where the last ends, int64 [N + 1].
          content: the texts' UTF-8 bytes, uint8.
        """
        # A plain array over the same memory, which is faster to slice than a memmap object.
        self._offsets, self._bytes = np.asarray(offsets), np.asarray(content)

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


def mapped_bytes(path: Path, offsets: np.ndarray) -> np.ndarray:
    """Map the texts that these offsets divide, uint8; an empty file, which cannot be mapped, is an empty array.

    Raises:
      OSError, ValueError: the file cannot be read, or has another size.
    """
    size = path.stat().st_size
    end = int(offsets[-1]) if len(offsets) else -1
    if end != size or offsets[0] != 0:
        raise ValueError(f"{path.name} has {size} bytes, not {end}")
    return np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)


class QueryStore(MappedTexts):
    """Texts in a folder: queries.bin (UTF-8, concatenated) and queries-offsets.npy (int64 [Q + 1]).

    `write_queries` makes one.
    """

    def __init__(self, folder: str | Path):
        """Open a store.

        Raises:
          UserError: a file of it is missing or damaged.
        """
        self.folder = Path(folder)
        offsets = read_array(self.folder / OFFSETS, np.int64, (None,), _AGAIN)
        try:
            content = mapped_bytes(self.folder / TEXTS, offsets)
        except (OSError, ValueError) as error:
            raise UserError(f"{self.folder / TEXTS}: cannot be read ({reason(error)}); {_AGAIN}") from error
        super().__init__(offsets, content)

    def fingerprint(self) -> str:
        """Return a sha256 (hexadecimal) over the texts."""
        digest = hashlib.sha256()
        for name in (OFFSETS, TEXTS):
            with open(self.folder / name, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()


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


@contextmanager
def write_queries(folder: str | Path) -> Iterator[TextsWriter]:
    """Write a store text by text; its files appear when the block ends, and not at all if it fails.

    Args:
      folder: created if missing; a store in it is replaced.

    Yields:
      The writer.
    """
    folder = Path(folder)
    with atomic_write(folder / TEXTS, "wb") as texts, atomic_write(folder / OFFSETS, "wb") as offsets:
        # numpy pads the header for any number of rows, so the last header fits in the place of the first.
        write_header(offsets, (1,), np.int64)
        yield (writer := TextsWriter(texts, offsets))
        writer.flush()
        offsets.seek(0)
        write_header(offsets, (len(writer) + 1,), np.int64)
