"""Rows as quantised indexes store them: integers with a scale, or the nearest of a few centres a block of dimensions.

Only the passages are rounded; questions are compared with the stored rows unrounded
(asymmetric distances). The gradient of a stored row goes straight through to the row (Bengio et al. 2013, section 4).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

_LARGEST = 127

# Rounds of coordinate descent for score-aware codes, and of Lloyd's algorithm: after these hardly anything changes.
_ROUNDS = 10
_ITERATIONS = 10

# Number of blocks of dimensions whose centres are fitted at once: the distances of all would take much memory.
_BLOCKS = 32


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StoredRows:
    """Quantiser that maps rows to the rows that an index stores; a pytree, so that custom gradients can take it."""

    codebook: jax.Array | None = None
    """Centres of product codes, float32 [S, C, W]; None: int8."""
    threshold: jax.Array | None = None
    """T of the score-aware loss that chooses the centres, float32 scalar; None: the nearest centres."""

    def __call__(self, rows: jax.Array) -> jax.Array:
        """Return the rows as stored, float32 [..., D]; a gradient of them goes to `rows` unchanged."""
        return rows + lax.stop_gradient(self.values(rows) - rows)

    def values(self, rows: jax.Array) -> jax.Array:
        """Return the rows as stored, without a gradient, float32 [..., D]."""
        rows = lax.stop_gradient(rows)
        if self.codebook is None:
            return int8_rows(rows)
        flat = rows.reshape(-1, rows.shape[-1])
        if self.threshold is None:
            codes = nearest_codes(flat, self.codebook)
        else:
            codes = score_aware_codes(flat, self.codebook, self.threshold)
        return decoded(codes, self.codebook, rows.shape[-1]).reshape(rows.shape)


def storage_errors(stored: StoredRows, p: jax.Array) -> jax.Array:
    """Return |p - Q(p)|^2 / |p|^2 of passages, float32 [..., D] -> [...], with a gradient that pulls p to Q(p).

    It is the commitment loss of RepCONC (Zhan et al. 2022, https://arxiv.org/abs/2110.05789), relative to the length.
    """
    length = lax.stop_gradient(jnp.square(p).sum(axis=-1))
    return jnp.square(p - stored.values(p)).sum(axis=-1) / jnp.where(length > 0, length, 1.0)


# ---- integers with a scale -------------------------------------------------------------------------------------------


def int8_rows(rows: jax.Array) -> jax.Array:
    """Round rows as `vector_files.quantise` does: the largest coordinate is 127 times the row's scale.

    Args:
      rows: float32 [..., D].

    Returns:
      float32 [..., D]; no coordinate is off by more than half the scale.
    """
    scales = jnp.abs(rows).max(axis=-1, keepdims=True) / _LARGEST
    values = jnp.round(rows / jnp.where(scales > 0, scales, 1.0))
    return jnp.clip(values, -_LARGEST, _LARGEST) * scales


# ---- product codes ---------------------------------------------------------------------------------------------------


def in_dimension_blocks(rows: jax.Array, width: int) -> jax.Array:
    """Reshape rows [..., D] to [..., S, W], the last block filled up with zeros."""
    spare = -rows.shape[-1] % width
    padded = jnp.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, spare)])
    return padded.reshape(*rows.shape[:-1], -1, width)


def _squared_errors(blocks: jax.Array, codebook: jax.Array) -> jax.Array:
    """Return squared distances to all centres, [M, S, W] and [S, C, W] -> [M, S, C]; the differences are fused."""
    return jnp.square(blocks[:, :, None] - codebook).sum(axis=-1)


def nearest_codes(rows: jax.Array, codebook: jax.Array) -> jax.Array:
    """Return the number of each block's nearest centre, the lowest of equally near ones: [M, D] -> int32 [M, S]."""
    return _squared_errors(in_dimension_blocks(rows, codebook.shape[-1]), codebook).argmin(axis=-1)


def score_aware_codes(rows: jax.Array, codebook: jax.Array, threshold: jax.Array) -> jax.Array:
    """Return codes by ScaNN's loss (Guo et al. 2020, equations 5 and 9), like those of jaxretr/indexes/certified/codes.py.

    The error r of a row x costs eta |r along x|^2 + |r across x|^2, where eta = (D - 1) T^2 / (|x|^2 - T^2). Beginning
    with the nearest centres, one block after the other takes the centre that costs least, the worst block first.

    Args:
      rows: float32 [M, D].
      codebook: float32 [S, C, W].
      threshold: T, float32 scalar; rows that are shorter keep their nearest centres.

    Returns:
      int32 [M, S].
    """
    dim, (groups, _, width) = rows.shape[-1], codebook.shape
    # Squared error of each centre in each block, [M, S, C], and the part of the error along the row, [M, S, C].
    blocks = in_dimension_blocks(rows, width)
    squares = _squared_errors(blocks, codebook)
    length = jnp.square(rows).sum(axis=-1)  # squared, [M]
    scale = jnp.where(length > 0, lax.rsqrt(jnp.where(length > 0, length, 1.0)), 0.0)
    along = ((blocks[:, :, None] - codebook) * blocks[:, :, None]).sum(axis=-1) * scale[:, None, None]
    # Rows long enough for the score-aware loss, and eta, the weight of their error along the row; both [M].
    counts = jnp.square(threshold) < length
    eta = (dim - 1) * jnp.square(threshold) / jnp.where(counts, length - jnp.square(threshold), 1.0)
    # First codes: the nearest centres, [M, S], and their joint error along the row, [M]. Blocks are taken in order of
    # their error, worst first.
    each = jnp.arange(len(rows))
    codes = squares.argmin(axis=-1)
    total = jnp.take_along_axis(along, codes[..., None], axis=-1).sum(axis=(-1, -2))  # [M]
    order = jnp.argsort(-squares.min(axis=-1), axis=-1, stable=True)

    def block(place: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        codes, total, changed = carry
        group = order[:, place]
        # The current block of each row: errors and error parts of its centres, and its present code.
        error, part, old = squares[each, group], along[each, group], codes[each, group]  # [M, C], [M, C], [M]
        # Change of the squared error along the row, and of the loss, if each centre replaced the present one, [M, C].
        rest = total - part[each, old]
        less = jnp.square(rest[:, None] + part) - jnp.square(total)[:, None]
        cost = (eta - 1)[:, None] * less + error - error[each, old][:, None]
        better = (less <= 0) & (cost < 0) & counts[:, None]
        best = jnp.where(better.any(axis=-1), jnp.where(better, cost, jnp.inf).argmin(axis=-1), old)
        return codes.at[each, group].set(best), rest + part[each, best], changed | (best != old).any()

    def one_round(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        number, _, codes, total = carry
        codes, total, changed = lax.fori_loop(0, groups, block, (codes, total, (total != total).any()))
        return number + 1, changed, codes, total

    # Flags of the same type as the loop's flags: they vary over the devices as the rows do.
    start = jnp.zeros((), jnp.int32), (total == total).any(), codes, total
    return lax.while_loop(lambda carry: carry[1] & (carry[0] < _ROUNDS), one_round, start)[2]


def decoded(codes: jax.Array, codebook: jax.Array, dim: int) -> jax.Array:
    """Return the rows that codes int32 [M, S] stand for, float32 [M, D]."""
    chosen = jnp.arange(codebook.shape[1]) == codes[..., None]  # [M, S, C]
    # A sum of one number and zeros instead of a gather of small pieces, which is slow on accelerators.
    values = jnp.where(chosen[..., None], codebook, 0.0).sum(axis=-2)
    return values.reshape(len(codes), -1)[:, :dim]


def fitted_codebook(
    rows: jax.Array, weights: jax.Array, block: int, centres: int, start: jax.Array | None = None
) -> jax.Array:
    """Fit centres to rows by Lloyd's algorithm, in each block of dimensions.

    A centre that no row is nearest to moves to the row that is farthest from its own.

    Args:
      rows: float32 [m, D].
      weights: float32 [m], 0 for rows that do not count; the first ones count.
      block: W.
      centres: C.
      start: a codebook to start from, float32 [S, C, W]; None: rows at equal distances in the list.

    Returns:
      float32 [S, C, W].
    """
    blocks = in_dimension_blocks(rows, block).swapaxes(0, 1)  # [S, m, W]
    if start is None:
        count = weights.sum().astype(jnp.int32)
        start = blocks[:, jnp.arange(centres) * count // centres]

    def improved(points: jax.Array, means: jax.Array) -> jax.Array:
        errors = jnp.square(points[:, None] - means).sum(axis=-1)  # [m, C]
        # Membership of each point in its nearest centre, [m, C], 0 for points that do not count.
        mine = (jnp.arange(centres) == errors.argmin(axis=-1)[:, None]) * weights[:, None]
        # Sums by a matrix product: additions to the places of a scatter come in any order on a GPU.
        sums, counts = jnp.matmul(mine.T, points, precision=lax.Precision.HIGHEST), mine.sum(axis=0)
        # The C points that are farthest from their centres; the n-th empty centre moves to the n-th of them.
        far = lax.top_k(jnp.where(weights > 0, errors.min(axis=-1), -1.0), centres)[1]
        empty = counts == 0
        spare = points[far[jnp.cumsum(empty) - 1]]
        return jnp.where(empty[:, None], spare, sums / jnp.maximum(counts, 1)[:, None])

    def fit_block(start: tuple[jax.Array, jax.Array]) -> jax.Array:
        points, means = start
        return lax.fori_loop(0, _ITERATIONS, lambda _, means: improved(points, means), means)

    return lax.map(fit_block, (blocks, start), batch_size=_BLOCKS)
