"""The dtypes of vectors on disk: float32, float16, bfloat16 and int8, and of sparse vectors float32 and int8.

int8 numbers have one float32 scale a row in a second file; a row is its integers times that scale, its largest
coordinate being 127 of them. Of sparse vectors only the numbers that are not 0 are stored, with their dimensions.
"""

from typing import Literal, NamedTuple

import ml_dtypes  # noqa: F401  # Makes the name bfloat16 known to numpy.
import numpy as np

VectorDtype = Literal["float32", "float16", "bfloat16", "int8"]

StoredDtype = Literal["float32", "float16", "bfloat16", "int8", "sparse-float32", "sparse-int8"]
"""Dtype of a store: a `VectorDtype`, of sparse vectors with its name behind "sparse-"."""

# Entries of a sparse vector, for an estimate of its bytes: a passage's of SPLADE v3 are some 200.
_ENTRIES = 200

_LARGEST = 127


def bytes_a_row(dim: int, dtype: str) -> int:
    """The bytes of a row of D dimensions on disk, its scale included; of a sparse one an estimate."""
    if is_sparse(dtype):
        return _ENTRIES * (entry_dtype(dim).itemsize + np.dtype(dtype.removeprefix("sparse-")).itemsize) + 4
    return dim * np.dtype(dtype).itemsize + (4 if dtype == "int8" else 0)


def is_sparse(dtype: str) -> bool:
    """Whether a store of this dtype holds sparse vectors."""
    return dtype.startswith("sparse-")


def entry_dtype(dim: int) -> np.dtype:
    """The dtype of the stored dimensions of sparse vectors of D dimensions."""
    return np.dtype(np.uint16 if dim <= 1 << 16 else np.int32)


class SparseRows(NamedTuple):
    """Rows of vectors as their numbers that are not 0.

    Attributes:
      entries: their dimensions, integers [P], row behind row.
      weights: the numbers, [P].
      counts: how many each row has, int32 [n].
    """

    entries: np.ndarray
    weights: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, vectors: np.ndarray) -> "SparseRows":
        """Return the rows of vectors [n, D]."""
        present = vectors != 0
        entries = np.nonzero(present)[1].astype(entry_dtype(vectors.shape[1]))
        return cls(entries, vectors[present], present.sum(axis=1, dtype=np.int32))

    def dense(self, dim: int) -> np.ndarray:
        """Return the vectors with all their D dimensions, float32 [n, D]."""
        vectors = np.zeros((len(self.counts), dim), np.float32)
        vectors[np.repeat(np.arange(len(self.counts)), self.counts), self.entries] = self.weights
        return vectors


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
