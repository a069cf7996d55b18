"""What the compiled ART step is: memory, communication and compilation, read off the program itself."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from tiny import art_config, few_padding_rows

from jaxretr.runtime.parallel import sharding
from jaxretr.training.plan.compiled_text import Program
from jaxretr.training.runs.art import ArtRun
from jaxretr.training.runs.corpus_programs import RunState
from jaxretr.training.state import CorpusState, CorpusTokens

N, DEVICES = 1 << 17, 8


@dataclass
class Compiled:
    run: ArtRun
    step: Program
    refresh: Program
    search: Program


@pytest.fixture(scope="module")
def run(tiny_models: Path, mesh8: jax.sharding.Mesh, tmp_path_factory: pytest.TempPathFactory) -> ArtRun:
    with few_padding_rows():
        return ArtRun(art_config(tiny_models, index={"refresh_every": 2}), mesh8, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def compiled(run: ArtRun, mesh8: jax.sharding.Mesh) -> Compiled:
    """The run's programs for a corpus so large that [B, N] scores would be the largest array of all."""
    rows = NamedSharding(mesh8, sharding.ROWS)

    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=rows)

    def tokens(few: CorpusTokens) -> CorpusTokens:
        return CorpusTokens(array(few.ids.dtype, N * few.width // 2), *2 * [array(jnp.int32, N)], few.width)

    train, _, table, _ = run.abstract_state()
    index = CorpusState(array(jnp.float32, N, run.model.config.embedding_size), array(jnp.int32, N))
    scorer = sharding.abstract(run.scorer_params, mesh8)
    batch = run.batch(0)
    step = run.programs.step.lower(
        train,
        index,
        table,
        tokens(run.whole.passages),
        tokens(run.scorer_passages),
        scorer,
        sharding.abstract(batch, mesh8, rows),
    )
    refresh = run.whole.refresh_program.lower(train.params, tokens(run.whole.passages), index, train.step)
    search = run.whole.search.lower(train.params, index, array(jnp.int32, 64, 16), array(jnp.int32, 64), None)
    return Compiled(run, *(Program(program.compile().as_text()) for program in (step, refresh, search)))


def test_state_and_index_are_donated_and_nothing_is_compiled_twice(run: ArtRun) -> None:
    """Over three steps with a refresh: the old state's memory is taken over, and each program has one form."""
    tokens, scorer = jax.tree.leaves((run.whole.passages, run.scorer_passages)), jax.tree.leaves(run.scorer_params)
    state = run.init()
    for number in range(3):
        # A refresh reads nothing of `encoded_at`, so that it is not handed over then.
        old = jax.tree.leaves((state.train, state.index.embeddings, state.table))
        state, _ = run.step(state, number, run.batch(number))
        assert all(leaf.is_deleted() for leaf in old)
        assert not any(leaf.is_deleted() for leaf in [*tokens, *scorer, *jax.tree.leaves(state)])
    assert run.programs.step._cache_size() == 1
    assert run.whole.refresh_program._cache_size() == 1
    run.evaluate(state)
    run.evaluate(RunState(*state))
    fresh = run.refreshed(run.init(), 0)
    assert run.whole.is_fresh(*fresh[:2]) and run.evaluate(fresh) == run.dev.metrics(fresh.train, run.whole)
    assert run.whole.refresh_program._cache_size() == 1 and run.whole.search._cache_size() == 1
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))  # Evaluation takes nothing.


def test_the_index_is_never_copied(compiled: Compiled) -> None:
    """A step searches the index and then overwrites rows of it in their place: at paper size a copy is 32 GB."""
    for program in (compiled.step, compiled.refresh, compiled.search):
        assert program.copies(N // DEVICES * compiled.run.model.config.embedding_size) == []


def test_every_buffer_of_state_and_index_is_aliased(compiled: Compiled) -> None:
    train = compiled.run.abstract_state().train
    leaves = len(jax.tree.leaves(train)) + 2 + 2  # The index's two arrays, and those of the table of scores.
    header = compiled.step.text.splitlines()[0]
    assert header.count("may-alias") + header.count("must-alias") == leaves


def test_no_collective_stands_in_a_loop(compiled: Compiled) -> None:
    for program in (compiled.step, compiled.refresh, compiled.search):
        assert program.loops > 1
        assert [collective for collective in program.collectives if collective.in_loop] == []
    assert compiled.refresh.collectives == []  # Each device encodes its own rows.


def test_gradients_are_reduced_once(compiled: Compiled) -> None:
    """All reductions of floats together: each parameter once, and a few scalars."""
    params = jax.tree.leaves(compiled.run.model.params)
    results = [array for op in compiled.step.of_kind("all-reduce") for array in op.results if array.dtype == "f32"]
    scalars = [array for array in results if array.shape == ()]
    expected = [tuple(leaf.shape) for leaf in params]
    # The teacher's scores of 8 x 4 pairs: those that the table knew, and new ones with the numbers of `Work`.
    assert sorted(array.shape for array in results if array.shape) == sorted([*expected, (8, 4), (35,)])
    assert len(scalars) <= 5
    moved = [array for op in compiled.step.of_kind("reduce-scatter") for array in op.results]
    assert moved and all(array.dtype == "s32" for array in moved)  # Token ids, not gradients.


def test_no_array_is_larger_than_the_corpus_shard(compiled: Compiled) -> None:
    """Never scores of all questions and passages: neither [B, N] nor a device's [B, N / devices]."""
    n = N // DEVICES
    corpora = compiled.run.whole.passages, compiled.run.scorer_passages
    widths = {1, compiled.run.model.config.embedding_size, *(tokens.width for tokens in corpora)}
    flat = {(n * tokens.width // 2,) for tokens in corpora}
    for program in (compiled.step, compiled.refresh, compiled.search):
        assert max(array.elements for array in program.arrays) <= n * max(widths)
        long = {array.shape for array in program.arrays if max(array.shape, default=0) >= n}
        assert long <= {(n,), *flat, *((n, width) for width in widths)}, long
