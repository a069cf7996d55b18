"""What the compiled supervised step is: memory, communication and compilation, read off the program itself."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import NamedSharding
from tiny import contrastive_config, contrastive_program, few_padding_rows, write_supervised

from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.embed import DualEncoderConfig, abstract_params
from jaxretr.models.engine_choice import ENGINE_VARIABLE
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.programs import programs
from jaxretr.training.plan.compiled_text import Program
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.corpus_programs import RunState
from jaxretr.training.state import CorpusState, CorpusTokens, TrainState
from jaxretr.training.steps.batch_loss import ContrastiveBatch
from jaxretr.training.steps.contrastive import make_step

N, DEVICES, B = 1 << 17, 8, 8
# LLVM's optimisations come after all that is read here.
QUICK = {"xla_backend_optimization_level": 0}


@pytest.fixture(scope="module")
def run(tiny_models: Path, mesh8: jax.sharding.Mesh, tmp_path_factory: pytest.TempPathFactory) -> ContrastiveRun:
    """Retrieved negatives, the corpus-wide softmax and write-back at once."""
    folder = tmp_path_factory.mktemp("run")
    config = contrastive_config(
        tiny_models,
        data=write_supervised(folder / "data"),
        encoder={"max_passage_length": 32},
        negatives={"static": 1, "retrieved": 2},
        contrastive={"corpus_softmax": True, "chunk": 3},
        index={"refresh": "rolling", "refresh_every": 2, "write_back": True},
    )
    with few_padding_rows():
        return ContrastiveRun(config, mesh8, folder)


@pytest.fixture(scope="module")
def compiled(run: ContrastiveRun, mesh8: jax.sharding.Mesh) -> Program:
    """The run's step for a corpus so large that [B, N] scores would be the largest array of all."""
    rows = NamedSharding(mesh8, sharding.ROWS)

    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=rows)

    few = run.whole.passages
    step = run.programs.step.lower(
        run.abstract_state().train,
        CorpusState(array(jnp.float32, N, run.model.config.embedding_size), array(jnp.int32, N)),
        CorpusTokens(array(few.ids.dtype, N * few.width // 2), *2 * [array(jnp.int32, N)], few.width),
        array(jnp.int32, N),
        sharding.abstract(run.batch(0), mesh8, rows),
    )
    return Program(step.compile(QUICK).as_text())


def test_state_and_index_are_donated_and_nothing_is_compiled_twice(
    run: ContrastiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over three steps with a slice each: the old state's memory is taken over, and each program has one form.

    The step is compiled beside the refresh, as on accelerators.
    """
    monkeypatch.setattr("jaxretr.runtime.parallel.programs._compiles_ahead", lambda: True)
    kept = jax.tree.leaves((run.whole.passages, run.device_contents))
    state = run.init()
    assert state.index is not None
    run._step_is_compiled()
    before = programs()
    run.programs.step.lower(*run.arguments(state, run.batch(0))).compile()
    assert programs() == before
    for number in range(3):
        old = jax.tree.leaves((state.train, state.index))
        state, _ = run.step(state, number, run.batch(number))
        assert all(leaf.is_deleted() for leaf in old)
        assert not any(leaf.is_deleted() for leaf in [*kept, *jax.tree.leaves(state)])
    assert run.programs.step._cache_size() == 1
    assert run.whole.refresh_program._cache_size() == run.whole.rolling_program(2)._cache_size() == 1  # pyright: ignore
    run.evaluate(RunState(*state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))  # Evaluation takes nothing.


def test_every_buffer_of_state_and_index_is_aliased(run: ContrastiveRun, compiled: Program) -> None:
    leaves = len(jax.tree.leaves(run.abstract_state().train)) + 2  # The index's two arrays.
    header = compiled.text.splitlines()[0]
    assert header.count("may-alias") + header.count("must-alias") == leaves


def test_the_index_is_never_copied(run: ContrastiveRun, compiled: Program) -> None:
    """A step reads the index, for negatives and for the corpus-wide softmax, before it overwrites rows in their place."""
    assert compiled.copies(N // DEVICES * run.model.config.embedding_size) == []


def test_no_collective_stands_in_a_loop(compiled: Program) -> None:
    """Neither in those over chunks, forward and backward, nor in those over blocks of the corpus."""
    assert compiled.loops > 4
    assert compiled.collectives
    assert [collective for collective in compiled.collectives if collective.in_loop] == []


def test_gradients_are_reduced_once(run: ContrastiveRun, compiled: Program) -> None:
    """All reductions of floats together: each parameter once, a few scalars, and [B] of the corpus-wide softmax.

    What questions and passages owe to each other's devices is scattered, one embedding each.
    """
    results = [array for op in compiled.of_kind("all-reduce") for array in op.results if array.dtype == "f32"]
    expected = sorted(tuple(leaf.shape) for leaf in jax.tree.leaves(run.model.params))
    assert sorted(array.shape for array in results if array.shape not in ((), (B,))) == expected
    assert len([array for array in results if array.shape == ()]) <= 5
    size, places = run.model.config.embedding_size, run.draws.places + run.program.negatives.retrieved
    scattered = [array for op in compiled.of_kind("reduce-scatter") for array in op.results if array.dtype == "f32"]
    assert sum(array.elements for array in scattered) <= (2 + places + 1) * size * B // DEVICES


def test_no_array_is_larger_than_the_corpus_shard(run: ContrastiveRun, compiled: Program) -> None:
    """Never scores of all questions and passages: neither [B, N] nor a device's [B, N / devices]."""
    n = N // DEVICES
    width, size = run.whole.passages.width, run.model.config.embedding_size
    assert max(array.elements for array in compiled.arrays) <= n * max(width, size)
    long = {array.shape for array in compiled.arrays if max(array.shape, default=0) >= n}
    # The last is that of all token ids.
    assert long <= {(n,), (n, 1), (n, size), (n * width // 2,)}, long


def test_memory_falls_with_the_chunk(mesh1: jax.sharding.Mesh, record_property: Any) -> None:
    """256 questions with 2 passages each, where what the backward pass keeps is a hundred times the parameters."""
    bert = BertConfig(
        vocab_size=50,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    rows = NamedSharding(mesh1, sharding.ROWS)
    questions, length, n = 256, 16, 1024

    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=rows)

    def temporary(chunk: int) -> int:
        program = contrastive_program(
            encoder=DualEncoderConfig(bert), corpus_rows=n, sizes=(bert.hidden_size,), chunk=chunk
        )
        optimizer = optax.sgd(0.1)
        params = abstract_params(program.encoder)
        train = jax.eval_shape(
            lambda: TrainState.create(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params), optimizer)
        )
        batch = ContrastiveBatch(
            *(array(jnp.uint16, questions, length), array(jnp.int32, questions)),
            *(array(jnp.int32, questions, 2), array(jnp.int32, questions, 1), None),
        )
        tokens = CorpusTokens(array(jnp.uint16, n * length), *2 * [array(jnp.int32, n)], length)
        lowered = make_step(program, optimizer, mesh1).lower(
            sharding.abstract(train, mesh1), None, tokens, array(jnp.int32, n), batch
        )
        return lowered.compile(QUICK).memory_analysis().temp_size_in_bytes

    sizes = {chunk: temporary(chunk) for chunk in (8, 64, 512)}
    record_property(
        "temporary memory of a step of 256 questions", {c: f"{s / 2**20:.1f} MiB" for c, s in sizes.items()}
    )
    assert sizes[512] > 4 * sizes[64] > 8 * sizes[8]


def test_packed_rows_have_one_program_for_all_lengths(
    tiny_models: Path, mesh8: jax.sharding.Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tower that both sides share is in a step's program once in each direction, and once to search with."""
    config = contrastive_config(
        tiny_models,
        data=write_supervised(tmp_path / "data"),
        encoder={"max_passage_length": 48, "shared": True, "activations": "recompute"},
        negatives={"static": 1, "retrieved": 1},
    )
    counts = {}
    for engine in ("padded", "packed"):
        monkeypatch.setenv(ENGINE_VARIABLE, engine)
        run = ContrastiveRun(config, mesh8, tmp_path / engine)
        state, rows = run.abstract_state(), sharding.abstract(run.batch(0), mesh8, NamedSharding(mesh8, sharding.ROWS))
        assert state.index is not None
        step = run.programs.step.trace(state.train, state.index, run.whole.passages, run.device_contents, rows)
        refresh: Any = run.whole.refresh_program
        refreshed = refresh.trace(state.train.weights, run.whole.passages, state.index, state.train.step)
        layers = run.model.config.backbone.num_hidden_layers
        counts[engine] = [passes_through(traced.jaxpr.jaxpr, layers) for traced in (step, refreshed)]
    # The search's questions; the texts; the same again and backward.
    assert counts["packed"] == [4, 1]
    assert counts["padded"][0] > 8 and counts["padded"][1] > 1


def passes_through(jaxpr: Any, layers: int) -> int:
    """The number of loops over the layers in a program and all that it calls."""
    found = 0
    for equation in jaxpr.eqns:
        found += equation.primitive.name == "scan" and equation.params["length"] == layers
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                found += passes_through(getattr(inner, "jaxpr", inner), layers) if hasattr(inner, "eqns") else 0
    return found
