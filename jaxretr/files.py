"""Files that are whole or absent: every writer of this package goes through `atomic_write`."""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

from jaxretr.errors import UserError
from jaxretr.storage import copies
from jaxretr.storage.paths import is_remote
from jaxretr.storage.retries import is_transient, retried

_REMEDIES = {
    errno.ENOSPC: "free some space there or choose another place",
    errno.EDQUOT: "free some of your quota or choose another place",
    errno.EFBIG: "choose a file system that takes a file of this size",
    errno.EIO: "check the disk or choose another place",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.ENOENT: "choose a folder in which files can be made",
    errno.EROFS: "choose a folder that you may write to",
    errno.ENOTDIR: "a part of the path is a file: choose another path",
    errno.EEXIST: "a part of the path is a file: choose another path",
    errno.EISDIR: "it is a folder: name a file",
    errno.ENAMETOOLONG: "choose a shorter name",
}


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """Opens a file for writing that appears under its name only when it is complete.

    The bytes go to a hidden file beside `path`, which is renamed when the block ends. When the block fails, or the
    process is killed, an older file under that name is as it was. Missing folders are made. Something that is no
    regular file (`/dev/stdout`, a named pipe) is written to directly. In a bucket an object appears whole by itself:
    the bytes go to a temporary file, which is uploaded when the block ends well.

    Args:
      path: where the file shall be; a symbolic link is followed. Or gs://... or s3://...
      mode: "w" for text (UTF-8, "\\n" line ends) or "wb" for bytes.

    Yields:
      The open file.

    Raises:
      UserError: the file cannot be written (no space, no permission, a folder of that name); one line that names
        `path` and what to do. Errors of the block itself pass through unchanged.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"mode must be 'w' or 'wb', not {mode!r}")
    encoding, newline = (None, None) if mode == "wb" else ("utf-8", "\n")
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="jaxretr-") as folder:
            local = Path(folder) / "object"
            with open(local, mode, encoding=encoding, newline=newline) as file:
                yield file
            copies.put(local, path)
        return
    target = _local_target(path)
    partial = target.parent / f".{target.name}.{secrets.token_hex(4)}.part"
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
        if target.exists() and not target.is_file():
            with open(target, mode, encoding=encoding, newline=newline) as file:
                yield file
            return
        retried(target, lambda: target.parent.mkdir(parents=True, exist_ok=True))
        try:
            # "x" and not tempfile: the file gets the permissions of the user's umask, not 0600.
            with open(partial, mode.replace("w", "x"), encoding=encoding, newline=newline) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            retried(target, lambda: os.replace(partial, target))
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
    except OSError as error:
        # An error that names another file is the block's own (say, its input is missing): not ours to explain.
        # A failed write names no file at all.
        ours = error.filename is None or _is_or_holds(Path(os.fsdecode(error.filename)), target, partial)
        if not ours or error.errno not in _REMEDIES:
            raise
        raise UserError(f"{path}: cannot be written ({error.strerror}); {_REMEDIES[error.errno]}") from error


def write_whole(
    path: str | os.PathLike[str], write: Callable[[IO[Any]], object], mode: Literal["w", "wb"] = "w"
) -> None:
    """`atomic_write` for what can be written again from the beginning, when a disk has failed for a moment.

    Args:
      path, mode: as there.
      write: writes all of it to the open file; may be called more than once.

    Raises:
      UserError: as there.
    """

    def attempt() -> None:
        with atomic_write(path, mode) as file:
            write(file)

    def passing(error: BaseException) -> bool:
        # In a bucket each request is tried again by itself.
        return not is_remote(path) and is_transient(error.__cause__ or error)

    retried(path, attempt, passing)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Makes a folder that appears under its name only when it is complete, in place of an older one of that name.

    Args:
      path: where the folder shall be; a symbolic link is followed. Look at what is there first: it will be gone.

    Yields:
      A hidden folder beside it, to be filled.

    Raises:
      UserError: it cannot be written; one line that names `path`. Other errors of the block pass through.
    """
    target = _local_target(path)
    partial = target.parent / f".{target.name}.{secrets.token_hex(4)}.part"
    try:
        partial.mkdir(parents=True)
        yield partial
        _put_in_place(partial, target)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); choose another place") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sha256(path: str | os.PathLike[str]) -> str:
    """Of a file or an object in a bucket, read in pieces; hexadecimal."""
    if is_remote(path):
        return copies.digest(path)

    def attempt() -> str:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return retried(path, attempt)


def _local_target(path: str | os.PathLike[str]) -> Path:
    """Where a local path leads. Others, of which `Path` keeps only one slash, must not become folders named "s3:"."""
    if bucket := re.search(r"(?:^|/)(gs|s3):/+(.+)", os.fspath(path)):
        raise UserError(
            f"{bucket[1]}://{bucket[2]}: this cannot be written to a bucket; give a local path, and copy it"
        )
    return Path(os.path.realpath(path))


def _put_in_place(partial: Path, folder: Path) -> None:
    if not folder.exists():
        os.rename(partial, folder)
        return
    old = partial.with_suffix(".old")
    os.rename(folder, old)
    try:
        os.rename(partial, folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _is_or_holds(named: Path, target: Path, partial: Path) -> bool:
    return named in (target, partial) or named in target.parents


def _sync_folder(folder: Path) -> None:
    """Makes a rename last through a power cut, where the file system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
