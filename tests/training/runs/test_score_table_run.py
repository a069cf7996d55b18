"""An ART run whose teacher is asked for nothing twice: over epochs, interruptions and numbers of devices."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from tiny import DATA, art_config, compiled_quickly, few_padding_rows

from jaxretr.cli import main
from jaxretr.config import Optimizer, Scorer, check_numbers
from jaxretr.data.formats.reading import read_examples
from jaxretr.data.made_of import read_record, write_record
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.training.checkpoint import Checkpoints
from jaxretr.training.loop import write_config
from jaxretr.training.runs.art import ArtRun
from jaxretr.training.runs.corpus_programs import RunState
from jaxretr.training.runs.run_inputs import check_inputs, write_inputs
from jaxretr.training.runs.teacher_table import check_made_of, made_of, read_table
from jaxretr.training.state import CorpusState, TrainState
from jaxretr.training.steps.score_table import TableState
from jaxretr.training.teacher_scores import mine_scores

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
        run.programs.step = compiled_quickly(run.programs.step)
        return run

    return make


@pytest.fixture(scope="module")
def with_table(make: Make, mesh1: jax.sharding.Mesh) -> ArtRun:
    return make(mesh1)


def steps(run: ArtRun, state: RunState, first: int, count: int) -> tuple[RunState, list[dict[str, float]]]:
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
    write_inputs(with_table.workdir, with_table.inputs())
    check_inputs(with_table.workdir, with_table.inputs(), with_table.config)
    monkeypatch.setattr(with_table, "_scorer_print", "another")
    with pytest.raises(UserError, match=r"inputs.json: .*other scorer than .*scorer.path="):
        check_inputs(with_table.workdir, with_table.inputs(), with_table.config)


@pytest.fixture(scope="module")
def saved(with_table: ArtRun) -> tuple[Path, RunState, list[dict[str, float]]]:
    """The folder of a run after an epoch, its state and its metrics."""
    state, metrics = steps(with_table, with_table.init(), 0, EPOCH)
    folder = with_table.workdir
    write_config(folder, with_table.config)
    with Checkpoints(folder / "checkpoints", with_table.config) as checkpoints:
        checkpoints.save(EPOCH, state)
        checkpoints.wait()
    return folder, state, metrics


def test_scores_of_a_run_are_known_to_the_next_from_its_first_step(
    with_table: ArtRun, saved: tuple[Path, RunState, list[dict[str, float]]], tmp_path: Path
) -> None:
    """`jaxretr mine scores` writes what the table has, as a set to distil from; `table.path` reads it."""
    folder, state, metrics = saved
    path = tmp_path / "scores.jsonl"
    assert main(["mine", "scores", str(folder), "--out", str(path)]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["query_id"] for line in lines] == [question.id for question in with_table.questions]
    assert state.table is not None
    for line, rows, scores in zip(lines, np.asarray(state.table.rows), np.asarray(state.table.scores), strict=False):
        known = {with_table.corpus.ids[row]: score for row, score in zip(rows, scores, strict=True) if row >= 0}
        assert len(known) == len(line["scores"]) == 4 and line["scores"] == sorted(line["scores"], reverse=True)
        assert dict(zip(line["document_ids"], np.array(line["scores"], np.float32), strict=True)) == known
    examples = list(read_examples(path, corpus=with_table.corpus, queries=str(DATA)))
    assert [example.positives[0].score for example in examples] == [line["scores"][0] for line in lines]

    record = read_record(path)
    assert record is not None and record["scorer.max_length"] == str(with_table.config.scorer.max_length)
    assert record["corpus"] == with_table.corpus.fingerprint()

    # A line of another run's question is no error.
    path.write_text(f"{json.dumps({'query_id': 'x', 'document_ids': ['y'], 'scores': [0]})}\n{path.read_text()}")
    table = begun_with(with_table, str(path))
    _, found = steps(with_table, with_table.init()._replace(table=table), 0, EPOCH)
    assert [values["teacher_blocks"] for values in found] == [0, 0]
    np.testing.assert_allclose([x["loss"] for x in found], [x["loss"] for x in metrics], rtol=1e-6)
    with_texts = mine_scores(folder, tmp_path / "scores.json", format="dpr")
    assert (with_texts.questions, with_texts.pairs, with_texts.step) == (10, 40, EPOCH)
    assert json.loads((tmp_path / "scores.json").read_text())[0]["positive_ctxs"][0]["text"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scorer.max_length": "32"}, r"given with scorer.max_length=32; use the same"),
        ({"scorer.dtype": "bfloat16", "scorer": "x"}, r"given with scorer.dtype=bfloat16; use"),
        ({"scorer": "x", "scorer.path": "other"}, r"by another teacher \(other\); use"),
        ({"scorer.path": "moved"}, None),
        ({"corpus": "x", "questions": "y"}, "are of other corpus and questions; they are joined by the ids"),
        (None, "does not say which teacher gave its scores"),
    ],
)
def test_scores_of_another_setting_are_refused_and_of_other_texts_said(
    changes: dict[str, str] | None, message: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text("{}\n")
    facts = made_of(Scorer(path="teacher"), {"scorer": "s", "corpus": "c", "questions": "q", "encoder": "e"})
    if changes is not None:
        write_record(path, {**facts, **changes})
    if changes is not None and any(name not in ("scorer.path", "corpus", "questions") for name in changes):
        with pytest.raises(UserError, match=message):
            check_made_of(str(path), facts)
        path.write_text("{ }\n")  # A file that was replaced has no record.
        check_made_of(str(path), facts)
        assert "does not say which teacher" in caplog.text
        return
    check_made_of(str(path), facts)
    assert message in caplog.text if message else not caplog.text


def test_scores_are_mined_with_the_texts_that_the_run_read(
    saved: tuple[Path, RunState, list[dict[str, float]]], with_table: ArtRun, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(saved[0], folder)
    (folder / "inputs.json").unlink(missing_ok=True)
    inputs = with_table.inputs()
    write_inputs(folder, inputs._replace(read={**inputs.read, "questions": "others"}))
    with pytest.raises(UserError, match=r"started with other questions .*data.questions="):
        mine_scores(folder, tmp_path / "scores.jsonl")


def begun_with(run: ArtRun, path: str) -> TableState:
    shapes = run.abstract_state().table
    assert shapes is not None
    return read_table(path, shapes, run.corpus, run.questions, run.mesh)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"document_ids": ["d"], "scores": [1]}, r":2: passage 'd' is not in the corpus; give"),
        ({"document_ids": ["KNOWN"], "scores": ["much"]}, r":2: .*scores.*; "),
        ({"document_ids": ["KNOWN"], "scores": [1, 2]}, r":2: field \"scores\" is not a list of 1 numbers; give"),
        (None, r"has scores of none of the 10 training questions; give"),
    ],
)
def test_a_bad_file_of_scores_is_named_with_its_line(
    with_table: ArtRun, tmp_path: Path, row: dict[str, Any] | None, message: str
) -> None:
    known = with_table.corpus.ids[0]
    rows = [{"query_id": "of another run", "document_ids": [known], "scores": [0.5]}]
    if row is not None:
        rows.append({"query_id": with_table.questions[0].id, **row})
    path = tmp_path / "scores.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows).replace("KNOWN", known))
    with pytest.raises(UserError, match=message):
        begun_with(with_table, str(path))


def test_a_run_without_scores_has_none_to_write(
    saved: tuple[Path, RunState, list[dict[str, float]]], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="has no checkpoint of step 9; those of it are: 2"):
        mine_scores(saved[0], tmp_path / "scores.jsonl", step=9)
    with pytest.raises(UserError, match=r"cannot be read .*; give the folder of a training run"):
        mine_scores(tmp_path, tmp_path / "scores.jsonl")
    with pytest.raises(UsageError, match="format qrels; formats with scores are"):
        mine_scores(saved[0], tmp_path / "scores.jsonl", format="qrels")


def test_a_capacity_below_nothing_and_a_file_without_room_are_refused(tiny_models: Path) -> None:
    with pytest.raises(UsageError, match=r"table.capacity=-1: must be at least 0"):
        check_numbers(art_config(tiny_models, table={"capacity": -1}))
    with pytest.raises(UsageError, match=r"table.path .* table.capacity=0 keeps none"):
        check_numbers(art_config(tiny_models, table={"capacity": 0, "path": "scores.jsonl"}))
