"""Files and folders that are whole or absent, on a disk or in a bucket: `atomic_write` and `atomic_folder`."""

import contextlib
import ctypes
import errno
import gzip
import hashlib
import io
import json
import logging
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, TypeVar, cast

from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.storage import copies
from jaxretr.runtime.storage.paths import is_remote
from jaxretr.runtime.storage.retries import is_transient, retried

_log = logging.getLogger(__name__)

T = TypeVar("T")

AGAIN = "see that it can be read, or remove the folder, which is made again"
"""The remedy for folders of `made_once`."""

_BEIR_FILES = ("corpus.jsonl", "queries.jsonl")

DOCUMENTS = (".txt", ".md", ".markdown", ".html", ".htm")
"""Endings of the files that files:FOLDER reads."""
_FILES = re.compile(r"files:([^\[\]]+)(\[.+\])?")  # as `jaxretr.data.source` reads such a name

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


_OTHER_COMPRESSIONS = (".bz2", ".xz", ".lzma", ".zst", ".lz4", ".zip", ".7z")


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """Open a file for writing that appears under its name only when it is complete.

    The bytes go to a hidden file next to `path`, which is renamed when the block ends. When the block fails, or the
    process is killed, an older file under that name is as it was. Missing folders are made. A named pipe, a device or
    an open descriptor (`/dev/stdout`, `/dev/fd/3`) is written to directly, wherever it leads. In a bucket an object
    appears whole by itself: the bytes go to a temporary file, which is uploaded when the block ends well.

    A file whose name ends in .gz is compressed, the same content to the same bytes.

    Args:
      path: the file to write; a symbolic link is followed. Or gs://... or s3://...
      mode: "w" for text (UTF-8, "\\n" line ends) or "wb" for bytes.

    Yields:
      The open file.

    Raises:
      UserError: the file cannot be written (no space, no permission, a folder of that name, the suffix of another
        compression); one line that names `path` and what to do. Errors of the block itself pass through unchanged.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"mode must be 'w' or 'wb', not {mode!r}")
    _check_compression(path)
    packed = os.fspath(path).lower().endswith(".gz")
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="jaxretr-") as folder:
            local = Path(folder) / "object"
            with open(local, "wb") as raw, _encoded(raw, mode, packed) as file:
                yield file
            copies.put(local, path)
        return
    if (descriptor := open_descriptor(path)) is not None:
        with open(_duplicate(descriptor, path), "wb") as raw, _encoded(raw, mode, packed) as file:
            yield file
        return
    target = _local_target(path)
    partial = _beside(target)
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
        if target.exists() and not target.is_file():
            with open(target, "wb") as raw, _encoded(raw, mode, packed) as file:
                yield file
            return
        retried(target, lambda: target.parent.mkdir(parents=True, exist_ok=True))
        try:
            # "x" and not tempfile: the file gets the permissions of the user's umask, not 0600.
            with open(partial, "xb") as raw:
                with _encoded(raw, mode, packed) as file:
                    yield file
                raw.flush()
                os.fsync(raw.fileno())
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


@contextlib.contextmanager
def _encoded(raw: IO[bytes], mode: Literal["w", "wb"], packed: bool) -> Iterator[IO[Any]]:
    """Yield the stream for a block: `raw`, or a stream that encodes or compresses into it; `raw` stays open."""
    with contextlib.ExitStack() as stack:
        # No name and no time in the header, so that equal contents are equal files.
        stream = stack.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0)) if packed else raw
        if mode == "wb":
            yield cast(IO[Any], stream)
            return
        text = io.TextIOWrapper(cast(IO[bytes], stream), encoding="utf-8", newline="\n")
        try:
            yield text
        finally:
            text.detach()  # Flushes; closing would close `raw`.


def _check_compression(path: str | os.PathLike[str]) -> None:
    """Raise UserError for a name that promises a compression that no reader here knows."""
    suffix = Path(path).suffix.lower()
    if suffix in _OTHER_COMPRESSIONS:
        raise UserError(f"{path}: {suffix} is neither written nor read; end the name in .gz, or leave {suffix} out")


def write_whole(
    path: str | os.PathLike[str], write: Callable[[IO[Any]], object], mode: Literal["w", "wb"] = "w"
) -> None:
    """Write a file as `atomic_write` does, and again from the beginning while a disk fails for a passing reason.

    Args:
      path, mode: see `atomic_write`.
      write: a function that writes everything to the open file; may be called more than once.

    Raises:
      UserError: see `atomic_write`.
    """

    def attempt() -> None:
        with atomic_write(path, mode) as file:
            write(file)

    def passing(error: BaseException) -> bool:
        # In a bucket each request has its own retries.
        return not is_remote(path) and is_transient(error.__cause__ or error)

    retried(path, attempt, passing)


def write_json(
    path: str | os.PathLike[str], content: Any, *, indent: int | None = None, ensure_ascii: bool = True
) -> None:
    """Write a value as JSON to a file that appears when it is complete; raises as `atomic_write` does."""
    with atomic_write(path) as file:
        json.dump(content, file, indent=indent, ensure_ascii=ensure_ascii, default=plain_number)


def plain_number(value: Any) -> Any:
    """Return the Python number of a numpy scalar, which `json.dumps` takes as its `default`."""
    if getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str], *, replaces: bool = True) -> Iterator[Path]:
    """Make a folder that appears under its name only when it is complete, in place of an older one of that name.

    Args:
      path: the folder to make; a symbolic link is followed.
      replaces: whether it replaces what has that name by then; otherwise that stays, and the new folder is dropped.

    Yields:
      A hidden folder next to it, to be filled.

    Raises:
      UserError: it cannot be written; one line that names `path`. Other errors of the block pass through.
    """
    target = _local_target(path)
    restore(target)
    partial = _beside(target)
    try:
        partial.mkdir(parents=True)
        yield partial
        if replaces or not target.exists():
            _put_in_place(partial, target)
    except OSError as error:
        named = None if error.filename is None else Path(os.fsdecode(error.filename))
        if named is not None and partial not in named.parents and not _is_or_holds(named, target, partial):
            raise
        remedy = _REMEDIES.get(error.errno or 0, "choose another place")
        raise UserError(f"{path}: cannot be written ({error.strerror or error}); {remedy}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def made_once(folder: Path, opened: Callable[[Path], T], make: Callable[[Path], object]) -> T:
    """Open a folder that can be made at any time from what it is named by, and make it where it is missing or damaged.

    Several processes may do so at once: all open the folder of the first that has finished.

    Args:
      folder: its name, which is another one for other content.
      opened: a function that opens it.
      make: a function that fills a hidden folder next to it.

    Returns:
      The result of `opened`.

    Raises:
      UserError: the folder cannot be read or written, or `make` failed.
    """
    for _ in range(3):
        if os.path.lexists(folder):
            try:
                return opened(folder)
            except UserError as error:
                cause = error.__cause__
                # No permission, a missing network disk: the folder may be intact, and must not be removed.
                if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError | NotADirectoryError):
                    raise
                _log.warning("%s: is damaged; making it again (%s)", folder, error)
            # Renamed first: another process never sees it half removed.
            doomed = _beside(folder)
            try:
                os.rename(folder, doomed)
            except FileNotFoundError:  # Another process was first.
                pass
            except OSError as error:
                raise UserError(f"{folder}: is damaged and cannot be moved ({error.strerror}); remove it") from error
            shutil.rmtree(doomed, ignore_errors=True)
        try:
            with atomic_folder(folder, replaces=False) as partial:
                make(partial)
        except UserError:
            if not folder.exists():  # Otherwise another process was first, and removed what this one needed.
                raise
        for leftover in folder.parent.glob(f".{folder.name}.*.part"):
            shutil.rmtree(leftover, ignore_errors=True)
    raise UserError(f"{folder}: was damaged right after it was made; let no other program write into it")


def restore(folder: str | os.PathLike[str]) -> None:
    """Bring back a folder whose replacement was killed half-way; every reader of a replaceable folder calls this.

    Where the system cannot exchange two folders in one step, `atomic_folder` sets the older one aside for a moment.
    A process that is killed in that moment leaves nothing under the folder's name.

    Args:
      folder: its name; nothing is done if something has that name, or if it is in a bucket.
    """
    if is_remote(folder):
        return
    target = Path(os.path.realpath(folder))
    if target.exists():
        return
    for old in _set_aside(target):
        with contextlib.suppress(OSError):  # Another process was first, or this one may not write there.
            os.rename(old, target)
            _log.warning("%s: restored; a process was killed while it replaced this folder", folder)
            return


def open_descriptor(path: str | os.PathLike[str]) -> int | None:
    """The open descriptor that a path such as /dev/stdout names; None for other paths.

    Opened by its path, a file behind it would lose what it holds, and a pipe has no path that `realpath` could find.
    """
    text = os.fspath(path)
    if text in ("/dev/stdout", "/dev/stderr"):
        return 1 if text == "/dev/stdout" else 2
    found = re.fullmatch(r"/(?:dev|proc/self|proc/(\d+))/fd/(\d+)", text)
    return None if found is None or found[1] not in (None, str(os.getpid())) else int(found[2])


def sha256(path: str | os.PathLike[str]) -> str:
    """The sha256 of a file or of an object in a bucket, read in pieces; hexadecimal."""
    if is_remote(path):
        return copies.digest(path)

    def attempt() -> str:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return retried(path, attempt)


def _local_target(path: str | os.PathLike[str]) -> Path:
    """The place that a local path leads to; refuses buckets' addresses, which `Path` would make folders named "s3:"."""
    if bucket := re.search(r"(?:^|/)(gs|s3):/+(.+)", os.fspath(path)):
        raise UserError(
            f"{bucket[1]}://{bucket[2]}: this cannot be written to a bucket; give a local path, and copy it"
        )
    return Path(os.path.realpath(path))


def _duplicate(descriptor: int, path: str | os.PathLike[str]) -> int:
    try:
        return os.dup(descriptor)
    except OSError as error:
        raise UserError(f"{path}: is not open ({error.strerror}); name a file") from error


def _beside(target: Path) -> Path:
    return target.parent / f".{target.name}.{secrets.token_hex(4)}.part"


def _put_in_place(partial: Path, folder: Path) -> None:
    """Rename a complete folder to its name; an older one of that name is removed, or restored if that fails."""
    while True:
        try:
            os.rename(partial, folder)
            break
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                restore(folder)
                raise
        if _exchange(partial, folder):
            break
        # Begin again: in the meantime a reader may have restored the older folder.
        os.rename(folder, partial.with_suffix(".old"))
    _sync_folder(folder.parent)
    for old in _set_aside(folder):
        # Give it another name first: half of it must never be restored.
        doomed = old.with_suffix(".part")
        with contextlib.suppress(OSError):
            os.rename(old, doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; return False where the system or the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if renameat2 is None:
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return renameat2(here, os.fsencode(one), here, os.fsencode(other), swap) == 0


def _set_aside(folder: Path) -> list[Path]:
    """The older folders that `_put_in_place` set aside, the latest first."""
    pattern = re.compile(re.escape(f".{folder.name}.") + r"[0-9a-f]{8}\.old")
    try:
        found = [path for path in folder.parent.iterdir() if pattern.fullmatch(path.name)]
        return sorted(found, key=lambda path: path.stat().st_ctime, reverse=True)
    except OSError:
        return []


def _is_or_holds(named: Path, target: Path, partial: Path) -> bool:
    return named in (target, partial) or named in target.parents


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the file system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def refuse_input(path: str | Path, *inputs: object) -> None:
    """Raise UsageError for a file or folder to write that is one of the inputs, or one of an input folder's data files.

    Of the inputs, lists count by what they hold. A folder's data files are those of BEIR's layout, also in folders below, as
    in a suite, and the documents of files:PATH; another file in it may be written again.
    """
    place, remote = Path(path).expanduser(), is_remote(path)
    in_layout = place.name.removesuffix(".gz") in _BEIR_FILES or place.parent.name == "qrels"
    for each in inputs:
        if isinstance(each, list | tuple):
            refuse_input(path, *each)
        elif isinstance(each, str | Path):
            documents = _FILES.fullmatch(str(each))
            other = Path(documents[1] if documents else each).expanduser()
            is_data = place.suffix.lower() in DOCUMENTS if documents else in_layout
            local = not remote and (other.is_file() or other.is_dir()) and place.exists()
            within = local and is_data and other.is_dir() and other.resolve() in place.resolve().parents
            if within or (place.samefile(other) if local else remote and str(path) == str(each)):
                raise UsageError(f"{path}: is read as well, and would be replaced; write to another place")


def check_output(path: str | Path, *inputs: object) -> None:
    """Raise UserError for a file that cannot be written, or is one of the inputs, before the work of an hour is lost to it."""
    refuse_input(path, *inputs)
    _check_compression(path)
    place = Path(path).expanduser()
    if place.is_dir():
        raise UserError(f"{path}: is a folder; name a file")
    if not is_remote(path) and (place.is_file() or not place.exists()):
        check_place(place)


def check_place(path: str | Path) -> None:
    """Raise UserError for a file or folder that nobody may make, or replace, where it is to be."""
    parent = next(folder for folder in Path(os.path.realpath(path)).parents if os.path.exists(folder))
    if not parent.is_dir():
        raise UserError(f"{path}: {parent} is a file, not a folder; choose another path")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"{path}: cannot be written ({parent} is protected); {_REMEDIES[errno.EACCES]}")
