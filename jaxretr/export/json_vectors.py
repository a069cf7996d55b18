"""Vectors as JSON text."""

import numpy as np

# On average, with sign, point, exponent and comma, of vectors of length 1.
_BYTES_A_NUMBER = 13
_BYTES_A_ROW = 100


def as_json(vector: np.ndarray) -> str:
    """A list of numbers of nine digits, which is what a float32 needs to come back as it was."""
    return "[" + ",".join(["%.9g"] * len(vector)) % tuple(vector.tolist()) + "]"


def expected_bytes(rows: int, dim: int) -> int:
    """About what a file of so many vectors takes."""
    return rows * (dim * _BYTES_A_NUMBER + _BYTES_A_ROW)
