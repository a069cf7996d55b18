"""Parameters and moments split over 8 devices: the steps of one device that has all of them, an eighth of the memory.

The gradient is clipped in every step, so the norm must be that of the whole gradient. Tolerances are those of float32 sums
in another order; Adam's epsilon is large enough that rounding noise moves no parameter whose gradient is 0.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from tiny import art_config, compiled_quickly, contrastive_config, few_padding_rows, write_models, write_supervised

from jaxretr import config as configuration
from jaxretr.config import AdapterShape, Mesh
from jaxretr.models.embed import DualEncoderConfig, abstract_params, embed, tower
from jaxretr.models.engine_choice import ENGINE_VARIABLE
from jaxretr.models.hub.encoder_params import ARCHITECTURES
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.mesh import DATA, make_mesh
from jaxretr.runtime.parallel.sharding import PARAMETERS_OR_STATE, over_data
from jaxretr.runtime.parallel.split_parameters import global_norm, reduced, scattered, scattered_in_two_steps, varying
from jaxretr.training import optim
from jaxretr.training.checkpoint import Checkpoints
from jaxretr.training.loop import claim, write_config
from jaxretr.training.plan.compiled_text import Program
from jaxretr.training.runs.art import ArtRun
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.encoder_start import encoder_config
from jaxretr.training.runs.programs import abstract_train_state
from jaxretr.training.runs.whole_corpus import splits
from jaxretr.training.state import StepNumbers, TrainState

OPTIMIZER = {"learning_rate": 1e-2, "warmup": 0.0, "final": 1.0, "eps": 1e-5, "clip": 0.05, "weight_decay": 0.1}
STEPS = 3
QWEN = dataclasses.replace(
    ARCHITECTURES["qwen3"].defaults,
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=24,
)
ADAPTER = AdapterShape(lora_rank=8, lora_targets=("query", "attention_out"), bottleneck=8)

# Objective -> changes of its config.
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "art": {"encoder": {"dropout": 0.1}, "art": {"chunk": 3}},
    "recomputed": {
        "encoder": {"dropout": 0.1, "activations": "recompute"},
        "negatives": {"static": 1, "retrieved": 1, "first_rank": 2},
        "contrastive": {"chunk": 3},
        "index": {"write_back": True, "refresh": "rolling", "refresh_every": 2},
    },
    "kept": {"encoder": {"dropout": 0.1, "activations": "keep"}, "contrastive": {"chunk": 3}},
    "adapters": {"encoder": {"adapter": ADAPTER, "shared": True}, "contrastive": {"chunk": 3}},
    "joint": {"joint": {"lexical": "encoder"}, "contrastive": {"chunk": 3}},
}
PACKED = "recomputed", "adapters", "joint"
"""Cases whose rows are packed where parameters are split."""


@pytest.fixture(scope="module", autouse=True)
def small_matrices_are_split() -> Iterator[None]:
    """The kernels of `tiny.BERT` have 256 and 512 elements."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "SPLIT_FROM", 128)
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whose embeddings differ much from text to text: gradients are then no small differences of large terms."""
    folder = tmp_path_factory.mktemp("models")
    write_models(folder, noise=0.3)
    return folder


def one_device() -> jax.sharding.Mesh:
    return make_mesh(jax.devices()[:1])


def run_of(case: str, mesh: jax.sharding.Mesh, models: Path, workdir: Path, *, split: bool) -> Any:
    changes: dict[str, Any] = {**CASES[case], "optimizer": OPTIMIZER, "mesh": {"shard_parameters": split}}
    if "joint" in changes:
        changes["joint"] = {"lexical": str(models / "encoder")}
    with few_padding_rows(), pytest.MonkeyPatch.context() as patch:
        # Of packed rows, too, all devices compute as many chunks as the one with the most texts.
        patch.setenv(ENGINE_VARIABLE, "packed" if split and case in PACKED else "padded")
        if case == "art":
            return ArtRun(art_config(models, **changes), mesh, workdir)
        files = write_supervised(workdir / "data")
        return ContrastiveRun(
            contrastive_config(models, data={**files, "dev": files["train"]}, **changes), mesh, workdir
        )


def stepped(run: Any) -> tuple[Any, list[dict[str, float]]]:
    """The state after some steps, and each step's metrics."""
    run.programs.step = compiled_quickly(run.programs.step)
    state, metrics = run.init(), []
    for number in range(STEPS):
        state, values = run.step(state, number, run.batch(number))
        metrics.append({name: float(value) for name, value in values.items()})
    return state, metrics


def elements_a_device(tree: Any) -> float:
    """The share of a tree's elements that the first device has."""
    leaves = jax.tree.leaves(tree)
    return sum(leaf.addressable_shards[0].data.size for leaf in leaves) / sum(leaf.size for leaf in leaves)


@pytest.fixture(scope="module")
def on_one_device(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """`stepped` of a case on a device that has everything."""

    @cache
    def of_case(case: str) -> Any:
        workdir = tmp_path_factory.mktemp(case)
        return stepped(run_of(case, one_device(), models, workdir, split=False))

    return of_case


@pytest.mark.parametrize("split", [False, True], ids=["moments", "parameters"])
@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_one_device(
    case: str, split: bool, models: Path, on_one_device: Callable[[str], Any], tmp_path: Path
) -> None:
    expected, its_metrics = on_one_device(case)
    run = run_of(case, make_mesh(), models, tmp_path / "split", split=split)
    state, metrics = stepped(run)
    for theirs, ours in zip(its_metrics, metrics, strict=True):
        assert theirs["gradient_norm"] > 2 * OPTIMIZER["clip"], "nothing was clipped"
        for name in theirs.keys() - {"teacher_blocks"}:  # Every device reads at least one.
            value = theirs[name]
            np.testing.assert_allclose(ours[name], value, rtol=1e-4, err_msg=name)
    # In three steps with rate 1e-2 a parameter moves by up to 3e-2.
    jax.tree.map(lambda theirs, ours: np.testing.assert_allclose(ours, theirs, atol=3e-5), expected.train, state.train)
    if state.index is not None:
        real = run.program.corpus_rows  # Nothing reads what padding became.
        np.testing.assert_allclose(state.index.embeddings[:real], expected.index.embeddings[:real], atol=1e-3)
    # The program gives the state back as it got it, and would not be compiled again for the next step.
    jax.tree.map(
        lambda array, shape: _same_place(array, shape), jax.tree.leaves(state), jax.tree.leaves(run.abstract_state())
    )


def test_split_moments_give_the_updates_of_whole_ones() -> None:
    """Clipped AdamW with decay on 8 devices, 3 steps: against optax with all gradients on one device.

    Large matrices are split along either axis, the others stay copies; each large gradient is scattered once and each large
    parameter gathered once, and only the small ones are reduced to all devices.
    """
    rng = np.random.default_rng(0)
    shapes = {"query.kernel": (2, 16, 8), "ffn_out.kernel": (2, 8, 16), "query.bias": (2, 8), "key.kernel": (2, 8, 4)}
    params: dict[str, Any] = {f"layers.{name}": rng.normal(size=shape) for name, shape in shapes.items()}
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    optimizer: Any = optim.build(configuration.Optimizer(**OPTIMIZER), STEPS)
    peak = OPTIMIZER["learning_rate"]
    batches = rng.normal(size=(STEPS, 16, 2)).astype(np.float32)

    def loss(params: Any, batch: jax.Array) -> jax.Array:
        scaled = [
            jnp.sin(batch[:, 0] * leaf.sum() / 16 + batch[:, 1] * jnp.square(leaf).sum() / 256)
            for leaf in params.values()
        ]
        return sum(scaled, jnp.zeros(len(batch))).mean()

    mesh = make_mesh()

    @jax.jit
    @partial(
        over_data,
        mesh=mesh,
        split=False,
        in_specs=(PARAMETERS_OR_STATE, P(DATA)),
        out_specs=(PARAMETERS_OR_STATE, P()),
    )
    def step(state: TrainState, batch: jax.Array) -> tuple[TrainState, jax.Array]:
        gradients = jax.grad(loss)(varying(state.params), batch)
        gradients, () = reduced(gradients, state.params, state.opt_state, (), mean=True)
        return state.apply_gradients(gradients, optimizer), global_norm(gradients)

    numbers = StepNumbers(peak=np.float32(peak))
    state = sharding.put(TrainState.create(params, optimizer, numbers=numbers), mesh)
    text = Program(step.lower(state, batches[0]).compile().as_text())
    scattered = [8 * array.elements for op in text.of_kind("reduce-scatter") for array in op.results]
    gathered = [array.elements for op in text.of_kind("all-gather") for array in op.results]
    assert sorted(scattered) == sorted(gathered) == 2 * [2 * 16 * 8]
    assert all(array.elements <= 2 * 8 * 4 for op in text.of_kind("all-reduce") for array in op.results)
    expected, its_state = params, optimizer.init(params)
    for batch in batches:
        gradients = jax.grad(loss)(expected, batch)
        norm = optax.global_norm(gradients)
        assert norm > 2 * OPTIMIZER["clip"], "nothing was clipped"
        updates, its_state = optimizer.update(gradients, its_state, expected, peak=peak)
        expected: Any = optax.apply_updates(expected, updates)
        state, its_norm = step(state, batch)
        np.testing.assert_allclose(its_norm, norm, rtol=1e-5)
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, atol=1e-6), state.params, expected)
    jax.tree.map(_same_place, state, sharding.abstract(state, mesh))
    split = [leaf for leaf in jax.tree.leaves(state.opt_state) if not leaf.sharding.is_fully_replicated]
    assert len(split) == 4 and elements_a_device(split) == 1 / 8 and elements_a_device(state.params) == 1


@pytest.mark.parametrize("devices", [2, 6, 8])
def test_a_sum_in_two_steps_gives_each_device_the_part_of_a_sum_at_once(devices: int) -> None:
    """Small integers, whose sums are exact."""
    x = np.random.default_rng(0).integers(-50, 50, (devices * 3, 2 * devices, 5)).astype(np.float32)
    mesh, out = make_mesh(jax.devices()[:devices]), P(None, DATA)

    def of(scatter: Any) -> jax.Array:
        return jax.jit(jax.shard_map(scatter, mesh=mesh, in_specs=P(DATA), out_specs=out, axis_names={DATA}))(x)

    found = of(partial(scattered_in_two_steps, axis=1))
    np.testing.assert_array_equal(found, x.reshape(devices, 3, 2 * devices, 5).sum(0))
    np.testing.assert_array_equal(of(partial(scattered, axis=1)), found)


def _same_place(array: jax.Array, shape: jax.ShapeDtypeStruct) -> None:
    assert shape.sharding is not None and array.sharding.is_equivalent_to(shape.sharding, array.ndim)


def test_evaluations_are_those_of_one_device(models: Path, tmp_path: Path) -> None:
    """The refresh, the search and the validation, whose programs gather parameters as well."""
    one, split = (
        run_of("kept", mesh, models, tmp_path / name, split=name == "split")
        for name, mesh in (("one", one_device()), ("split", make_mesh()))
    )
    expected, found = (run.evaluate(run.init()) for run in (one, split))
    assert found.keys() == expected.keys() >= {"loss", "average_rank", "mrr", "acc@5"}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, err_msg=name)


def test_a_state_is_never_whole_on_a_device(tiny_models: Path, tmp_path: Path) -> None:
    """From the start: kernels and word embeddings, their moments, and what is frozen."""
    for case in ("kept", "adapters", "moments"):
        split = case != "moments"
        state = run_of(case if split else "kept", make_mesh(), tiny_models, tmp_path / case, split=split).init().train
        if not split:
            assert elements_a_device(state.params) == 1
            state = state.opt_state
        matrices = [
            leaf for leaf in jax.tree.leaves(state) if leaf.ndim and np.prod(leaf.shape[-2:]) >= 128 and leaf.ndim != 2
        ]
        assert len(matrices) > 20 and elements_a_device(matrices) == 1 / 8
        assert elements_a_device(state) < 1 / 4  # Of a model of 16 dimensions biases and positions are a part.


def test_of_a_real_encoder_a_device_has_an_eighth() -> None:
    """BERT-base: all but positions, biases and norms, which are half a percent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "SPLIT_FROM", 1 << 16)
        config = encoder_config(configuration.Encoder(path="bert-base-uncased"))
        optimizer = optim.build(configuration.Optimizer(), 10)
        state = abstract_train_state(abstract_params(config), optimizer, make_mesh(), split=True)
    leaves = jax.tree.leaves(state)
    here = sum(np.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in leaves)
    assert 1 / 8 < here / sum(np.prod(leaf.shape) for leaf in leaves) < 0.132


# ---- another architecture, and matmuls in bfloat16 -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_grouped_queries(dtype: str) -> None:
    """Qwen's block. Parts are exchanged in bfloat16, so the embeddings are the same to the bit; sums are float32."""
    config = DualEncoderConfig(QWEN, shared=True, pooling="lasttoken", normalise=True)
    rng = np.random.default_rng(0)
    draw = lambda shape: (0.3 * rng.normal(size=shape.shape)).astype(np.float32)  # noqa: E731
    params = jax.tree.map(draw, abstract_params(config))
    tokens, lengths = rng.integers(1, 40, (16, 8)), rng.integers(1, 9, 16).astype(np.int32)
    weights = rng.normal(size=(16, 16)).astype(np.float32)

    def program(mesh: jax.sharding.Mesh, split: bool) -> Any:
        @jax.jit
        @partial(
            over_data,
            mesh=mesh,
            split=split,
            in_specs=(PARAMETERS_OR_STATE, P(DATA), P(DATA), P(DATA)),
            out_specs=(PARAMETERS_OR_STATE, P(DATA), P()),
        )
        def gradients(params: Any, tokens: jax.Array, lengths: jax.Array, weights: jax.Array) -> Any:
            def loss(params: Any) -> tuple[jax.Array, jax.Array]:
                vectors = embed(config, tower(params, "question"), tokens, lengths, dtype=jnp.dtype(dtype))
                return (vectors * weights).sum(), vectors

            (_, vectors), found = jax.value_and_grad(loss, has_aux=True)(varying(params))
            found, _ = reduced(found, params, (), ())
            return found, vectors, global_norm(found)

        return compiled_quickly(gradients)(sharding.put(params, mesh, split=split), tokens, lengths, weights)

    found, vectors, norm = program(make_mesh(), True)
    expected, its_vectors, its_norm = program(one_device(), False)
    kernel = found["shared"]["bert"]["layers"]["query"]["kernel"]
    assert kernel.addressable_shards[0].data.size * 8 == kernel.size
    exact = dtype == "float32"
    np.testing.assert_allclose(vectors, its_vectors, atol=1e-6 if exact else 1e-2)
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(expected))
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, atol=(1e-5 if exact else 2e-2) * largest),
        found,
        expected,
    )
    np.testing.assert_allclose(norm, its_norm, rtol=1e-5 if exact else 1e-2)
    # Without Adam nothing hides a factor: the norm is that of the gradient, copies counted once.
    np.testing.assert_allclose(norm, np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(found))), rtol=1e-5)


def test_pieces_are_gathered_in_the_type_of_the_matmuls() -> None:
    """Half the traffic of float32, and no word embedding is ever whole."""
    config = DualEncoderConfig(QWEN, shared=True, pooling="lasttoken")

    @partial(
        over_data, mesh=make_mesh(), split=True, in_specs=(PARAMETERS_OR_STATE, P(DATA), P(DATA)), out_specs=P(DATA)
    )
    def vectors(params: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        return embed(config, tower(params, "question"), tokens, lengths, dtype=jnp.bfloat16)

    rows = jax.ShapeDtypeStruct((8, 8), jnp.int32), jax.ShapeDtypeStruct((8,), jnp.int32)
    text = str(jax.make_jaxpr(vectors)(abstract_params(config), *rows))
    gathered = [line for line in text.splitlines() if "= all_gather[" in line]
    assert gathered and not [line for line in gathered if ":f32[" in line]
    # Once: as what the program is given, split.
    assert "f32[40,2]" in text and text.count("f32[40,16]") == 1


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_read_onto_other_devices(tiny_models: Path, tmp_path: Path) -> None:
    """From 8 devices that share the state to one that has all of it, and back: the same bits, each time in place."""
    split = run_of("kept", make_mesh(), tiny_models, tmp_path / "split", split=True)
    whole = run_of("kept", one_device(), tiny_models, tmp_path / "one", split=False)
    state = split.init()
    # Moments that are no zeros, and differ from place to place.
    state = state._replace(
        train=jax.tree.map(lambda x: x + jnp.arange(x.size).reshape(x.shape).astype(x.dtype), state.train)
    )
    written = jax.device_get(state)
    for number, (writer, reader) in enumerate(((split, whole), (whole, split))):
        with Checkpoints(tmp_path / f"checkpoints{number}", writer.config) as checkpoints:
            checkpoints.save(1, state)
            checkpoints.wait()
            state = checkpoints.restore(reader.abstract_state())
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), written)
        jax.tree.map(_same_place, jax.tree.leaves(state), jax.tree.leaves(reader.abstract_state()))


def test_a_folder_goes_on_with_other_devices(tiny_models: Path, tmp_path: Path) -> None:
    config = contrastive_config(tiny_models)
    write_config(tmp_path, config)
    claim(tmp_path, dataclasses.replace(config, mesh=Mesh(shard_parameters=True)), writes=True)
    with pytest.raises(UsageError, match=r"other settings \(train\.seed\)"):
        claim(
            tmp_path, contrastive_config(tiny_models, train={"seed": 1}, mesh={"shard_parameters": True}), writes=True
        )


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_devices_that_do_not_divide_the_width_are_refused() -> None:
    config = encoder_config(configuration.Encoder(path="bert-base-uncased"))
    with pytest.raises(UsageError, match="5 devices do not divide the encoder's width of 768; use"):
        splits(Mesh(shard_parameters=True), config, make_mesh(jax.devices()[:5]))
    assert not splits(Mesh(shard_parameters=True), config, one_device())
    assert not splits(Mesh(), config, make_mesh(jax.devices()[:5]))


def test_other_objectives_are_refused() -> None:
    data = configuration.PretrainData(corpora=("a",))
    config = configuration.MlmConfig(name="mlm", data=data, mesh=Mesh(shard_parameters=True))
    with pytest.raises(UsageError, match=r"mesh\.shard_parameters: only art and contrastive runs"):
        configuration.check_numbers(config)
