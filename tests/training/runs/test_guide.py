"""A run whose negatives a guide filters: another encoder, its plan, and its resumption."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import small_runs
from safetensors.numpy import load_file
from tiny import contrastive_config, write_supervised

from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import build, train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.runs.contrastive import ContrastiveRun


def guided(tiny_models: Path, folder: Path, **negatives: Any) -> Any:
    data = {**write_supervised(folder / "data"), "dev_questions": None}
    guide = {"guide": str(tiny_models / "encoder"), **negatives}
    course = {"steps": 3, "save_every": 1, "eval_every": 3, "best_metric": "loss"}
    more = {"temperature": 0.1, "among_questions": True, "among_positives": True}
    return contrastive_config(tiny_models, data=data, negatives={"static": 1, **guide}, contrastive=more, train=course)


def test_a_guide_masks_and_a_killed_run_resumes_with_it(tiny_models: Path, tmp_path: Path) -> None:
    config = guided(tiny_models, tmp_path)
    train(config, tmp_path / "whole")
    small_runs.train_killed_once(ContrastiveRun, config, tmp_path / "resumed", at=2)
    for name, value in load_file(tmp_path / "whole/model/model.safetensors").items():
        np.testing.assert_array_equal(load_file(tmp_path / "resumed/model/model.safetensors")[name], value)
    lines = [line["negatives"] for line in read_metrics(tmp_path / "whole") if "negatives" in line]
    assert max(lines) < ContrastiveRun(config, make_mesh(), tmp_path / "run").most_negatives, "some are masked"

    other = DualEncoder.from_pretrained(tiny_models / "encoder")
    params = jax.tree.map(lambda x: x + 1, other.params)
    DualEncoder(other.config, params, other.tokenizer).save(tmp_path / "other")
    negatives = dataclasses.replace(config.negatives, guide=str(tmp_path / "other"))
    with pytest.raises(UsageError, match=r"started with other settings \(negatives\.guide\)"):
        train(dataclasses.replace(config, negatives=negatives), tmp_path / "whole")


def test_the_guides_embeddings_are_the_rows_of_the_corpus(tiny_models: Path, tmp_path: Path) -> None:
    config, mesh = guided(tiny_models, tmp_path), make_mesh()
    run: Any = build(config, mesh, tmp_path / "run")
    encoder = DualEncoder.from_pretrained(tiny_models / "encoder")
    expected = encoder.encode_passages(list(run.examples.passages))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    rows = np.asarray(run.passages.guide)
    np.testing.assert_allclose(rows[: len(expected)], expected, atol=1e-5)
    assert not rows[len(expected) :].any()
    batch, chosen = run.batch(0), run.batches.indices(0)
    asked = encoder.encode_queries([run.examples.texts[number] for number in chosen])
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    np.testing.assert_allclose(np.asarray(batch.guide), asked, atol=1e-5)


def test_mistakes_are_named(tiny_models: Path, tmp_path: Path) -> None:
    for negatives, message in (
        ({"guide": None, "guide_margin": 0.1}, "are of a guide; set negatives.guide"),
        ({"guide_margin": -0.1}, "must be at least 0"),
    ):
        with pytest.raises(UsageError, match=message):
            train(guided(tiny_models, tmp_path, **negatives), tmp_path / "run")
    with pytest.raises(UserError, match="nowhere"):
        train(guided(tiny_models, tmp_path, guide="nowhere"), tmp_path / "run")
