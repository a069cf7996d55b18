"""A first pass over rows in few bits, and the exact scores of what it finds.

The devices hold the rows rounded to bfloat16 or to int8 (with a scale for each row), which takes half or a quarter of
the memory and of the time to read it. A search finds more candidates than are asked for and scores them again with the
unrounded rows, which stay on the host.

Is the result exact? With the error e of a rounded row, q.r differs from what the first pass computes by at most
|q| max|e| + |q - q'| max|r'| (q' and r' rounded), plus the rounding of the sums. max|e| and max|r'| are measured when the
rows are rounded. Where the k-th exact score is above the last candidate's first score by more than that, no row outside
the candidates can belong to the top k: this question is proven exact. Otherwise it most likely is, without a proof.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from jaxretr.embeddings.vector_files import quantise
from jaxretr.indexes.exact.host_loops import pair_scores
from jaxretr.indexes.exact.host_rows import PIECE_BYTES, gather, put_matrix
from jaxretr.runtime.errors import UsageError, did_you_mean
from jaxretr.runtime.parallel.mesh import put_rows

KINDS = ("bfloat16", "int8")

# Candidates for each result. They cost little, and prove more questions exact.
_CANDIDATES = 4


@dataclass(frozen=True)
class FirstPass:
    """The rounded rows on the devices.

    Attributes:
      rows: bfloat16 (on CPUs its bits) or int8 [n, D], sharded by row.
      scales: float32 [n] of int8 rows, else None.
      error: the largest distance of a row to its rounded one.
      longest: the largest length of a rounded row.
    """

    rows: jax.Array
    scales: jax.Array | None
    error: float
    longest: float

    def query_dtype(self, mesh: Mesh) -> str | None:
        """The dtype to round questions to: bfloat16 on accelerators, whose matrix units multiply it; None on CPUs."""
        return None if mesh.devices.flat[0].platform == "cpu" else "bfloat16"

    def slack(self, queries: np.ndarray, query_dtype: str | None) -> np.ndarray:
        """Bound the difference of a row's first-pass and exact scores, float64 [B], for scaled questions [B, D]."""
        rounded = queries if query_dtype is None else queries.astype(jnp.dtype(query_dtype))
        return RoundedQueries.of(queries, rounded).slack(self.error, self.longest)


class RoundedQueries(NamedTuple):
    """The effect of rounding on B questions, from which the bound on their scores follows.

    Attributes:
      lengths: the questions' lengths, float64 [B].
      shifts: the distances of the questions to the rounded ones, float64 [B].
      dim: D.
    """

    lengths: np.ndarray
    shifts: np.ndarray
    dim: int

    @classmethod
    def of(cls, queries: np.ndarray, rounded: np.ndarray) -> "RoundedQueries":
        """Measure scaled questions [B, D] against the rounded ones, with which the rounded rows are multiplied."""
        exact = queries.astype(np.float64)
        lengths, shifts = (np.linalg.norm(x, axis=1) for x in (exact, exact - rounded.astype(np.float64)))
        return cls(lengths, shifts, queries.shape[1])

    def slack(self, error: float, longest: float) -> np.ndarray:
        """Bound the difference of a score of rounded vectors and the float32 score, float64 [B]."""
        # The rounding of both sums of D float32 products, in any order, and of the comparison in float32; besides,
        # denormal numbers may be taken for 0.
        sums = 2 * (self.dim + 2) * 2.0**-23 * (self.lengths + self.shifts) * (longest + error) + self.dim * 2.0**-125
        return self.lengths * error + self.shifts * longest + sums


def check_kind(kind: str | None) -> str | None:
    """Raise UsageError for another kind than None, "bfloat16" and "int8"."""
    if kind is not None and kind not in KINDS:
        hint = did_you_mean(str(kind), KINDS)
        raise UsageError(f"first_pass={kind!r} is none of {', '.join(KINDS)} or None{hint}")
    return kind


def round_rows(mesh: Mesh, read: Callable[[int, int], np.ndarray], shape: tuple[int, int], kind: str) -> FirstPass:
    """Put rounded rows on the devices.

    Args:
      read: gives the rows [start, stop) as float32, zeros beyond the last.
      shape: [n, D], padding included.
      kind: "bfloat16" or "int8".
    """
    dtype = np.dtype(jnp.dtype(kind))
    step = max(1, PIECE_BYTES // (8 * shape[1]))
    scales = np.zeros(shape[0], np.float32)
    # The largest error and length as squares, float64, over the rows of this host's devices.
    worst = np.zeros(2)

    def rounded(start: int, stop: int) -> np.ndarray:
        values = np.empty((stop - start, shape[1]), dtype)
        for at in range(start, stop, step):
            until = min(at + step, stop)
            exact = read(at, until)
            if kind == "int8":
                part, scales[at:until] = quantise(exact)
                back = part.astype(np.float64) * scales[at:until, None].astype(np.float64)
            else:
                part = exact.astype(dtype)
                back = part.astype(np.float64)
            values[at - start : until - start] = part
            lengths = [np.einsum("nd,nd->n", x, x).max() for x in (exact - back, back)]
            np.maximum(worst, lengths, out=worst)
        return values

    rows = put_matrix(mesh, rounded, shape, dtype)
    if mesh.is_multi_process:
        worst = np.max(multihost_utils.process_allgather(worst), axis=0)
    # A little more, for the rounding of the squares.
    error, longest = np.sqrt(worst) * (1 + 1e-9)
    put_scales = put_rows(mesh, scales, (shape[0],), np.float32) if kind == "int8" else None
    return FirstPass(rows, put_scales, float(error), float(longest))


def candidates(k: int, allowed_count: int) -> int:
    """The number of candidates of the first pass for k results, where `allowed_count` rows may be found."""
    return min(allowed_count, max(_CANDIDATES * k, k + 60))


def rescore(
    rows: np.ndarray, queries: np.ndarray, candidate_rows: np.ndarray, k: int, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Score the candidates of a first pass with the unrounded rows, and keep the best.

    Args:
      rows: the unrounded rows [N, D] on the host, or a memory map of them.
      queries: scaled questions float64 [B, D].
      candidate_rows: row numbers int64 [B, c].
      k: results per question, at most c.
      dtype: the index's; the rows count as rounded to it.

    Returns:
      scores float64 [B, k], descending, ties by row, and their rows int64 [B, k].
    """
    scores, best = np.empty((len(queries), k)), np.empty((len(queries), k), np.int64)
    values = np.empty(candidate_rows.shape[1])
    for number, (query, candidate) in enumerate(zip(queries, candidate_rows, strict=True)):
        candidate = np.sort(candidate)  # A memory map is read in the order of the file, and ties are in that of rows.
        at = 0
        for part in _gathered(rows, candidate, dtype):
            pair_scores(query, part, values[at : at + len(part)])
            at += len(part)
        order = np.argsort(-values, kind="stable")[:k]
        scores[number], best[number] = values[order], candidate[order]
    return scores, best


def _gathered(rows: np.ndarray, numbers: np.ndarray, dtype: np.dtype) -> Iterator[np.ndarray]:
    step = max(1, PIECE_BYTES // (rows.shape[1] * 4))
    for start in range(0, len(numbers), step):
        yield gather(rows, numbers[start : start + step]).astype(dtype).astype(np.float32)
