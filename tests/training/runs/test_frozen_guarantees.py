"""Where a part of a model is trained, the rest keeps every bit: adapters in a frozen encoder, a base beside a frozen Lambda.

The same with dropout, weight decay, live indices, ART and on several devices: test_adapter_training.py, test_joint.py.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import small_runs
from small_runs import LENGTH
from tiny import DATA, contrastive_config, few_padding_rows, lively

from jaxretr.config import AdapterShape, BertShape, Joint
from jaxretr.data.readers import read_corpus
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.plan.compiled_text import Program
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.corpus_programs import RunState
from jaxretr.training.runs.encoder_start import load_encoder

ADAPTER = AdapterShape(lora_rank=3, lora_alpha=4.5, bottleneck=5, scale=2.0)
WEIGHT = 0.7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    small_runs.write_models(folder)
    return folder


def config(folder: Path, **encoder: Any) -> Any:
    return contrastive_config(
        folder,
        data={"dev_questions": None},
        encoder=small_runs.ENCODER | {"shared": True} | encoder,
        contrastive={"chunk": 100},
        optimizer=small_runs.OPTIMIZER,
    )


def two_steps(run: ContrastiveRun) -> tuple[Program, RunState, list[dict[str, float]]]:
    state, metrics = run.init(), []
    program = small_runs.compiled_step(run, *state[:2], run.whole.passages, run.device_contents, run.batch(0))
    for number in range(2):
        state, values = run.step(state, number, run.batch(number))
        metrics.append({name: float(value) for name, value in values.items()})
    return program, state, metrics


def named(params: Any) -> dict[str, np.ndarray]:
    """Every array by its dotted name."""
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(params))
    return {sharding.dotted(path): np.asarray(leaf) for path, leaf in leaves}


def test_adapters_alone_move_and_alone_are_remembered_and_reduced(folder: Path, tmp_path: Path) -> None:
    """On eight devices, with weight decay: neither gradients nor moments of the encoder under them."""
    with few_padding_rows():
        run = ContrastiveRun(config(folder, adapter=ADAPTER), make_mesh(), tmp_path)
    before = named(jax.tree.map(np.array, run.model.params))
    program, state, metrics = two_steps(run)
    after = named(state.train.weights)
    trained = {name: leaf.shape for name, leaf in before.items() if ".adapter." in name}
    assert before.keys() == after.keys() and trained and all(np.isfinite(values["loss"]) for values in metrics)
    for name, leaf in before.items():
        if name in trained:
            assert (after[name] != leaf).any(), name
        else:
            np.testing.assert_array_equal(after[name].view(np.int32), leaf.view(np.int32), err_msg=name)
    remembered = [leaf.shape for leaf in jax.tree.leaves(state.train.opt_state) if leaf.ndim]
    assert sorted(remembered) == sorted([*trained.values(), *trained.values()])
    reduced = [array for op in program.of_kind("all-reduce") for array in op.results if array.dtype == "f32"]
    assert sorted(array.shape for array in reduced if array.shape) == sorted(trained.values())


def test_beside_a_frozen_lambda_the_base_and_the_weight_learn(folder: Path, tmp_path: Path) -> None:
    """And the loss is that of the two encoders' own vectors: sim + w sim_L."""
    plain = config(folder)
    shape = BertShape(hidden_size=24, layers=1, heads=2, intermediate_size=16)
    lexical = load_encoder(dataclasses.replace(plain.encoder, fresh=shape, pooling="mean", normalise=True), seed=5)
    lexical = DualEncoder(lexical.config, lively(lexical.params, 3), lexical.tokenizer)
    lexical.save(tmp_path / "lexical")
    joint = dataclasses.replace(plain, joint=Joint(str(tmp_path / "lexical"), WEIGHT))
    with few_padding_rows():
        run = ContrastiveRun(joint, make_mesh(jax.devices()[:1]), tmp_path / "run")
    before = jax.tree.map(np.array, run.model.params)
    _, state, metrics = two_steps(run)
    after = jax.device_get(state.train.weights)
    for old, new in zip(*(jax.tree.leaves(params["lexical"]) for params in (before, after)), strict=True):
        np.testing.assert_array_equal(old, new, "the lexical encoder is frozen, also against weight decay")
    assert after["weight"] != before["weight"] and abs(after["weight"] - WEIGHT) < 0.05
    moved = jax.tree.map(lambda old, new: bool((old != new).any()), before["base"], after["base"])
    assert moved["shared"]["bert"]["word_embedding"]["table"]
    trained = sum(leaf.size for leaf in jax.tree.leaves(before["base"])) + 1
    assert sum(leaf.size for leaf in jax.tree.leaves(state.train.opt_state)) <= 2 * trained + 8

    texts = [run.examples.texts[i] for i in run.batches.indices(0)]
    rows = np.asarray(run.batch(0).rows)[:, 0]
    passages = list(read_corpus(DATA))
    score = sum(
        weight * encoder.encode_queries(texts).astype(np.float64) @ encoder.encode_passages(passages)[rows].T
        for weight, encoder in ((1.0, load_encoder(plain.encoder)), (WEIGHT, lexical))
    )
    own = np.diag(score)
    rest = np.where(rows[:, None] == rows[None], -np.inf, score)
    expected = np.mean(np.log(np.exp(own) + np.exp(rest).sum(axis=1)) - own)
    np.testing.assert_allclose(metrics[0]["loss"], expected, rtol=1e-5)
    assert lexical.config.max_passage_length == LENGTH
