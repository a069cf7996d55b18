"""The exact top k of a device's rows on GPUs and TPUs: a pyramid of maxima.

The scores of all rows are reduced to the maxima of groups of neighbouring rows, those to the maxima of groups of groups,
and so on until a few thousand are left for a question. One selection finds the k best of these, the next one the k best
of their parts, and so on down to groups of rows, whose rows are scored again. Every selection is a sort of a few thousand
numbers a question, however many rows there are, and what remains is the time to read the rows.

Why the k first groups hold the top k: a row outside them is preceded by the maximum of each of them, which is higher, or
equal and in a lower row. The same holds for groups of groups. The scores of the results are those of the second scoring,
float32 products summed in float32. Both scorings are exact up to the order of their sums, in which a row may have two
scores that differ in the last bits; `SLACK` more groups than k are kept, so that a row at the last place is lost only
if the two scorings disagree about more groups than that. Rows that are equal to the bit are scored alike by both.

Questions in float32 against rows of 16 or 8 bits are cut to three bfloat16 terms, whose sum they are exactly: three
products on the matrix unit take a fraction of one in float32, and no row is converted to float32.

On NVIDIA's GPUs the first scoring is a kernel of ours (`gpu_kernel`) where there are more than a few questions.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxretr.indexes.topk.gpu_kernel import TILE_ROWS, can_fuse, fused_maxima
from jaxretr.indexes.topk.shard import NO_ROW, Block, Shard, as_numbers, inner_products, select_best, unsigned_zero

# Groups that are kept beyond the k-th, at each level.
SLACK = 8

# Maxima a question over which the first selection goes, at most, unless the groups above would be too few.
TOP = 16_384

# Bytes of scores of one block of rows, which then stay in a GPU's cache.
BLOCK_BYTES = 32 * 2**20

# Bytes of the maxima of groups of rows, at most, unless a sixteenth of the rows' bytes is more: larger groups take less.
MAXIMA_BYTES = 64 * 2**20

# Bytes of the rows that are scored again at a time.
AGAIN_BYTES = 256 * 2**20


class Kind(NamedTuple):
    """The sizes and the kernel that suit a kind of accelerator.

    Attributes:
      rows: the least number of rows of a group.
      fan: groups in a group of groups.
      small_batch: the most questions for which all rows are multiplied element by element in one pass over them, which waits
        for the memory alone. On GPUs XLA copies a block before the matrix unit reads it, which takes longer than to
        read it.
      kernel: the function that computes the maxima of groups from all rows with more questions, see `gpu_kernel`;
        None: a loop over blocks.
    """

    rows: int
    fan: int
    small_batch: int
    kernel: Callable[..., jax.Array] | None = None


GPU = Kind(rows=16, fan=16, small_batch=8)
CUDA = GPU._replace(small_batch=1, kernel=fused_maxima)
TPU = Kind(rows=16, fan=128, small_batch=0)


class Layout(NamedTuple):
    """The sizes of the steps of one search.

    Attributes:
      size: rows that are scored at a time.
      width: rows of a group.
      count: groups that are kept.
      terms: bfloat16 terms that a question is cut into.
    """

    size: int
    width: int
    count: int
    terms: int

    @classmethod
    def of(
        cls,
        shape: tuple[int, ...],
        itemsize: float,
        batch: int,
        k: int,
        block_rows: int,
        kind: Kind,
        *,
        exact: bool = True,
    ) -> "Layout":
        """Choose the layout of a search.

        Args:
          shape: [n, D] of the rows.
          itemsize: bytes of one of their numbers.
          batch: questions.
          k: results a question.
          block_rows: rows scored at a time, at most.
          kind: the kind of device.
          exact: whether the questions are float32.
        """
        n, dim = shape
        terms = 3 if exact and itemsize < 4 else 1
        count = k + SLACK
        width = kind.rows
        limit = max(MAXIMA_BYTES, n * dim * itemsize // 16)
        while 4 * batch * n > limit * width and 4 * width * count <= n and 2 * width <= min(block_rows, TILE_ROWS):
            width *= 2
        if batch <= kind.small_batch:
            return cls(n, width, count, 1)
        if kind.kernel is not None and can_fuse(shape, itemsize):
            return cls(n, width, count, terms)
        size = max(min(block_rows, BLOCK_BYTES // (4 * terms * batch), n) // width, 1) * width
        return cls(size, width, count, terms)

    def working_bytes(self, rows: int, dim: int, batch: int, stored: int, kind: Kind) -> int:
        """The bytes that a search of rows [n, D] holds in addition to the rows, of `stored` bytes each."""
        scores = 4 * batch * self.size
        block = 0
        if self.size < rows:
            scores, block = self.terms * scores, self.size * stored
        elif batch > kind.small_batch:
            scores = 0  # none leaves the kernel
        maxima = 4 * batch * rows // self.width * (1 + 2 / kind.fan)
        rescored_rows = self.count * self.width
        at_once = again_at_once(batch, rescored_rows, dim)
        return int(scores + block + maxima + batch * rescored_rows * 16 + at_once * rescored_rows * dim * 4)


def can_narrow(n: int, k: int, block_rows: int, kind: Kind) -> bool:
    """Whether `pyramid_topk` can search n rows for k results, and would leave most of the rows out."""
    return min(block_rows, n) >= kind.rows and 2 * kind.rows * (k + SLACK) <= n


def pyramid_topk(
    queries: jax.Array, shard: Shard, k: int, block_rows: int, *, kind: Kind
) -> tuple[jax.Array, jax.Array]:
    """`local_topk` where `can_narrow`; holds the maxima of all groups, and the scores of a block or of all rows."""
    rows, exact = shard.rows, queries.dtype == jnp.float32
    # XLA would take back the rounding of questions to bfloat16 where one of the two scorings reads them as float32.
    queries = lax.optimization_barrier(queries)
    layout = Layout.of(rows.shape, rows.dtype.itemsize, len(queries), k, block_rows, kind, exact=exact)
    levels = _pyramid(group_maxima(queries, shard, layout, kind), kind.fan, max(TOP, 2 * kind.fan * layout.count))
    groups = _first_groups(levels, layout.count, kind.fan)
    per_block = levels[0].shape[2]
    scores, row = _score_again(queries, groups // per_block, groups % per_block, shard, layout)
    scores, row = select_best(scores, row, k)
    return scores, jnp.where(scores == -jnp.inf, NO_ROW, row)


# ---- up: maxima ------------------------------------------------------------------------------------------------------


def group_maxima(queries: jax.Array, shard: Shard, layout: Layout, kind: Kind) -> jax.Array:
    """The maxima of all groups of rows, float32 [blocks, B, groups of a block]; see `pyramid_topk` and `Layout`."""
    n, batch = shard.rows.shape[0], queries.shape[0]
    terms = exact_terms(queries) if layout.terms > 1 else queries  # [terms * B, D]

    def maxima(scores: jax.Array, block: Block) -> jax.Array:
        if block.scales is not None:
            scores *= block.scales
        scores = _full(jnp.where(block.valid, scores, -jnp.inf), layout.width)
        return unsigned_zero(_maxima_of(scores, layout.width))

    if batch <= kind.small_batch:
        block = shard.block(jnp.int32(0), layout.size)
        return jnp.stack([maxima(scores, block) for scores in _elementwise_products(queries, block)])[None]

    if kind.kernel is not None and can_fuse(shard.rows.shape, shard.rows.dtype.itemsize):
        return kind.kernel(terms.astype(jnp.bfloat16), layout.terms, shard, layout.width)[None]

    def block_maxima(number: jax.Array) -> jax.Array:
        block = shard.block(number, layout.size)
        rows = as_numbers(block.rows, terms)
        scores = inner_products(terms, rows)  # [terms * B, size]
        # Add the products of the three terms, the smallest first.
        return maxima(functools.reduce(jnp.add, scores.reshape(layout.terms, batch, -1)[::-1]), block)

    blocks = -(-n // layout.size)
    if blocks == 1:
        return block_maxima(jnp.int32(0))[None]
    return lax.map(block_maxima, jnp.arange(blocks, dtype=jnp.int32))


def exact_terms(queries: jax.Array) -> jax.Array:
    """Cut float32 [B, D] into bfloat16 [3 * B, D]: three matrices whose sum is exactly the input, the largest first.

    Each term has the next 8 of a float32's 24 bits. Numbers below 2^-110 lose the bits that bfloat16 cannot hold.
    """
    terms = []
    for _ in range(3):
        # With integers: XLA may take float32 -> bfloat16 -> float32 for no change at all.
        bits = lax.bitcast_convert_type(queries, jnp.uint32) & jnp.uint32(0xFFFF0000)
        term = lax.bitcast_convert_type(bits, jnp.float32)
        terms.append(term.astype(jnp.bfloat16))
        queries = queries - term
    return jnp.concatenate(terms)


def _elementwise_products(queries: jax.Array, block: Block) -> list[jax.Array]:
    """Scores of a block's rows in float32, [size] for each question, by one pass over the rows for all of them."""
    rows = as_numbers(block.rows, queries).astype(jnp.float32)
    products = [rows * query for query in queries.astype(jnp.float32)]

    def add(sums: list[jax.Array], others: list[jax.Array]) -> list[jax.Array]:
        return [one + other for one, other in zip(sums, others, strict=True)]

    return lax.reduce(products, [np.float32(0)] * len(products), add, (1,))


def _full(values: jax.Array, width: int) -> jax.Array:
    """Fill the last axis up to whole groups with -inf."""
    missing = -values.shape[-1] % width
    return jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)], constant_values=-jnp.inf)


def _maxima_of(values: jax.Array, width: int) -> jax.Array:
    return values.reshape(*values.shape[:-1], -1, width).max(-1)


def _pyramid(maxima: jax.Array, fan: int, top: int) -> list[jax.Array]:
    """Maxima [blocks, B, m] of groups, of groups of them and so on, until no more than `top` are left for a question.

    Each level has `fan` times as many as the next one, filled up to that. A block's groups are never put together with
    another block's: where it has too few, the top is higher than that.
    """
    blocks, _, groups = maxima.shape
    height, width = 0, groups
    while width >= fan and blocks * width > top:
        height, width = height + 1, -(-width // fan)
    levels = [_full(maxima, fan**height)]
    for _ in range(height):
        levels.append(_maxima_of(levels[-1], fan))
    return levels


# ---- down: selections ------------------------------------------------------------------------------------------------


def _first_groups(levels: list[jax.Array], count: int, fan: int) -> jax.Array:
    """The groups of rows with the `count` highest maxima for each question, int32 [B, count], ascending."""
    *below, top = levels
    batch = top.shape[1]
    groups = _first(jnp.moveaxis(top, 1, 0).reshape(batch, -1), count)
    for level in reversed(below):
        blocks, _, size = level.shape
        # The parts of the groups that were chosen one level up, of which the first `count` go on.
        parents = level.reshape(blocks, batch, size // fan, fan)
        number, place = groups // (size // fan), groups % (size // fan)
        maxima = parents[number, jnp.arange(batch)[:, None], place]  # [B, count, fan]
        parts = groups[:, :, None] * fan + jnp.arange(fan, dtype=jnp.int32)
        first = _first(maxima.reshape(batch, -1), count)
        groups = jnp.take_along_axis(parts.reshape(batch, -1), first, axis=-1)
    return groups


def _first(values: jax.Array, count: int) -> jax.Array:
    """Places of the `count` highest values [B, m], or of all, ascending; top_k keeps the first of equal ones."""
    _, place = lax.top_k(values, min(count, values.shape[-1]))
    return jnp.sort(place, axis=-1)


def _score_again(
    queries: jax.Array, number: jax.Array, place: jax.Array, shard: Shard, layout: Layout
) -> tuple[jax.Array, jax.Array]:
    """Scores [B, count * width] of the rows of groups, given by block and place [B, count], and rows, ascending."""

    def score_question(query: jax.Array, number: jax.Array, place: jax.Array) -> tuple[jax.Array, jax.Array]:
        block = shard.groups(number, place, layout.size, layout.width)
        (scores,) = _elementwise_products(query[None], block)
        if block.scales is not None:
            scores *= block.scales
        return jnp.where(block.valid, unsigned_zero(scores), -jnp.inf), block.row

    batch = queries.shape[0]
    at_once = again_at_once(batch, place.shape[1] * layout.width, queries.shape[1])
    if at_once == batch:
        return jax.vmap(score_question)(queries, number, place)
    return lax.map(lambda each: score_question(*each), (queries, number, place), batch_size=at_once)


def again_at_once(batch: int, rows: int, dim: int) -> int:
    """Questions whose rows are scored again at a time: a divisor of all."""
    most = max(AGAIN_BYTES // (4 * rows * dim), 1)
    return max(size for size in range(1, batch + 1) if batch % size == 0 and size <= most)
