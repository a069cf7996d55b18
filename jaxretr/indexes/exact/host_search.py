"""Exact search on a host's processor, for any number of questions: every row is multiplied once, and few scores are kept.

Each question keeps a list of candidates and a lower bound t of its k-th best score. The scores of a few rows are compared
with t as soon as they are computed, and what is above it, less a bound on what float32 may have got wrong, is scored again
by a formulation that depends on nothing but the two vectors (`host_loops.inner_product`). Those scores are what the lists
hold and what is returned: equal rows have equal scores wherever they are, and a question has the same result alone and
among hundreds. A list is cut to the first k whenever it is full; t rises quickly, so that few scores of a large corpus are
computed twice. This is exact for any vectors: lengths that no float32 bound is useful for only take longer.

Each thread has rows of its own, of which it reads a few at a time and multiplies them with all questions; where there are
many threads a few share their rows, and each has some of the questions.

On processors with Intel's AMX XLA's matmul scores a block of bfloat16 for many questions first, and the bound is that of
`first_pass.RoundedQueries`. Where it does not pay, since most rows are within it (a collapsed encoder), the remaining blocks
are float32. With AVX512_BF16 alone it takes as long as float32 in registers.
"""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxretr.indexes.exact import host_loops
from jaxretr.indexes.exact.first_pass import RoundedQueries
from jaxretr.indexes.exact.host_loops import WIDTH
from jaxretr.indexes.exact.host_rows import scaled_questions, unscaled
from jaxretr.runtime.parallel.machine import cpu_threads, has_amx
from jaxretr.runtime.parallel.mesh import lendable

# Rows that are multiplied in bfloat16 or made float32 at a time, and questions from which on bfloat16 is faster.
BLOCK_ROWS, BFLOAT16_BATCH = 2048, 128

# Up to so many questions a loop over rows, without panels, is the fastest.
_FEW = 8

# Fewer rows than this are not divided among threads.
_LEAST_ROWS = 1024

# Threads that share their rows, where there are so many; and bytes of lists above which as many as possible do.
_SHARING, _LISTS_BYTES = 4, 64 * 2**20

# Bytes that Numba takes to read the loops that it has compiled, measured.
_LOOPS_BYTES = 60 * 2**20

# If more than this share of the scores have to be computed again, rounding does not pay.
_WORTHWHILE = 1 / 16


def working_bytes(dim: int, batch: int, k: int, *, float32: bool = True) -> int:
    """The bytes that a search takes in addition to the rows, which may be others than float32."""
    loops = 0 if host_loops.scan_rows.signatures or host_loops.scan_few.signatures else _LOOPS_BYTES
    lists = _slices(batch, k) * batch * list_length(k) * 12
    block = BLOCK_ROWS * (4 * batch + 2 * dim) if _rounds(batch) else 0
    pieces = 0 if float32 else cpu_threads() * BLOCK_ROWS * dim * 4
    return lists + block + pieces + batch * (dim * 12 + k * 12) + loops


class HostSearch:
    """The k best rows for each question of a batch, of all rows that `add` was given.

    Equal scores are ordered by row, the lowest first.
    """

    def __init__(self, queries: np.ndarray, k: int, *, rounded: bool | None = None):
        """Begin the search of a batch of questions.

        Args:
          queries: float32 [B, D].
          k: results per question.
          rounded: whether blocks are scored in bfloat16 first; None: of many questions, where the processor is faster
            at that.
        """
        batch, dim = queries.shape
        self._k = k
        self._queries, self._exponents = scaled_questions(queries)
        single = self._queries.astype(np.float32)
        self._rounded = _rounds(batch) if rounded is None else rounded
        if self._rounded:
            self._queries16 = single.astype(jnp.bfloat16)
            self._rounding = RoundedQueries.of(self._queries, self._queries16)
        # For a few questions, which are a single group, or in panels.
        self._small_batch = single if batch <= _FEW else None
        self._panels = host_loops.panels_of(single)
        # A sum of D float32 products is off by at most D 2^-24 times the lengths, and what it is compared with by some
        # more; denormal products and numbers may be taken for 0.
        lengths = np.linalg.norm(self._queries, axis=1)
        self._slopes = ((dim + 16) * 2.0**-24 * (1 + 2.0**-10) * lengths).astype(np.float32)
        self._least = np.where(lengths > 0, dim * 2.0**-125, 0).astype(np.float32)
        # Each slice of the rows has lists of its own: candidates in the order of rows, how many, and a lower bound of the
        # k-th best score.
        slices, length = _slices(batch, k), list_length(k)
        self._scores = np.empty((slices, batch, length))
        self._rows = np.empty((slices, batch, length), np.int32)
        self._counts = np.zeros((slices, batch), np.int64)
        self._bounds = np.full((slices, batch), -np.inf)
        # The number of rows that may still be scored again: at first as many as the lists hold.
        self._worth = float(batch * length)

    def add(
        self, rows: np.ndarray, first: int, allowed: np.ndarray | None = None, scales: np.ndarray | None = None
    ) -> None:
        """Search further rows, and keep those that may be among the best.

        Args:
          rows: float32 [n, D], the bits of bfloat16 as uint16, or int8.
          first: the number of rows[0]; larger than those of all rows before.
          allowed: bool [n], the rows that may be found; None: all.
          scales: float32 [n] of int8 rows.
        """
        if not len(self._queries):
            return
        # Numba would compile the loops once more for arrays that may be written to.
        rows, allowed = _read_only(rows), _read_only(np.empty(0, bool) if allowed is None else allowed)
        with ThreadPoolExecutor(cpu_threads()) as pool:
            run = map if cpu_threads() == 1 else pool.map
            start = 0
            while self._rounded and rows.dtype != np.int8 and start + BLOCK_ROWS <= len(rows):
                stop = start + BLOCK_ROWS
                self._add_rounded(run, rows[start:stop], first + start, allowed[start:stop])
                start = stop
            rest = None if scales is None else _read_only(scales)[start:]
            self._add_float32(run, rows[start:], first + start, allowed[start:], rest)

    def _add_float32(
        self, run: Callable, rows: np.ndarray, first: int, allowed: np.ndarray, scales: np.ndarray | None
    ) -> None:
        def scan(task: tuple[int, slice, slice]) -> None:
            number, piece, group = task
            part = slice(group.start * WIDTH, min(group.stop * WIDTH, len(self._queries)))
            lists = self._of_slice(number, part)
            loop, questions = host_loops.scan_rows, self._panels[group]
            if self._small_batch is not None:
                loop, questions = host_loops.scan_few, self._small_batch
            for start, values in _as_float32(rows[piece], None if scales is None else scales[piece]):
                at = piece.start + start
                loop(
                    values,
                    first + at,
                    allowed[at : at + len(values)],
                    self._queries[part],
                    questions,
                    self._slopes[part],
                    self._least[part],
                    self._k,
                    *lists,
                )

        slices = min(len(self._scores), max(1, len(rows) // _LEAST_ROWS))
        groups = _cuts(len(self._panels), cpu_threads() // slices if len(rows) >= _LEAST_ROWS else 1)
        tasks = [(*piece, group) for piece in enumerate(_cuts(len(rows), slices)) for group in groups]
        list(run(scan, tasks) if len(tasks) > 1 else map(scan, tasks))

    def _add_rounded(self, run: Callable, rows: np.ndarray, first: int, allowed: np.ndarray) -> None:
        """Score a block by its bfloat16 rows first."""
        [(_, values)] = _as_float32(rows, None)
        if rows.dtype == np.uint16:
            rounded = rows.view(jnp.bfloat16)
            error, longest = 0.0, float(host_loops.longest_of(values, 0, len(values)))
        else:
            rounded = lendable(rows.shape, jnp.bfloat16)

            def round_piece(piece: slice):
                return host_loops.round_rows(rows[piece].view(np.uint32), rounded[piece].view(np.uint16))

            squares = np.max(list(run(round_piece, _cuts(len(rows), cpu_threads()))), axis=0).astype(np.float64)
            # A little more, for squares too small for float32 and for the rounding of the bound.
            error, longest = np.sqrt(squares + rows.shape[1] * np.finfo(np.float32).tiny)
        if not longest < 2.0**60:
            return self._add_float32(run, rows, first, allowed, None)
        eps = (self._rounding.slack(error, longest) * (1 + 2.0**-10)).astype(np.float32)
        products = _read_only(np.asarray(_products(self._queries16, rounded)))

        def scan(part: slice) -> int:
            lists = self._of_slice(0, part)
            return host_loops.scan_scores(
                products[part], eps[part], values, first, allowed, self._queries[part], self._k, *lists
            )

        num_rescored = sum(run(scan, _cuts(len(self._queries), cpu_threads())))
        self._worth += _WORTHWHILE * products.size - num_rescored
        self._rounded &= self._worth > 0

    def _of_slice(self, number: int, part: slice) -> tuple[np.ndarray, ...]:
        return tuple(lists[number, part] for lists in (self._scores, self._rows, self._counts, self._bounds))

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Return scores float32 [B, k], descending, and rows int32 [B, k]; missing ones are -inf and NO_ROW."""
        for slice_ in range(len(self._scores)):
            host_loops.cut_lists(self._scores[slice_], self._rows[slice_], self._counts[slice_], self._k)
        scores, rows = (
            np.moveaxis(lists[:, :, : self._k], 0, 1).reshape(len(self._queries), len(lists) * self._k)
            for lists in (self._scores, self._rows)
        )
        best = np.lexsort((rows, -scores), axis=-1)[:, : self._k]
        scores, rows = (np.take_along_axis(lists, best, axis=1) for lists in (scores, rows))
        return unscaled(scores, self._exponents), rows


def list_length(k: int) -> int:
    """Candidates of a question for k results."""
    return max(2 * k, min(4 * k, 4096), 512)


def _rounds(batch: int) -> bool:
    return batch >= BFLOAT16_BATCH and has_amx()


def _slices(batch: int, k: int) -> int:
    """The number of slices that the rows are cut into, each of which has lists of candidates of its own."""
    threads, panels = cpu_threads(), -(-batch // WIDTH)
    sharing = threads if batch * list_length(k) * 12 * threads > _LISTS_BYTES else threads // _SHARING
    return -(-threads // max(1, min(panels, sharing)))


def _as_float32(rows: np.ndarray, scales: np.ndarray | None):
    """Yield (first row, float32 rows) of pieces that cover the rows; float32 rows are one piece, as they are."""
    if rows.dtype == np.float32:
        yield 0, rows
        return
    for start in range(0, len(rows), BLOCK_ROWS):
        piece = rows[start : start + BLOCK_ROWS]
        values = np.empty(piece.shape, np.float32)
        if scales is None:
            host_loops.widen(piece, values)
        else:
            host_loops.widen_scaled(piece, scales[start : start + BLOCK_ROWS], values)
        yield start, _read_only(values)


def _read_only(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array).view()
    array.flags.writeable = False
    return array


def _cuts(count: int, parts: int) -> list[slice]:
    """Cut `count` places into at most so many slices, none of them empty."""
    cuts = np.linspace(0, count, max(1, min(parts, count)) + 1).astype(int).tolist()
    return [slice(*cut) for cut in itertools.pairwise(cuts)]


@jax.jit
def _products(queries: jax.Array, rows: jax.Array) -> jax.Array:
    return lax.dot_general(queries, rows, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
