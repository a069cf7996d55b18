"""Exact search on a host's processor, for a few questions or for hundreds: products of a block, one pass over its scores.

XLA is not the fastest there: its product of all rows with a few questions does not reach the memory's speed, its matmul
of float32 is slower than the processor's BLAS, and what follows costs as much again: maxima of groups, a selection, the
scores of the groups once more. Here each question keeps a list of candidates and the k-th best score t that it has seen.
One compiled loop reads a block's scores and adds what is above t to the list, which is cut to the first k whenever it is
full; t rises quickly, so that few scores of a large corpus are touched twice. The scores come from

  a loop over rows for up to `FEW` questions, at the speed at which rows are read;
  numpy's BLAS for hundreds of questions, in float32; or
  XLA's matmul of bfloat16 where the processor has one (Intel's AMX: some eight times as fast as float32).

With the bound eps of `first_pass.RoundedQueries` on the error of bfloat16, the true k-th score is at least t - eps with t
of rounded scores, so whatever scores above t - 2 eps stays a candidate; candidates are scored again in float32, at the
end or when they fill the list, and from then on whatever is above t - eps stays. Nothing that could belong to the top k
is ever dropped: this is exact for any vectors. Where it does not pay, since most rows are within the bound (a collapsed
encoder), the remaining blocks go through the BLAS.
"""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numba import types
from numba.extending import intrinsic

from jaxretr.search.compiled import compiled
from jaxretr.search.first_pass import RoundedQueries
from jaxretr.search.host_rows import aligned
from jaxretr.search.machine import cpu_threads, multiplies_bfloat16
from jaxretr.search.topk import NO_ROW, can_group

# Rows whose scores are computed at a time for hundreds of questions, and scores for few.
BLOCK_ROWS, FEW_SCORES = 2048, 2**18

# Up to so many questions, and from so many on with float32 and with bfloat16, this is faster than `topk.grouped_topk`.
FEW, FLOAT32_BATCH, BFLOAT16_BATCH = 16, 256, 128

# Fewer rows than this are not worth it.
LEAST_ROWS = 4 * BLOCK_ROWS

# What Numba takes to read the first loops that it has compiled, measured.
_LOOPS_BYTES = 60 * 2**20

# Scores of which the loop asks whether there is a candidate before it looks at each.
_WIDTH = 32

# If more than this share of the scores have to be computed again, rounding does not pay.
_WORTHWHILE = 1 / 16


def suits(rows: int, batch: int, k: int) -> bool:
    """Whether `HostSearch` is the fastest on this processor, for float32 rows of one device."""
    least = BFLOAT16_BATCH if multiplies_bfloat16() else FLOAT32_BATCH
    return (1 <= batch <= FEW or batch >= least) and rows >= LEAST_ROWS and can_group(rows, k, BLOCK_ROWS)


def working_bytes(rows: int, dim: int, batch: int, k: int) -> int:
    """What it takes to search, beside the rows."""
    loops = 0 if _scan.signatures else _LOOPS_BYTES
    if batch <= FEW:
        return 4 * FEW_SCORES + batch * list_length(k) * 8 + loops
    block = min(BLOCK_ROWS, rows)
    return batch * (2 * block * 4 + list_length(k) * 8) + block * dim * 2 + loops


class HostSearch:
    """The k best rows for each question of a batch, of all rows that `add` was given.

    Equal scores are ordered by row, the lowest first.
    """

    def __init__(self, queries: np.ndarray, k: int, *, rounded: bool | None = None):
        """Begins a search.

        Args:
          queries: float32 [B, D].
          k: results a question.
          rounded: whether blocks are scored in bfloat16 first; None: of many questions, where the processor is faster
            at that.
        """
        batch = len(queries)
        self._queries, self._k = np.ascontiguousarray(queries), k
        self._rounded = batch > FEW and multiplies_bfloat16() if rounded is None else rounded
        if self._rounded:
            self._queries16 = self._queries.astype(jnp.bfloat16)
            self._rounding = RoundedQueries.of(self._queries, self._queries16)
        length = list_length(k)
        # Candidates of each question in the order of rows: scores, rows, how many, how many of them (the first ones)
        # have float32 scores, and a lower bound of the k-th best float32 score.
        self._scores = np.empty((batch, length), np.float32)
        self._rows = np.empty((batch, length), np.int32)
        self._counts = np.zeros((batch, 2), np.int64)
        self._bounds = np.full(batch, -np.inf, np.float32)
        self._eps = np.zeros(batch, np.float32)
        # How many more rows may be scored again: to begin with as many as the lists hold.
        self._worth = float(self._scores.size)

    def add(self, rows: np.ndarray, first: int, allowed: np.ndarray | None = None) -> None:
        """Searches rows.

        Args:
          rows: float32 [n, D].
          first: the number of rows[0]; larger than those of all rows before.
          allowed: bool [n], the rows that may be found; None: all.
        """
        allowed = np.empty(0, bool) if allowed is None else allowed
        parts = _cuts(len(self._queries))
        with ThreadPoolExecutor(cpu_threads()) as pool:
            run = map if cpu_threads() == 1 else pool.map
            for start, scores, rounded in self._blocks(run, rows):

                def scan(part: slice, start=start, scores=scores, rounded=rounded) -> int:
                    return _scan(
                        *(scores[part], rounded, start, first, rows, self._queries[part], allowed, self._k),
                        *(self._scores[part], self._rows[part], self._counts[part], self._bounds[part]),
                        self._eps[part],
                    )

                self._worth += _WORTHWHILE * scores.size - sum(run(scan, parts))
                self._rounded &= self._worth > 0

            def finish(part: slice) -> None:
                _finish(
                    *(rows, first, self._queries[part], self._k),
                    *(self._scores[part], self._rows[part], self._counts[part], self._bounds[part]),
                )

            list(run(finish, parts))

    def _blocks(self, run: Callable, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, bool]]:
        """Yields (first row, scores [B, rows of the block], whether they are rounded), and sets the bound of their error."""
        few = len(self._queries) <= FEW and not self._rounded
        size = min(FEW_SCORES // len(self._queries) if few else BLOCK_ROWS, len(rows))
        space = np.empty((len(self._queries), size), np.float32)
        rounded = aligned((size, rows.shape[1]), np.dtype(jnp.bfloat16)) if self._rounded else None
        for start in range(0, len(rows), size):
            block = rows[start : start + size]
            # The last block has a shape of its own, for which nothing is compiled.
            if rounded is not None and self._rounded and len(block) == size:
                yield start, self._rounded_scores(run, block, rounded), True
                continue
            scores = space if len(block) == size else np.empty((len(space), len(block)), np.float32)
            if few:

                def multiply(piece: slice, block=block, scores=scores) -> None:
                    _products_of_few(self._queries, block[piece], scores[:, piece])

                list(run(multiply, _cuts(len(block))))
            else:
                np.dot(self._queries, block.T, out=scores)
            yield start, scores, False

    def _rounded_scores(self, run: Callable, block: np.ndarray, rounded: np.ndarray) -> np.ndarray:
        """Scores a block by way of its bfloat16 rows, for which `rounded` is the space."""

        def round_piece(piece: slice):
            return _round(block[piece].view(np.uint32), rounded[piece].view(np.uint16))

        # A little more, for squares too small for float32 and for the rounding of the bound.
        lost = block.shape[1] * np.finfo(np.float32).tiny
        squares = np.max(list(run(round_piece, _cuts(len(block)))), axis=0).astype(np.float64)
        error, longest = np.sqrt(squares + lost)
        bound = self._rounding.slack(error, longest) * (1 + 2.0**-10)
        self._eps = np.maximum(self._eps, bound.astype(np.float32))
        return np.asarray(_products(self._queries16, rounded))

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns scores float32 [B, k], descending, and rows int32 [B, k]; missing ones are -inf and NO_ROW."""
        k, counts = self._k, self._counts[:, :1]
        missing = np.arange(k) >= counts
        # 0.0 and -0.0 are equal scores; the first is returned.
        scores = np.where(missing, np.float32(-np.inf), self._scores[:, :k] + np.float32(0))
        order = np.argsort(-scores, axis=1, kind="stable")
        rows = np.where(missing, NO_ROW, self._rows[:, :k])
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def list_length(k: int) -> int:
    """Candidates of a question for k results."""
    return max(4 * k, 512)


def _cuts(count: int) -> list[slice]:
    """Cuts `count` places to one slice a thread."""
    cuts = np.linspace(0, count, min(cpu_threads(), count) + 1).astype(int)
    return [slice(*cut) for cut in itertools.pairwise(cuts)]


@jax.jit
def _products(queries: jax.Array, rows: jax.Array) -> jax.Array:
    return lax.dot_general(queries, rows, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


@intrinsic
def _as_float(typingctx, bits):
    def code(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.uint32), code


@compiled(fastmath=True)
def _round(bits, rounded):
    """Rounds float32 rows [n, D], given as bits, to bfloat16 bits, half to even.

    Returns the squares of the largest distance of a row to its rounded one, and of the largest length of a rounded row.
    """
    error = longest = np.float32(0)
    for i in range(len(bits)):
        shift = length = np.float32(0)
        for d in range(bits.shape[1]):
            exact = bits[i, d]
            odd = (exact >> np.uint32(16)) & np.uint32(1)
            kept = np.uint32((exact + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000))
            rounded[i, d] = np.uint16(kept >> np.uint32(16))
            value = _as_float(kept)  # pyright: ignore[reportCallIssue]
            away = _as_float(exact) - value  # pyright: ignore[reportCallIssue]
            shift += away * away
            length += value * value
        error, longest = max(error, shift), max(longest, length)
    return error, longest


@compiled()
def _scan(scores, rounded, start, first, values, queries, allowed, k, best, rows, counts, bounds, eps):
    """Adds what may belong to the top k of a block to the lists; returns how many rows were scored again.

    Args:
      scores: float32 [B, n].
      rounded: whether they may be wrong by eps.
      start: the place of scores[:, 0] in `values`.
      first: the number of values[0].
      values: the rows float32 [N, D].
      queries: float32 [B, D].
      allowed: bool [N], or empty.
      k: results a question.
      best, rows, counts, bounds, eps: the lists, see `HostSearch`; changed.
    """
    rescored = 0
    for b in range(len(scores)):
        if not rounded:
            _rescore(values, first, queries[b], best[b], rows[b], counts[b])
        error = eps[b] if rounded else np.float32(0)
        count, limit, of_question = counts[b, 0], bounds[b] - error, scores[b]
        for at in range(0, scores.shape[1], _WIDTH):
            if at + _WIDTH <= scores.shape[1]:
                found = np.int32(0)
                for i in range(_WIDTH):
                    found |= np.int32(of_question[at + i] > limit)
                if not found:
                    continue
            for place in range(at, min(at + _WIDTH, scores.shape[1])):
                if not of_question[place] > limit or (len(allowed) and not allowed[start + place]):
                    continue
                best[b, count] = of_question[place]
                rows[b, count] = first + start + place
                count += 1
                if count == best.shape[1]:
                    counts[b] = count, counts[b, 1] if rounded else count
                    bound = _cut(best[b], rows[b], counts[b], k, error)
                    if 2 * counts[b, 0] > count:
                        rescored += _rescore(values, first, queries[b], best[b], rows[b], counts[b])
                        bound = max(bound, _cut(best[b], rows[b], counts[b], k, error))
                    bounds[b] = max(bounds[b], bound)
                    count, limit = counts[b, 0], bounds[b] - error
        counts[b] = count, counts[b, 1] if rounded else count
    return rescored


@compiled()
def _finish(values, first, queries, k, best, rows, counts, bounds):
    """Leaves the k best of each list, with float32 scores."""
    for b in range(len(queries)):
        _rescore(values, first, queries[b], best[b], rows[b], counts[b])
        if counts[b, 0] > k:
            bounds[b] = max(bounds[b], _cut(best[b], rows[b], counts[b], k, np.float32(0)))


@compiled(fastmath=True)
def _products_of_few(queries, rows, scores):
    """Writes the inner products [B, n] of queries [B, D] with rows [n, D], each of which is read once.

    Four questions and two rows at a time are what a processor's registers hold.
    """
    batch, dim = queries.shape
    whole = batch - batch % 4 if len(rows) > 1 else 0
    zero = np.float32(0)
    for pair in range(0, len(rows), 2):
        i = min(pair, max(len(rows) - 2, 0))  # the last two rows, if one is left over
        for b in range(0, whole, 4):
            s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = zero
            for d in range(dim):
                x, y = rows[i, d], rows[i + 1, d]
                s0 += x * queries[b, d]
                s1 += x * queries[b + 1, d]
                s2 += x * queries[b + 2, d]
                s3 += x * queries[b + 3, d]
                t0 += y * queries[b, d]
                t1 += y * queries[b + 1, d]
                t2 += y * queries[b + 2, d]
                t3 += y * queries[b + 3, d]
            scores[b, i], scores[b + 1, i], scores[b + 2, i], scores[b + 3, i] = s0, s1, s2, s3
            scores[b, i + 1], scores[b + 1, i + 1], scores[b + 2, i + 1], scores[b + 3, i + 1] = t0, t1, t2, t3
        for b in range(whole, batch):
            for j in range(i, min(i + 2, len(rows))):
                s0 = zero
                for d in range(dim):
                    s0 += rows[j, d] * queries[b, d]
                scores[b, j] = s0


@compiled(fastmath=True)
def _rescore(values, first, query, best, rows, counts):
    """Replaces rounded scores by float32 ones; returns how many."""
    rounded = counts[0] - counts[1]
    for i in range(counts[1], counts[0]):
        row = values[rows[i] - first]
        total = np.float32(0)
        for d in range(len(query)):
            total += query[d] * row[d]
        best[i] = total
    counts[1] = counts[0]
    return rounded


@compiled()
def _cut(best, rows, counts, k, eps):
    """Drops what cannot belong to the k best; returns a lower bound of the k-th best float32 score.

    Without rounded scores the k best remain, the first rows of equal scores.
    """
    count, exact = counts[0], counts[1]
    lowest = best[:count].copy()
    lowest[exact:] -= eps
    bound = np.partition(lowest, count - k)[count - k]
    equal = k
    for i in range(count):
        equal -= lowest[i] > bound
    kept = 0
    for i in range(count):
        if exact == count:
            stays = lowest[i] > bound or (lowest[i] == bound and equal > 0)
            equal -= lowest[i] == bound
        else:
            stays = best[i] + (eps if i >= exact else np.float32(0)) >= bound
        if stays:
            best[kept], rows[kept] = best[i], rows[i]
            kept += 1
        elif i < exact:
            counts[1] -= 1
    counts[0] = kept
    return bound
