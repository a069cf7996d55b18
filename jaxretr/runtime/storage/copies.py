"""Whole files and folders, from a bucket to the local disk and back."""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.paths import as_path, cache_folder, files_below, filesystem, is_remote

_PIECE = 32 * 2**20

# Requests at a time: a bucket answers each in tens of milliseconds.
_THREADS = 8

_LISTING = ".listing.json"

_OF_A_RUN = ("model", "config.json", "best.json", "metrics.jsonl")


def put(local: Path, remote: str | os.PathLike[str]) -> None:
    """Write a file as one object, which appears whole or not at all."""
    filesystem(remote).put_file(str(local), os.fspath(remote))


def fetch(remote: str | os.PathLike[str], local: Path) -> None:
    """Read an object into a file, which appears whole or not at all.

    Raises:
      FileNotFoundError: there is no such object.
      UserError: the local disk is full, or cannot be written.
    """
    partial = local.with_name(f".{local.name}.{secrets.token_hex(4)}.part")
    try:
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            filesystem(remote).get_file(os.fspath(remote), str(partial))
            os.replace(partial, local)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise UserError(
            f"{os.fspath(remote)}: cannot be copied to {local} ({error.strerror or error}); free some space there, or set "
            "JAXRETR_CACHE to another folder"
        ) from error


def pieces(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the bytes of an object, in pieces that are fetched one after the other."""
    store, name = filesystem(path), os.fspath(path)
    size = store.size(name)
    for start in range(0, size, _PIECE):
        yield store.cat_file(name, start=start, end=min(start + _PIECE, size))


def local_copy(path: str) -> str:
    """The path (or hub name) itself, or for a folder in a bucket the path of its local copy; see `local_folder`."""
    return str(local_folder(as_path(path))) if is_remote(path) else path


def local_folder(remote: Path) -> Path:
    """Make a local copy of a folder in a bucket; files that have not changed since the last copy are not read again.

    Of a training run's folder only the model is copied, with the files that record its training.

    Returns:
      The copy, in the cache. Nothing else may be written there.

    Raises:
      UserError: there is no such folder, it is a run that has no model yet, or it cannot be copied.
    """
    target, store = cache_folder("folders", remote), filesystem(remote)
    root = str(remote).rstrip("/")
    paths = {str(path)[len(root) + 1 :]: path for path in files_below(remote)}
    paths.pop("", None)
    if not paths:
        raise UserError(f"{remote}: no such folder in this bucket; check the path")
    parts = {name.split("/")[0] for name in paths}
    if "model" in parts:
        paths = {name: path for name, path in paths.items() if name.split("/")[0] in _OF_A_RUN}
    elif "checkpoints" in parts:
        raise UserError(f"{remote}: this run has written no model yet; finish it with `jaxretr train`")
    with ThreadPoolExecutor(_THREADS) as threads:
        versions = threads.map(lambda path: _version(store.info(str(path))), paths.values())
        listing, known = dict(zip(paths, versions, strict=True)), _known(target)
        stale = [name for name in paths if known.get(name) != listing[name] or not (target / name).is_file()]
        if stale or known.keys() != listing.keys():
            # Until the new note is written, nothing is known about the files here.
            (target / _LISTING).unlink(missing_ok=True)
            for name in known.keys() - listing.keys():
                (target / name).unlink(missing_ok=True)
            list(threads.map(lambda name: fetch(paths[name], target / name), stale))
            with contextlib.suppress(OSError):
                (target / _LISTING).write_text(json.dumps(listing))
    return target


def put_folder(local: Path, remote: Path, names: Sequence[str], marker: str | None) -> None:
    """Write files of a folder, the marker that vouches for the others last.

    Args:
      names: the names of the files below `local` to write.
      marker: the name that is written last, or None.
    """
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(lambda name: put(local / name, remote / name), (name for name in names if name != marker)))
    if marker is not None and marker in names:
        put(local / marker, remote / marker)


def remove(paths: Iterable[Path]) -> None:
    """Remove objects; a missing object is no error."""
    for path in paths:
        try:
            filesystem(path).rm_file(str(path))
        except FileNotFoundError:
            continue


def digest(path: str | os.PathLike[str]) -> str:
    """The sha256 of an object, hexadecimal."""
    found = hashlib.sha256()
    for piece in pieces(path):
        found.update(piece)
    return found.hexdigest()


def clear(folder: Path, keep: Iterable[str] = ()) -> None:
    """Empty a local folder of all but the entries of these names."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.name in keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _version(info: dict) -> list:
    """The size and the tag of an object, which differ once the object was written again."""
    return [info["size"], str(info.get("ETag") or info.get("etag") or info.get("generation") or info.get("md5Hash"))]


def _known(target: Path) -> dict[str, list]:
    try:
        return json.loads((target / _LISTING).read_text())
    except (OSError, ValueError):
        return {}
