"""The loops that an approximate search spends its time in."""

import numpy as np
import pytest

from jaxretr.search.scann import process as scann_process
from jaxretr.search.scann import worker
from jaxretr.search.scann.instructions import avx2_flag, can_use_avx2, load_scann

PROBLEM = scann_process.scann_problem()
needs_scann = pytest.mark.skipif(PROBLEM is not None, reason=f"ScaNN: {PROBLEM}")


@needs_scann
@pytest.mark.skipif(not can_use_avx2(), reason="the processor has no AVX2")
def test_scann_computes_with_avx2_and_proposes_the_same(tmp_path) -> None:
    """Without it a search takes 1.7 times as long, and nothing says so."""
    module = load_scann()
    flag = avx2_flag(module)
    assert flag is not None and flag.value
    vectors = np.random.default_rng(0).standard_normal((2000, 32), dtype=np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    scann_process.train(tmp_path / "vectors.npy", tmp_path, leaves=20, sample=2000, seed=0)
    scann_process.encode(tmp_path / "vectors.npy", tmp_path, tmp_path, tree=True)
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
