"""Files of a bucket that are read through memory maps: local copies, each compared with its sha256, that come and go."""

import os
import shutil
import threading
from pathlib import Path

from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.copies import fetch
from jaxretr.runtime.storage.files import sha256
from jaxretr.runtime.storage.paths import cache_folder

_GIB = 2**30


class ShardCache:
    """Local copies of the files of one folder in a bucket.

    If all of them take at most half of the disk's free space (or JAXRETR_STORE_CACHE_GIB), they stay, and the next
    process finds them. Otherwise only the last few do, and the rest is fetched again where it is read again: a search
    by streaming needs two shards at a time, the one it reads and the one that comes. A file that is removed while it is
    mapped into memory stays readable until it is not any more.

    Args:
      folder: the folder in the bucket.
      size: bytes of all its files together.
    """

    def __init__(self, folder: Path, size: int):
        self._remote, self._local = folder, cache_folder("stores", folder)
        self._size, self._keeps = size, True
        self._whole: dict[str, str] = {}
        self._recent: list[tuple[str, ...]] = []
        self._lock = threading.Lock()

    def get(self, digests: dict[str, str], remedy: str) -> list[Path]:
        """Get local copies of files that are used together; fetches those that are missing or damaged.

        Args:
          digests: name -> the sha256 that the file was written with.
          remedy: the remedy that errors state.

        Raises:
          UserError: a file is missing in the bucket, was changed there, or cannot be copied.
        """
        with self._lock:
            names = tuple(digests)
            if names not in self._recent:
                if not self._recent:
                    self._keeps = self._size <= self._allowed()
                self._recent.append(names)
                if not self._keeps:
                    for old in self._recent[:-2]:
                        self._forget(old)
                    self._recent = self._recent[-2:]
            return [self._one(name, digest, remedy) for name, digest in digests.items()]

    def _one(self, name: str, digest: str, remedy: str) -> Path:
        local = self._local / name
        if self._whole.get(name) == digest and local.is_file():
            return local
        if not (local.is_file() and sha256(local) == digest):
            try:
                fetch(self._remote / name, local)
            except FileNotFoundError:
                raise UserError(f"{self._remote}: {name} is missing; {remedy}") from None
            if sha256(local) != digest:
                local.unlink(missing_ok=True)
                raise UserError(f"{self._remote}: {name} was changed; {remedy}")
        self._whole[name] = digest
        return local

    def _forget(self, names: tuple[str, ...]) -> None:
        for name in names:
            (self._local / name).unlink(missing_ok=True)
            self._whole.pop(name, None)

    def _allowed(self) -> float:
        """The most bytes of copies that may stay."""
        stated = os.environ.get("JAXRETR_STORE_CACHE_GIB", "")
        if stated:
            try:
                return float(stated) * _GIB
            except ValueError:
                raise UserError(f"JAXRETR_STORE_CACHE_GIB={stated}: give a number") from None
        existing = next(folder for folder in (self._local, *self._local.parents) if folder.is_dir())
        there = sum(entry.stat().st_size for entry in self._local.iterdir()) if self._local.is_dir() else 0
        return (shutil.disk_usage(existing).free + there) / 2
