"""The softmax's denominator over a sharded corpus equals a dense one in float64, in value and in gradient.

20 passages in 24 rows: 3 a device of 8, so that shards are smaller than a block, padding in part and nothing else.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.losses.corpus_softmax import corpus_logsumexp
from jaxretr.runtime.parallel.mesh import DATA, make_mesh

B, D, N, ROWS = 8, 5, 20, 24
SEED = 4


class Given:
    """Random embeddings; passage 17 is a copy of 4, and 19 one of 0."""

    def __init__(self) -> None:
        rng = np.random.default_rng(SEED)
        print("seed", SEED)
        self.queries, self.rows = (rng.normal(size=(n, D)).astype(np.float32) for n in (B, ROWS))
        self.rows[N:] = 100.0  # Padding would dwarf all else.
        self.contents = np.arange(ROWS, dtype=np.int32)
        self.contents[[17, 19]] = [4, 0]
        self.contents[N:] = 0  # as arrays are padded
        self.excluded = np.array([1, 5, 5, NO_PASSAGE, 13, 21], np.int32)
        self.each = rng.integers(0, N, (B, 3)).astype(np.int32)
        self.each[:3] = [[4, NO_PASSAGE, 4], [0, 7, 8], [NO_PASSAGE] * 3]
        self.cotangent = rng.normal(size=B).astype(np.float32)

    def counts(self, i: int) -> list[int]:
        """The rows that question i sees."""
        return [row for row in range(N) if row not in self.excluded and self.contents[row] not in self.each[i].tolist()]


@pytest.fixture
def given() -> Given:
    return Given()


def ours(
    given: Given, devices: int, block_rows: int, temperature: float = 1.0, normalise: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """log-sum-exp [B], and the gradient [B, D] of its product with the cotangent."""
    mesh = make_mesh(jax.devices()[:devices])

    @partial(jax.shard_map, mesh=mesh, axis_names={DATA}, in_specs=(P(DATA), P(DATA), P(DATA), P(), P()), out_specs=P())
    def whole(q: jax.Array, rows: jax.Array, contents: jax.Array, excluded: jax.Array, each: jax.Array) -> jax.Array:
        return corpus_logsumexp(
            *(lax.all_gather(q, DATA, tiled=True), rows, contents, excluded, each),
            axis=DATA,
            num_valid=N,
            temperature=temperature,
            normalise=normalise,
            block_rows=block_rows,
        )

    fixed = (given.rows, given.contents, given.excluded, given.each)

    @jax.jit
    def both(q: jax.Array, cotangent: jax.Array, *fixed: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = jax.vjp(lambda q: whole(q, *fixed), q)
        return value, gradient(cotangent)[0]

    value, gradient = both(given.queries, given.cotangent, *fixed)
    return np.asarray(value), np.asarray(gradient)


def dense(given: Given, temperature: float = 1.0, normalise: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The same in float64, question by question."""
    rows = given.rows.astype(np.float64)
    if normalise:
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    values, gradients = np.zeros(B), np.zeros((B, D))
    for i, q in enumerate(given.queries.astype(np.float64)):
        seen = rows[given.counts(i)]
        terms = np.exp(seen @ q / temperature)
        values[i] = np.log(terms.sum())
        gradients[i] = given.cotangent[i] * (terms / terms.sum()) @ seen / temperature
    return values, gradients


@pytest.mark.parametrize(
    ("devices", "block_rows"), [(1, 5), (1, 100), (2, 7), (8, 2), (8, 3)], ids=lambda number: str(number)
)
def test_any_devices_and_blocks_give_the_dense_softmax(given: Given, devices: int, block_rows: int) -> None:
    """Blocks that divide a shard's 24, 12 or 3 rows and that do not, and one that is larger."""
    value, gradient = ours(given, devices, block_rows)
    expected, its_gradient = dense(given)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, its_gradient, atol=1e-5)


def test_temperature_and_normalised_prefixes(given: Given) -> None:
    """Scores as large as 100 do not overflow."""
    for temperature, normalise in ((0.05, False), (0.2, True)):
        value, gradient = ours(given, 8, 2, temperature, normalise)
        expected, its_gradient = dense(given, temperature, normalise)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        np.testing.assert_allclose(gradient, its_gradient, atol=1e-5 * np.abs(its_gradient).max())


def test_what_is_excluded_contributes_nothing(given: Given) -> None:
    """Neither value nor gradient changes by a bit when excluded rows, copies of excluded contents or padding change."""
    expected = ours(given, 8, 2)
    given.rows[[1, 5, 13, 20, 23]] *= -30.0
    for ours_now, before in zip(ours(given, 8, 2), expected, strict=True):
        np.testing.assert_array_equal(ours_now, before)
    given.rows[[4, 17]] += 2.0  # question 0 excludes this content, others see both its rows
    moved = [
        np.abs(now - before).reshape(B, -1).max(axis=1) for now, before in zip(ours(given, 8, 2), expected, strict=True)
    ]
    sees = [4 in given.counts(i) for i in range(B)]
    assert not sees[0] and any(sees)
    for change in moved:
        np.testing.assert_array_equal(change > 0, sees)


def test_where_nothing_is_left_there_is_no_gradient(given: Given) -> None:
    """All 20 passages are in the batch: about -1e30, which no loss feels, and a gradient of 0, not NaN."""
    given.excluded = np.arange(N, dtype=np.int32)
    value, gradient = ours(given, 8, 2)
    assert (value < -1e29).all() and np.isfinite(value).all()
    assert (gradient == 0).all()


def test_a_shard_without_rows_of_a_question_does_not_disturb_the_others(given: Given) -> None:
    """One passage is left, on one of eight devices: the value is its score, the gradient its embedding."""
    given.excluded = np.array([row for row in range(N) if row != 10], np.int32)
    given.each[:] = NO_PASSAGE
    value, gradient = ours(given, 8, 2)
    np.testing.assert_allclose(value, given.queries @ given.rows[10], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, given.cotangent[:, None] * given.rows[10], atol=1e-6)


def test_rows_get_no_gradient(given: Given) -> None:
    """Stale embeddings belong to weights of the past."""
    mesh = make_mesh(jax.devices()[:1])

    @partial(jax.shard_map, mesh=mesh, axis_names={DATA}, in_specs=(P(), P(DATA)), out_specs=P())
    def whole(q: jax.Array, rows: jax.Array) -> jax.Array:
        q = lax.pcast(q, DATA, to="varying")
        none = jnp.full((B, 1), NO_PASSAGE)
        contents = lax.pcast(jnp.asarray(given.contents), DATA, to="varying")
        return corpus_logsumexp(
            *(q, rows, contents, none[0], none), axis=DATA, num_valid=N, temperature=1.0, normalise=False, block_rows=8
        )

    of_rows = jax.jit(jax.grad(lambda rows: whole(given.queries, rows).sum()))(given.rows)
    assert (np.asarray(of_rows) == 0).all()
