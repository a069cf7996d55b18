"""The hashes of a run's checkpoints, so that one whose files have changed or disappeared since is not resumed from."""

import contextlib
import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.paths import is_remote, move
from jaxretr.runtime.storage.sealed_folder import changes, hashes, names, read_record, write_record

log = logging.getLogger(__name__)


class CheckpointSeals:
    """One file of hashes for each checkpoint `FOLDER/STEP`, next to them: `FOLDER.sha256/STEP.json`.

    Hashing runs in a thread. A checkpoint that has no seal, since its run was killed before it got one, cannot be
    told from a whole one here; Orbax takes care that it was written to the end. In a bucket hashing reads every object
    back, once after it was written and once when a run resumes from it.
    """

    def __init__(self, folder: Path):
        self._folder, self._seals = folder, folder.with_name(f"{folder.name}.sha256")
        self._thread = ThreadPoolExecutor(1, "jaxretr-seal")
        # Orbax's thread and the run's own ask for the same checkpoint.
        self._lock = threading.Lock()
        self._begun: dict[int, Future] = {}

    def seal(self, steps: list[int]) -> None:
        """Begin to hash the given complete checkpoints that have no seal, and remove the seals of others."""
        for step in steps:
            self.begin(step)
        for path in self._seals.glob("*.json"):
            if path.stem.isdecimal() and int(path.stem) not in steps:
                path.unlink(missing_ok=True)

    def begin(self, step: int) -> None:
        """Begin to hash a complete checkpoint, unless it has a seal or that was begun; does nothing once closed."""
        with self._lock:
            if step not in self._begun:
                with contextlib.suppress(RuntimeError):  # Closed, or the interpreter ends.
                    self._begun[step] = self._thread.submit(self._seal, step)

    def wait(self) -> None:
        """Wait until everything that was begun is sealed.

        Raises:
          OSError: a seal cannot be written, or a checkpoint not be read.
        """
        for future in list(self._begun.values()):
            future.result()

    def close(self) -> None:
        """End the thread, after the checkpoint that it is hashing; those that wait for it get no seal."""
        self._thread.shutdown(cancel_futures=True)

    def set_damaged_aside(self) -> None:
        """Move the newest checkpoints out of the way until one fits its seal (or has none); lose nothing."""
        steps = [int(path.name) for path in self._folder.glob("*") if path.name.isdecimal() and _is_complete(path)]
        for step in sorted(steps, reverse=True):
            problem = self._problem(step)
            if problem is None:
                return
            aside = self._folder.with_name(f"{self._folder.name}.damaged") / f"{step}-{time.time_ns()}"
            move(self._folder / str(step), aside)
            self._path(step).unlink(missing_ok=True)
            log.warning("%s: %s; moved to %s, and the one before is used", self._folder / str(step), problem, aside)

    def _path(self, step: int) -> Path:
        return self._seals / f"{step}.json"

    def _seal(self, step: int) -> None:
        if self._path(step).exists():
            return
        # A checkpoint that is no longer kept may go while it is read.
        with contextlib.suppress(FileNotFoundError):
            checkpoint = self._folder / str(step)
            write_record(self._path(step), {"files": hashes(checkpoint, names(checkpoint))})

    def _problem(self, step: int) -> str | None:
        path = self._path(step)
        if not path.exists():
            return None
        try:
            wanted = read_record(path, "")["files"]
            if not isinstance(wanted, dict):
                raise UserError(f"{path}: names no files")
        except (UserError, KeyError):
            log.warning("%s: was damaged; the checkpoint is taken as it is", path)
            return None
        return next(iter(changes(self._folder / str(step), wanted)), None)


def _is_complete(checkpoint: Path) -> bool:
    # In a bucket it has its final name while it is written; Orbax writes this object last.
    return (checkpoint / "commit_success.txt").exists() if is_remote(checkpoint) else checkpoint.is_dir()
