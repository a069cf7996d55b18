"""Folders whose files are vouched for: a record states the sha256 of each, and a seal vouches for the record.

Who hashes the record? Its last entry is a sha256 over all the others, and it is written in one way only, so any other
byte in it, a space between two entries included, is found by writing it again.

A folder is one of a format and version, which its description (meta.json, manifest.json) names, sealed or not.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from jaxretr.runtime.errors import UserError, reason, some_names
from jaxretr.runtime.storage.files import plain_number, sha256, write_whole
from jaxretr.runtime.storage.paths import as_path, files_below, is_remote
from jaxretr.runtime.storage.retries import retried

_SEAL = "digest"


def check_replaceable(
    folder: Path, what: str, known: Callable[[list[str]], bool], ours: Sequence[str] = ("*",)
) -> None:
    """Refuse a folder that holds anything but what will replace it.

    Args:
      folder: it may be missing, empty, or an older one of its kind.
      what: what replaces it, with the article, for the error.
      known: a function that knows such a folder by its names.
      ours: patterns of the names that such a folder has.

    Raises:
      UserError: it holds something else, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; choose another name for the folder")
    there = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
    foreign = [name for name in there if not any(fnmatch(name, pattern) for pattern in ours)]
    if foreign or (there and not known(there)):
        raise UserError(
            f"{folder}: holds something else than {what} ({some_names(foreign or there)}); choose another folder, or "
            "empty it"
        )


# ---- records ---------------------------------------------------------------------------------------------------------


def write_record(path: Path, content: dict[str, Any]) -> None:
    """Write content, which JSON must hold unchanged (lists, not tuples), and its seal."""
    text = _text(content)
    write_whole(path, lambda file: file.write(text))


def read_sealed(path: Path, remedy: str) -> tuple[dict[str, Any], bool]:
    """Read what `write_record` wrote: content without its seal, and whether not a byte was changed.

    Raises:
      UserError: see `read_object`.
    """
    content, text = _read(path, remedy)
    content.pop(_SEAL, None)
    return content, text == _text(content)


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object that has no seal.

    Raises:
      UserError: it is missing, or no JSON object.
    """
    return _read(path, remedy)[0]


def _read(path: Path, remedy: str) -> tuple[dict[str, Any], str]:
    try:
        text = retried(path, path.read_bytes).decode("utf-8")
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); {remedy}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds no JSON object; {remedy}")
    return content, text


def read_record(path: Path, remedy: str) -> dict[str, Any]:
    """Read what `write_record` wrote; a changed byte is an error as well."""
    content, intact = read_sealed(path, remedy)
    if not intact:
        raise UserError(f"{path}: was changed after it was written; {remedy}")
    return content


def _text(content: dict[str, Any]) -> str:
    digest = hashlib.sha256(_dump(content).encode("utf-8", "surrogatepass")).hexdigest()
    return _dump({**content, _SEAL: digest}) + "\n"


def _dump(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False, default=plain_number)


# ---- descriptions ----------------------------------------------------------------------------------------------------


def write_description(path: Path, kind: tuple[str, int], content: dict[str, Any]) -> None:
    """Write a sealed description: a format and its version, and content as in `write_record`."""
    write_record(path, {"format": kind[0], "version": kind[1], **content})


def read_description(path: Path, kind: tuple[str, int], remedy: str, *, sealed: bool = False) -> dict[str, Any]:
    """Read a folder's description, without its format and version.

    Args:
      kind: the format and version that it must name.
      sealed: whether `write_description` wrote it.

    Raises:
      UserError: it is missing, broken, of another format or version, or sealed and changed.
    """
    content, intact = read_sealed(path, remedy)
    if (content.pop("format", None), content.pop("version", None)) != kind:
        raise UserError(f"{path}: not the description of a {kind[0]} version {kind[1]}; {remedy}")
    if sealed and not intact:
        raise UserError(f"{path}: was changed after it was written; {remedy}")
    return content


def is_described(path: str | os.PathLike[str], format: str) -> bool:
    """Whether a file is a description of this format, of any version."""
    try:
        return read_object(as_path(path), "").get("format") == format
    except UserError:
        return False


# ---- files -----------------------------------------------------------------------------------------------------------


def names(folder: Path) -> list[str]:
    """The paths of all files below a folder, seen from there, in order."""
    if is_remote(folder):
        root = len(str(folder).rstrip("/")) + 1
        return sorted(str(path)[root:] for path in files_below(folder))
    return sorted(path.relative_to(folder).as_posix() for path in files_below(folder))


def hashes(folder: Path, files: Iterable[str]) -> dict[str, str]:
    """The sha256 (hexadecimal) of each of some files of a folder."""
    return {name: sha256(folder / name) for name in files}


def changes(folder: Path, wanted: dict[str, str]) -> list[str]:
    """One line for each file that is missing, or has another sha256 than it should."""
    problems = []
    for name, digest in wanted.items():
        if not (folder / name).is_file():
            problems.append(f"{name} is missing")
        elif (found := sha256(folder / name)) != digest:
            twin = next((other for other, known in wanted.items() if known == found), None)
            problems.append(f"{name} is what {twin} was" if twin else f"{name} was changed")
    return problems
