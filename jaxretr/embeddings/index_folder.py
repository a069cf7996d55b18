"""The folder of an exact index: embeddings.npy (bfloat16 as its uint16 bits), ids.jsonl, metadata.jsonl and meta.json."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.data.arrays import read_array, stored_dtype, write_array
from jaxretr.runtime.errors import UserError, path_text, reason
from jaxretr.runtime.storage.files import atomic_folder, atomic_write, restore
from jaxretr.runtime.storage.sealed_folder import check_replaceable, read_description

DTYPES = ("float32", "bfloat16")
EMBEDDINGS = "embeddings.npy"
IDS = "ids.jsonl"
METADATA = "metadata.jsonl"
META = "meta.json"

_FORMAT = "jaxretr-exact-index"
_VERSION = 1
_AGAIN = "give the folder that save wrote, or save the index again"


def write(
    directory: str | os.PathLike,
    shape: tuple[int, int],
    dtype: np.dtype,
    ids: list[str] | None,
    metadata: Mapping[str, Sequence[Any]],
    blocks: Iterable[np.ndarray],
) -> None:
    """Write an index next to the folder and then renames it into place, replacing an older index.

    Args:
      directory: the folder; its parents are made.
      shape: (N, D) of the embeddings.
      dtype: float32 or bfloat16.
      ids: N ids, or None when the rows have none.
      metadata: field -> N values.
      blocks: arrays [n, D] that together are the embeddings; rows beyond N are padding and left out.

    Raises:
      UserError: the folder holds something else, or cannot be written.
    """
    target = Path(path_text(directory)).expanduser()
    restore(target)
    check_replaceable(target, "an index", lambda names: META in names, (EMBEDDINGS, IDS, METADATA, META))
    with atomic_folder(target) as folder:
        _write_files(folder, shape, dtype, ids, metadata, blocks)


def _write_files(
    folder: Path,
    shape: tuple[int, int],
    dtype: np.dtype,
    ids: list[str] | None,
    metadata: Mapping[str, Sequence[Any]],
    blocks: Iterable[np.ndarray],
) -> None:
    bits, (n, dim) = stored_dtype(dtype), shape

    def without_padding() -> Iterator[np.ndarray]:
        left = n
        for block in blocks:
            yield block[:left].view(bits)
            left -= min(left, len(block))

    write_array(folder / EMBEDDINGS, shape, bits, without_padding())
    if ids is not None:
        write_ids(folder / IDS, ids)
    if metadata:
        with open(folder / METADATA, "w", encoding="utf-8") as file:
            for row in zip(*metadata.values(), strict=True):
                file.write(json.dumps(dict(zip(metadata, row, strict=True))) + "\n")
    meta = {"format": _FORMAT, "version": _VERSION, "rows": n, "dim": dim, "dtype": dtype.name, "ids": ids is not None}
    if metadata:
        meta["metadata"] = list(metadata)
    (folder / META).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")


def read(directory: str | os.PathLike) -> tuple[np.ndarray, list[str] | None, dict[str, list[Any]]]:
    """Return the embeddings [N, D] as a memory map in their dtype, the ids if the index has them, and its metadata.

    Raises:
      UserError: the folder is missing, incomplete, damaged or of another format.
    """
    folder = Path(path_text(directory)).expanduser()
    meta = _read_meta(folder / META)
    stored = read_array(folder / EMBEDDINGS, meta["dtype"], (meta["rows"], meta["dim"]), _AGAIN)
    ids = read_ids(folder / IDS, meta["rows"]) if meta["ids"] else None
    return stored, ids, _read_metadata(folder / METADATA, meta["rows"], meta.get("metadata", []))


def describe(directory: str | os.PathLike) -> dict[str, Any]:
    """Read an index's description: rows, dim, dtype, ids (whether it has them), metadata (its fields, if it has any).

    Raises:
      UserError: it is not an index.
    """
    return _read_meta(Path(directory).expanduser() / META)


def _read_meta(path: Path) -> dict:
    restore(path.parent)
    meta = read_description(path, (_FORMAT, _VERSION), _AGAIN)
    types = {"rows": int, "dim": int, "dtype": str, "ids": bool}
    if (
        any(type(meta.get(key)) is not expected for key, expected in types.items())
        or meta["dtype"] not in DTYPES
        or not isinstance(fields := meta.get("metadata", []), list)
        or not all(isinstance(field, str) for field in fields)
    ):
        raise UserError(f"{path}: not the description of a {_FORMAT} version {_VERSION}; {_AGAIN}")
    return meta


def _read_metadata(path: Path, n: int, fields: list[str]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {field: [] for field in fields}
    if not fields:
        return columns
    for number, row in _json_lines(path, _AGAIN):
        if not isinstance(row, dict) or list(row) != fields:
            raise UserError(f"{path}:{number}: not an object with the fields {', '.join(fields)}; {_AGAIN}")
        for field, column in columns.items():
            column.append(row[field])
    if len(columns[fields[0]]) != n:
        raise UserError(f"{path}: {len(columns[fields[0]])} rows for {n} embeddings; {_AGAIN}")
    return columns


def write_ids(path: Path, ids: Iterable[str]) -> None:
    """Write ids, one JSON string per line, to a file that appears when it is complete."""
    with atomic_write(path) as file:
        file.writelines(json.dumps(name) + "\n" for name in ids)


def read_ids(path: Path, n: int, remedy: str = _AGAIN, wanted: np.ndarray | None = None) -> list[str]:
    """Read n ids, one JSON string per line, or those of the rows that `wanted` (bool [n]) names.

    Raises UserError, with `remedy`, where the file holds anything else.
    """
    ids, number = [], 0
    for number, name in _json_lines(path, remedy):
        if not isinstance(name, str):
            raise UserError(f"{path}:{number}: not a JSON string; {remedy}")
        if wanted is None or (number <= n and wanted[number - 1]):
            ids.append(name)
    if number != n:
        raise UserError(f"{path}: {number} ids for {n} embeddings; {remedy}")
    return ids


def _json_lines(path: Path, remedy: str) -> Iterator[tuple[int, Any]]:
    """Yield (line number, value) of each line; the value is None for a line that is not JSON."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    content = json.loads(line)
                except (ValueError, RecursionError):
                    content = None
                yield number, content
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); {remedy}") from error
