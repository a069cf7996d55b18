"""What the README promises of ART, shown by one compiled step on eight devices and one on a single one, dropout on.

The same at larger sizes, on 4 x 2 devices and against PyTorch: test_art_devices.py, test_art_program.py, test_art_parity.py.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
import small_runs
from small_runs import LENGTH, PASSAGES, ROWS, SHARD, SIZE
from tiny import art_config

from jaxretr.models.question_scorer import QuestionScorer
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.plan.compiled_text import Program
from jaxretr.training.runs.art import ArtRun

SCORED = 48
"""Tokens of a passage and the prompt, as the scorer reads them."""


@dataclass
class Tried:
    """A run, its compiled step, and what two steps gave."""

    run: ArtRun
    program: Program
    first_index: np.ndarray
    rows: list[np.ndarray]
    metrics: list[dict[str, float]]
    gradients: dict[str, np.ndarray]
    """Of the first step."""
    index: Any


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """made(devices) -> Tried."""
    folder = tmp_path_factory.mktemp("art")
    small_runs.write_models(folder)
    corpus = small_runs.write_corpus(folder / "corpus.jsonl")

    def make(devices: int) -> Tried:
        config = art_config(
            folder,
            data={"corpus": corpus, "dev_questions": None},
            encoder=small_runs.ENCODER | {"shared": True, "dropout": 0.1},
            scorer={"max_length": SCORED, "max_question_length": 16, "chunk": 100},
            index=small_runs.INDEX,
            optimizer=small_runs.OPTIMIZER,
            train=small_runs.TRAIN,
        )
        run = ArtRun(config, make_mesh(jax.devices()[:devices]), folder / f"on {devices}")
        assert run.whole.rows == ROWS
        state = run.init()
        first_index = np.asarray(state.index.embeddings)
        arguments = run.whole.passages, run.scorer_passages, run.scorer_params
        program = small_runs.compiled_step(run, *state[:3], *arguments, run.batch(0))
        rows, metrics, gradients = [], [], {}
        for number in range(2):
            train, index, table, values, found = run.programs.step(*state[:3], *arguments, run.batch(number))
            state = state._replace(train=train, index=index, table=table)
            rows.append(np.asarray(found))
            metrics.append({name: float(value) for name, value in values.items()})
            gradients = gradients or small_runs.first_gradients(state)
        return Tried(run, program, first_index, rows, metrics, gradients, jax.device_get(state.index))

    return make


@pytest.fixture(scope="module")
def eight(made: Any) -> Tried:
    return made(8)


@pytest.fixture(scope="module")
def one(made: Any) -> Tried:
    return made(1)


def test_one_device_and_eight_retrieve_the_same_and_have_the_same_loss_and_gradients(one: Tried, eight: Tried) -> None:
    for expected, found in zip(one.rows, eight.rows, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert (eight.rows[0] >= SHARD).any() and eight.rows[0].max() < PASSAGES
    for expected, found in zip(one.metrics, eight.metrics, strict=True):
        assert found.keys() == expected.keys()
        for name, value in found.items():
            if name != "teacher_blocks":  # Each device cuts its own share into blocks.
                np.testing.assert_allclose(value, expected[name], rtol=1e-4, err_msg=name)
    assert eight.metrics[0]["loss"] > 1e-3
    small_runs.assert_gradients_equal(eight.gradients, one.gradients)


def test_what_a_step_embedded_is_written_back_with_its_dropout_and_nothing_else(one: Tried, eight: Tried) -> None:
    expected = np.zeros(ROWS, np.int32)
    expected[eight.rows[1].ravel()] = 1
    np.testing.assert_array_equal(eight.index.encoded_at, expected)
    np.testing.assert_allclose(eight.index.embeddings[:PASSAGES], one.index.embeddings[:PASSAGES], atol=1e-4)
    retrieved = np.unique(np.concatenate(eight.rows))
    untouched = np.setdiff1d(np.arange(PASSAGES), retrieved)
    np.testing.assert_array_equal(eight.index.embeddings[untouched], eight.first_index[untouched])
    once = np.setdiff1d(eight.rows[0], eight.rows[1])  # embedded with the weights of the index, and dropout
    assert np.abs(eight.index.embeddings[once] - eight.first_index[once]).max(axis=1).min() > 1e-2


def test_the_teachers_score_is_the_scorers(eight: Tried) -> None:
    """log p(question | passage), a mean over the question's tokens, of all questions and their passages."""
    run = eight.run
    scorer = QuestionScorer.from_pretrained(
        run.config.scorer.path, max_length=SCORED, max_question_length=16, dtype="float32"
    )
    questions = [run.questions[i].text for i in run.batches.indices(0)]
    pairs = [(question, row) for question, rows in zip(questions, eight.rows[0], strict=True) for row in rows]
    passages = [{"title": run.corpus.titles[row], "text": run.corpus.texts[row]} for _, row in pairs]
    scores = scorer.score(questions=[question for question, _ in pairs], passages=passages)
    np.testing.assert_allclose(eight.metrics[0]["teacher_score"], scores.mean(), rtol=1e-4)


def test_the_teacher_is_asked_for_no_pair_twice(eight: Tried) -> None:
    """The same questions with the same index once more: the table has all scores, and no block of the teacher runs."""
    run, batch = eight.run, eight.run.batch(0)
    after, asked = run.step(run.init(), 0, batch)
    _, known = run.step(run.init()._replace(table=after.table), 0, batch)
    assert (float(asked["teacher_hits"]), float(known["teacher_hits"])) == (0, 1)
    assert float(asked["teacher_blocks"]) > 0 and float(known["teacher_blocks"]) == 0
    for name in ("loss", "teacher_score", "gradient_norm"):
        np.testing.assert_allclose(known[name], asked[name], rtol=1e-6, err_msg=name)


def test_the_compiled_step(eight: Tried) -> None:
    """It donates its state, copies no index, reduces gradients once and outside of loops, and holds no [B, N] array."""
    program = eight.program
    header = program.text.splitlines()[0]
    leaves = len(jax.tree.leaves(eight.run.abstract_state()))
    assert header.count("may-alias") + header.count("must-alias") == leaves
    assert [array for array in program.copies(SHARD * SIZE) if SHARD in array.shape] == []
    assert program.loops > 1 and not any(collective.in_loop for collective in program.collectives)
    reduced = [array for op in program.of_kind("all-reduce") for array in op.results if array.dtype == "f32"]
    expected = [tuple(leaf.shape) for leaf in jax.tree.leaves(eight.run.model.params)]
    # The teacher's scores of 8 x 4 pairs: those that the table knew, and new ones with the numbers of `Work`.
    assert sorted(array.shape for array in reduced if array.shape) == sorted([*expected, (8, 4), (35,)])
    assert len([array for array in reduced if not array.shape]) <= 5
    widths = {SIZE, LENGTH, eight.run.scorer_passages.width}
    assert small_runs.of_corpus_size(program) <= {(SHARD,), *((SHARD, width) for width in (1, *widths))}


def test_the_loss_falls_and_the_index_follows(eight: Tried) -> None:
    state, losses = eight.run.init(), []
    for number in range(20):
        state, values = eight.run.step(state, number, eight.run.batch(number))
        losses.append(float(values["loss"]))
        assert float(values["staleness"]) <= eight.run.config.index.refresh_every
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5]), losses
    assert np.abs(np.asarray(state.index.embeddings)[:PASSAGES] - eight.first_index[:PASSAGES]).max(axis=1).min() > 0
