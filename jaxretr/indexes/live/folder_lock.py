"""The lock of a live folder: only one process may use it."""

import contextlib
import fcntl
import os
from pathlib import Path

from jaxretr.runtime.errors import UserError

LOCK = "live.lock"


class FolderLock:
    """A lock from `acquire` to `release`; the system releases it when the process ends, however it ends."""

    def __init__(self, file: int):
        """Use `acquire`."""
        self._file: int | None = file

    @classmethod
    def acquire(cls, folder: Path) -> "FolderLock":
        """Lock a folder for this process.

        Raises:
          UserError: another process has it, or the folder cannot be written.
        """
        path = folder / LOCK
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be written ({error.strerror}); choose a folder you may write to"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(file, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(file)
            raise UserError(
                f"{folder}: process {holder} is writing this live index; only one can, since each searches its own copy "
                "in memory without the others' writes: run a single worker, stop that process, or send it the writes over HTTP"
            ) from None
        with contextlib.suppress(OSError):  # The lock holds on a full disk too; only the number is missing.
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        return cls(file)

    def release(self) -> None:
        """Release the folder for other processes; a second call does nothing."""
        if self._file is not None:
            # Closing alone would leave the lock to a process that another thread has just forked, until that executes.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = None
