"""One ART step on 1 device, on 8 with packed rows, and on 4 x 2: the same passages, loss, gradients and index, with dropout on.

20 passages stand in 24 rows, 3 a device of 8: a shard that is smaller than K, one that is padding in part and one that
is nothing else. Tolerances are those of float32 sums in another order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from tiny import art_config, compiled_quickly, few_padding_rows

from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.engine_choice import ENGINE_VARIABLE
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.mesh import DATA, make_mesh
from jaxretr.training.runs.art import ArtRun
from jaxretr.training.state import TrainState
from jaxretr.training.steps.art import make_step
from jaxretr.training.steps.encoding import TextKeys

MESHES: dict[str, Callable[[], jax.sharding.Mesh]] = {
    "1 device": lambda: make_mesh(jax.devices()[:1]),
    "8 devices": make_mesh,
    "4 x 2 devices": lambda: make_mesh(model=2),
}


@dataclass
class Outcome:
    """What two steps gave, on the host."""

    run: ArtRun
    first_index: np.ndarray
    rows: list[np.ndarray]
    metrics: list[dict[str, float]]
    gradients: Any
    """Of the first step."""
    index: Any
    refreshed: Any


def outcome(mesh: jax.sharding.Mesh, models: Path, workdir: Path) -> Outcome:
    """Two steps of gradient descent with rate 1, whose updates are the gradients themselves, and a refresh."""
    with few_padding_rows(), pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENGINE_VARIABLE, "packed" if mesh.shape[DATA] == 8 else "padded")
        run = ArtRun(art_config(models, encoder={"dropout": 0.1}), mesh, workdir)
    assert run.whole.rows == 24
    optimizer = optax.sgd(1.0)
    step = compiled_quickly(make_step(run.program, optimizer, mesh))
    begun = run.init()
    index, table = begun.index, begun.table
    first_index = np.array(index.embeddings)
    state = TrainState.create(sharding.put(jax.tree.map(np.array, run.model.params), mesh), optimizer)
    state = jax.device_put(state, sharding.shardings(state, mesh))
    rows, metrics, gradients = [], [], None
    for number in range(2):
        before = jax.device_get(state.params)
        state, index, table, values, found = step(
            state, index, table, run.whole.passages, run.scorer_passages, run.scorer_params, run.batch(number)
        )
        rows.append(np.asarray(found))
        metrics.append({name: float(value) for name, value in values.items()})
        if gradients is None:
            gradients = jax.tree.map(np.subtract, before, jax.device_get(state.params))
    live = jax.device_get(index)
    refreshed = jax.device_get(run.whole.refresh(state, index))
    return Outcome(run, first_index, rows, metrics, gradients, live, refreshed)


@pytest.fixture(scope="module")
def outcomes(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return {name: outcome(make(), tiny_models, tmp_path_factory.mktemp("run")) for name, make in MESHES.items()}


@pytest.fixture(params=["8 devices", "4 x 2 devices"])
def pair(request: pytest.FixtureRequest, outcomes: dict[str, Outcome]) -> tuple[Outcome, Outcome]:
    return outcomes["1 device"], outcomes[request.param]


def test_the_same_passages_are_retrieved(pair: tuple[Outcome, Outcome]) -> None:
    one, many = pair
    for expected, rows in zip(one.rows, many.rows, strict=True):
        np.testing.assert_array_equal(rows, expected)
        assert rows.max() < 20 and rows.shape == (8, 4)


def test_loss_and_metrics_are_equal(pair: tuple[Outcome, Outcome]) -> None:
    one, many = pair
    for expected, metrics in zip(one.metrics, many.metrics, strict=True):
        assert metrics.keys() == expected.keys()
        for name, value in metrics.items():
            if name != "teacher_blocks":  # Each device cuts its own share into blocks.
                np.testing.assert_allclose(value, expected[name], rtol=1e-4, err_msg=name)
    assert many.metrics[0]["loss"] > 1e-3


def test_gradients_are_equal(pair: tuple[Outcome, Outcome]) -> None:
    """Of every parameter, to 1e-5 of the largest element of all: neither their scale nor their sum may differ."""
    one, many = pair
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(one.gradients))
    assert largest > 1e-3
    jax.tree.map(
        lambda theirs, ours: np.testing.assert_allclose(ours, theirs, atol=1e-5 * largest),
        one.gradients,
        many.gradients,
    )


def test_the_live_index_is_equal(pair: tuple[Outcome, Outcome]) -> None:
    """Also where several questions found a passage and dropout gave it several embeddings: the first one's counts."""
    one, many = pair
    np.testing.assert_array_equal(many.index.encoded_at, one.index.encoded_at)
    np.testing.assert_allclose(many.index.embeddings[:20], one.index.embeddings[:20], atol=1e-4)
    flat = one.rows[1].ravel().tolist()
    assert len(set(flat)) < len(flat)


def test_the_refreshed_index_is_equal(pair: tuple[Outcome, Outcome]) -> None:
    one, many = pair
    np.testing.assert_allclose(many.first_index[:20], one.first_index[:20], atol=1e-5)
    np.testing.assert_allclose(many.refreshed.embeddings[:20], one.refreshed.embeddings[:20], atol=1e-4)
    np.testing.assert_array_equal(many.refreshed.encoded_at, np.full(24, 2))


def test_only_the_retrieved_rows_are_written(outcomes: dict[str, Outcome]) -> None:
    result = outcomes["8 devices"]
    expected = np.zeros(24, np.int32)
    expected[result.rows[1].ravel()] = 1
    np.testing.assert_array_equal(result.index.encoded_at, expected)
    untouched = sorted(set(range(20)) - set(np.concatenate(result.rows).ravel().tolist()))
    assert untouched
    np.testing.assert_array_equal(result.index.embeddings[untouched], result.first_index[untouched])
    age = (2 - 1 - expected[:20]).mean()  # When the second step ends, one update has been made.
    np.testing.assert_allclose(result.metrics[1]["staleness"], age, rtol=1e-5)


def test_the_first_index_holds_the_embeddings_that_users_get(outcomes: dict[str, Outcome]) -> None:
    """Encoded without dropout, each passage in its own row."""
    result = outcomes["8 devices"]
    corpus = result.run.corpus
    passages = [{"title": title, "text": text} for title, text in zip(corpus.titles, corpus.texts, strict=True)]
    model = result.run.model
    expected = DualEncoder(model.config, model.params, model.tokenizer).encode_passages(passages, batch_size=20)
    np.testing.assert_allclose(result.first_index[:20], expected, atol=1e-5)


def test_dropout_is_active_in_the_step(outcomes: dict[str, Outcome]) -> None:
    """Otherwise equal masks would prove nothing. The first step's fresh embeddings have the weights of the index."""
    result = outcomes["8 devices"]
    once = sorted(set(result.rows[0].flat) - set(result.rows[1].flat))
    assert once
    assert np.abs(result.index.embeddings[once] - result.first_index[once]).max(axis=1).min() > 1e-2


def test_every_text_of_every_step_has_masks_of_its_own(outcomes: dict[str, Outcome]) -> None:
    """And they are the same on any number of devices."""
    keys = {name: dropout_keys(result.run) for name, result in outcomes.items()}
    for drawn in keys.values():
        np.testing.assert_array_equal(drawn, keys["1 device"])
    assert keys["1 device"].shape == (2 * (8 + 8 * 4 + 8), 2)
    assert len(np.unique(keys["1 device"], axis=0)) == len(keys["1 device"])


def dropout_keys(run: ArtRun) -> np.ndarray:
    """The keys of questions, passages and shuffling in steps 0 and 1, [keys, 2]."""

    @partial(jax.shard_map, mesh=run.mesh, axis_names={DATA}, in_specs=P(DATA), out_specs=P(DATA))
    def of_step(step: jax.Array) -> Any:
        keys = TextKeys.of_step(run.program, jax.random.key(step[0]), 8 // jax.lax.axis_size(DATA), run.program.top_k)
        assert keys.questions is not None and keys.passages is not None
        return [jax.random.key_data(x) for x in (keys.questions, keys.passages, keys.draws)]

    drawn = [jax.jit(of_step)(np.full(8, step, np.int32)) for step in (0, 1)]
    return np.concatenate([np.asarray(x).reshape(-1, 2) for step in drawn for x in step])
