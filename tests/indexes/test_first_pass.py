"""A first pass in few bits: what it proves exact is exact, and what it cannot prove it measures."""

import numpy as np
import pytest

from jaxretr.indexes.exact import ExactIndex
from jaxretr.indexes.exact import first_pass as rounding
from jaxretr.runtime.errors import UsageError, UserError

N, DIM, K = 4001, 48, 10
KINDS = ["bfloat16", "int8"]


def vectors(n: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((n, DIM)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def true_rows(queries: np.ndarray, rows: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-(queries.astype(np.float64) @ rows.astype(np.float64).T), axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("batch", [1, 20, 200])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_proven_is_exact_and_scores_are_those_of_the_rows(kind: str, batch: int, mesh1):
    rows, queries = vectors(N, 1), vectors(batch, 2)
    index = ExactIndex(rows, first_pass=kind, mesh=mesh1)
    scores, found, proven = index.search_proven(queries, K)
    expected = true_rows(queries, rows, K)
    assert proven.mean() > 0.9, "random vectors leave a gap between the 10th and the 70th"
    np.testing.assert_array_equal(found[proven], expected[proven])
    # Sums of 48 products in float32.
    np.testing.assert_allclose(scores, np.einsum("bd,bkd->bk", queries, rows[found]), atol=1e-6)
    assert (np.diff(scores) <= 0).all()
    shares = [len(np.intersect1d(*pair)) / K for pair in zip(found, expected, strict=True)]
    assert index.first_pass_recall(queries, K) == pytest.approx(np.mean(shares))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_too_near_each_other_are_not_proven_and_the_recall_says_so(kind: str, mesh1):
    """A thousand rows that differ by less than the rounding: the first pass cannot tell the best of them."""
    rng = np.random.default_rng(3)
    centre = vectors(1, 4)
    rows = np.concatenate([centre + 1e-4 * rng.standard_normal((1000, DIM)), vectors(N - 1000, 5)]).astype(np.float32)
    index = ExactIndex(rows, first_pass=kind, mesh=mesh1)
    _, found, proven = index.search_proven(centre, K)
    assert not proven.any()
    recall = index.first_pass_recall(centre, K)
    assert recall == pytest.approx(len(np.intersect1d(found, true_rows(centre, rows, K))) / K) and recall < 1


def test_the_log_counts_what_is_not_proven(mesh1, caplog):
    index = ExactIndex(np.ones((N, DIM), np.float32), first_pass="int8", mesh=mesh1)
    with caplog.at_level("INFO", logger="jaxretr.indexes.exact"):
        scores, found = index.search_rows(np.ones((3, DIM)), K)
    assert "3 of 3 questions are not proven exact after the first pass" in caplog.text
    assert found.tolist() == [list(range(K))] * 3 and (scores == DIM).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_slack_holds_for_every_row_and_is_not_far_from_what_happens(kind: str, mesh1, mesh8):
    for mesh in (mesh1, mesh8):
        rows, queries = 3 * vectors(N, 6), 5 * vectors(16, 7)
        index = ExactIndex(rows, first_pass=kind, mesh=mesh)
        rounded = index._rounded
        assert rounded is not None
        stored = np.asarray(rounded.rows)[:N]
        if kind == "int8":
            assert rounded.scales is not None
            back = stored.astype(np.float64) * np.asarray(rounded.scales)[:N, None]
        else:
            back = (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        for query_dtype in (None, "bfloat16"):
            q = queries if query_dtype is None else queries.astype(np.dtype("bfloat16"))
            off = np.abs(queries.astype(np.float64) @ rows.astype(np.float64).T - q.astype(np.float64) @ back.T)
            slack = rounded.slack(queries, query_dtype)
            assert (off.max(axis=1) <= slack).all()
            # Cauchy-Schwarz is off by the angle between a row's error and the question.
            assert (slack < 20 * off.max(axis=1)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_few_rows_are_all_candidates_and_always_proven(kind: str, mesh8):
    rows, queries = vectors(7, 1), vectors(3, 2)
    _, found, proven = ExactIndex(rows, first_pass=kind, mesh=mesh8).search_proven(queries, 9)
    assert proven.all() and found.shape == (3, 7)
    np.testing.assert_array_equal(found, true_rows(queries, rows, 7))


def test_a_saved_index_keeps_its_rows_and_a_loaded_one_takes_a_first_pass(mesh1, tmp_path):
    rows, queries = vectors(N, 1), vectors(5, 2)
    ExactIndex(rows, first_pass="int8", mesh=mesh1).save(tmp_path / "index")
    np.testing.assert_array_equal(np.load(tmp_path / "index" / "embeddings.npy"), rows)
    index = ExactIndex.load(tmp_path / "index", first_pass="bfloat16", mesh=mesh1)
    np.testing.assert_array_equal(index.search_rows(queries, K)[1], true_rows(queries, rows, K))
    assert ExactIndex.load(tmp_path / "index", mesh=mesh1).first_pass_recall(queries, K) == 1


def test_candidates_are_read_from_a_memory_map_in_pieces(mesh1, tmp_path, monkeypatch):
    rows, queries = vectors(N, 1), vectors(5, 2)
    np.save(tmp_path / "rows.npy", rows)
    monkeypatch.setattr(rounding, "PIECE_BYTES", 7 * DIM * 4)
    index = ExactIndex(np.load(tmp_path / "rows.npy", mmap_mode="r"), first_pass="int8", mesh=mesh1)
    np.testing.assert_array_equal(index.search_rows(queries, K)[1], true_rows(queries, rows, K))


def test_wrong_use_is_one_line(mesh1):
    with pytest.raises(UsageError, match=r"first_pass='int4' .*'int8'"):
        ExactIndex(vectors(5, 1), first_pass="int4")
    with pytest.raises(UsageError, match=r"too small .*int8"):
        ExactIndex(vectors(N, 1), first_pass="int8", mesh=mesh1, max_device_bytes=2 * 1024 * DIM * 4 // 4)
    broken = vectors(N, 1)
    broken[4000, 1] = np.inf
    with pytest.raises(UserError, match="row 4000 contains NaN, infinity"):
        ExactIndex(broken, first_pass="int8", mesh=mesh1)
