"""The dtypes of vectors on disk: float32, float16, bfloat16 and int8.

int8 numbers have one float32 scale a row in a second file; a row is its integers times that scale, its largest
coordinate being 127 of them.
"""

from typing import Literal

import ml_dtypes  # noqa: F401  # Makes the name bfloat16 known to numpy.
import numpy as np

VectorDtype = Literal["float32", "float16", "bfloat16", "int8"]

_LARGEST = 127


def bytes_a_row(dim: int, dtype: str) -> int:
    """The bytes of a row of D dimensions on disk, its scale included."""
    return dim * np.dtype(dtype).itemsize + (4 if dtype == "int8" else 0)


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
    """Multiply rows int8 [n, D] by their scales float32 [n]; return float32 [n, D]."""
    return values.astype(np.float32) * np.asarray(scales, np.float32)[:, None]
