"""Streams of random numbers: what a step draws for one purpose tells nothing of what it draws for another."""

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from test_example_draws import draws as example_draws
from test_example_draws import training_set
from test_lexical_draws import FIRST, lexical_set
from test_lexical_draws import draws as lexical_draws
from tiny import BERT, DATA, contrastive_program

from jaxretr.config import MlmConfig, PretrainData, Train, Typos
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.runtime.streams import HostStream, host_generator
from jaxretr.training.runs.mlm import MlmRun
from jaxretr.training.runs.step_questions import StepQuestions
from jaxretr.training.state import step_key
from jaxretr.training.steps.encoding import TextKeys

SEED, STEP = 5, 3


@pytest.fixture
def first_numbers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The first number of every generator that numpy makes, as its bits say; not for what earlier tests left running."""
    made, make = [], np.random.default_rng
    others = set(threading.enumerate()) - {threading.current_thread()}

    def noted(*arguments: Any) -> np.random.Generator:
        if threading.current_thread() not in others:
            made.append(make(*arguments).random())
        return make(*arguments)

    monkeypatch.setattr(np.random, "default_rng", noted)
    return made


def test_what_a_step_draws_for_one_purpose_is_not_drawn_for_another(
    tiny_models: Path, tmp_path: Path, first_numbers: list[float]
) -> None:
    """Negatives and misspelt questions, say, would otherwise be chosen by the same random numbers."""
    model = DualEncoder.from_pretrained(tiny_models / "encoder")
    texts = ["who wrote it", "what was it", "who was it", "where is it"]
    questions = StepQuestions(texts, Typos(augmentation=0.5), model, tmp_path, SEED)
    seed = {"seed": SEED}
    drawn = (
        example_draws(training_set(), train=seed).rows,
        lexical_draws(lexical_set(tmp_path / "set", FIRST), train=seed).rows,
        questions.of_step,
    )
    first_numbers.clear()
    for _ in range(2):
        for draw in drawn:
            draw(np.arange(4), STEP)
    assert len(set(first_numbers[:3])) == 3
    assert first_numbers[3:] == first_numbers[:3], "a function of seed and step"


def test_no_training_batch_is_masked_as_one_that_is_held_out(
    tiny_models: Path, tmp_path: Path, mesh1: Mesh, first_numbers: list[float]
) -> None:
    """With any seed: also with 7, which once was that of the held-out batches."""
    data = PretrainData(corpora=(str(DATA),), max_length=32, held_out=8)
    config = MlmConfig(name="mlm", start=str(tiny_models / "encoder"), data=data, train=Train(batch_size=4, seed=7))
    run: Any = MlmRun(config, mesh1, tmp_path)
    run.programs.evaluation = lambda weights, batch: (1.0, 1.0)
    state = run.init()
    first_numbers.clear()
    run.evaluate(state)
    held_out = first_numbers.copy()
    assert len(held_out) == 2
    run.batch(0), run.batch(1)
    assert len(first_numbers) >= 4 and not set(held_out) & set(first_numbers[2:])


def test_no_two_streams_seeds_or_steps_give_the_same_numbers() -> None:
    """Nor the plain generator of a seed, with which the questions' order and new weights are drawn."""
    drawn = [
        host_generator(seed, stream, step).integers(2**63)
        for seed in (0, 1)
        for stream in HostStream
        for step in (0, 1)
    ]
    drawn += [np.random.default_rng(seed).integers(2**63) for seed in (0, 1, [0, 1], [1, 1])]
    assert len(set(drawn)) == len(drawn)
    again = [host_generator(seed, stream, 1).integers(2**63) for seed in (0, 1) for stream in HostStream]
    assert set(again) <= set(drawn)


def test_no_two_texts_of_a_compiled_step_share_a_key() -> None:
    """Questions, passages, forms and draws: one place of each would otherwise lose the same neurons."""
    bert = dataclasses.replace(BERT, hidden_dropout_prob=0.1)
    program = contrastive_program(encoder=DualEncoderConfig(bert))

    def keys() -> Any:
        found = TextKeys.of_step(program, step_key(jax.numpy.uint32(SEED), jax.numpy.int32(STEP)), 3, 2, forms=2)
        return [jax.random.key_data(x).reshape(-1, 2) for x in vars(found).values()]

    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    run = jax.shard_map(keys, mesh=mesh, in_specs=(), out_specs=jax.P(), check_vma=False)
    rows = np.concatenate([np.asarray(x) for x in run()])
    assert len(rows) == 3 + 6 + 6 + 3
    assert len({tuple(row) for row in rows.tolist()}) == len(rows)
