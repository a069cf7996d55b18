"""A corpus's tokens lie on the devices without padding, and every row is fetched as the store has it."""

import itertools
import json
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxretr.data.token_store import TokenStore
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.training.runs import corpus_tokens as module
from jaxretr.training.runs.corpus_sizes import CorpusSize
from jaxretr.training.runs.corpus_tokens import EstimatedRows, corpus_tokens
from jaxretr.training.steps.live_index import fetch_rows

ROWS, PASSAGES, LONGEST, SEED = 1024, 1000, 19, 0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """1,000 rows of 0 to 19 ids; those of the first devices are the longest."""
    rng = np.random.default_rng(SEED)
    lengths = np.sort(rng.integers(0, LONGEST + 1, PASSAGES))[::-1]
    folder = tmp_path_factory.mktemp("store")
    rng.integers(1, 60_000, lengths.sum()).astype(np.uint16).tofile(folder / "ids.bin")
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    meta = {"format": 1, "dtype": "uint16", "truncated": 0, "num_rows": PASSAGES, "num_ids": int(lengths.sum())}
    (folder / "meta.json").write_text(json.dumps(meta))
    return TokenStore(folder)


def fetched(tokens: Any, rows: np.ndarray, mesh: Mesh) -> Any:
    specs = (P(DATA), P())
    return jax.jit(jax.shard_map(fetch_rows, mesh=mesh, in_specs=specs, out_specs=P(DATA)))(tokens, rows)


@pytest.mark.parametrize("most", [2**31 - 1, 4096])
@pytest.mark.parametrize("devices", [1, 8])
def test_rows_are_fetched_as_the_store_has_them(
    store: TokenStore, mesh1: Mesh, mesh8: Mesh, devices: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a device's ids are too many for one part, past the end, and of rows that do not exist."""
    monkeypatch.setattr(module, "_MOST_IDS", most)
    mesh = {1: mesh1, 8: mesh8}[devices]
    tokens = corpus_tokens(store, ROWS, mesh)
    assert tokens.ids.dtype == np.uint16 and tokens.ids.ndim == (2 if most == 4096 and devices == 1 else 1)
    rng = np.random.default_rng(SEED)
    rows = np.concatenate([[-1, 0, PASSAGES - 1, PASSAGES, ROWS - 1], rng.integers(0, PASSAGES, 59)]).reshape(16, 4)
    expected, lengths = store.padded(0, ROWS, 24)
    found = fetched(tokens, rows.astype(np.int32), mesh)
    exists = (rows >= 0)[..., None]
    np.testing.assert_array_equal(found.tokens, np.where(exists, expected[rows], 0))
    np.testing.assert_array_equal(found.lengths, np.where(exists[..., 0], lengths[rows], 0))


@pytest.mark.parametrize("devices", [1, 8])
def test_the_devices_hold_little_more_than_the_ids(
    store: TokenStore, mesh1: Mesh, mesh8: Mesh, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much as the fullest device has, and room for the longest row; a plan expects as much of even shares."""
    monkeypatch.setattr(module, "_UNIT", 1)
    mesh = {1: mesh1, 8: mesh8}[devices]
    tokens = corpus_tokens(store, ROWS, mesh)
    most = max(int(store.lengths[start : start + ROWS // devices].sum()) for start in range(0, ROWS, ROWS // devices))
    assert tokens.ids.size == devices * (most + tokens.width)
    mean = float(store.lengths.sum() / ROWS)
    planned = corpus_tokens(EstimatedRows(ROWS, LONGEST, mean, np.uint16), ROWS, mesh)
    assert planned.ids.size == pytest.approx(store.lengths.sum() + devices * tokens.width, abs=devices)
    assert jax.tree.structure(planned) == jax.tree.structure(tokens)


def test_ids_beyond_an_int32_are_cut_into_parts(mesh1: Mesh) -> None:
    """Wikipedia's 21 million passages on a single device."""
    rows = 21_015_552
    planned = corpus_tokens(EstimatedRows(rows, 256, 136.3, np.uint16), rows, mesh1)
    parts, length = planned.ids.shape
    assert parts == 2 and length < 2**31 and parts * length == pytest.approx(136.3 * rows, rel=1e-5)


def test_a_plan_estimates_how_long_passages_are() -> None:
    """English by its words; nothing known: as long as they may be."""
    assert CorpusSize(1, 1, "", words=103).mean_ids(256) == pytest.approx(150, abs=20)
    assert CorpusSize(1, 1, "", words=103).mean_ids(64) == 64
    assert CorpusSize(1, 1, "").mean_ids(256) == 256


def test_a_shard_is_all_that_a_host_reads(store: TokenStore, mesh8: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device's callback reads the ids of its rows alone."""
    asked = []

    class Watched(np.ndarray):
        def __getitem__(self, key: Any) -> Any:
            asked.append((key.start, key.stop))
            return np.asarray(super().__getitem__(key))

    monkeypatch.setattr(store, "ids", np.asarray(store.ids).view(Watched))
    corpus_tokens(store, ROWS, mesh8)
    bounds = store.offsets[np.minimum(np.arange(9) * ROWS // 8, PASSAGES)]
    assert sorted(set(asked)) == [(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
