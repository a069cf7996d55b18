"""Equal rows have equal scores and come lowest first, wherever they are and however many questions are asked at a time."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

from jaxretr.indexes.exact import ExactIndex, host_search, search_blocks

N, DIM, K = 9000, 48, 20

# Questions at a time: one panel that is not full, full ones, several, and a batch that is cut.
BATCHES = [1, 3, 8, 33, 256, 513]

Search = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def repeated(seed: int) -> np.ndarray:
    """Rows of which a third is one row, a third differs from it by some last bits, and many others come twice."""
    rng = np.random.default_rng(seed)
    rows = normal(seed, N, DIM)
    kind = rng.integers(3, size=N)
    rows[kind == 0] = rows[0]
    near = np.flatnonzero(kind == 1)
    rows[near] = rows[0] + np.float32(2e-7) * rng.integers(-1, 2, (len(near), DIM)).astype(np.float32)
    twins = np.flatnonzero(kind == 2)
    rows[rng.permutation(twins)[: len(twins) // 2]] = rows[twins[: len(twins) // 2]]
    return rows


def questions(rows: np.ndarray) -> np.ndarray:
    """Near the repeated row, far from it, and away from it, so that its scores are the lowest."""
    spread = normal(1, max(BATCHES), DIM)
    spread[::2] += 2 * rows[0]
    spread[1::4] -= 2 * rows[0]
    return spread


def true_order(queries: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The inner products rounded to float32, higher ones first and lower rows first among equal ones."""
    scores = (queries.astype(np.float64) @ rows.astype(np.float64).T).astype(np.float32)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=1), order


def as_bfloat16(rows: np.ndarray) -> np.ndarray:
    return rows.astype(jax.numpy.bfloat16).astype(np.float32)


def assert_same(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[0], expected[0])


@pytest.fixture(scope="module")
def corpus() -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    rows = repeated(0)
    asked = questions(rows)
    return rows, asked, true_order(asked, rows, K)


def index(**options) -> Callable[[np.ndarray, jax.sharding.Mesh], Search]:
    return lambda rows, mesh: ExactIndex(rows, mesh=mesh, **options).search_rows


def streamed(rows: np.ndarray, mesh: jax.sharding.Mesh) -> Search:
    return lambda queries, k: search_blocks(np.split(rows, [3000, 3001, 7000]), queries, k, mesh=mesh)


FORMS = {
    "resident": index(),
    "over the budget": index(max_device_bytes=2 * 1024 * DIM * 4),
    "streamed": streamed,
}


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("form", FORMS)
def test_repeated_and_near_rows_come_in_the_true_order_in_every_batch(form: str, devices: int, corpus, mesh1, mesh8):
    rows, asked, (scores, found) = corpus
    search = FORMS[form](rows, {1: mesh1, 8: mesh8}[devices])
    for batch in BATCHES:
        assert_same(search(asked[:batch], K), (scores[:batch], found[:batch]))


def test_the_formulation_in_bfloat16_orders_them_too(corpus, mesh1, monkeypatch: pytest.MonkeyPatch):
    rows, asked, (scores, found) = corpus
    monkeypatch.setattr(host_search, "has_amx", lambda: True)
    for storage, expected in (("float32", (scores, found)), ("bfloat16", true_order(asked, as_bfloat16(rows), K))):
        search = ExactIndex(rows, dtype=storage, mesh=mesh1).search_rows
        for batch in (1, 256):
            assert_same(search(asked[:batch], K), (expected[0][:batch], expected[1][:batch]))


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_a_first_pass_keeps_the_order_of_equal_rows_in_every_batch(kind: str, mesh1, mesh8):
    rows = normal(3, N, DIM)
    rows[np.random.default_rng(4).random(N) < 0.5] = rows[0]
    asked = questions(rows)
    expected = true_order(asked, rows, K)
    for mesh in (mesh1, mesh8):
        search = ExactIndex(rows, first_pass=kind, mesh=mesh).search_rows
        for batch in (1, 33, 256):
            assert_same(search(asked[:batch], K), (expected[0][:batch], expected[1][:batch]))


@pytest.mark.parametrize("first_pass", [None, "int8"])
def test_filters_leave_the_lowest_of_the_rows_that_are_allowed(first_pass: str | None, corpus, mesh8):
    rows, asked, _ = corpus
    if first_pass:
        rows = rows[np.random.default_rng(6).integers(30, size=N)]
    allowed = np.flatnonzero(np.random.default_rng(5).random(N) < 0.3)
    scores, found = true_order(asked[:33], rows[allowed], K)
    search = ExactIndex(rows, [str(row) for row in range(N)], first_pass=first_pass, mesh=mesh8).search_rows
    assert_same(search(asked[:33], K, allow=[str(row) for row in allowed]), (scores, allowed[found]))


def test_all_rows_and_more_are_in_the_true_order(corpus, mesh8):
    rows, asked, _ = corpus
    assert_same(
        ExactIndex(rows[:1500], mesh=mesh8).search_rows(asked[:9], 2000), true_order(asked[:9], rows[:1500], 1500)
    )


# ---------------------------------------------------------------- numbers at the ends of what float32 holds


@pytest.mark.parametrize("first_pass", [None, "bfloat16"])
@pytest.mark.parametrize("scale", [1e-39, 1e-30, 1e30, 1e38])
def test_tiny_and_huge_questions_find_what_those_of_length_one_find(scale: float, first_pass: str | None, mesh1):
    rows, asked = normal(7, 3000, DIM), (normal(8, 40, DIM) * np.float32(scale)).clip(-3e38, 3e38)
    with np.errstate(over="ignore"):
        expected = true_order(asked.astype(np.float64) * 2.0 ** -np.log2(scale).round(), rows, K)[1]
        scores = np.einsum("bd,bkd->bk", asked.astype(np.float64), rows[expected].astype(np.float64)).astype(np.float32)
    for batch in (1, 40):
        found = ExactIndex(rows, first_pass=first_pass, mesh=mesh1).search_proven(asked[:batch], K)
        assert_same(found[:2], (scores[:batch], expected[:batch]))
        assert found[2].all() or first_pass


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e30, 1e38])
def test_tiny_and_huge_rows_are_found(scale: float, mesh1):
    """The scores of the tiniest have no more than a few bits as float32, which the order does not depend on."""
    rows = (normal(9, 3000, DIM) * np.float32(scale)).clip(-3e38, 3e38)
    rows[::2] = rows[0]
    asked = normal(10, 5, DIM)
    exact = asked.astype(np.float64) @ (rows.astype(np.float64) * 2.0 ** -np.log2(scale).round()).T
    expected = np.argsort(-exact.astype(np.float32), axis=1, kind="stable")[:, :K]
    assert (ExactIndex(rows, mesh=mesh1).search_rows(asked, K)[1] == expected).all()


def test_a_question_of_zeros_finds_the_first_rows(mesh8):
    scores, found = ExactIndex(normal(11, 3000, DIM), mesh=mesh8).search_rows(np.zeros((2, DIM), np.float32), K)
    assert (found == np.arange(K)).all() and not scores.any()


def test_one_long_row_among_short_ones_hides_none(mesh1):
    rows, asked = normal(12, 3000, DIM), normal(13, 40, DIM)
    rows[[5, 1500]] *= np.float32([[1e6], [1e36]])
    assert_same(ExactIndex(rows, mesh=mesh1).search_rows(asked, K), true_order(asked, rows, K))
