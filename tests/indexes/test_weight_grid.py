"""The whole grid in one pass gives what a search with each weight gives, and the best weight is the one stated."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from jaxretr.indexes.exact import ExactIndex
from jaxretr.indexes.exact.slabs import Slab
from jaxretr.indexes.hybrid import weight_grid
from jaxretr.indexes.hybrid.weight_choice import PAPER, adaptive_grid, balancing_weight, choose
from jaxretr.indexes.hybrid.weight_grid import search_weights
from jaxretr.runtime.errors import UserError

SEED = 3
WEIGHTS = [0, *PAPER, math.inf]


def integers(*shape: int, seed: int = SEED) -> np.ndarray:
    """Small integers: products and sums are exact, and most scores are shared by many rows."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


def normal(*shape: int, seed: int = SEED) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def brute_force(q: Sequence[np.ndarray], p: Sequence[np.ndarray], weight: float, k: int) -> tuple:
    s1, s2 = (one.astype(np.float64) @ other.astype(np.float64).T for one, other in zip(q, p, strict=True))
    scores = s2 if math.isinf(weight) else s1 + weight * s2
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=1), order


@pytest.fixture(params=[1, 8], ids=["1 device", "8 devices"])
def mesh(request: pytest.FixtureRequest, mesh1: jax.sharding.Mesh, mesh8: jax.sharding.Mesh) -> jax.sharding.Mesh:
    return {1: mesh1, 8: mesh8}[request.param]


def test_papers_grid() -> None:
    assert len(PAPER) == 19 and list(PAPER) == sorted(PAPER)
    assert np.allclose(PAPER[:10], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1], rtol=1e-15)
    assert all(PAPER[9 + i] == pytest.approx(1 / PAPER[9 - i], rel=1e-15) for i in range(10))
    assert [round(weight, 2) for weight in PAPER[10:]] == [1.11, 1.25, 1.43, 1.67, 2, 2.5, 3.33, 5, 10]


@pytest.mark.parametrize("k", [3, 20, 70])
def test_ties_go_to_the_lowest_row_with_every_weight(
    mesh: jax.sharding.Mesh, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    """Several slabs, blocks that overlap, and devices whose rows lie between each other's; with exact scores."""
    monkeypatch.setattr(weight_grid, "SLAB_ROWS", 1200)
    p = integers(3001, 5), integers(3001, 3, seed=1)
    q = integers(9, 5, seed=2), integers(9, 3, seed=4)
    weights = [0, 0.25, 0.5, 1, 2, math.inf]  # exact in float32
    cut = (q[0], [p[0][:700], p[0][700:2900], p[0][2900:]]), (q[1], [p[1]])
    scores, rows = search_weights(*cut, weights, k, mesh=mesh, block_rows=96)
    assert scores.shape == rows.shape == (6, 9, k) and scores.dtype == np.float32 and rows.dtype == np.int64
    for number, weight in enumerate(weights):
        expected = brute_force(q, p, weight, k)
        np.testing.assert_array_equal(scores[number], expected[0])
        np.testing.assert_array_equal(rows[number], expected[1])


def test_equals_nineteen_searches_of_concatenated_embeddings(mesh8: jax.sharding.Mesh) -> None:
    p = normal(4000, 24), 3 * normal(4000, 8, seed=1)
    q = normal(70, 24, seed=2), normal(70, 8, seed=4)
    k = 20
    scores, rows = search_weights((q[0], [p[0]]), (q[1], [p[1]]), PAPER, k, mesh=mesh8)
    concatenated = np.concatenate(p, axis=1)
    index = ExactIndex(concatenated, mesh=mesh8)
    for number, weight in enumerate(PAPER):
        weighted = np.concatenate([q[0], np.float32(weight) * q[1]], axis=1)
        expected, found = index.search_rows(weighted, k)
        # Two sums of 32 float32 products in different orders, at their worst.
        bound = 2 * 32 * 2**-24 * (np.abs(weighted) @ np.abs(concatenated).T).max(axis=1, keepdims=True)
        assert (np.abs(scores[number] - expected) <= bound).all()
        near = np.abs(np.diff(expected, axis=1)) <= 2 * bound
        # A row whose score is apart from both neighbours'; what follows the last result is not known.
        clear = ~(np.pad(near, ((0, 0), (1, 0))) | np.pad(near, ((0, 0), (0, 1)), constant_values=True))
        assert clear[:, :-1].mean() > 0.99
        np.testing.assert_array_equal(rows[number][clear], found[clear])


def test_each_model_alone_and_a_sum(mesh8: jax.sharding.Mesh) -> None:
    p, q = (normal(900, 6), normal(900, 6, seed=1)), (normal(5, 6, seed=2), normal(5, 6, seed=4))
    _, rows = search_weights((q[0], [p[0]]), (q[1], [p[1]]), [0, math.inf], 10, mesh=mesh8)
    for number in (0, 1):
        np.testing.assert_array_equal(rows[number], brute_force(q, p, [0, math.inf][number], 10)[1])
    summed = p[0] + p[1]
    _, rows = search_weights((q[0], [summed]), (q[1], [summed]), [0.5], 10, mesh=mesh8)
    expected = brute_force([q[0] + 0.5 * q[1], q[1]], [summed, summed], 0, 10)[1]
    np.testing.assert_array_equal(rows[0], expected)


def test_more_results_than_rows_and_many_questions(mesh: jax.sharding.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_grid, "_BATCH", 16)
    monkeypatch.setattr(weight_grid, "_BATCHES", (4, 16))
    p, q = (integers(5, 4), integers(5, 4, seed=1)), (integers(35, 4, seed=2), integers(35, 4, seed=4))
    scores, rows = search_weights((q[0], [p[0]]), (q[1], [p[1]]), [0.5], 9, mesh=mesh)
    assert scores.shape == (1, 35, 5)
    np.testing.assert_array_equal(rows[0], brute_force(q, p, 0.5, 5)[1])


def test_padding_never_wins_against_negative_scores(mesh: jax.sharding.Mesh) -> None:
    p = np.abs(integers(1030, 4)) + 1
    q = -np.ones((3, 4), np.float32)
    scores, rows = search_weights((q, [p]), (q, [p]), [1], 10, mesh=mesh, block_rows=128)
    assert (scores < 0).all() and rows.max() < 1030
    np.testing.assert_array_equal(rows[0], brute_force([q, q], [p, p], 1, 10)[1])


def test_scores_that_rise_to_the_end_enter_late(mesh1: jax.sharding.Mesh) -> None:
    """Blocks of which much, little or nothing enters take other paths; the results do not depend on it."""
    p = np.arange(2048, dtype=np.float32)[:, None] % 1000
    p[1990:] = 5000
    q = np.ones((2, 1), np.float32)
    q[1] = -1
    scores, rows = search_weights((q, [p]), (q, [p]), [0.5], 64, mesh=mesh1, block_rows=512)
    expected = brute_force([q, q], [p, p], 0.5, 64)
    np.testing.assert_array_equal(scores[0], expected[0])
    np.testing.assert_array_equal(rows[0], expected[1])


def test_only_a_slab_is_on_the_devices_and_one_pass_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_grid, "SLAB_ROWS", 1024)
    placed: list[int] = []
    cut = weight_grid.cut_to_slabs

    def counted(*given: Any, **settings: Any) -> Iterator[Slab]:
        for slab in cut(*given, **settings):
            placed.append(slab.count)
            yield slab

    monkeypatch.setattr(weight_grid, "cut_to_slabs", counted)
    p, q = normal(2500, 4), normal(3, 4, seed=2)
    search_weights((q, (p[i : i + 100] for i in range(0, 2500, 100))), (q, [p]), WEIGHTS, 5)
    assert placed == [1024, 1024, 1024, 1024, 452, 452]


@pytest.mark.parametrize(
    ("first", "second", "weights", "k", "message"),
    [
        (((2, 3), [(5, 3)]), ((2, 4), [(6, 4)]), [1], 2, "one model has 5 passages and the other has more"),
        (((2, 3), [(5, 3)]), ((2, 4), []), [1], 2, "one model has 0 passages and the other has more"),
        (((2, 3), []), ((2, 4), []), [1], 2, "no passages to search"),
        (((2, 3), [(5, 3)]), ((3, 4), [(5, 4)]), [1], 2, "2 questions by the first model, 3 by the second"),
        (((2, 3), [(5, 4)]), ((2, 4), [(5, 4)]), [1], 2, "first passages: .* 4 columns, the questions have 3"),
        (((2, 3), [(5, 3), (5, 4)]), ((2, 4), [(10, 4)]), [1], 2, r"\[5, 4\] after \[5, 3\]; use one model"),
        (((2, 3), [(5, 3)]), ((2, 4), [(5, 4)]), [-1], 2, "must be float32 numbers from 0"),
        (((2, 3), [(5, 3)]), ((2, 4), [(5, 4)]), [1e39], 2, "must be float32 numbers from 0"),
        (((2, 3), [(5, 3)]), ((2, 4), [(5, 4)]), [], 2, "at least one"),
        (((2, 3), [(5, 3)]), ((2, 4), [(5, 4)]), [1], 0, "k=0: must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(first: tuple, second: tuple, weights: list, k: int, message: str) -> None:
    sides = [(normal(*q), [normal(*block) for block in blocks]) for q, blocks in (first, second)]
    with pytest.raises(UserError, match=message):
        search_weights(*sides, weights, k)  # pyright: ignore[reportCallIssue]


def test_a_number_that_is_not_finite_is_named() -> None:
    p = normal(30, 3)
    p[25, 1] = np.nan
    with pytest.raises(UserError, match="second passages: row 25 contains NaN"):
        search_weights((p[:2], [normal(30, 3)]), (p[:2], [p[:20], p[20:]]), [1], 2)


# ---- the choice ------------------------------------------------------------------------------------------------------


def test_a_plateaus_middle_is_chosen() -> None:
    choice = choose({0: 9, 0.5: 1, 1: 3, 2: 3, 4: 3, 8: 1, 16: 3, 32: 0, math.inf: 9})
    assert (choice.weight, choice.value, choice.tied, choice.at_edge) == (2, 3, (1, 2, 4), False)
    # Of two next to the middle the lower one; values that differ by rounding are equal.
    assert choose({1: 0, 2: 0.3, 4: 0.1 + 0.2, 8: 0}).weight == 2
    assert choose({3: 1}).at_edge and choose({1: 2, 2: 1, 3: 0}).at_edge and choose({1: 2, 2: 2.5, 3: 2.5}).at_edge
    with pytest.raises(UserError, match="no weight"):
        choose({0: 1, math.inf: 2})


def test_balance_is_that_of_the_deviations_within_a_question() -> None:
    rng = np.random.default_rng(SEED)
    s1, s2 = 8 * rng.normal(size=(6, 500)), 2 * rng.normal(size=(6, 500))
    # What a model adds to all passages of a question moves nothing.
    shifted = [(one + 1000 * number, other) for number, (one, other) in enumerate(zip(s1, s2, strict=True))]
    assert balancing_weight(shifted) == pytest.approx(4, rel=0.05)
    with pytest.raises(UserError, match=r"second model .*the same score"):
        balancing_weight([(s1[0], np.ones(500))])


@pytest.mark.parametrize("best", [1, 2.0**-9.3, 3.7, 2.0**15])
def test_adaptive_grid_finds_a_maximum_far_away(best: float) -> None:
    passes = []

    def evaluate(weights: Sequence[float]) -> dict[float, float]:
        passes.append(len(weights))
        return {weight: -abs(math.log2(weight / best)) for weight in weights}

    values = adaptive_grid(evaluate, 1.0)
    assert passes[0] == 13 and passes[-1] == 6 and len(passes) <= 5
    assert list(values) == sorted(values)
    choice = choose(values)
    assert not choice.at_edge and abs(math.log2(choice.weight / best)) <= 1 / 8 + 1e-9


def test_adaptive_grid_stays_where_nothing_changes() -> None:
    values = adaptive_grid(lambda weights: dict.fromkeys(weights, 0.5), 3.0)
    assert len(values) == 13 + 6 and choose(values).weight == pytest.approx(3)


def test_adaptive_grid_ends_where_the_figure_rises_for_ever() -> None:
    values = adaptive_grid(lambda weights: {weight: weight for weight in weights}, 1.0)
    assert max(values) == pytest.approx(2.0 ** (6 + 18 + 0.75)) and choose(values).at_edge
