"""The supervised step on 1 device, on 8 and on 4 x 2, whole, in chunks and in packed rows: the same passages, loss and gradients.

29 passages stand in 32 rows; 22 of them are the corpus that is searched, and the texts' lengths differ, so that chunks
are padded to different widths. Tolerances are those of float32 sums in another order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import contrastive_reference
import jax
import numpy as np
import optax
import pytest
from contrastive_reference import Examples
from tiny import compiled_quickly, contrastive_config, few_padding_rows, write_models, write_supervised

from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.models.engine_choice import ENGINE_VARIABLE
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.mesh import DATA, make_mesh
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.state import TrainState
from jaxretr.training.steps.contrastive import make_step

MESHES: dict[str, Callable[[], jax.sharding.Mesh]] = {
    "1 device": lambda: make_mesh(jax.devices()[:1]),
    "8 devices": make_mesh,
    "4 x 2 devices": lambda: make_mesh(model=2),
}
WHOLE = 100  # larger than any device's number of texts: everything at once

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "noisy": {
        "encoder": {"dropout": 0.1, "max_passage_length": 32, "shared": True},
        "negatives": {"static": 1, "retrieved": 2, "first_rank": 2, "last_rank": 6},
        "contrastive": {"symmetric": True},
        "index": {"write_back": True},
        "typos": {
            "variants": 2,
            "augmentation": 0.3,
            "contrast_weight": 1.0,
            "passage_weight": 0.5,
            "self_teaching_weight": 0.5,
            "passage_self_teaching_weight": 0.5,
            "multi_positive": True,
        },
    },
    "whole corpus": {
        "encoder": {"max_passage_length": 32, "normalise": True},
        "negatives": {"static": 1, "retrieved": 3, "last_rank": 2, "draw": "top"},
        "contrastive": {
            "positives": "all",
            "corpus_softmax": True,
            "matryoshka": (4, 9),
            "temperature": 0.2,
        },
    },
}
# Each case's first form is what the others are compared with.
FORMS: dict[str, list[tuple[str, int]]] = {
    "noisy": [("1 device", WHOLE), ("8 devices", 3), ("4 x 2 devices", 1)],
    "whole corpus": [("1 device", WHOLE), ("8 devices", WHOLE)],
}


@dataclass
class Outcome:
    """What two steps gave, on the host."""

    run: ContrastiveRun
    first_index: np.ndarray
    rows: list[np.ndarray]
    metrics: list[dict[str, float]]
    gradients: Any
    """Of the first step."""
    index: Any
    params: Any


def outcome(mesh: jax.sharding.Mesh, chunk: int, case: str, models: Path, workdir: Path) -> Outcome:
    """Two steps of gradient descent with rate 1, whose updates are the gradients themselves."""
    changes = CASES[case] | {"contrastive": CASES[case]["contrastive"] | {"chunk": chunk}}
    config = contrastive_config(models, data=write_supervised(workdir / "data"), **changes)
    with few_padding_rows(), pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENGINE_VARIABLE, "packed" if (case, mesh.shape[DATA]) == ("noisy", 8) else "padded")
        run = ContrastiveRun(config, mesh, workdir)
    assert run.whole.rows == 32 and run.corpus_rows == 22
    optimizer = optax.sgd(1.0)
    step = compiled_quickly(make_step(run.program, optimizer, mesh))
    index = run.init().index
    first_index = np.array(index.embeddings)
    state = TrainState.create(sharding.put(jax.tree.map(np.array, run.model.params), mesh), optimizer)
    state = jax.device_put(state, sharding.shardings(state, mesh))
    rows, metrics, gradients = [], [], None
    for number in range(2):
        before = jax.device_get(state.params)
        state, index, values, drawn = step(state, index, run.whole.passages, run.device_contents, run.batch(number))
        rows.append(np.asarray(drawn))
        metrics.append({name: float(value) for name, value in values.items()})
        if gradients is None:
            gradients = jax.tree.map(np.subtract, before, jax.device_get(state.params))
    return Outcome(run, first_index, rows, metrics, gradients, jax.device_get(index), jax.device_get(state.params))


Outcomes = dict[tuple[str, str, int], Outcome]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whose embeddings differ much from text to text: gradients are then no small differences of large terms."""
    folder = tmp_path_factory.mktemp("models")
    write_models(folder, noise=0.3)
    return folder


@pytest.fixture(scope="module")
def outcomes(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return {
        (case, mesh, chunk): outcome(MESHES[mesh](), chunk, case, models, tmp_path_factory.mktemp("run"))
        for case, forms in FORMS.items()
        for mesh, chunk in forms
    }


PAIRS = [(case, *form) for case, forms in FORMS.items() for form in forms[1:]]


@pytest.fixture(params=PAIRS, ids=lambda form: f"{form[0]}, {form[1]}, chunks of {form[2]}")
def pair(request: pytest.FixtureRequest, outcomes: Outcomes) -> tuple[Outcome, Outcome]:
    case = request.param[0]
    return outcomes[case, *FORMS[case][0]], outcomes[request.param]


def test_the_same_passages_are_drawn(pair: tuple[Outcome, Outcome]) -> None:
    one, many = pair
    for expected, rows in zip(one.rows, many.rows, strict=True):
        np.testing.assert_array_equal(rows, expected)


def test_loss_and_metrics_are_equal(pair: tuple[Outcome, Outcome]) -> None:
    one, many = pair
    for expected, metrics in zip(one.metrics, many.metrics, strict=True):
        assert metrics.keys() == expected.keys() >= {"loss", "accuracy", "negatives", "staleness", "gradient_norm"}
        for name, value in metrics.items():
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
    # The second step's gradients start from parameters that differ by the first's rounding.
    jax.tree.map(lambda theirs, ours: np.testing.assert_allclose(ours, theirs, atol=1e-3), one.params, many.params)


def test_the_live_index_is_equal(pair: tuple[Outcome, Outcome]) -> None:
    one, many = pair
    np.testing.assert_array_equal(many.index.encoded_at, one.index.encoded_at)
    np.testing.assert_allclose(many.index.embeddings[:29], one.index.embeddings[:29], atol=1e-4)


def test_fresh_embeddings_are_written_back_only_if_so_configured(outcomes: Outcomes) -> None:
    """The rows of the batch, and no others; NO_PASSAGE writes nothing."""
    noisy, whole = (outcomes[case, *FORMS[case][0]] for case in CASES)
    expected = np.zeros(32, np.int32)
    expected[sorted(set(noisy.rows[1].ravel().tolist()) - {NO_PASSAGE})] = 1
    np.testing.assert_array_equal(noisy.index.encoded_at, expected)
    assert NO_PASSAGE in noisy.rows[1] and 0 < expected.sum() < 29
    np.testing.assert_array_equal(whole.index.encoded_at, 0)
    np.testing.assert_array_equal(whole.index.embeddings, whole.first_index)


def test_the_texts_are_padded_to_different_widths(outcomes: Outcomes) -> None:
    """Otherwise equal results would say nothing about chunks."""
    run = outcomes["noisy", *FORMS["noisy"][0]].run
    lengths = np.asarray(run.whole.passages.lengths)[np.concatenate(outcomes["noisy", *FORMS["noisy"][0]].rows).ravel()]
    assert (lengths <= 16).any() and (lengths > 16).any()


def test_retrieved_rows_are_those_of_an_exact_search_with_the_step_s_questions(outcomes: Outcomes) -> None:
    """Dropout off: what the model embeds for users. Of ranks 1 and 2 nothing relevant is taken, so that
    all questions get fewer than the 3 passages asked for; the loss is a number all the same."""
    result = outcomes["whole corpus", "8 devices", WHOLE]
    run, q, _, examples = seen(result)
    scores = q @ result.first_index[:22].T.astype(np.float64)
    places = run.draws.places
    for i, rows in enumerate(result.rows[0].tolist()):
        ranked = np.argsort(-scores[i], kind="stable")[:3]
        contents = run.contents[ranked]
        gaps = -np.diff(scores[i, ranked])
        assert ((gaps > 1e-5) | (np.diff(contents) == 0)).all()  # Rounding changes the order of copies alone.
        barred = {*examples.known[i].tolist(), *(int(run.contents[row]) for row in rows[:places] if row >= 0)}
        expected = [content for content in contents[:2].tolist() if content not in barred]
        found = [int(run.contents[row]) for row in rows[places:] if row != NO_PASSAGE]
        assert found == expected and rows[places + len(found) :] == [NO_PASSAGE] * (3 - len(found))
    assert all(np.isfinite(metrics["loss"]) for metrics in result.metrics)


def test_the_loss_is_the_one_defined(outcomes: Outcomes) -> None:
    """In float64, over the whole corpus, from the embeddings that users get: prefixes, cosines, several positives."""
    pytest.importorskip("torch")
    import torch

    result = outcomes["whole corpus", "8 devices", WHOLE]
    run, q, p, examples = seen(result)
    expected, negatives = contrastive_reference.loss(run.program, torch.tensor(q), torch.tensor(p), examples)
    # The encoder's float32 rounding, some 1e-6, is divided by the temperature.
    np.testing.assert_allclose(result.metrics[0]["loss"], expected.item(), rtol=1e-5)
    np.testing.assert_allclose(result.metrics[0]["negatives"], negatives + 22, rtol=1e-6)
    assert result.run.program.positives == 3 and (result.rows[0][:, 1] != NO_PASSAGE).any()


def seen(result: Outcome) -> tuple[ContrastiveRun, np.ndarray, np.ndarray, Examples]:
    """The run, the first step's embeddings in float64 ([B, D] and [B, C, D]) and what they are of."""
    run, rows = result.run, result.rows[0]
    chosen = run.batches.indices(0)
    q = run.model.encode_queries([run.examples.texts[i] for i in chosen], batch_size=8)
    passages = run.examples.passages
    texts = [{"title": t, "text": x} for t, x in zip(passages.titles, passages.texts, strict=True)]
    p = run.model.encode_passages(texts, batch_size=32)[rows]
    examples = Examples(rows, run.draws.known(chosen), run.contents, result.first_index)
    return run, q.astype(np.float64), p.astype(np.float64), examples
