"""Vectors on disk: .npy files of float32, float16, bfloat16 and int8, which are memory-mapped when they are read.

A .npy file knows no bfloat16: its bits are stored as uint16. int8 numbers have one float32 scale a row in a second
file; a row is its integers times that scale, its largest coordinate being 127 of them.
"""

from pathlib import Path
from typing import IO, Literal

import ml_dtypes
import numpy as np

VectorDtype = Literal["float32", "float16", "bfloat16", "int8"]

_LARGEST = 127


def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype of that name; bfloat16 is ml_dtypes'."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def bytes_a_row(dim: int, dtype: str) -> int:
    """The bytes of a row of D dimensions on disk, its scale included."""
    return dim * numpy_dtype(dtype).itemsize + (4 if dtype == "int8" else 0)


def quantise(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round rows to integers of -127 to 127, each row with a scale of its own.

    Args:
      rows: float32 [n, D], finite.

    Returns:
      int8 [n, D] and the scales, float32 [n]; a row of zeros has the scale 0. No coordinate is off by more than half
      its row's scale, and float32's rounding.
    """
    scales = (np.abs(rows).max(axis=1, initial=0) / np.float32(_LARGEST)).astype(np.float32)
    # A scale so small that it has rounded to 0 belongs to a row that is 0 for any purpose.
    divisors = np.where(scales > 0, scales, np.float32(1))
    values = np.rint(rows / divisors[:, None])
    return np.clip(values, -_LARGEST, _LARGEST).astype(np.int8), scales


def dequantise(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Multiplies rows int8 [n, D] by their scales float32 [n]; returns float32 [n, D]."""
    return values.astype(np.float32) * np.asarray(scales, np.float32)[:, None]


def write_npy(file: IO[bytes], values: np.ndarray) -> None:
    """Write an array as a .npy file, bfloat16 as its bits."""
    values = np.ascontiguousarray(values)
    if values.dtype == ml_dtypes.bfloat16:
        values = values.view(np.uint16)
    # np.save would raise an error without the operating system's reason on a full disk.
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
    file.write(values.data)


def read_npy(path: str | Path, dtype: str) -> np.ndarray:
    """Memory-maps an array that `write_npy` wrote.

    Raises:
      ValueError: it holds another dtype, or is cut short.
      OSError, EOFError: it cannot be read.
    """
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    wanted = numpy_dtype(dtype)
    if dtype == "bfloat16" and array.dtype == np.uint16:
        array = array.view(wanted)
    if array.dtype != wanted:
        raise ValueError(f"holds {array.dtype} {list(array.shape)} in place of {dtype}")
    return array
