"""`art.prior=start`: the target's prior stays the encoder that the run began with, whatever the student has become."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tiny import art_config

from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.runs.art import ArtRun


@pytest.mark.parametrize("split", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_target_is_the_starts_however_far_the_student_is(
    split: bool, tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a teacher that finds all passages equal the loss is KL(start || student), on 8 devices."""
    monkeypatch.setattr("jaxretr.runtime.parallel.sharding.SPLIT_FROM", 64)
    art = {"prior": "start", "prior_weight": 1.0, "teacher_temperature": 1e9, "temperature": 0.5}
    run = ArtRun(art_config(tiny_models, art=art, mesh={"shard_parameters": split}), make_mesh(), tmp_path)
    state = run.init()
    assert jax.tree.structure(state) == jax.tree.structure(run.abstract_state()), "so a checkpoint can be read"
    start: Any = run.model
    begun = jax.device_get(start.params)
    draws = np.random.default_rng(0)
    moved = jax.tree.map(lambda x: x + 0.1 * draws.normal(size=x.shape).astype(x.dtype), begun)
    placed = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), moved, state.train.params)
    state = state._replace(train=dataclasses.replace(state.train, params=placed))
    batch = run.batch(0)
    *fields, metrics, rows = run.programs.step(*run.arguments(state, batch))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(fields[0].start), begun)

    texts = [[run.questions[number].text] for number in run.batches.indices(0)]
    log_p = []
    for params in (begun, moved):
        model = DualEncoder(start.config, params, start.tokenizer)
        found = [[{"title": run.corpus.titles[row], "text": run.corpus.texts[row]} for row in of] for of in rows]
        scores = [
            model.encode_passages(of) @ model.encode_queries(text)[0] for of, text in zip(found, texts, strict=True)
        ]
        log_p.append(jax.nn.log_softmax(np.array(scores) / run.program.temperature))
    expected = (np.exp(log_p[0]) * (log_p[0] - log_p[1])).sum(-1).mean()
    assert expected > 1e-2
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-3)


def test_a_prior_without_a_weight_is_refused(tiny_models: Path) -> None:
    with pytest.raises(UsageError, match=r"art.prior=start has no effect with art.prior_weight=0"):
        art_config(tiny_models, art={"prior": "start"}).check_sections()
