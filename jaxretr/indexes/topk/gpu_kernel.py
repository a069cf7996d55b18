"""The maxima of groups of rows as one GPU kernel: a product whose scores never leave the processor that computed them.

XLA cuts blocks off the rows with a copy before it multiplies them, and writes all scores before it reduces them. On an H100
that copy alone took twice as long as reading the rows, which is all that this kernel waits for with few questions.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxretr.indexes.topk.shard import Shard, as_numbers, unsigned_zero
from jaxretr.runtime.parallel.mesh import varying_alike
from jaxretr.runtime.parallel.programs import pallas_triton

triton: Any = pallas_triton()

# Rows, and most questions, of a tile of scores. Rows, questions and the numbers of each are powers of two for Triton.
TILE_ROWS = 128
TILE_QUESTIONS = 128

# D is a multiple of this.
CHUNK = 64


def can_fuse(shape: tuple[int, ...], itemsize: float) -> bool:
    """Whether `fused_maxima` takes rows [n, D] of numbers of that many bytes.

    Pallas counts places in an array of up to 4 GB with 32 bits and a sign, which is one bit too few for int8.
    """
    n, dim = shape
    overflows = 2**31 < n * dim <= 2**32 and itemsize < 2
    return triton is not None and itemsize <= 2 and dim % CHUNK == 0 and not overflows


def fused_maxima(terms: jax.Array, count: int, shard: Shard, width: int, *, interpret: bool = False) -> jax.Array:
    """Maxima of the scores of groups of rows, float32 [B, n / width, rounded up to whole tiles].

    Args:
      terms: bfloat16 [count * B, D], matrices whose sum are the questions, the largest first.
      count: the number of these matrices.
      shard: the rows, bfloat16 or int8, which `can_fuse` accepts.
      width: rows of a group, a power of two up to `TILE_ROWS`.
      interpret: run it as JAX operations on any device, for tests.
    """
    n, dim = shard.rows.shape
    terms = terms.reshape(count, -1, dim)
    batch = terms.shape[1]
    # 80 to 96 kB of a processor's own memory, which every GPU since 2020 has.
    most = TILE_QUESTIONS if count == 1 else TILE_QUESTIONS // 2
    tile = min(most, max(16, 1 << (batch - 1).bit_length()))
    chunk = CHUNK if count == 1 else CHUNK // 2
    terms = jnp.pad(terms, ((0, 0), (0, -batch % tile), (0, 0)))
    padded = terms.shape[1]
    options = [array for array in (shard.allowed, shard.scales) if array is not None]
    grid = padded // tile, pl.cdiv(n, TILE_ROWS)  # the tiles of the same rows one after the other
    arrays = [jnp.reshape(shard.num_valid, 1), terms.reshape(-1, dim), as_numbers(shard.rows, terms), *options]
    arrays = varying_alike(*arrays)
    varying: Any = jax.typeof(arrays[0]).manual_axis_type
    kernel = functools.partial(
        _kernel,
        questions=padded,
        tile=tile,
        chunk=chunk,
        count=count,
        width=width,
        has_allowed=shard.allowed is not None,
        has_scales=shard.scales is not None,
    )
    maxima = pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[pl.BlockSpec()] * len(arrays),
        out_specs=pl.BlockSpec((tile, TILE_ROWS // width), lambda question, row: (question, row)),
        out_shape=jax.ShapeDtypeStruct((padded, grid[1] * TILE_ROWS // width), jnp.float32, manual_axis_type=varying),
        compiler_params=triton.CompilerParams(
            num_warps=8 if tile == TILE_QUESTIONS else 4, num_stages=3 if count == 1 else 4
        ),
        interpret=interpret,
    )(*arrays)
    return maxima[:batch]


def _kernel(
    num_valid,
    terms,
    rows,
    *others,
    questions: int,
    tile: int,
    chunk: int,
    count: int,
    width: int,
    has_allowed: bool,
    has_scales: bool,
) -> None:
    """One tile [questions, rows] of scores, and the maxima of its groups of rows."""
    *options, maxima = others
    n, dim = rows.shape
    first_question, first_row = pl.program_id(0) * tile, pl.program_id(1) * TILE_ROWS
    row_slice, row = pl.ds(first_row, TILE_ROWS), first_row + jnp.arange(TILE_ROWS)
    is_row = row < n

    def add(number: jax.Array, scores: jax.Array) -> jax.Array:
        part = pl.ds(number * chunk, chunk)
        of_rows = triton.load(rows.at[row_slice, part], mask=is_row[:, None], other=0).astype(jnp.bfloat16)
        for term in reversed(range(count)):  # the smallest first
            of_questions = terms[pl.ds(term * questions + first_question, tile), part]
            scores += triton.dot(of_questions, of_rows, trans_b=True)
        return scores

    scores = lax.fori_loop(0, dim // chunk, add, jnp.zeros((tile, TILE_ROWS), jnp.float32))
    valid = row < num_valid[0]
    if has_allowed:
        valid &= triton.load(options[0].at[row_slice], mask=is_row, other=False)
    if has_scales:
        scores *= triton.load(options[-1].at[row_slice], mask=is_row, other=0.0)
    scores = jnp.where(valid, scores, -jnp.inf)
    maxima[...] = unsigned_zero(scores.reshape(tile, TILE_ROWS // width, width).max(2))
