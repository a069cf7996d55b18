"""A rolling refresh: which rows it encodes, on any number of devices, and what the ages of an index are."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from tiny import BERT, contrastive_program

from jaxretr.models.embed import DualEncoderConfig, init_params
from jaxretr.runtime.parallel.mesh import DATA, make_mesh
from jaxretr.training.plan.compiled_text import Program
from jaxretr.training.state import CorpusState, CorpusTokens
from jaxretr.training.steps.index_refresh import make_refresh, make_rolling_refresh, slice_rows
from jaxretr.training.steps.live_index import IndexProgram, staleness, staleness_max, staleness_of

SEED, ROWS, REAL, WIDTH = 5, 104, 97, 32
ENCODER = DualEncoderConfig(dataclasses.replace(BERT, num_hidden_layers=1))


@pytest.fixture(scope="module")
def program() -> IndexProgram:
    """13 rows on each of eight devices, at most three of them at once."""
    return contrastive_program(encoder=ENCODER, corpus_rows=REAL, encode_rows=3)


def passages_on(devices: int) -> CorpusTokens:
    """Rows of any length, those behind the corpus empty; each has WIDTH places, for so many devices."""
    rng = np.random.default_rng(SEED)
    lengths = np.where(np.arange(ROWS) < REAL, rng.integers(1, WIDTH + 1, ROWS), 0).astype(np.int32)
    tokens = np.where(np.arange(WIDTH) < lengths[:, None], rng.integers(5, BERT.vocab_size, (ROWS, WIDTH)), 0)
    offsets = (np.arange(ROWS) % (ROWS // devices) * WIDTH).astype(np.int32)
    return CorpusTokens(tokens.astype(np.uint16).ravel(), offsets, lengths, WIDTH)


@pytest.fixture(scope="module")
def params() -> Any:
    return init_params(ENCODER, SEED)


@pytest.fixture(scope="module")
def whole(program: IndexProgram, params: Any, mesh1: Mesh) -> np.ndarray:
    """The embeddings of all rows, from the refresh of the whole corpus."""
    return np.asarray(make_refresh(program, mesh1)(params, passages_on(1), old_index(), np.int32(1)).embeddings)


def old_index() -> CorpusState:
    """Recognisable embeddings, made at different steps."""
    embeddings = np.full((ROWS, BERT.hidden_size), 7, np.float32) + np.arange(ROWS, dtype=np.float32)[:, None]
    return CorpusState(embeddings, (np.arange(ROWS) % 5).astype(np.int32))


@pytest.mark.parametrize(
    ("devices", "every", "packed"),
    [
        (8, 3, True),
        (8, 20, False),
        pytest.param(1, 3, False, marks=pytest.mark.slow),
        pytest.param(8, 1, False, marks=pytest.mark.slow),
    ],
)
def test_a_slice_is_encoded_and_nothing_else(
    program: IndexProgram, params: Any, whole: np.ndarray, devices: int, every: int, packed: bool
) -> None:
    """R = 3, R above a device's 13 rows, and R = 1, which is the refresh of the whole corpus: on one device and on eight."""
    program = dataclasses.replace(program, packed_row=64) if packed else program
    refresh = make_rolling_refresh(program, make_mesh(jax.devices()[:devices]), every)
    old = old_index()
    for step in (0, 1, every - 1, every + 2, 1000):
        index: Any = jax.device_get(refresh(params, passages_on(devices), old, np.int32(step)))
        fresh = np.arange(ROWS) % every == step % every
        np.testing.assert_array_equal(index.encoded_at, np.where(fresh, step, old.encoded_at))
        np.testing.assert_array_equal(index.embeddings[~fresh], old.embeddings[~fresh])
        np.testing.assert_allclose(index.embeddings[:REAL][fresh[:REAL]], whole[:REAL][fresh[:REAL]], atol=1e-5)


def test_the_program_needs_no_other_device_and_copies_no_index(program: IndexProgram, params: Any, mesh8: Mesh) -> None:
    """It is overwritten in its place: the temporaries are those of a slice."""
    n = 1 << 20
    rows = jax.sharding.NamedSharding(mesh8, P(DATA))

    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=rows)

    tokens = CorpusTokens(array(np.uint16, n * WIDTH), *2 * [array(np.int32, n)], WIDTH)
    index = CorpusState(array(np.float32, n, BERT.hidden_size), array(np.int32, n))
    refresh: Any = make_rolling_refresh(dataclasses.replace(program, corpus_rows=n), mesh8, 1000)
    compiled = refresh.lower(params, tokens, index, np.int32(3)).compile({"xla_backend_optimization_level": 0})
    text = Program(compiled.as_text())
    shard = n // 8 * BERT.hidden_size
    assert text.collectives == [] and text.copies(n // 8) == []
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= 4 * shard and memory.temp_size_in_bytes < 4 * shard / 4


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 200), st.integers(0, 10**6), st.integers(0, 40))
def test_the_slices_of_all_devices_are_the_rows_of_the_step(n: int, every: int, step: int, device: int) -> None:
    """Also of devices that hold none of a step's rows."""
    rows = np.asarray(slice_rows(jnp.int32(device * n), n, every, jnp.int32(step)))
    expected = [row - device * n for row in range(device * n, (device + 1) * n) if row % every == step % every]
    assert rows[rows < n].tolist() == expected and len(rows) == -(-n // every) and rows.max(initial=0) <= n


def test_ages_are_those_of_the_corpus_and_of_what_was_found(mesh8: Mesh) -> None:
    """The mean and the greatest of all rows but the padding; the mean of the found ones, which may repeat or be none."""
    rng = np.random.default_rng(SEED)
    step, real = 30, 37
    encoded_at = rng.integers(3, step, 40).astype(np.int32)
    encoded_at[real:] = 0
    rows = rng.integers(0, real, (8, 3)).astype(np.int32)
    rows[2, 1], rows[5, 0] = -1, np.iinfo(np.int32).max
    index = CorpusState(np.zeros((40, 2), np.float32), encoded_at)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh8, in_specs=(P(DATA), P()), out_specs=(P(DATA), P(DATA), P()), axis_names={DATA})
    def ages(index: CorpusState, rows: jax.Array) -> Any:
        now = jnp.int32(step)
        return (
            staleness(index, now, real)[None],
            staleness_of(index, rows, now)[None],
            staleness_max(index, now, real),
        )

    mean, found, greatest = jax.device_get(ages(index, rows))
    wanted = rows[(rows >= 0) & (rows < real)]
    np.testing.assert_allclose(mean.mean(), (step - encoded_at[:real]).mean(), rtol=1e-6)
    np.testing.assert_allclose(found.mean(), (step - encoded_at[wanted]).mean(), rtol=1e-6)
    assert greatest == (step - encoded_at[:real]).max()
    np.testing.assert_array_equal(ages(index, np.full((8, 3), -1, np.int32))[1], 0)
