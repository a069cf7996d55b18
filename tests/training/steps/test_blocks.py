"""Blocks of rows: a number of devices that leaves each a number with few divisors makes no block small."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import Mesh
from tiny import BERT, contrastive_program

from jaxretr.models.embed import DualEncoderConfig, init_params
from jaxretr.runtime.parallel.mesh import DATA, padded_rows
from jaxretr.training.plan.compiled_text import Program
from jaxretr.training.state import CorpusState, CorpusTokens, TrainState
from jaxretr.training.steps.blocks import block_size, block_start, num_blocks
from jaxretr.training.steps.index_refresh import make_refresh
from jaxretr.training.steps.token_step import make_token_step

SEED = 3
WIDTH = 32
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@pytest.mark.parametrize("devices", [1, 8, 16, 64, 256, 96])
def test_a_refresh_of_wikipedia_takes_as_few_blocks_on_any_number_of_devices(devices: int) -> None:
    """On 256 devices a block once held 12 rows of the 512 that were asked for."""
    unit = int(np.lcm(1024, devices))
    n = -(-21_015_324 // unit) * unit // devices
    size = block_size(n, 512)
    assert size <= 512 and num_blocks(n, size) == -(-n // 512)
    assert size * num_blocks(n, size) - n < 512


@pytest.mark.parametrize("limit", [1, 5, 8, 64])
@pytest.mark.parametrize("n", [1, 2, 7, 13, 64, 65, 127, 509])
def test_blocks_hold_every_row_and_no_other(n: int, limit: int) -> None:
    size = block_size(n, limit)
    assert size <= min(n, limit)
    starts = [int(block_start(jnp.int32(number), n, size)) for number in range(num_blocks(n, size))]
    rows = [row for start in starts for row in range(start, start + size)]
    assert set(rows) == set(range(n)) and len(rows) - n < max(8 * len(starts), size)


def test_a_refresh_encodes_full_blocks_of_rows_that_no_block_divides(mesh1: Mesh, mesh8: Mesh) -> None:
    """13 rows on each of 8 devices, 4 at once: 4 blocks, not 13 of one row; the index is that of one device."""
    rows = 104
    rng = np.random.default_rng(SEED)
    lengths = rng.integers(1, WIDTH + 1, rows).astype(np.int32)
    tokens = np.where(np.arange(WIDTH) < lengths[:, None], rng.integers(5, BERT.vocab_size, (rows, WIDTH)), 0)
    params = init_params(DualEncoderConfig(BERT), SEED)

    def refreshed(mesh: Mesh, encode_rows: int) -> tuple[CorpusState, str]:
        refresh: Any = make_refresh(contrastive_program(corpus_rows=rows, encode_rows=encode_rows), mesh)
        offsets = WIDTH * (np.arange(rows, dtype=np.int32) % (rows // mesh.shape[DATA]))
        passages = CorpusTokens(tokens.astype(np.uint16).ravel(), offsets, lengths, WIDTH)
        index = CorpusState(np.zeros((rows, BERT.hidden_size), np.float32), np.zeros(rows, np.int32))
        compiled = refresh.lower(params, passages, index, np.int32(7)).compile()
        return jax.device_get(refresh(params, passages, index, np.int32(7))), compiled.as_text()

    assert padded_rows(rows, mesh8) % rows, "real corpora are padded; this one is the odd case"
    (whole, _), (many, text) = refreshed(mesh1, 64), refreshed(mesh8, 4)
    np.testing.assert_allclose(many.embeddings, whole.embeddings, atol=1e-5)
    np.testing.assert_array_equal(many.encoded_at, np.full(rows, 7))
    assert 4 in map(int, TRIPS.findall(text)) and 13 not in map(int, TRIPS.findall(text))
    assert Program(text).collectives == []


@pytest.mark.parametrize(("rows", "chunk", "trips"), [(7, 3, 2), (13, 6, 2), (12, 5, 3)])
def test_gradients_of_rows_that_no_chunk_divides_are_summed_in_full_chunks(
    mesh1: Mesh, rows: int, chunk: int, trips: int
) -> None:
    """7 rows of which 3 fit: two chunks of 3 and the row that is left, not seven chunks of one."""
    batch = np.random.default_rng(SEED).normal(size=(rows, 4)).astype(np.float32)
    params = {"w": jnp.arange(4, dtype=jnp.float32)}
    optimizer = optax.sgd(1.0)

    def loss(params: Any, part: jax.Array, keys: Any) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(part @ params["w"]).sum(), lax.pcast(jnp.float32(len(part)), DATA, to="varying")

    def stepped(chunk: int | None) -> tuple[TrainState, str]:
        step: Any = make_token_step(loss, optimizer, mesh1, chunk=chunk)
        state = TrainState.create(jax.tree.map(jnp.array, params), optimizer)
        text = step.lower(state, batch).compile().as_text()
        return step(state, batch)[0], text

    (whole, _), (state, text) = stepped(None), stepped(chunk)
    np.testing.assert_allclose(state.params["w"], whole.params["w"], rtol=1e-6)
    assert [int(n) for n in TRIPS.findall(text)] == [trips]
