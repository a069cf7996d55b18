"""The loops of an approximate index: ScaNN's with AVX2, the codes of rows, and the exact scores of candidates."""

from pathlib import Path

import numpy as np
import pytest

from jaxretr.indexes.certified import process as scann_process
from jaxretr.indexes.certified import worker
from jaxretr.indexes.certified.codes import codes_of
from jaxretr.indexes.certified.exact_scores import Anywhere
from jaxretr.indexes.certified.instructions import avx2_flag, can_use_avx2, load_scann
from jaxretr.indexes.certified.learnt import Learnt
from jaxretr.indexes.certified.rows import Columns, Rows
from jaxretr.indexes.certified.scann_engine import ScannEngine

PROBLEM = scann_process.scann_problem()
needs_scann = pytest.mark.skipif(PROBLEM is not None, reason=f"ScaNN: {PROBLEM}")


@needs_scann
@pytest.mark.skipif(not can_use_avx2(), reason="the processor has no AVX2")
def test_scann_computes_with_avx2_and_proposes_the_same(tmp_path: Path) -> None:
    """Without it a search takes 1.7 times as long, and nothing says so."""
    module = load_scann()
    flag = avx2_flag(module)
    assert flag is not None and flag.value
    vectors = np.random.default_rng(0).standard_normal((2000, 32), dtype=np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    ScannEngine().train(tmp_path / "vectors.npy", tmp_path, leaves=20, sample=2000, seed=0)
    ScannEngine().encode(tmp_path / "vectors.npy", tmp_path, tmp_path, tree=True)
    found = []
    try:
        for used in (True, False):
            flag.value = used
            index = module.scann_pybind.ScannNumpy(str(tmp_path), worker.assets(worker.index_files(True)))
            found.append(index.search_batched(vectors[:200], 30, -1, 10, False, 64)[0])
    finally:
        flag.value = True
    shared = [len(set(one) & set(other)) for one, other in zip(*(rows.tolist() for rows in found), strict=True)]
    # The sums of 8-bit numbers are the same; the scores of the leaves differ in their last bits.
    assert np.mean(shared) > 0.99 * 30


@needs_scann
@pytest.mark.parametrize("dim", [24, 25])
@pytest.mark.parametrize("threshold", [float("nan"), 0.9], ids=["nearest", "score-aware"])
def test_codes_and_leaves_are_those_that_scann_makes(dim: int, threshold: float, tmp_path: Path) -> None:
    """ScaNN searches with them, and an index that ScaNN coded is added to with ours."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((20, dim))[rng.integers(20, size=3000)] + rng.standard_normal((3000, dim))
    rows = rows.astype(np.float32)
    builder = load_scann().builder(rows, 10, "dot_product").tree(num_leaves=20, num_leaves_to_search=20)
    builder.score_ah(2, anisotropic_quantization_threshold=threshold).build().serialize(
        str(tmp_path), relative_path=True
    )
    codes, leaves = codes_of(rows, Learnt.read(tmp_path, tree=True))
    same = leaves == np.load(tmp_path / worker.TOKENS)
    assert same.mean() > 0.999  # ties up to rounding
    expected = np.load(tmp_path / worker.CODES)[same]
    assert codes[same].shape == expected.shape and (codes[same] == expected).mean() > 0.999


@needs_scann
def test_training_makes_the_files_that_scann_makes(tmp_path: Path) -> None:
    """Above 512 dimensions more than two share a code: ScaNN has its fastest loop for 256 codes."""
    rows = np.random.default_rng(2).standard_normal((1500, 600), dtype=np.float32)
    np.save(tmp_path / "vectors.npy", rows)
    ScannEngine().train(tmp_path / "vectors.npy", tmp_path, leaves=5, sample=1500, seed=0)
    ScannEngine().encode(tmp_path / "vectors.npy", tmp_path, tmp_path, tree=True)
    learnt = Learnt.read(tmp_path, tree=True)
    assert learnt.centres.shape == (5, 600) and learnt.codebook.shape == (200, 16, 3)
    # The leaves and the codes together are nearer to the rows than the leaves are.
    codes, leaves = np.load(tmp_path / worker.CODES), np.load(tmp_path / worker.TOKENS)
    coded = learnt.codebook[np.arange(200), codes].reshape(1500, 600)
    errors = [np.square(rows - near).sum() for near in (0 * rows, learnt.centres[leaves] + coded)]
    assert errors[1] < 0.4 * errors[0]
    proposer = ScannEngine().open(tmp_path, True)
    assert all(row in found for row, found in enumerate(proposer.propose(rows[:50], 5, 5, 1)[0].tolist()))


@pytest.mark.parametrize("k", [1, 4, 30])
def test_candidates_are_ordered_by_their_exact_scores_and_equal_ones_by_row(k: int) -> None:
    """In whatever order they come; with rows of both arrays, rows that are equal, and places without a candidate."""
    rng = np.random.default_rng(5)
    base, added = (rng.integers(-3, 4, (n, 20)).astype(np.float32) for n in (50, 9))
    base[10:20] = base[0]  # numbers so small that float32 sums are exact
    for array in (base, added):
        array.flags.writeable = False
    slots = rng.permutation(59)[:40]
    queries = rng.integers(-3, 4, (6, 20)).astype(np.float32)
    found = np.stack([rng.permutation(40)[:30] for _ in range(6)]).astype(np.uint32)
    approximate = np.where(rng.random((6, 30)) < 0.2, np.nan, 0).astype(np.float32)
    approximate[0] = np.nan
    indexed = Rows(Columns(base, None, None), [])
    indexed.added = Columns(added, None, None)
    scores, rows, counts = Anywhere(indexed, slots).rescored(queries, (found, approximate), k, threads=2)
    vectors = np.concatenate([base, added])[slots]
    for question in range(6):
        there = [int(row) for row, score in zip(found[question], approximate[question], strict=True) if score == score]
        exact = {row: float(vectors[row] @ queries[question]) for row in there}
        expected = sorted(there, key=lambda row: (-exact[row], row))[:k]
        assert counts[question] == len(expected)
        assert rows[question, : len(expected)].tolist() == expected
        assert scores[question, : len(expected)].tolist() == [exact[row] for row in expected]
        assert (rows[question, len(expected) :] == -1).all() and (scores[question, len(expected) :] == -np.inf).all()
