"""Supervised runs as users start them: from a config to a model folder, and on after a kill."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import small_runs
from jax.sharding import Mesh
from safetensors.numpy import load_file
from tiny import contrastive_config, write_supervised

from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError
from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.runs.contrastive import ContrastiveRun

KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "without an index": {"negatives": {"static": 1}},
    "with a live index": {
        "negatives": {"static": 1, "retrieved": 1, "last_rank": 8},
        "index": {"refresh_every": 2, "block_rows": 8},
    },
    "with typos": {
        "negatives": {"static": 1},
        "typos": {"variants": 2, "augmentation": 0.5, "contrast_weight": 1.0, "passage_weight": 1.0},
    },
}


@pytest.mark.parametrize(
    "kind",
    [
        "with a live index",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if "index" not in KINDS[kind]),
    ],
)
def test_a_killed_run_ends_as_an_undisturbed_one(kind: str, tiny_models: Path, tmp_path: Path) -> None:
    data = write_supervised(tmp_path / "data")
    config = contrastive_config(
        tiny_models,
        data={**data, "dev": data["train"], "dev_questions": None},
        train={"steps": 4, "save_every": 1, "eval_every": 4, "best_metric": "average_rank"},
        **KINDS[kind],
    )
    figures = train(config, tmp_path / "whole")
    assert {"loss", "average_rank"} <= figures.keys()

    small_runs.train_killed_once(ContrastiveRun, config, tmp_path / "resumed", at=3)

    weights = [load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "resumed")]
    for name, value in weights[0].items():
        np.testing.assert_array_equal(weights[1][name], value, err_msg=name)
    lines = read_metrics(tmp_path / "resumed")
    assert [line["step"] for line in lines if "negatives" in line] == [1, 2, 3, 4], "each step is reported once"
    # The lower rank is the better one.
    ranks = {line["step"]: line["average_rank"] for line in lines if "average_rank" in line}
    best = json.loads((tmp_path / "resumed/best.json").read_text())
    assert ranks.keys() == {0, 4} and best["figures"]["average_rank"] == min(ranks.values())
    assert DualEncoder.from_pretrained(tmp_path / "resumed").encode_queries(["who"]).shape == (1, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"dev_questions": "somewhere"}}, "name it with data.corpus"),
        ({"negatives": {"retrieved": 1}}, "need a corpus"),
        ({"contrastive": {"corpus_softmax": True}}, "need a corpus"),
        ({"contrastive": {"matryoshka": (4, 99)}}, "from 1 to the embedding's 16"),
        ({"encoder": {"residual": "bfloat16"}}, "encoder.residual=bfloat16: set --encoder.dtype bfloat16 as well"),
    ],
)
def test_settings_that_the_data_cannot_serve_are_refused(
    changes: dict[str, dict[str, Any]], message: str, tiny_models: Path, tmp_path: Path
) -> None:
    # Texts alone: the training file brings its passages along, and there is nothing to search.
    data = {"train": write_supervised(tmp_path / "data")["train"], "corpus": None, "dev_questions": None}
    config = contrastive_config(tiny_models, **{**changes, "data": {**data, **changes.get("data", {})}})
    with pytest.raises(UsageError, match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run/config.json").exists(), "bad settings do not bind the folder"


def test_a_step_runs_with_the_residual_stream_of_the_config(tiny_models: Path, tmp_path: Path, mesh1: Mesh) -> None:
    data = write_supervised(tmp_path / "data")
    config = contrastive_config(tiny_models, data=data, encoder={"dtype": "bfloat16", "residual": "bfloat16"})
    run = ContrastiveRun(config, mesh1, tmp_path / "run")
    state, batch = run.abstract_state(), run.batch(0)
    lowered = jax.make_jaxpr(lambda state, batch: run.step(state, 0, batch))(state, batch)
    assert f"bf16[2,{config.contrastive.chunk}" in str(lowered), "the layers' inputs that are kept"
