"""Runs that train adapters alone: the encoder under them keeps every bit, and costs neither gradients nor moments."""

import dataclasses
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_runs
from contrastive_reference import Examples, negatives_of
from jax.sharding import NamedSharding
from tiny import (
    art_config,
    compiled_quickly,
    contrastive_config,
    contrastive_program,
    few_padding_rows,
    lively,
    write_models,
    write_supervised,
)

from jaxretr.config import AdapterShape, ContrastiveConfig, Optimizer
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.models.backbones.adapter_layers import count
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.partition import join, partition
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, abstract_params, embed, tower
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training import loop as training
from jaxretr.training import optim
from jaxretr.training.plan.compiled_text import Program
from jaxretr.training.plan.requirements import shard_bytes
from jaxretr.training.runs.art import ArtRun
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.corpus_tokens import width_of
from jaxretr.training.state import CorpusTokens, TrainState
from jaxretr.training.steps.batch_loss import ContrastiveBatch
from jaxretr.training.steps.contrastive import make_step

SHAPE = AdapterShape(lora_rank=3, lora_alpha=4.5, bottleneck=5, scale=2.0)
WHOLE = 100  # larger than any device's number of texts: everything at once
BACKBONE = ("bert", "projection")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models whose embeddings differ much from text to text: gradients are then no small differences of large terms."""
    folder = tmp_path_factory.mktemp("adapters")
    write_models(folder, noise=0.3)
    return folder


def config(folder: Path, **changes: dict[str, Any]) -> ContrastiveConfig:
    """A supervised run of adapters on two towers, with one hard negative a question."""
    encoder = {"adapter": SHAPE, "max_passage_length": 32, **changes.pop("encoder", {})}
    data = write_supervised(folder / "data")
    return contrastive_config(
        folder, **{"data": data, "encoder": encoder, "negatives": {"static": 1, "last_rank": 6}, **changes}
    )


def named(params: Params) -> dict[str, np.ndarray]:
    """Every array by its dotted name."""
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(params))
    return {sharding.dotted(path): np.asarray(leaf) for path, leaf in leaves}


def assert_only_adapters_moved(before: Params, after: Params) -> None:
    """Bit by bit; of the adapters every array has moved in every layer."""
    old, new = named(before), named(after)
    assert old.keys() == new.keys() and any(".adapter." in name for name in old)
    for name in old:
        if ".adapter." in name:
            moved = (old[name] != new[name]).reshape(len(old[name]), -1).any(axis=1)
            assert moved.all(), f"{name}: layers that moved: {moved}"
        else:
            np.testing.assert_array_equal(new[name].view(np.int32), old[name].view(np.int32), err_msg=name)


# ---- what a run changes and remembers --------------------------------------------------------------------------------


KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "two towers and a live index": {
        "encoder": {"shared": False, "dropout": 0.1},
        "negatives": {"static": 1, "retrieved": 1, "last_rank": 6},
        "index": {"refresh_every": 2, "write_back": True},
    },
    "one tower": {"encoder": {"shared": True, "dropout": 0.1}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_supervised_run_moves_the_adapters_alone(
    folder: Path, tmp_path: Path, mesh8: jax.sharding.Mesh, kind: str
) -> None:
    """With dropout and weight decay, over four steps, and a refresh of the index before the third."""
    plan = config(folder, optimizer={"weight_decay": 0.5, "learning_rate": 1e-2, "clip": 1e9}, **KINDS[kind])
    with few_padding_rows():
        run = ContrastiveRun(plan, mesh8, tmp_path)
    before = jax.tree.map(np.array, run.model.params)
    state, indices = run.init(), []
    like = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), run.abstract_state())
    assert like == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state), "a checkpoint is read into this"
    run.programs.step = compiled_quickly(run.programs.step)
    for number in range(4):
        state, values = run.step(state, number, run.batch(number))
        assert np.isfinite(values["loss"]) and values["gradient_norm"] > 0
        if state.index is not None:
            indices.append(np.array(state.index.embeddings)[: run.corpus_rows])
    assert_only_adapters_moved(before, state.train.weights)
    if "index" in KINDS[kind]:
        # The refresh has seen the adapters; without it, only the batch's passages would have been written.
        assert (indices[2] != indices[1]).any(axis=1).all()

    # What is trained and what is remembered: step counts, and two moments of each array of the adapters.
    trained = {name: leaf.shape for name, leaf in named(before).items() if ".adapter." in name}
    assert {name: leaf.shape for name, leaf in named(state.train.params).items()} == trained
    remembered = [leaf.shape for leaf in jax.tree.leaves(state.train.opt_state) if leaf.ndim]
    assert Counter(remembered) == Counter([*trained.values(), *trained.values()])
    paths = [sharding.dotted(path) for path, leaf in jax.tree.leaves_with_path(state.train.opt_state) if leaf.ndim]
    assert all(".adapter." in path for path in paths), paths


def test_an_art_run_moves_the_adapters_alone(folder: Path, tmp_path: Path, mesh1: jax.sharding.Mesh) -> None:
    plan = art_config(
        folder,
        encoder={"adapter": SHAPE, "dropout": 0.1, "max_passage_length": 32},
        optimizer={"weight_decay": 0.5, "learning_rate": 1e-2, "clip": 1e9},
    )
    with few_padding_rows():
        run = ArtRun(plan, mesh1, tmp_path)
    before = jax.tree.map(np.array, run.model.params)
    state = run.init()
    run.programs.step = compiled_quickly(run.programs.step)
    for number in range(3):
        state, values = run.step(state, number, run.batch(number))
        assert np.isfinite(values["loss"])
    assert_only_adapters_moved(before, state.train.weights)
    trained = count(state.train.params)
    assert sum(leaf.size for leaf in jax.tree.leaves(state.train.opt_state) if leaf.ndim) == 2 * trained


def test_a_killed_run_ends_as_an_undisturbed_one(folder: Path, tmp_path: Path) -> None:
    """Both as models: the same bits, the backbone that they came from, and adapters that can be trained on."""
    plan = config(
        folder,
        encoder={"dropout": 0.1},
        data={**write_supervised(folder / "data"), "dev_questions": None},
        train={"steps": 3, "save_every": 1, "eval_every": 3, "best_metric": "loss"},
        optimizer={"learning_rate": 1e-2, "clip": 1e9},
    )
    training.train(plan, tmp_path / "whole")
    small_runs.train_killed_once(ContrastiveRun, plan, tmp_path / "resumed", at=2)

    whole, resumed = (DualEncoder.from_pretrained(tmp_path / name) for name in ("whole", "resumed"))
    assert whole.config.adapter == SHAPE == resumed.config.adapter
    assert named(whole.params).keys() == named(resumed.params).keys()
    for name, value in named(whole.params).items():
        np.testing.assert_array_equal(named(resumed.params)[name].view(np.int32), value.view(np.int32), err_msg=name)
    start = DualEncoder.from_pretrained(folder / "encoder", shared=False)
    for name, value in named(start.params).items():
        np.testing.assert_array_equal(named(whole.params)[name].view(np.int32), value.view(np.int32), err_msg=name)
    assert all(leaf.any() for name, leaf in named(whole.params).items() if ".adapter." in name)

    further = dataclasses.replace(plan, encoder=dataclasses.replace(plan.encoder, path=str(tmp_path / "whole")))
    jax.tree.map(
        np.testing.assert_array_equal, ContrastiveRun(further, make_mesh(), tmp_path / "on").model.params, whole.params
    )


# ---- gradients -------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What one step gave, on the host."""

    run: ContrastiveRun
    params: Params
    """Before the step."""
    rows: np.ndarray
    loss: float
    gradients: dict[str, np.ndarray]


def outcome(folder: Path, workdir: Path, mesh: jax.sharding.Mesh, chunk: int, dropout: float) -> Outcome:
    """One step of gradient descent with rate 1 from adapters that are no zeros, with random hard negatives."""
    plan = config(folder, encoder={"dropout": dropout}, contrastive={"chunk": chunk})
    with few_padding_rows():
        run = ContrastiveRun(plan, mesh, workdir)
    trained, frozen = partition(run.model.params, BACKBONE)
    # Two towers whose adapters differ, as the backbones do not.
    trained = {name: lively(part, seed, noise=0.2) for seed, (name, part) in enumerate(sorted(trained.items()))}
    optimizer = optax.sgd(1.0)
    copies = (sharding.put(jax.tree.map(np.array, tree), mesh) for tree in (trained, frozen))
    state = TrainState.create(next(copies), optimizer, next(copies))
    state = jax.device_put(state, sharding.shardings(state, mesh))
    step = compiled_quickly(make_step(run.program, optimizer, mesh))
    state, _, values, rows = step(state, None, run.whole.passages, run.device_contents, run.batch(0))
    after = named(state.params)
    gradients = {name: value - after[name] for name, value in named(trained).items()}
    return Outcome(run, join(trained, frozen), np.asarray(rows), float(values["loss"]), gradients)


@pytest.fixture(scope="module")
def outcomes(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    one, eight = make_mesh(jax.devices()[:1]), make_mesh()
    forms = {"whole": (one, WHOLE, 0.1), "in pieces": (eight, 1, 0.1), "no noise": (one, 3, 0.0)}
    return {name: outcome(folder, tmp_path_factory.mktemp("run"), *form) for name, form in forms.items()}


def assert_gradients_equal(ours: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """To 1e-5 of the largest element of all: float32 sums in another order."""
    assert ours.keys() == expected.keys()
    largest = max(float(np.abs(leaf).max()) for leaf in expected.values())
    assert largest > 1e-2
    for name, leaf in expected.items():
        assert np.abs(leaf).max() > 1e-4 * largest, name
        np.testing.assert_allclose(ours[name], leaf, atol=1e-5 * largest, rtol=0, err_msg=name)


def test_chunks_on_eight_devices_give_the_gradients_of_one_device(outcomes: dict[str, Outcome]) -> None:
    """With dropout on. One text at a time on each of 8 devices, against all at once on one."""
    whole, pieces = outcomes["whole"], outcomes["in pieces"]
    np.testing.assert_array_equal(pieces.rows, whole.rows)
    np.testing.assert_allclose(pieces.loss, whole.loss, rtol=1e-5)
    assert all(".adapter." in name for name in pieces.gradients)
    assert_gradients_equal(pieces.gradients, whole.gradients)


def test_gradients_are_those_of_the_plain_loss(outcomes: dict[str, Outcome]) -> None:
    """All texts at once, all parameters differentiated, and each question's list of negatives written out."""
    found = outcomes["no noise"]
    run, rows = found.run, found.rows
    known = run.draws.known(run.batches.indices(0))
    examples = Examples(rows, known, run.contents, np.zeros((0, 0)))
    b, places = rows.shape
    negative = np.zeros((b, b, places), bool)
    for i in range(b):
        for j, place in negatives_of(run.program, examples, i):
            negative[i, j, place] = True
    batch = jax.device_get(run.batch(0))
    tokens, lengths = run.store.select(np.maximum(rows.ravel(), 0), width_of(run.store))
    assert NO_PASSAGE in rows and not negative.all()

    def loss(params: Params) -> jax.Array:
        q = embed(run.model.config, tower(params, "question"), batch.tokens, batch.lengths, dtype="float32")
        p = embed(run.model.config, tower(params, "passage"), tokens, lengths, dtype="float32")
        scores = jnp.einsum("id,jcd->ijc", q, p.reshape(b, places, -1), precision="highest")
        own = scores[jnp.arange(b), jnp.arange(b), 0]
        rest = jnp.where(negative, jnp.exp(scores - own[:, None, None]), 0.0).sum(axis=(1, 2))
        return jnp.log1p(rest).mean()

    value, gradients = jax.jit(jax.value_and_grad(loss))(jax.tree.map(jnp.asarray, found.params))
    np.testing.assert_allclose(found.loss, value, rtol=1e-5)
    assert_gradients_equal(found.gradients, named(partition(gradients, BACKBONE)[0]))


# ---- what the compiled step costs ------------------------------------------------------------------------------------


def test_training_adapters_needs_less_memory_than_training_all(mesh8: jax.sharding.Mesh, record_property: Any) -> None:
    """Of arguments (moments), of temporary memory (gradients), and of what the devices send each other."""
    bert = BertConfig(
        vocab_size=3000,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=16,
    )
    shape = AdapterShape(lora_rank=16, bottleneck=12)
    plain = DualEncoderConfig(bert, shared=True)
    rows = NamedSharding(mesh8, sharding.ROWS)
    questions, length, n = 64, 16, 1024

    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=rows)

    def compiled(encoder: DualEncoderConfig, frozen: tuple[str, ...]) -> tuple[TrainState, Any]:
        program = contrastive_program(encoder=encoder, corpus_rows=n, sizes=(bert.hidden_size,), chunk=4)
        optimizer = optim.build(Optimizer(), 10)
        trained, kept = partition(abstract_params(encoder), frozen)
        state = jax.eval_shape(lambda: TrainState.create(*zeros(trained), optimizer, *zeros(kept)))
        batch = ContrastiveBatch(
            *(array(jnp.uint16, questions, length), array(jnp.int32, questions)),
            *(array(jnp.int32, questions, 2), array(jnp.int32, questions, 1), None),
        )
        tokens = CorpusTokens(array(jnp.uint16, n * length), *2 * [array(jnp.int32, n)], length)
        state = sharding.abstract(state, mesh8)
        lowered = make_step(program, optimizer, mesh8).lower(state, None, tokens, array(jnp.int32, n), batch)
        return state, lowered.compile({"xla_backend_optimization_level": 0})

    def zeros(tree: Params) -> tuple[Params]:
        return (jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree),)

    def on_one_device(state: TrainState) -> int:
        return sum(map(shard_bytes, jax.tree.leaves(state)))

    whole, full = compiled(plain, ())
    state, step = compiled(dataclasses.replace(plain, adapter=shape), BACKBONE)
    backbone, adapters = count(abstract_params(plain)), count(state.params)
    memory = {"all": full.memory_analysis(), "adapters": step.memory_analysis()}
    record_property(
        f"memory of a step that trains all of {backbone} parameters, or {adapters} beside them",
        {
            name: f"arguments {sizes.argument_size_in_bytes} bytes, temporary {sizes.temp_size_in_bytes} bytes"
            for name, sizes in memory.items()
        },
    )
    # Of the moments of large matrices each device holds a part. All but the state are the same few arrays.
    saved = memory["all"].argument_size_in_bytes - memory["adapters"].argument_size_in_bytes
    assert saved == on_one_device(whole) - on_one_device(state) > 0
    # At least the gradients of the backbone, once.
    assert memory["adapters"].temp_size_in_bytes < memory["all"].temp_size_in_bytes - 4 * backbone

    program = Program(step.as_text())
    reduced = [array for op in program.of_kind("all-reduce") for array in op.results if array.dtype == "f32"]
    expected = sorted(tuple(leaf.shape) for leaf in jax.tree.leaves(state.params))
    assert sorted(array.shape for array in reduced if array.shape) == expected, "the adapters' gradients, once"
    header = program.text.splitlines()[0]
    aliased = header.count("may-alias") + header.count("must-alias")
    assert aliased == len(jax.tree.leaves(state)), "the backbone is handed over, not copied"
