"""Exact search on the host's processor: the same as brute force, whatever the rounding of its first scores."""

import numpy as np
import pytest
from brute_force import brute_force

from jaxretr.indexes.exact import ExactIndex, footprint, host_loops, host_search, search_blocks, slabs
from jaxretr.indexes.exact.first_pass import RoundedQueries
from jaxretr.indexes.exact.host_search import HostSearch
from jaxretr.indexes.topk import NO_ROW

K = 20


@pytest.fixture(params=[False, True], ids=["float32", "bfloat16"])
def rounded(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(params=[False, True], ids=["float32", "bfloat16"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search takes this formulation, in blocks of 128 rows, which 16 threads divide."""
    monkeypatch.setattr(host_search, "BLOCK_ROWS", 128)
    monkeypatch.setattr(host_search, "_LEAST_ROWS", 64)
    monkeypatch.setattr(host_search, "BFLOAT16_BATCH", 1)
    monkeypatch.setattr(host_search, "has_amx", lambda: request.param)
    monkeypatch.setattr(host_search, "cpu_threads", lambda: 16)


@pytest.fixture(params=[1, 8], ids=["1 device", "8 devices"])
def mesh(request, mesh1, mesh8):
    return {1: mesh1, 8: mesh8}[request.param]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that `HostSearch.add` was given."""
    rows: list[int] = []
    add = HostSearch.add

    def counted(self, block, *rest):
        rows.append(len(block))
        return add(self, block, *rest)

    monkeypatch.setattr(HostSearch, "add", counted)
    return rows


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(seed: int, *shape: int, low: int = -2, high: int = 3) -> np.ndarray:
    """Every sum is exact in any order, also in bfloat16, and most scores are shared by many rows."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.float32)


def assert_same(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[0], expected[0])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", [256, 1000, 5000])
@pytest.mark.parametrize("k", [1, K, 200])
def test_integers_equal_brute_force_to_the_bit(mesh, used, count: int, k: int) -> None:
    queries, rows = integers(1, 7, 8), integers(2, count, 8)
    assert_same(ExactIndex(rows, mesh=mesh).search_rows(queries, k), brute_force(queries, rows, k))
    assert sum(used) == count


@pytest.mark.parametrize("like", ["spread", "alike", "short and long", "tiny", "huge"])
def test_any_vectors_give_the_true_rows(rounded: bool, like: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_search, "BLOCK_ROWS", 512)
    rows, queries = normal(3, 6000, 32), normal(4, 9, 32)
    if like == "alike":  # all scores are within the bound on the rounding, as of an encoder that has collapsed
        rows = np.ones_like(rows) + np.float32(1e-4) * rows
    if like == "short and long":
        rows *= 10.0 ** np.random.default_rng(5).uniform(-6, 6, (6000, 1)).astype(np.float32)
    rows *= np.float32({"tiny": 1e-30, "huge": 1e30}.get(like, 1))  # the squares are 0 and infinity in float32
    search = HostSearch(queries, K, rounded=rounded)
    search.add(rows, 0)
    scores, found = search.result()
    true, _ = brute_force(queries, rows, K)
    exact = np.einsum("bkd,bd->bk", rows.astype(np.float64)[found], queries.astype(np.float64))
    lengths = np.linalg.norm(rows.astype(np.float64)[found], axis=2).max(axis=1)
    size = (np.linalg.norm(queries, axis=1) * lengths)[:, None]
    np.testing.assert_array_less(np.abs(exact - true) / size, 32 * 2.0**-23)
    np.testing.assert_array_less(np.abs(scores - exact) / size, 32 * 2.0**-23)
    assert all(len(set(row)) == K for row in found.tolist())


def test_rounding_stops_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_search, "BLOCK_ROWS", 512)
    products = []
    monkeypatch.setattr(
        host_search,
        "_products",
        lambda queries, rows: (
            products.append(len(rows)) or np.asarray(queries, np.float32) @ np.asarray(rows, np.float32).T
        ),
    )
    for alike, blocks in ((False, 11), (True, 2)):
        products.clear()
        rows = (
            np.ones((6000, 32), np.float32) + np.float32(1e-4) * normal(3, 6000, 32) if alike else normal(3, 6000, 32)
        )
        search = HostSearch(normal(4, 9, 32), K, rounded=True)
        search.add(rows, 0)
        assert len(products) <= blocks if alike else len(products) == blocks


def test_a_list_that_is_full_of_equal_scores_keeps_the_first_rows(rounded: bool) -> None:
    rows = np.ones((9000, 4), np.float32)
    rows[5000:] = 2
    search = HostSearch(np.ones((3, 4), np.float32), K, rounded=rounded)
    search.add(rows, 100)
    scores, found = search.result()
    assert (scores == 8).all() and (found == np.arange(5100, 5100 + K)).all()


def test_scores_that_rise_from_row_to_row(rounded: bool) -> None:
    rows = np.arange(1, 9001, dtype=np.float32)[:, None]
    search = HostSearch(np.ones((3, 1), np.float32), K, rounded=rounded)
    search.add(rows, 0)
    assert (search.result()[1] == np.arange(8999, 8999 - K, -1)).all()


@pytest.mark.usefixtures("small")
def test_slabs_filters_and_chunks_of_questions(mesh, used, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slabs, "QUERY_BUCKETS", (1, 8))
    rows, queries = integers(6, 9000, 8), integers(7, 19, 8)
    expected = brute_force(queries, rows, K)
    assert_same(search_blocks(np.split(rows, [3000, 6000]), queries, K, mesh=mesh), expected)
    assert len(used) >= 3 * 3
    allowed = np.random.default_rng(8).random(9000) < 0.01
    names = [f"p{row}" for row in range(9000)]
    index = ExactIndex(rows, names, mesh=mesh)
    few = index.search_rows(queries, K, allow=[names[row] for row in np.flatnonzero(allowed)])
    scores, found = brute_force(queries, rows[allowed], K)
    assert_same(few, (scores, np.flatnonzero(allowed)[found]))


def test_fewer_rows_than_results(rounded: bool) -> None:
    search = HostSearch(np.ones((2, 3), np.float32), 5, rounded=rounded)
    search.add(np.eye(3, dtype=np.float32), 0, np.array([True, False, True]))
    scores, rows = search.result()
    assert rows.tolist() == [[0, 2] + [NO_ROW] * 3] * 2
    assert scores.tolist() == [[1, 1] + [-np.inf] * 3] * 2


@pytest.mark.usefixtures("small")
def test_no_questions(mesh) -> None:
    scores, rows = ExactIndex(integers(2, 5000, 8), mesh=mesh).search_rows(np.empty((0, 8), np.float32), K)
    assert scores.shape == rows.shape == (0, K)


def test_zero_has_no_sign(rounded: bool) -> None:
    rows = np.zeros((300, 2), np.float32)
    rows[0] = -0.0
    search = HostSearch(np.ones((1, 2), np.float32), 3, rounded=rounded)
    search.add(rows, 0)
    scores, found = search.result()
    assert found.tolist() == [[0, 1, 2]] and not np.signbit(scores).any()


def test_the_bound_holds_and_rounding_is_that_of_bfloat16() -> None:
    import jax.numpy as jnp

    rows, queries = normal(9, 700, 48) * 10.0 ** np.linspace(-15, 15, 48, dtype=np.float32), normal(10, 5, 48)
    rounded = np.empty((700, 48), np.uint16)
    error, longest = np.sqrt(host_loops.round_rows(rows.view(np.uint32), rounded))
    back = rounded.view(jnp.bfloat16)
    np.testing.assert_array_equal(back, rows.astype(jnp.bfloat16))
    exact, near = rows.astype(np.float64), back.astype(np.float64)
    assert error == pytest.approx(np.linalg.norm(exact - near, axis=1).max(), rel=1e-5)
    queries16 = queries.astype(jnp.bfloat16)
    slack = RoundedQueries.of(queries, queries16).slack(error, longest)
    wrong = np.abs(queries.astype(np.float64) @ exact.T - queries16.astype(np.float64) @ near.T)
    assert (wrong.max(axis=1) <= slack).all()


def test_its_memory_is_part_of_the_estimate() -> None:
    little, much = (footprint.estimate(200_000, 384, questions=batch, k=100, ids=False).search for batch in (64, 512))
    assert much != little
    assert much == host_search.working_bytes(384, 512, 100)
