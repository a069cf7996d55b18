"""`jaxretr train --plan`: the programs are the run's own, and the numbers those of its arrays."""

import dataclasses
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from test_cli import write_config
from tiny import art_config, contrastive_config, write_models, write_supervised

from jaxretr import cli
from jaxretr import config as configuration
from jaxretr.config import ArtConfig, Config
from jaxretr.data.token_store import TokenStore
from jaxretr.models.backbones.dropout import Dropout
from jaxretr.models.backbones.layers import attend, key_bias
from jaxretr.models.backbones.products import product
from jaxretr.models.hub.model_shapes import encoder_shape, scorer_shape
from jaxretr.models.scorers.teachers import T5Teacher
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.matmul_flops import TEXTS, matmul_flops
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import outline
from jaxretr.training.plan.requirements import plan, remedy
from jaxretr.training.plan.topologies import Devices, topology
from jaxretr.training.runs import art, corpus_run
from jaxretr.training.runs.art import ArtRun
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.corpus_sizes import corpus_size
from jaxretr.training.runs.corpus_tokens import width_of
from jaxretr.training.runs.outline import Planned
from jaxretr.training.runs.teacher_start import teacher_shape
from jaxretr.training.steps.widths import TeacherWidths

REPOSITORY = Path(__file__).parents[3]


def mesh_of(devices: int) -> jax.sharding.Mesh:
    return make_mesh(jax.devices()[:devices])


def on_one_device(tree: Any) -> int:
    """Bytes of a tree of real arrays on the first device."""
    shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
    return sum(shard.data.nbytes for shard in shards if shard.device == jax.devices()[0])


def same_arrays(real: Any, planned: Any) -> None:
    """The same shapes, types and places."""
    assert jax.tree.structure(real) == jax.tree.structure(planned)
    for one, other in zip(jax.tree.leaves(real), jax.tree.leaves(planned), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.sharding.is_equivalent_to(other.sharding, one.ndim)


def same_program(real: Any, planned: Planned) -> None:
    assert real.lower(*planned.arguments).as_text() == planned.program.lower(*planned.arguments).as_text()  # pyright: ignore


def art_run_of_estimated_lengths(config: ArtConfig, mesh: jax.sharding.Mesh, folder: Path) -> ArtRun:
    """A run that pads its rows as a plan supposes, which knows the texts' average length alone."""

    def teacher_widths(teacher: T5Teacher, passages: TokenStore, questions: list[TokenStore]) -> TeacherWidths:
        mean = corpus_size(config).mean_ids(teacher_shape(config.scorer).passage_length)
        return TeacherWidths.of_averages(teacher, mean, width_of(passages), max(map(width_of, questions)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(art, "teacher_widths", teacher_widths)
        patch.setattr(corpus_run, "widths_of", lambda store: ())
        return ArtRun(config, mesh, folder)


# ---- the run's own programs and arrays -------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_an_art_run_is_planned_as_it_is(tiny_models: Path, tmp_path: Path, devices: int) -> None:
    """The same program, text for text, and on each device as many bytes as the real arrays take."""
    mesh = mesh_of(devices)
    config = art_config(tiny_models, encoder={"max_passage_length": 32})
    run = art_run_of_estimated_lengths(config, mesh, tmp_path)
    outlined = outline(config, mesh, corpus_size(config))
    step = outlined.programs[0]
    state, batch = run.init(), run.batch(0)
    real = (*state[:3], run.whole.passages, run.scorer_passages, run.scorer_params, batch)
    same_arrays(real, step.arguments)
    same_program(run.programs.step, step)
    refresh, _, search = outlined.programs[1:]
    same_arrays((state.train.weights, run.whole.passages, state.index, state.train.step), refresh.arguments)
    same_program(run.whole.refresh_program, refresh)
    same_program(run.whole.search, search)

    planned = plan(config, Devices(jax.devices()[:devices], None, devices), corpus_size(config), programs=["step"])
    groups = planned.programs[0].groups
    assert groups == {
        "parameters": on_one_device(state.train.params),
        "optimizer state": on_one_device((state.train.opt_state, state.train.step)),
        "corpus tokens": on_one_device((run.whole.passages, run.scorer_passages)),
        "index embeddings": on_one_device(state.index),
        "scorer": on_one_device(run.scorer_params),
        "table of scores": on_one_device(state.table),
        "batch": on_one_device(batch),
    }
    # The compiler's own sum of the arguments, which may only differ by their alignment.
    memory = run.programs.step.lower(*real).compile().memory_analysis()
    assert sum(groups.values()) == pytest.approx(memory.argument_size_in_bytes, rel=0.02)
    assert planned.programs[0].peak >= sum(groups.values())
    assert planned.programs[0].flops > 0


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_a_supervised_run_is_planned_as_it_is(tiny_models: Path, tmp_path: Path, devices: int) -> None:
    mesh = mesh_of(devices)
    config = contrastive_config(
        tiny_models,
        data={**write_supervised(tmp_path / "data"), "dev_questions": None},
        encoder={"max_passage_length": 32},
        negatives={"static": 1, "retrieved": 1},
        # As many judged positives as the question with most has: the plan takes this number for them.
        contrastive={"max_positives": 3},
    )
    run = ContrastiveRun(config, mesh, tmp_path)
    outlined = outline(config, mesh, corpus_size(config))
    step = outlined.programs[0]
    state, batch = run.init(), run.batch(0)
    # The corpus's own 22 passages; the training file brings some more, which are not part of the search.
    program = dataclasses.replace(run.program, corpus_rows=run.corpus_rows)
    assert program == run.program and run.corpus_rows == 22
    real = (*state[:2], run.whole.passages, run.device_contents, batch)
    same_arrays(real, step.arguments)
    same_program(run.programs.step, step)
    planned = plan(config, Devices(jax.devices()[:devices], None, devices), corpus_size(config), programs=["step"])
    assert planned.programs[0].groups == {
        "parameters": on_one_device(state.train.params),
        "optimizer state": on_one_device((state.train.opt_state, state.train.step)),
        "corpus tokens": on_one_device((run.whole.passages, run.device_contents)),
        "index embeddings": on_one_device(state.index),
        "batch": on_one_device(batch),
    }


def test_what_stands_beside_a_program_counts(tiny_models: Path) -> None:
    """A refresh reads no scorer, nor its tokens, and still there is only the memory that these leave."""
    config = art_config(tiny_models)
    step, refresh, encode = plan(
        config, Devices(jax.devices()[:1], None, 1), corpus_size(config), programs=["step", "refresh", "encode"]
    ).programs
    assert not step.beside
    assert set(refresh.beside) == {"optimizer state", "scorer", "corpus tokens", "table of scores"}
    assert refresh.groups["corpus tokens"] + refresh.beside["corpus tokens"] == step.groups["corpus tokens"]
    # The evaluation's index stands beside the live one.
    assert set(encode.beside) == {*refresh.beside, "index embeddings"}
    assert encode.peak - refresh.peak == pytest.approx(encode.beside["index embeddings"], rel=0.01)
    assert refresh.peak >= sum(refresh.groups.values()) + sum(refresh.beside.values())


def test_an_evaluation_at_refreshes_needs_no_second_index(tiny_models: Path) -> None:
    """It searches the live one; where some evaluations fall between refreshes, one more has to fit."""
    mesh = mesh_of(1)
    often, between = (
        art_config(tiny_models, index={"refresh_every": 3}, train={"eval_every": every, "steps": 7}) for every in (6, 4)
    )
    programs = {
        config.train.eval_every: {
            program.name: program for program in outline(config, mesh, corpus_size(config)).programs
        }
        for config in (often, between)
    }
    assert set(programs[6]) == {"step", "refresh", "search"} and set(programs[4]) == {*programs[6], "encode"}
    groups = [set(programs[every]["search"].groups) for every in (6, 4)]
    assert groups[0] - groups[1] == {"index embeddings"} and groups[1] - groups[0] == {"evaluation's index"}


def test_a_rolling_refresh_is_planned_as_it_is(tiny_models: Path, tmp_path: Path) -> None:
    """With the R that the run counts; no evaluation needs a second index, wherever it falls."""
    mesh = mesh_of(8)
    config = art_config(
        tiny_models,
        encoder={"max_passage_length": 32},
        index={"refresh": "rolling", "refresh_share": 0.3},
        train={"eval_every": 4, "steps": 7},
    )
    run = art_run_of_estimated_lengths(config, mesh, tmp_path)
    state = run.init()
    assert state.refresh_every is not None and int(state.refresh_every) > 1
    step, refresh, rolling, search = outline(config, mesh, corpus_size(config)).programs
    assert [refresh.name, rolling.name, search.name] == ["refresh", "rolling", "search"]
    same_program(run.whole.refresh_program, refresh)
    same_program(run.whole.rolling_program(int(state.refresh_every)), rolling)
    assert "index embeddings" in search.groups
    flops = [matmul_flops(planned.program.trace(*planned.arguments)) for planned in (step, rolling)]  # pyright: ignore
    # A slice's last block is filled up: some more than the share of the whole corpus.
    assert 0.2 < flops[1] / sum(flops) < 0.4


CONFIGS = sorted((REPOSITORY / "configs").glob("*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_can_be_planned(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step is traced for 8 devices, without weights or data; earlier runs' models stand in by their shape."""
    monkeypatch.chdir(REPOSITORY)
    config: Any = configuration.load(path)
    if hasattr(config, "encoder") and config.encoder.path.startswith("runs/"):
        config = configuration.load(path, ["--encoder.path", "bert-base-uncased"])
    if getattr(config, "start", None) is not None and config.start.startswith("runs/"):
        kind = "google/t5-v1_1-base" if hasattr(config, "t5") else "bert-base-uncased"
        config = configuration.load(path, ["--start", kind])
    outlined = outline(config, make_mesh(), corpus_size(config, 1_000_000))
    step = outlined.programs[0]
    # spar_small's encoder has no layers: its products are the scores alone.
    assert step.name == "step" and matmul_flops(step.program.trace(*step.arguments)) > (
        3e8 if path.stem == "spar_small" else 1e9
    )


# ---- counting --------------------------------------------------------------------------------------------------------


def test_matrix_products_in_loops_count_as_often_as_they_run() -> None:
    mesh = mesh_of(8)

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"))
    def program(x: jax.Array, w: jax.Array) -> jax.Array:
        def body(x: jax.Array, _: Any) -> tuple[jax.Array, None]:
            return lax.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x @ w), None

        return lax.scan(jax.checkpoint(body), x, None, length=5)[0]

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 16), (16, 16))]
    assert matmul_flops(program.trace(*shapes)) == 64 * 16 * 16 * 2 * 2 * 5  # the dearer branch


def test_attention_of_packed_rows_counts_text_by_text() -> None:
    x = jax.ShapeDtypeStruct((2, 64, 2, 16), jnp.bfloat16)

    def layers(x: jax.Array) -> jax.Array:
        bias = key_bias(jnp.full((2, 4), 16), 64)
        return lax.scan(
            lambda y, _: (attend(y, y, y, bias, "bfloat16", Dropout(None, 0)).reshape(x.shape), None), x, length=3
        )[0]

    def program(x: jax.Array, *, longest: int) -> jax.Array:
        with jax.named_scope(f"{TEXTS}{longest}_64"):
            # As around layers that are stored in bfloat16.
            return lax.platform_dependent(layers(x), cpu=layers, default=lambda x: -layers(x))

    whole = 2 * 3 * 2 * 2 * (2 * 64 * 64 * 2 * 16)
    counts = [matmul_flops(jax.jit(partial(program, longest=longest)).trace(x)) for longest in (64, 16)]
    assert counts == [whole, whole // 4]


def test_gradients_of_frozen_kernels_count_nothing() -> None:
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 16), (16, 16))]

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        deep, _ = lax.scan(
            lambda x, _: (product("nd,de->ne", x, kernel, jnp.bfloat16), None), x.astype(jnp.bfloat16), length=3
        )
        return deep.astype(jnp.float32).sum()

    once = 2 * 64 * 16 * 16 * 3
    frozen, trained = (jax.jit(jax.value_and_grad(loss, places)) for places in (0, (0, 1)))
    assert [matmul_flops(program.trace(*shapes)) for program in (frozen, trained)] == [2 * once, 3 * once]


def test_the_number_of_passages(tiny_models: Path, tmp_path: Path) -> None:
    config = art_config(tiny_models)
    assert corpus_size(config)[:2] == (20, 20)
    assert corpus_size(config, 7)[:2] == (7, 7)
    known = art_config(tiny_models, data={"corpus": "nowhere/psgs_w100.tsv.gz"})
    assert corpus_size(known).passages == 21_015_324
    with pytest.raises(UserError, match=r"mine.jsonl: no such file.*passages="):
        corpus_size(art_config(tiny_models, data={"corpus": "mine.jsonl"}))
    # A training file's own passages are on the devices, but nothing searches them.
    files = write_supervised(tmp_path)
    alone = contrastive_config(tiny_models, data={"train": files["train"], "dev_questions": None})
    size = corpus_size(alone)
    assert size.passages > 0 and size.searched == 0


# ---- what is printed -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned")
    write_models(folder)
    return write_config(folder)


def test_the_command_prints_text_or_json(tiny_config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", str(tiny_config), "--plan", "--art.top-k", "2"]
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    for expected in ("passages: 20 (counted in", "step (every step)", "refresh (every", "search (", "all-reduce"):
        assert expected in text
    assert cli.main([*words, "--format", "json", "--passages", "3000"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["passages"] == 3000 and facts["fits"] is True
    assert [program["name"] for program in facts["programs"]] == ["step", "refresh", "search"]
    assert not any(one["in_loop"] for program in facts["programs"] for one in program["collectives"])


def test_what_does_not_fit_exits_with_a_remedy(
    tiny_config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxretr.training.plan.requirements._limit", lambda devices: 50_000)
    assert cli.main(["train", str(tiny_config), "--plan"]) == 1
    out, err = capsys.readouterr()
    assert "DOES NOT FIT" in out
    last = err.splitlines()[-1]
    assert "tiny does not fit" in last and "more chips" in last and "GiB a device and 0.00 can be used; try" in last


def test_a_compiler_that_gives_up_is_a_plan_that_does_not_fit(
    tiny_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA raises where a program is too large for a TPU; its number is the plan's."""
    error = jax.errors.JaxRuntimeError(
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
        "Used 20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G."
    )

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(jax.stages.Lowered, "compile", fail)
    config = art_config(tiny_models)
    planned = plan(config, Devices(jax.devices()[:1], "v5e", 1), corpus_size(config), programs=["step"])
    step = planned.programs[0]
    assert not planned.fits and step.fits is False and step.peak == int(20.5 * 2**30) and step.flops > 0
    assert remedy(config, planned) == (
        "step needs 20.50 GiB a device and 15.75 can be used; try art.chunk=16, scorer.chunk=8 or more chips"
    )
    error = jax.errors.JaxRuntimeError("INTERNAL: something else")
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        plan(config, Devices(jax.devices()[:1], "v5e", 1), corpus_size(config), programs=["step"])


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, expected",
    [
        ("--workdir w --topology v5e:4x4", "--topology is for --plan; add --plan, or leave it out"),
        ("--workdir w --passages 3", "--passages is for --plan; add --plan, or leave it out"),
        ("", "--workdir"),
        ("--plan --train.batch-size 9", "train.batch_size=9 does not divide over 8 devices"),
        ("--plan --passages 0", "'0' is not a whole number from 1"),
    ],
)
def test_wrong_words(tiny_config: Path, words: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", str(tiny_config), *words.split()]) == 2
    assert expected in capsys.readouterr().err


def _no_plugin(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("topology not implemented for cuda")


def test_unknown_slices_and_a_missing_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("v5e:4x", "v5litepod:4x4", "16 chips"):
        with pytest.raises(UserError, match=r"topology=.*not a kind and a shape of TPUs.*v5e:4x4, v5e:8x8"):
            topology(name)
    for name in ("h100:2x2", "h100", "a100:8"):
        with pytest.raises(UserError, match=r"topology=.*not a kind and a shape of TPUs, or a number of GPUs.*h100:8"):
            topology(name)
    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", _no_plugin)
    with pytest.raises(UserError, match=r"topology=h100:8: JAX's plugin for CUDA is not installed.*jaxretr\[cuda\]"):
        topology("h100:8")
    monkeypatch.setitem(sys.modules, "libtpu", None)
    with pytest.raises(UserError, match=r"libtpu is not installed.*jaxretr\[tpu\]"):
        topology("v5e:4x4")


def test_models_whose_shape_is_not_known() -> None:
    with pytest.raises(UserError, match=r"runs/none/at/all: no such model folder.*bert-base-uncased.*same shape"):
        encoder_shape("runs/none/at/all")
    with pytest.raises(UserError, match=r"runs/none/at/all: .*bigscience/T0_3B"):
        scorer_shape("runs/none/at/all")


def test_shapes_are_read_from_folders_and_known_names(tiny_models: Path) -> None:
    """As the loaded model states it: what the folder says of itself is not guessed."""
    from jaxretr.models.dual_encoder import DualEncoder

    loaded = DualEncoder.from_pretrained(tiny_models / "encoder", shared=False)
    shape = encoder_shape(str(tiny_models / "encoder"), shared=False)
    assert dataclasses.replace(
        shape,
        max_question_length=loaded.config.max_question_length,
        max_passage_length=loaded.config.max_passage_length,
    ) == (loaded.config)
    folder = tiny_models / "saved_for_plan"
    loaded.save(folder)
    assert encoder_shape(str(folder)) == loaded.config
    assert encoder_shape("google-bert/bert-base-uncased").backbone.hidden_size == 768
    assert scorer_shape("bigscience/T0_3B").d_ff == 5120


def test_a_batch_that_does_not_divide_over_a_slice(tiny_models: Path) -> None:
    config: Config = art_config(tiny_models, train={"batch_size": 12})
    with pytest.raises(UserError, match="batch_size=12 does not divide over 8 devices"):
        plan(config, Devices(jax.devices(), None, 8), corpus_size(config))
