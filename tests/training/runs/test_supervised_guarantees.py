"""What the README promises of supervised runs, shown by one compiled step on eight devices and one on a single one.

Retrieved and static negatives, write-back and a refresh every second step; on one device all texts at once, on eight
three at a time. The same at larger sizes, with dropout, in more forms and with processes that are killed: the slow tests.
"""

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import buckets
import jax
import numpy as np
import pytest
import small_runs
from safetensors.numpy import load, load_file
from small_runs import LENGTH, PASSAGES, ROWS, SHARD, SIZE
from tiny import contrastive_config, write_supervised
from training_processes import same_losses, same_model

from jaxretr.evaluate.answers import has_answer
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.parallel.hosts import EXIT_AGAIN
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.runtime.storage.paths import as_path
from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.plan.compiled_text import Program
from jaxretr.training.runs import whole_corpus
from jaxretr.training.runs.contrastive import ContrastiveRun


@dataclass
class Tried:
    """A run, its compiled step, and what two steps gave."""

    run: ContrastiveRun
    program: Program
    encodings: list[int]
    """For each time that the corpus was encoded, the step of the weights."""
    rows: list[np.ndarray]
    metrics: list[dict[str, float]]
    gradients: dict[str, np.ndarray]
    """Of the first step."""
    index: Any


def tried(config: Any, devices: int, folder: Path) -> Tried:
    encodings: list[int] = []
    make = whole_corpus.make_refresh

    def counting(*constants: Any) -> Any:
        refresh = make(*constants)

        def call(weights: Any, passages: Any, index: Any, step: Any) -> Any:
            encodings.append(int(step))
            return refresh(weights, passages, index, step)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_corpus, "make_refresh", counting)
        run = ContrastiveRun(config, make_mesh(jax.devices()[:devices]), folder)
    assert run.whole.rows == ROWS
    state = run.init()
    arguments = run.whole.passages, run.device_contents
    program = small_runs.compiled_step(run, *state[:2], *arguments, run.batch(0))
    rows, metrics, gradients = [], [], {}
    for number in range(2):
        train_state, index, values, drawn = run.programs.step(*state[:2], *arguments, run.batch(number))
        state = state._replace(train=train_state, index=index)
        rows.append(np.asarray(drawn))
        metrics.append({name: float(value) for name, value in values.items()})
        gradients = gradients or small_runs.first_gradients(state)
    return Tried(run, program, encodings, rows, metrics, gradients, jax.device_get(state.index))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    small_runs.write_models(folder)
    return folder


@pytest.fixture(scope="module")
def made(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """made(devices, chunk) -> Tried."""
    folder = tmp_path_factory.mktemp("tried")
    data = write_supervised(folder / "data") | {"corpus": small_runs.write_corpus(folder / "corpus.jsonl")}

    def make(devices: int, chunk: int) -> Tried:
        config = contrastive_config(
            models,
            data=data,
            encoder=small_runs.ENCODER | {"shared": True},
            negatives={"static": 1, "retrieved": 1, "last_rank": 6},
            contrastive={"chunk": chunk},
            index=small_runs.INDEX,
            optimizer=small_runs.OPTIMIZER,
            train=small_runs.TRAIN,
        )
        return tried(config, devices, folder / f"on {devices}")

    return make


@pytest.fixture(scope="module")
def eight(made: Any) -> Tried:
    return made(8, 3)


@pytest.fixture(scope="module")
def one(made: Any) -> Tried:
    return made(1, 100)


# ---- one device and eight, whole and in chunks -----------------------------------------------------------------------


def test_one_device_and_eight_retrieve_the_same_and_have_the_same_loss_and_gradients(one: Tried, eight: Tried) -> None:
    for expected, found in zip(one.rows, eight.rows, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert (eight.rows[0][:, -1] >= SHARD).any(), "found on other devices than the first"
    for expected, found in zip(one.metrics, eight.metrics, strict=True):
        assert found.keys() == expected.keys() >= {"loss", "accuracy", "negatives", "staleness", "gradient_norm"}
        for name, value in found.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, err_msg=name)
    small_runs.assert_gradients_equal(eight.gradients, one.gradients)


def test_what_a_step_embedded_is_written_back_and_nothing_else(one: Tried, eight: Tried) -> None:
    for index in (one.index, eight.index):
        written = np.zeros(ROWS, np.int32)
        written[eight.rows[1][eight.rows[1] >= 0]] = 1
        np.testing.assert_array_equal(index.encoded_at, written)
    np.testing.assert_allclose(eight.index.embeddings[:PASSAGES], one.index.embeddings[:PASSAGES], atol=1e-4)


# ---- the compiled step -----------------------------------------------------------------------------------------------


def test_the_step_donates_its_state_and_copies_no_index(eight: Tried) -> None:
    leaves = len(jax.tree.leaves(eight.run.abstract_state()))
    header = eight.program.text.splitlines()[0]
    assert header.count("may-alias") + header.count("must-alias") == leaves
    assert eight.program.copies(SHARD * SIZE) == []


def test_no_collective_stands_in_a_loop_and_gradients_are_reduced_once(eight: Tried) -> None:
    assert eight.program.loops > 1
    assert [collective for collective in eight.program.collectives if collective.in_loop] == []
    reduced = [array for op in eight.program.of_kind("all-reduce") for array in op.results if array.dtype == "f32"]
    expected = sorted(tuple(leaf.shape) for leaf in jax.tree.leaves(eight.run.model.params))
    assert sorted(array.shape for array in reduced if array.shape) == expected
    assert len([array for array in reduced if not array.shape]) <= 5


def test_no_array_holds_scores_of_questions_and_the_corpus(eight: Tried) -> None:
    assert small_runs.of_corpus_size(eight.program) <= {(SHARD,), (SHARD, SIZE), (SHARD, LENGTH)}


# ---- runs ------------------------------------------------------------------------------------------------------------


@dataclass
class Whole:
    folder: Path
    figures: dict[str, float]
    encodings: list[int]


@pytest.fixture(scope="module")
def whole(eight: Tried, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    eight.encodings.clear()
    with small_runs.trained_by(eight.run):
        figures = train(eight.run.config, folder)
    return Whole(folder, dict(figures), list(eight.encodings))


def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(whole: Whole, eight: Tried, tmp_path: Path) -> None:
    def kill() -> None:
        raise small_runs.Killed

    with pytest.raises(small_runs.Killed):
        small_runs.train_disturbed(eight.run, tmp_path, 3, kill)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"0", "2"}
    with small_runs.trained_by(eight.run):
        assert train(eight.run.config, tmp_path) == whole.figures
    same_model(whole.folder, tmp_path)
    same_losses(whole.folder, tmp_path, 0)
    assert json.loads((tmp_path / "best.json").read_text()) == json.loads((whole.folder / "best.json").read_text())


def test_asked_to_stop_it_saves_the_step_and_goes_on_with_another_number_of_devices(
    whole: Whole, one: Tried, eight: Tried, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as stopped:
        small_runs.train_disturbed(eight.run, tmp_path, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert stopped.value.code == EXIT_AGAIN
    assert (tmp_path / "checkpoints/3").is_dir(), "the step that was interrupted is saved"
    for number in range(4):
        np.testing.assert_array_equal(one.run.batches.indices(number), eight.run.batches.indices(number))
    with small_runs.trained_by(one.run):
        train(eight.run.config, tmp_path)
    # Sums are taken in another order on another number of devices.
    same_losses(whole.folder, tmp_path, 1e-5)


def test_the_loss_falls_and_the_index_follows(eight: Tried) -> None:
    state, losses = eight.run.init(), []
    for number in range(20):
        state, values = eight.run.step(state, number, eight.run.batch(number))
        losses.append(float(values["loss"]))
        assert float(values["staleness"]) < eight.run.config.index.refresh_every
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5]), losses


def test_a_corpus_is_encoded_once_for_the_same_weights(whole: Whole) -> None:
    """For the beginning and its evaluation, for the refresh and the evaluation behind step 2, and at the end."""
    assert whole.encodings == [0, 2, 4]


def test_the_best_model_is_kept_and_its_figures_are_those_of_its_vectors(whole: Whole, eight: Tried) -> None:
    evaluated = {line["step"]: line["acc@20"] for line in read_metrics(whole.folder) if "acc@20" in line}
    best = json.loads((whole.folder / "best.json").read_text())
    assert (
        evaluated.keys() == {0, 2, 4} and evaluated[best["step"]] == max(evaluated.values()) == whole.figures["acc@20"]
    )
    model, corpus = DualEncoder.from_pretrained(whole.folder), eight.run.examples.passages
    texts = [
        {"title": title, "text": text}
        for title, text in zip(corpus.titles[:PASSAGES], corpus.texts[:PASSAGES], strict=True)
    ]
    scores = model.encode_queries([q.text for q in eight.run.dev.questions]) @ model.encode_passages(texts).T
    found = np.argsort(-scores, axis=1, kind="stable")[:, :20]
    hits = [
        any(has_answer(corpus.texts[row], question.answers) for row in rows)
        for question, rows in zip(eight.run.dev.questions, found, strict=True)
    ]
    assert best["figures"]["acc@20"] == pytest.approx(np.mean(hits))
    assert load_file(whole.folder / "model/model.safetensors").keys()


def test_the_metrics_say_what_took_how_long(whole: Whole) -> None:
    parts = {name for line in read_metrics(whole.folder) for name in line if name.startswith("seconds/")}
    assert parts == {
        f"seconds/{name}" for name in ("start", "input", "first_step", "steps", "evaluation", "checkpoints")
    }


def test_a_run_in_a_bucket_is_that_of_a_folder_and_goes_on_after_a_kill(
    whole: Whole, eight: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill() -> None:
        raise small_runs.Killed

    for server in buckets.serving("gs"):
        bucket = f"{server.scheme}://bucket/run"
        monkeypatch.setenv("JAXRETR_CACHE", str(tmp_path / "one"))
        with pytest.raises(small_runs.Killed):
            small_runs.train_disturbed(eight.run, as_path(bucket), 3, kill)
        # On another machine: nothing of the first one's disk is there.
        monkeypatch.setenv("JAXRETR_CACHE", str(tmp_path / "two"))
        with small_runs.trained_by(eight.run):
            assert train(eight.run.config, as_path(bucket)) == whole.figures
        found = buckets.objects(bucket)
    expected = load_file(whole.folder / "model/model.safetensors")
    for name, value in load(found["model/model.safetensors"]).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    lines = [json.loads(line) for line in found["metrics.jsonl"].decode().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4], "each step is reported once"
    assert {"checkpoints.sha256/4.json", "best.json", "config.json"} <= found.keys()
