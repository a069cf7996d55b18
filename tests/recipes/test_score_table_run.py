"""An ART run whose teacher is asked for nothing twice: over epochs, interruptions and numbers of devices."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from tiny import art_config, compiled_quickly, few_padding_rows

from jaxretr.checkpoint import Checkpoints
from jaxretr.config import Optimizer
from jaxretr.errors import UserError
from jaxretr.recipes.art import ArtRun, ArtState
from jaxretr.state import CorpusState, TrainState

EPOCH = 2  # Steps over the 10 questions.

Make = Callable[..., ArtRun]


@pytest.fixture(scope="module")
def make(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """make(mesh, **table) -> a run that learns nothing, so that every epoch retrieves the same passages."""

    def make(mesh: jax.sharding.Mesh, workdir: Path | None = None, **table: Any) -> ArtRun:
        config = art_config(
            tiny_models,
            table=table,
            index={"write_back": False},
            train={"batch_size": 5 if mesh.size == 1 else 8, "eval_every": 100, "steps": 8},
            data={"dev_questions": None},
        )
        config = dataclasses.replace(config, optimizer=Optimizer(learning_rate=0.0, weight_decay=0.0))
        with few_padding_rows():
            run = ArtRun(config, mesh, workdir or tmp_path_factory.mktemp("run"))
        run.train_step = compiled_quickly(run.train_step)
        return run

    return make


@pytest.fixture(scope="module")
def with_table(make: Make, mesh1: jax.sharding.Mesh) -> ArtRun:
    return make(mesh1)


def steps(run: ArtRun, state: ArtState, first: int, count: int) -> tuple[ArtState, list[dict[str, float]]]:
    metrics = []
    for number in range(first, first + count):
        state, values = run.step(state, number, run.batch(number))
        metrics.append({name: float(value) for name, value in values.items()})
    return state, metrics


def test_the_second_epoch_asks_the_teacher_nothing(make: Make, with_table: ArtRun, mesh1: jax.sharding.Mesh) -> None:
    """And has the losses of a run without a table, to the rounding of float32 sums of other blocks."""
    _, found = steps(with_table, with_table.init(), 0, 2 * EPOCH)
    assert [values["teacher_hits"] for values in found] == [0, 0, 1, 1]
    assert all(values["teacher_blocks"] > 0 for values in found[:EPOCH])
    assert [values["teacher_blocks"] for values in found[EPOCH:]] == [0, 0]
    without = make(mesh1, capacity=0)
    state = without.init()
    assert state.table is None
    _, expected = steps(without, state, 0, 2 * EPOCH)
    assert all(values["teacher_blocks"] > 0 and values["teacher_hits"] == 0 for values in expected)
    for name in ("loss", "teacher_score", "agreement"):
        ours, theirs = ([values[name] for values in run] for run in (found, expected))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=name)
    assert found[0]["loss"] > 1e-3


def test_a_checkpoint_carries_the_scores_to_other_devices(
    make: Make, with_table: ArtRun, mesh8: jax.sharding.Mesh, tmp_path: Path
) -> None:
    state, expected = steps(with_table, with_table.init(), 0, EPOCH)
    with Checkpoints(tmp_path / "checkpoints", with_table.config) as checkpoints:
        checkpoints.save(EPOCH, state)
        checkpoints.wait()
        eight = make(mesh8)
        restored = checkpoints.restore(eight.abstract_state())
    assert len(restored.table.rows.sharding.device_set) == 8
    for ours, theirs in zip(jax.tree.leaves(restored.table), jax.tree.leaves(state.table), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # Of 8 questions each, in another order: all of them have been read.
    _, found = steps(eight, restored, EPOCH, 1)
    assert found[0]["teacher_hits"] == 1 and found[0]["teacher_blocks"] == 0
    assert expected[0]["teacher_blocks"] > 0


class OlderState(NamedTuple):
    """As an ART run saved it before there was a table."""

    train: TrainState
    index: CorpusState


def test_an_older_checkpoint_begins_with_an_empty_table(with_table: ArtRun, tmp_path: Path) -> None:
    state = with_table.init()
    with Checkpoints(tmp_path / "checkpoints", with_table.config) as checkpoints:
        checkpoints.save(1, OlderState(state.train, state.index))
        checkpoints.wait()
        restored = checkpoints.restore(with_table.abstract_state())
    assert restored.table is None
    state, found = steps(with_table, restored, 0, 1)
    assert found[0]["teacher_hits"] == 0
    assert state.table is not None and (np.asarray(state.table.rows) >= 0).sum() == 5 * 4


def test_a_folder_whose_teacher_has_changed_is_refused(with_table: ArtRun, monkeypatch: pytest.MonkeyPatch) -> None:
    with_table.init()
    with_table.abstract_state()
    monkeypatch.setattr(with_table, "scorer_print", "another")
    with pytest.raises(UserError, match=r"score_table.json: .*other data \(scorer\); restore"):
        with_table.abstract_state()


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def test_scores_of_a_file_are_known_from_the_first_step(
    make: Make, with_table: ArtRun, mesh1: jax.sharding.Mesh, tmp_path: Path
) -> None:
    state, expected = steps(with_table, with_table.init(), 0, EPOCH)
    assert state.table is not None
    rows, scores = np.asarray(state.table.rows), np.asarray(state.table.scores)
    lines = []
    for number, question in enumerate(with_table.questions):
        known = rows[number] >= 0
        ids = [with_table.corpus.ids[row] for row in rows[number][known]]
        lines.append({"query_id": question.id, "document_ids": ids, "scores": scores[number][known].tolist()})
    path = write(
        tmp_path / "scores.jsonl", {"query_id": "of another run", "document_ids": ["x"], "scores": [0]}, *lines
    )
    config = dataclasses.replace(with_table.config.table, path=path)
    run = with_table
    run.config = dataclasses.replace(run.config, table=config)
    _, found = steps(run, run.init(), 0, EPOCH)
    run.config = dataclasses.replace(run.config, table=dataclasses.replace(config, path=None))
    assert [values["teacher_blocks"] for values in found] == [0, 0]
    np.testing.assert_allclose([x["loss"] for x in found], [x["loss"] for x in expected], rtol=1e-6)
