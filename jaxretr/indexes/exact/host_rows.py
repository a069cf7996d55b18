"""Rows of the host's arrays on their way to the devices: checked, converted and copied a piece at a time.

An array of any size takes a few MB in addition to the copy: no mask of all its numbers, no second copy for padding or for
the device (a CPU device takes an aligned array as it is), and no pages of a memory map that have been read.
"""

import gc
import mmap
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxretr.runtime.errors import UserError, require_at_least
from jaxretr.runtime.parallel.mesh import lendable, put_rows, to_host

# Bytes that are converted and checked at a time.
PIECE_BYTES = 4 * 2**20


def read_rows(rows: np.ndarray, start: int, stop: int, *, dtype: np.dtype, source: str, first: int = 0) -> np.ndarray:
    """Copy the rows [start, stop) of an array, checked and in another dtype, [stop - start, D].

    Args:
      rows: [n, D]; a memory map does not stay in memory.
      start, stop: the rows to copy; rows beyond n are filled with zeros.
      dtype: the dtype of the copy.
      source: the rows' name in errors.
      first: the corpus row of rows[0].

    Raises:
      UserError: a number is NaN, infinite, or too large for dtype.
    """
    values = lendable((stop - start, rows.shape[1]), dtype)
    at = 0
    for piece in pieces(rows[start:stop]):
        # JAX gives back the host memory of arrays that are gone when it is called next, or here: a slab of a stream
        # would still be there, whole, while the next but one is read. Questions are a single piece, and need not wait.
        if at:
            gc.collect(0)
        copied = values[at : at + len(piece)]
        with np.errstate(over="ignore"):  # reported below
            copied[...] = piece
        finite = np.isfinite(copied).all(axis=1)
        if not finite.all():
            row = first + start + at + int(np.argmin(finite))
            raise UserError(
                f"{source}: row {row} contains NaN, infinity or a number too large for {dtype.name}; encode it again"
            )
        at += len(piece)
    values[at:] = 0
    return values


def pieces(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Cut rows [n, D] to views of a few MB; a memory map's pages are given back after each."""
    step = max(1, PIECE_BYTES // (rows.shape[1] * 4))
    for start in range(0, len(rows), step):
        piece = rows[start : start + step]
        yield piece
        release(piece)


def gather(rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Copy rows by their numbers, int64 [c]; of a memory map few pages are held at a time."""
    copies = np.empty((len(numbers), rows.shape[1]), rows.dtype)
    # Around each row that is touched the system may map up to 2 MB.
    step = 16 if is_mapped(rows) else len(numbers)
    for start in range(0, len(numbers), max(step, 1)):
        copies[start : start + step] = rows[numbers[start : start + step]]
        release(rows)
    return copies


def put_matrix(
    mesh: Mesh, read: Callable[[int, int], np.ndarray], shape: tuple[int, int], dtype: np.dtype
) -> jax.Array:
    """Put rows on the devices as `put_rows` does; bfloat16 goes to CPUs as bits, as `topk.local_topk` expects it."""
    if dtype == jnp.bfloat16 and mesh.devices.flat[0].platform == "cpu":
        return put_rows(mesh, lambda start, stop: read(start, stop).view(np.uint16), shape, np.uint16)
    return put_rows(mesh, read, shape, dtype)


def is_mapped(rows: np.ndarray) -> bool:
    """Whether rows are of a read-only memory map of a file; another map's pages may hold changes."""
    mapped = getattr(rows, "_mmap", None)
    return isinstance(mapped, mmap.mmap) and getattr(rows, "mode", None) == "r" and hasattr(mapped, "madvise")


def release(rows: np.ndarray) -> None:
    """Give back the memory of rows that have been read, if they are of a read-only memory map of a file."""
    if not is_mapped(rows):
        return
    mapped: mmap.mmap = rows._mmap  # pyright: ignore[reportAttributeAccessIssue]
    begin = rows.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    end = min(begin + rows.nbytes, len(mapped))
    begin -= begin % mmap.PAGESIZE
    if end > begin:
        mapped.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def embedding_matrix(embeddings: np.ndarray | jax.Array, source: str) -> np.ndarray:
    """Check that an array is numbers [rows, dimensions], and return it as the host's array."""
    try:
        array = to_host(embeddings) if isinstance(embeddings, jax.Array) else np.asanyarray(embeddings)
    except ValueError:  # Lists that make no array.
        raise UserError(f"{source}: rows of different lengths; give numbers [rows, dimensions]") from None
    numeric = jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)
    if array.ndim != 2 or not array.shape[1] or not numeric:
        raise UserError(f"{source}: expected numbers [rows, dimensions], got {array.dtype} {list(array.shape)}")
    return array


def checked_matrix(rows: np.ndarray | jax.Array, dim: int | None, source: str = "queries") -> np.ndarray:
    """Check embeddings and copy them to float32 [n, D]; `dim` is the D that they must have, if that is known."""
    rows = embedding_matrix(rows, source)
    if dim is not None and rows.shape[1] != dim:
        raise UserError(f"{source}: {rows.shape[1]} columns, but the index has {dim}; encode both with the same model")
    return read_rows(rows, 0, len(rows), dtype=np.dtype(np.float32), source=source)


def checked_questions(vectors: np.ndarray, dim: int, k: int, source: str = "queries") -> np.ndarray:
    """Check the questions of a search for k hits of each, and copy them to float32 [B, D]; see `checked_matrix`."""
    require_at_least(1, k=k)
    return checked_matrix(vectors, dim, source)


# ---- questions -------------------------------------------------------------------------------------------------------


def scaled_questions(queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale questions by powers of two, which changes only the exponents of what is computed from them.

    The smallest denormal numbers and the largest ones are then searched alike, also by XLA, which takes denormal
    numbers for 0.

    Args:
      queries: float32 [B, D].

    Returns:
      float64 [B, D] with the largest number of each question in [0.5, 1), and int32 [B], the exponents of two that
      scale back.
    """
    _, exponents = np.frexp(np.abs(queries).max(axis=1, initial=0).astype(np.float64))
    return np.ldexp(queries.astype(np.float64), -exponents[:, None]), exponents


def unscaled(scores: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Scores [B, k] of scaled questions -> float32 scores of the questions; 0.0 has no sign."""
    with np.errstate(over="ignore"):  # a score that no float32 holds is infinite
        return np.ldexp(scores.astype(np.float64), exponents[:, None]).astype(np.float32) + np.float32(0)
