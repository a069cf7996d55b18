"""The folder of a training run, which may lie in a bucket.

What a run writes while it trains (config.json, metrics.jsonl, TensorBoard's events, the best model, a failed step) is
appended to, renamed and written in parts, which no bucket can. So of a run in a bucket these files live in a local
folder, and `push` copies what has changed into the bucket: before each checkpoint is begun, and when the run ends, well
or not. Lines that a killed run had not pushed belong to steps after its newest checkpoint, which are run again.
Checkpoints themselves go straight to the bucket, from every host. Token stores, which are read through memory maps, are
not copied: they stay in the local folder and are made again where that is another machine's. So do the files of Weights &
Biases.
"""

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType

from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.copies import clear, fetch, put_folder, remove
from jaxretr.runtime.storage.files import sha256
from jaxretr.runtime.storage.paths import as_path, cache_folder, files_below, is_remote

# Files that all processes of a run read when it resumes.
_READ = ("config.json", "best.json", "environment.json", "metrics.jsonl", "trackers.json", "inputs.json")

# Token stores, and those of the text objectives: read through memory maps, and made from the data at any time. And what
# Weights & Biases keeps, whose own process changes and removes files at any time.
_LOCAL = ("tokens", "data", "wandb")

_MODEL = "model/"

# The first of these in a model's folder vouches for the rest.
_MARKERS = ("model/jaxretr.json", "model/config.json")


class RunFolder:
    """A run's folder, as the user named it, and the places of its files.

    Args:
      workdir: the folder, as the user gave it.
      writes: whether this process is the one that writes.
      reads: names below the folder that are fetched besides what every run needs.

    Attributes:
      local: the folder in which files are read and written: `workdir` itself, unless that is in a bucket.
      checkpoints: the folder of the checkpoints, in the bucket or not.
    """

    def __init__(self, workdir: str | Path, *, writes: bool, reads: tuple[str, ...] = ()):
        self.workdir = as_path(workdir)
        self.checkpoints = self.workdir / "checkpoints"
        self._mirrored = is_remote(self.workdir)
        self._pushes = self._mirrored and writes
        self.local = cache_folder("runs", self.workdir) if self._mirrored else self.workdir
        # Name -> (the file system's facts about the local file, the sha256 of the object in the bucket)
        self._pushed: dict[str, tuple[tuple[int, ...], str]] = {}
        self._lock: int | None = None
        if self._mirrored:
            self._pull(reads)

    def __str__(self) -> str:
        return str(self.workdir)

    def lock(self) -> None:
        """Keep other runs out of the local folder, which exists, until this one ends, however it ends.

        Raises:
          UserError: another run is writing there.
        """
        file = os.open(self.local, os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise UserError(
                f"{self}: another process is training in this folder; wait until it has ended, or pass another workdir="
            ) from None
        except OSError:  # Some network file systems lock no folders.
            os.close(file)
        else:
            self._lock = file

    def push(self) -> None:
        """Copy changed files into the bucket; do nothing for a local run, and in processes that only read."""
        if not self._pushes:
            return
        names = self._names()
        found = self._changed(names)
        # The note of the best evaluation comes after the model that it describes.
        self._push_model([name for name in found if name.startswith(_MODEL)], names)
        for best in (False, True):
            chosen = [name for name in found if not name.startswith(_MODEL) and (name == "best.json") == best]
            put_folder(self.local, self.workdir, chosen, None)
        self._pushed.update(found)

    def _push_model(self, changed: list[str], names: set[str]) -> None:
        """Copy a changed model; mostly only the weights differ, one object that is replaced as a whole."""
        if not changed:
            return
        gone = [name for name in self._pushed if name.startswith(_MODEL) and name not in names]
        marker = next((name for name in _MARKERS if name in names), None)
        if marker and len(changed) + len(gone) > 1:
            remove([self.workdir / marker])
            changed = [*(name for name in changed if name != marker), marker]
        remove(self.workdir / name for name in gone)
        put_folder(self.local, self.workdir, changed, marker)
        for name in gone:
            del self._pushed[name]

    def _pull(self, reads: tuple[str, ...]) -> None:
        """Make the local folder equal to the bucket's, and remove an earlier run's files."""
        try:
            self.local.mkdir(parents=True, exist_ok=True)
            if self._pushes:
                clear(self.local, keep=_LOCAL)
        except OSError as error:
            raise UserError(
                f"{self.local}: cannot be written ({error.strerror}), where the files of {self} lie until they are copied; "
                "set JAXRETR_CACHE to another folder"
            ) from error
        there = {self._name(path): path for path in files_below(self.workdir)}
        for name in _READ:
            if name not in there:
                (self.local / name).unlink(missing_ok=True)
        for name, path in there.items():
            if name in _READ or name.split("/")[0] in reads:
                fetch(path, self.local / name)
                self._pushed[name] = (self._state(name), sha256(self.local / name))
            elif self._pushes and name.startswith(_MODEL):
                # Note the hashes, so that only files of the next model that differ are written. Its weights always do.
                self._pushed[name] = ((), "" if name.endswith(".safetensors") else sha256(path))

    def _changed(self, names: set[str]) -> dict[str, tuple[tuple[int, ...], str]]:
        found = {}
        for name in sorted(names):
            known, state = self._pushed.get(name, ((), "")), self._state(name)
            if state == known[0]:
                continue
            content = sha256(self.local / name)
            if content == known[1]:
                self._pushed[name] = (state, content)
            else:
                found[name] = (state, content)
        return found

    def _names(self) -> set[str]:
        """The files that belong in the bucket; hidden ones are still being written."""
        entries = [entry for entry in self.local.iterdir() if entry.name not in _LOCAL]
        paths = [path for entry in entries for path in (files_below(entry) if entry.is_dir() else [entry])]
        names = [path.relative_to(self.local) for path in paths]
        return {str(name) for name in names if not any(part.startswith(".") for part in name.parts)}

    def _state(self, name: str) -> tuple[int, ...]:
        facts = os.stat(self.local / name)
        return facts.st_size, facts.st_mtime_ns, facts.st_ino

    def _name(self, path: Path) -> str:
        return str(path)[len(str(self.workdir).rstrip("/")) + 1 :]

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            # Closing alone would leave the lock to a process that another thread has just forked.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
        if not self._mirrored:
            return
        if error is None:
            self.push()
            return
        # The first error is the one to report.
        with contextlib.suppress(UserError, OSError):
            self.push()
        if isinstance(error, UserError) and str(self.local) in str(error) and not _is_full(error.__cause__):
            raise type(error)(str(error).replace(str(self.local), str(self))) from error


def _is_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
