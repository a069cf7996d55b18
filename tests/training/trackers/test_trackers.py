"""Runs in Weights & Biases and MLflow, offline, with the real packages: values arrive, and a resumed run continues."""

import json
import logging
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import mlflow
import pytest
import tiny
import wandb
from mlflow.tracking import MlflowClient

from jaxretr.config import ContrastiveConfig
from jaxretr.runtime import errors
from jaxretr.runtime.errors import UserError
from jaxretr.training import loop as program
from jaxretr.training.runs.run_inputs import Inputs
from jaxretr.training.trackers.background import Background
from jaxretr.training.trackers.tracker import Outcome


class Measured:
    """A run that learns nothing: its loss is 1/(step), its dev metrics are given, and it can be interrupted."""

    def __init__(self, config: Any, values: Sequence[float], interrupted_after: int | None = None):
        self.config, self.values, self.interrupted_after = (
            config,
            dict(zip((0, 2, 4), values, strict=False)),
            interrupted_after,
        )
        self.done = 0

    def inputs(self) -> Inputs:
        return Inputs({}, {})

    def evaluated(self) -> str:
        return "questions"

    def init(self) -> Any:
        return {"x": jnp.zeros(1)}

    def abstract_state(self) -> Any:
        return self.init()

    def batch(self, number: int) -> int:
        if self.interrupted_after is not None and number >= self.interrupted_after:
            raise SystemExit(75)
        return number

    def step(self, state: Any, number: int, batch: Any) -> Any:
        self.done = number + 1
        return state, {"loss": jnp.float32(1 / (number + 1))}

    def refreshed(self, state: Any, number: int) -> Any:
        return state

    def evaluate(self, state: Any) -> dict[str, float]:
        return {"recall@20": self.values[self.done]}

    def save_model(self, state: Any, folder: Path) -> None:
        folder.mkdir(exist_ok=True)


@pytest.fixture
def tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for runs whose trackers have no network and no account."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
    return tmp_path


def config_of(folder: Path, *trackers: str, **train: Any) -> ContrastiveConfig:
    train = {"steps": 4, "eval_every": 2, "save_every": 2, "best_metric": "recall@20"} | train
    return tiny.contrastive_config(folder, train=train, tracking={"to": trackers, "project": "papers"})


def run(folder: Path, monkeypatch: Any, config: ContrastiveConfig, *, interrupted_after: int | None = None) -> None:
    monkeypatch.setattr(program, "build", lambda config, *_: Measured(config, (0.2, 0.6, 0.4), interrupted_after))
    program.train(config, folder / "run")


def test_values_arrive_in_mlflow_and_a_resumed_run_continues(tracked: Path, monkeypatch: Any) -> None:
    config = config_of(tracked, "mlflow")
    with pytest.raises(SystemExit):
        run(tracked, monkeypatch, config, interrupted_after=3)
    client = MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'papers'")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "KILLED"
    run(tracked, monkeypatch, config)

    (found,) = client.search_runs([experiment.experiment_id])  # One run, not two.
    assert (found.info.run_name, found.info.status) == ("tiny run", "FINISHED")
    assert json.loads((tracked / "run/trackers.json").read_text()) == {"mlflow": found.info.run_id}
    assert found.data.params["train.steps"] == "4" and found.data.params["tracking.project"] == "papers"
    losses = {metric.step: metric.value for metric in client.get_metric_history(found.info.run_id, "loss")}
    assert losses == pytest.approx({1: 1, 2: 1 / 2, 3: 1 / 3, 4: 1 / 4})
    recalls = [(metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, "recall_at_20")]
    assert sorted(recalls) == [(0, 0.2), (2, 0.6), (4, 0.4)]
    assert found.data.metrics["best/recall_at_20"] == 0.6 and found.data.metrics["best/step"] == 2


def records(path: Path) -> Iterator[Any]:
    """The records of an offline file of wandb: a header, then LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    content, place, parts = path.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # The rest of a block that no header fits into.
            place += 32768 - place % 32768
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def items(entries: Any) -> dict[str, Any]:
    return {"/".join(entry.nested_key) or entry.key: json.loads(entry.value_json) for entry in entries}


def test_values_arrive_in_wandb_and_a_resumed_run_continues(tracked: Path, monkeypatch: Any) -> None:
    config = config_of(tracked, "wandb")
    with pytest.raises(SystemExit):
        run(tracked, monkeypatch, config, interrupted_after=3)
    run(tracked, monkeypatch, config)
    wandb.teardown()  # Its service closes the files after `finish` has returned; the end of a process waits for it.

    id = json.loads((tracked / "run/trackers.json").read_text())["wandb"]
    files = sorted((tracked / "run/wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    assert [path.name for path in files] == [f"run-{id}.wandb"] * 2  # `wandb sync` puts one id's parts together.
    first, second = (list(records(path)) for path in files)
    (started,) = (record.run for record in first if record.WhichOneof("record_type") == "run")
    assert (started.project, started.display_name) == ("papers", "tiny run")
    assert items(started.config.update)["train"]["steps"] == 4
    rows = [items(record.history.item) for record in [*first, *second] if record.HasField("history")]
    assert {row["step"]: row["loss"] for row in rows if "loss" in row} == pytest.approx(
        {1: 1, 2: 1 / 2, 3: 1 / 3, 4: 1 / 4}
    )
    assert {row["step"]: row["recall@20"] for row in rows if "recall@20" in row} == {0: 0.2, 2: 0.6, 4: 0.4}
    summary: dict[str, Any] = {}
    for record in first:
        summary |= items(record.summary.update)
    assert (summary["best/recall@20"], summary["best/step"]) == (0.6, 2)


def test_trackers_are_no_part_of_what_binds_a_folder_to_a_config(tracked: Path, monkeypatch: Any) -> None:
    run(tracked, monkeypatch, config_of(tracked))
    run(tracked, monkeypatch, config_of(tracked, "mlflow"))


def test_a_missing_package_ends_the_run_before_it_reads_data(tracked: Path, monkeypatch: Any) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(errors.importlib, "import_module", missing)
    monkeypatch.setattr(program, "build", lambda *_: pytest.fail("data was read"))
    with pytest.raises(UserError, match=r"^wandb is not installed \(.*\); run: pip install 'jaxretr\[wandb\]'$"):
        program.train(config_of(tracked, "wandb"), tracked / "run")


def test_a_service_that_is_not_there_is_one_warning(tracked: Path, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://nowhere")
    with caplog.at_level(logging.WARNING, "jaxretr.training.trackers"):
        run(tracked, monkeypatch, config_of(tracked, "mlflow"))
    (warning,) = (
        record.getMessage() for record in caplog.records if record.name.startswith("jaxretr.training.trackers")
    )
    assert warning.startswith("mlflow: ") and "the run goes on without it" in warning
    assert (tracked / "run/best.json").exists()


class Failing:
    """A tracker that raises from its third report on, and counts what it is asked."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def write(self, step: int, values: Any, seconds: float) -> None:
        self.calls.append(step)
        if step >= 3:
            raise ConnectionError("gone\naway")

    def best(self, step: int, values: Any) -> None:
        self.calls.append(-step)

    def close(self, outcome: Outcome) -> None:
        self.calls.append(-100)


def test_a_service_that_fails_later_is_one_warning_and_asked_no_more(caplog: Any) -> None:
    tracker = Failing()
    background = Background("wandb", tracker)
    with caplog.at_level(logging.WARNING, "jaxretr.training.trackers"):
        for step in range(1, 9):
            background.write(step, {"loss": 1.0}, 0.0)
        background.close("finished")
    assert tracker.calls == [1, 2, 3]
    (warning,) = (record.getMessage() for record in caplog.records)
    assert warning.startswith("wandb: ConnectionError: gone away; the run goes on")


def test_a_service_that_hangs_holds_up_nothing(caplog: Any) -> None:
    answering = threading.Event()

    class Hanging(Failing):
        def write(self, step: int, values: Any, seconds: float) -> None:
            answering.wait()

    background = Background("mlflow", Hanging(), waiting=4)
    with caplog.at_level(logging.WARNING, "jaxretr.training.trackers"):
        for step in range(20):
            background.write(step, {}, 0.0)
        background.close("failed", seconds=0.05)
    answering.set()
    assert [record.getMessage().split(";")[0] for record in caplog.records] == ["mlflow: does not answer"]
