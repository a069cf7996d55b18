"""Arrays on disk: written block by block, read through memory maps.

A .npy file knows no bfloat16: its bits are stored as uint16.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import IO

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from jaxretr.runtime.errors import UserError, reason
from jaxretr.runtime.storage.files import atomic_write
from jaxretr.runtime.storage.retries import retried

BROKEN = (ValueError, EOFError, SyntaxError, TokenError)
"""The errors that numpy raises for a file that is no array; the last two for some headers."""


def write_array(path: Path, shape: Sequence[int], dtype: DTypeLike, blocks: Iterable[np.ndarray]) -> None:
    """Write an .npy file that appears when it is complete; no more than a block is in memory.

    Args:
      blocks: arrays [n, ...] that together are all rows.

    Raises:
      UserError: the file cannot be written.
    """
    with atomic_write(path, "wb") as file:
        write_header(file, shape, dtype)
        rows = 0
        for block in blocks:
            rows += len(block)
            file.write(np.ascontiguousarray(block, dtype).data)
        if rows != shape[0]:
            raise ValueError(f"{path}: {rows} rows were given for {shape[0]}")


def write_npy(file: IO[bytes], values: np.ndarray) -> None:
    """Write an array as a .npy file, for which np.save has no bfloat16 and on a full disk no reason."""
    values = np.ascontiguousarray(values)
    stored = values.view(stored_dtype(values.dtype))
    write_header(file, stored.shape, stored.dtype)
    file.write(stored.data)


def write_header(file: IO[bytes], shape: Sequence[int], dtype: DTypeLike) -> None:
    """Write the head of a .npy file, whose numbers follow in C order."""
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(file, header)


def stored_dtype(dtype: DTypeLike) -> np.dtype:
    """The dtype by which a .npy file holds numbers of a dtype."""
    return np.dtype(np.uint16) if np.dtype(dtype) == ml_dtypes.bfloat16 else np.dtype(dtype)


def read_array(
    path: Path, dtype: DTypeLike, shape: Sequence[int | None], remedy: str, *, mapped: bool = True
) -> np.ndarray:
    """Read an array that one of these functions wrote.

    Args:
      shape: the array's shape; None for an axis of any length.
      remedy: the remedy that errors state.
      mapped: whether to map the file into memory rather than to read it.

    Raises:
      UserError: the file is missing, cut short, or holds something else.
    """
    dtype = np.dtype(dtype)
    try:
        array = retried(path, lambda: np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False))
    except (OSError, *BROKEN) as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); {remedy}") from error
    if not _fits(array, dtype, shape):
        wanted = ", ".join("any" if axis is None else str(axis) for axis in shape)
        raise UserError(
            f"{path}: holds {array.dtype} {list(array.shape)} in place of {dtype.name} [{wanted}]; {remedy}"
        )
    return array.view(dtype)


def _fits(array: np.ndarray, dtype: DTypeLike, shape: Sequence[int | None]) -> bool:
    axes = len(array.shape) == len(shape) and all(
        axis in (None, found) for axis, found in zip(shape, array.shape, strict=True)
    )
    return axes and array.dtype == stored_dtype(dtype)


def write_chunk(path: Path, *arrays: np.ndarray) -> None:
    """Write the arrays of a finished chunk of long work, one .npy after another, to a file that is whole or missing."""
    with atomic_write(path, "wb") as file:
        for array in arrays:
            write_npy(file, array)


def read_chunk(path: Path, *wanted: tuple[DTypeLike, Sequence[int | None]]) -> list[np.ndarray] | None:
    """Read the arrays that `write_chunk` wrote, from which an interrupted call resumes.

    Args:
      wanted: the dtype and the shape of each array, as in `read_array`.

    Returns:
      The arrays; None where the file is missing, damaged, or another chunk's: it has to be written (again).
    """
    try:
        with open(path, "rb") as file:
            arrays = [np.load(file, allow_pickle=False) for _ in wanted]
    except (OSError, *BROKEN):
        return None
    return arrays if all(_fits(array, *each) for array, each in zip(arrays, wanted, strict=True)) else None


def map_rows(path: Path, offsets: np.ndarray, dtype: DTypeLike, remedy: str) -> np.ndarray:
    """Map a file of rows of different lengths, which follow one another without a header.

    Args:
      offsets: the place where each row begins, and where the last ends, int64 [N + 1].
      remedy: the remedy that errors state.

    Returns:
      The numbers of all rows, [offsets[N]].

    Raises:
      UserError: the file is missing, or has another size.
    """
    try:
        stored = retried(path, path.stat).st_size
        wanted = int(offsets[-1]) * np.dtype(dtype).itemsize if len(offsets) and offsets[0] == 0 else -1
        if stored != wanted:
            raise ValueError(f"{stored} bytes, not {wanted}")
        # An empty file cannot be mapped.
        return np.memmap(path, dtype, "r") if stored else np.empty(0, dtype)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); {remedy}") from error
