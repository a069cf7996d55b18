"""Exact search by s1 + mu s2, the scores of two models, for a whole grid of weights mu in one pass over the corpus.

Both models' scores of a block of passages are computed once, and every weight keeps its own best k of it: no matrix of
all scores, and no second pass. `weight_choice` has the grids, and chooses.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxretr.indexes.exact.host_rows import checked_matrix
from jaxretr.indexes.exact.slabs import cut_to_slabs
from jaxretr.indexes.source import rebatched
from jaxretr.indexes.topk import BLOCK_ROWS, GROUP, NO_ROW, block_candidates, inner_products, select_best
from jaxretr.runtime.errors import UserError, require_at_least
from jaxretr.runtime.parallel.mesh import DATA, make_mesh, replicate, to_host
from jaxretr.runtime.parallel.programs import device_jit

# Passages on the devices at a time, of each of the two models: 100 MB of 768 dimensions.
SLAB_ROWS = 32_768

# Questions of one program call.
_BATCH = 512
_BATCHES = (8, 64, _BATCH)


def search_weights(
    first: tuple[np.ndarray, Iterable[np.ndarray]],
    second: tuple[np.ndarray, Iterable[np.ndarray]],
    weights: Sequence[float],
    k: int = 100,
    *,
    mesh: Mesh | None = None,
    block_rows: int = BLOCK_ROWS,
) -> tuple[np.ndarray, np.ndarray]:
    """Exact search by s1 + mu s2 for every weight mu, in one pass over the corpus.

    Gives for each weight what an `ExactIndex` of the concatenated embeddings gives for [q1; mu q2], up to the rounding of
    float32: equal scores go to the lowest row, but equal rows may have scores that differ in the last bits by their
    places. No matrix of B x N scores is ever held.

    For the weighted SUM of two models, (q1 + mu q2).(p1 + p2), give (q1, p1 + p2) and (q2, p1 + p2).

    Args:
      first: the questions' embeddings [B, D1], and the passages' as blocks [n, D1], in the order of rows; a block may
        be a memory map, and N rows in one array are a list of one block.
      second: the same of the other model, [B, D2] and blocks [n, D2], which may be cut otherwise.
      weights: M numbers from 0; 0 is the first model alone, and infinity the second one alone.
      k: results per question; at most as many as there are rows are returned.
      mesh: devices to search on, rows sharded over its "data" axis; all local devices by default.
      block_rows: rows scored at a time on each device.

    Returns:
      scores float32 [M, B, min(k, N)], descending (those of infinity are s2), and rows int64 [M, B, min(k, N)].

    Raises:
      UserError: wrong shapes, NaN or infinity in embeddings, not as many rows in both, no rows at all, a negative
        weight, or k < 1.
    """
    require_at_least(1, k=k)
    mesh = make_mesh(jax.local_devices()) if mesh is None else mesh
    factors = replicate(mesh, _factors(weights))
    questions = checked_matrix(first[0], None, "first questions"), checked_matrix(second[0], None, "second questions")
    count = len(questions[0])
    if len(questions[1]) != count:
        raise UserError(
            f"{count} questions by the first model, {len(questions[1])} by the second; encode the same ones"
        )
    # `batches`: both models' questions, [b, D1] and [b, D2], on every device.
    starts = range(0, max(count, 1), _BATCH)
    batches = [tuple(replicate(mesh, _padded(side[i : i + _BATCH])) for side in questions) for i in starts]
    step = functools.partial(_step, mesh=mesh, k=k, block_rows=block_rows)
    # `best`: the k best so far of each batch, scores and rows [devices, M, b, k].
    best: list[Any] = [_nothing(mesh, (len(weights), len(batch[0]), k)) for batch in batches]
    rows = 0
    sizes = questions[0].shape[1], questions[1].shape[1]
    for *slabs, valid in _slabs(mesh, (first[1], second[1]), sizes):
        best = [
            step(old, *batch, factors, *slabs, np.int32(rows), np.int32(valid))
            for old, batch in zip(best, batches, strict=True)
        ]
        rows += valid
        if rows >= NO_ROW:
            raise UserError(f"more than {NO_ROW - 1} passages; search the corpus in parts")
        # Without waiting the host would queue the whole corpus on the devices.
        jax.block_until_ready(best)
    if not rows:
        raise UserError("no passages to search; give at least one")
    merged = [[to_host(array) for array in _merge(old, mesh=mesh)] for old in best]
    scores, row_numbers = (
        np.concatenate([part[i] for part in merged], axis=1)[:, :count, : min(k, rows)] for i in (0, 1)
    )
    return scores, row_numbers.astype(np.int64)


@functools.partial(device_jit, static_argnames=("mesh", "k", "block_rows"), donate_argnames="best")
def _step(best, first_q, second_q, factors, first_rows, second_rows, start, valid, *, mesh, k, block_rows):
    """Update each device's best so far, ([devices, M, B, k] scores, rows), with a slab of rows."""
    on_device = functools.partial(_device_step, k=k, block_rows=block_rows)
    same, by_row = PartitionSpec(), PartitionSpec(DATA)
    specs = ((by_row, by_row), same, same, same, by_row, by_row, same, same)
    return jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=(by_row, by_row))(
        best, first_q, second_q, factors, first_rows, second_rows, start, valid
    )


def _device_step(best, first_q, second_q, factors, first_rows, second_rows, start, valid, *, k: int, block_rows: int):
    n = first_rows.shape[0]
    block_rows = min(block_rows, n)
    device_start = lax.axis_index(DATA).astype(jnp.int32) * n
    device_valid = jnp.clip(valid - device_start, 0, n)

    def score_block(block, best):
        # The last block is moved back to end with the rows; what it then shares with the one before is masked.
        at = jnp.minimum(block * block_rows, n - block_rows)
        s1 = inner_products(first_q, lax.dynamic_slice_in_dim(first_rows, at, block_rows))
        s2 = inner_products(second_q, lax.dynamic_slice_in_dim(second_rows, at, block_rows))
        row = at + jnp.arange(block_rows, dtype=jnp.int32)
        masked = (row < block * block_rows) | (row >= device_valid)
        row = start + device_start + row

        def one_weight(of_weight):
            factor, scores, rows = of_weight
            combined = factor[0] * s1 + factor[1] * s2
            # top_k ranks 0.0 above -0.0, which are equal scores.
            combined = jnp.where(masked, -jnp.inf, jnp.where(combined == 0, 0.0, combined))
            return _updated(scores, rows, combined, row, k)

        return lax.map(one_weight, (factors, *best))

    scores, rows = lax.fori_loop(0, -(-n // block_rows), score_block, (best[0][0], best[1][0]))
    return scores[None], rows[None]


def _updated(scores, rows, block, row, k: int):
    """The best [B, k] so far and a block [B, n] of later rows -> the best of both.

    Only what is above a question's worst result so far can enter, which soon is little: the work follows that.
    """
    width = next(size for size in (GROUP, 1) if block.shape[1] % size == 0)
    highest = block.reshape(len(block), -1, width).max(-1)
    entering = (highest > scores[:, -1:]).sum(-1).max()
    # Candidates in so many groups, of which each branch takes its number.
    sizes = [size for size in (k // 16, k // 4) if size] + [k]

    def nothing(scores, rows):
        return scores, rows

    def some(size):
        def select(scores, rows):
            new_scores, new_rows = block_candidates(block, row, size)
            # The best so far have lower rows and come first: top_k keeps the first of equal scores.
            return select_best(jnp.concatenate([scores, new_scores], -1), jnp.concatenate([rows, new_rows], -1), k)

        return select

    branch = jnp.searchsorted(jnp.array([0, *sizes[:-1]]), entering)
    return lax.switch(branch, [nothing, *map(some, sizes)], scores, rows)


@functools.partial(jax.jit, static_argnames="mesh")
def _merge(best, *, mesh: Mesh):
    """The devices' best [devices, M, B, k] -> the best of all [M, B, k], on every device."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    scores, rows = (lax.with_sharding_constraint(array, everywhere) for array in best)
    devices, *shape, k = scores.shape
    scores, rows = (jnp.moveaxis(array, 0, 2).reshape(*shape, devices * k) for array in (scores, rows))
    # Sort by score and by row, since the rows of one device lie between those of others.
    negated, rows = lax.sort((-scores, rows), num_keys=2)
    return -negated[..., :k], rows[..., :k]


def _nothing(mesh: Mesh, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    shape = (mesh.shape[DATA], *shape)
    by_row = NamedSharding(mesh, PartitionSpec(DATA))
    return jnp.full(shape, -jnp.inf, device=by_row), jnp.full(shape, NO_ROW, device=by_row)


def _factors(weights: Sequence[float]) -> np.ndarray:
    """The factors of s1 and s2 for each weight, float32 [M, 2]."""
    largest = float(np.finfo(np.float32).max)
    if not weights or not all(0 <= weight <= largest or weight == math.inf for weight in weights):
        raise UserError(f"the weights {list(weights)} must be float32 numbers from 0, at least one; correct them")
    return np.array([(0, 1) if math.isinf(weight) else (1, weight) for weight in weights], np.float32)


def _padded(questions: np.ndarray) -> np.ndarray:
    size = next(size for size in _BATCHES if size >= len(questions))
    return np.pad(questions, ((0, size - len(questions)), (0, 0)))


def _slabs(
    mesh: Mesh, streams: tuple[Iterable[np.ndarray], Iterable[np.ndarray]], sizes: tuple[int, int]
) -> Iterator[tuple[jax.Array, jax.Array, int]]:
    """Yield the same rows of both streams on the devices, padded to one shape, and the number of real rows."""
    names = ("first passages", "second passages")
    slabs = (
        cut_to_slabs(mesh, rebatched(blocks, SLAB_ROWS), np.dtype(np.float32), name, dim=size)
        for blocks, size, name in zip(streams, sizes, names, strict=True)
    )
    rows = 0
    for one, other in itertools.zip_longest(*slabs):
        if one is None or other is None or one.count != other.count:
            least = rows + min(0 if slab is None else slab.count for slab in (one, other))
            raise UserError(f"one model has {least} passages and the other has more; encode the same corpus with both")
        rows += one.count
        yield one.rows, other.rows, one.count
