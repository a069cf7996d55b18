"""Arrays on disk, written block by block."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from jaxretr.storage.files import atomic_write


def write_array(path: Path, shape: Sequence[int], dtype: DTypeLike, blocks: Iterable[np.ndarray]) -> None:
    """Write an .npy file that appears when it is complete; no more than a block is in memory.

    Args:
      path: the file.
      shape: the array's shape, [rows, ...].
      dtype: the dtype of its numbers.
      blocks: arrays [n, ...] that together are all rows.

    Raises:
      UserError: the file cannot be written.
    """
    dtype = np.dtype(dtype)
    with atomic_write(path, "wb") as file:
        # np.save would raise an error without the operating system's reason on a full disk.
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(shape)}
        np.lib.format.write_array_header_1_0(file, header)
        rows = 0
        for block in blocks:
            rows += len(block)
            file.write(np.ascontiguousarray(block, dtype).data)
        if rows != shape[0]:
            raise ValueError(f"{path}: {rows} rows were given for {shape[0]}")
