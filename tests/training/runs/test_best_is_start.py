"""A run whose best checkpoint is its start says so, wherever the model is spoken of."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import tiny

from jaxretr.exports.card import read_run
from jaxretr.training import loop as program
from jaxretr.training.runs.run_inputs import Inputs


class Measured:
    """A run that learns nothing and measures what it is given."""

    def __init__(self, config: Any, values: Sequence[float]):
        self.config, self.values = config, iter(values)

    def inputs(self) -> Inputs:
        return Inputs({}, {})

    def init(self) -> Any:
        return {"x": jnp.zeros(1)}

    def batch(self, number: int) -> int:
        return number

    def step(self, state: Any, number: int, batch: Any) -> Any:
        return state, {"loss": jnp.float32(1)}

    def refreshed(self, state: Any, number: int) -> Any:
        return state

    def evaluate(self, state: Any) -> dict[str, float]:
        return {self.config.train.best_metric: next(self.values)}

    def evaluated(self) -> str:
        return "2 questions"

    def save_model(self, state: Any, folder: Path) -> None:
        folder.mkdir(exist_ok=True)


@pytest.mark.parametrize(
    ("metric", "values", "note"),
    [
        ("mrr", (0.9488, 0.90, 0.9419), "training did not improve validation mrr (0.9488 -> 0.9419)"),
        ("loss", (1.0, 1.5, 2.0), "training did not improve validation loss (1.0000 -> 2.0000)"),
        ("mrr", (0.5, 0.5, 0.5), "training did not improve validation mrr (0.5000 -> 0.5000)"),
        ("mrr", (0.5, 0.6, 0.4), ""),
        ("loss", (2.0, 1.5, 1.0), ""),
    ],
)
def test_a_run_that_did_not_improve_says_so_at_its_end_in_its_record_and_not_otherwise(
    metric: str, values: Sequence[float], note: str, tmp_path: Path, monkeypatch: Any, caplog: Any
):
    config = tiny.contrastive_config(tmp_path, train={"steps": 2, "eval_every": 1, "best_metric": metric})
    monkeypatch.setattr(program, "build", lambda config, *_: Measured(config, values))
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    with caplog.at_level(logging.WARNING, "jaxretr"):
        figures = program.train(config, tmp_path / "run")
    note = note and f"the best checkpoint is the start: {note}"
    assert [record.message.split(";")[0] for record in caplog.records] == ([note] if note else [])
    best = json.loads((tmp_path / "run/best.json").read_text())
    assert best.get("note", "") == note and best["figures"] == figures
    record = read_run(tmp_path / "run")
    assert record is not None and record.note == note


@pytest.mark.parametrize(
    ("start", "end", "named"),
    [
        (
            {"recall@20": 1.0, "mrr@10": 0.5, "ndcg@10": 0.6},
            {"recall@20": 1.0, "mrr@10": 0.7, "ndcg@10": 0.5},
            "mrr@10",
        ),
        ({"recall@20": 1.0, "loss": 0.5, "acc@1": 1.0}, {"recall@20": 1.0, "loss": 0.5, "acc@1": 1.0}, "loss"),
        ({"recall@20": 0.5, "mrr@10": 0.5}, {"recall@20": 0.4, "mrr@10": 0.7}, None),
        ({"recall@20": 1.0}, {"recall@20": 1.0}, None),
    ],
)
def test_where_the_metric_cannot_tell_another_one_is_named(
    start: dict[str, float], end: dict[str, float], named: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    program.note_no_gain({"step": 0, "figures": start, "latest": end}, "recall@20", tmp_path, writes=False)
    [record] = caplog.records
    assert record.message.partition("train.best_metric=")[2] == (named or "")
