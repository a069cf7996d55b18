"""Runs that train on the scores of a quantised index: their codes, their steps on other devices, and on after a kill."""

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_runs
from safetensors.numpy import load_file
from tiny import compiled_quickly, contrastive_config, few_padding_rows, write_supervised

from jaxretr.config import IndexAware
from jaxretr.embeddings.vector_files import dequantise, quantise
from jaxretr.losses.art import art_losses
from jaxretr.losses.quantised import decoded, fitted_codebook, nearest_codes
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.checkpoint import Checkpoints
from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.plan.compiled_text import Program
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.state import ProductCodes, TrainState
from jaxretr.training.steps import index_aware
from jaxretr.training.steps.art import student_loss
from jaxretr.training.steps.contrastive import make_step

PRODUCT: dict[str, object] = {"kind": "product", "block": 4, "centres": 4, "commitment": 0.1, "relearn_every": 2}


# ---- the codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("passages", "sample"), [(1000, 64), (50, 64), (20_000_000, 4096)])
def test_the_fit_takes_one_passage_of_each_part(passages: int, sample: int) -> None:
    program: Any = _Program(index_aware=IndexAware("product", sample=sample))
    draw = partial(index_aware.sampled_rows, program, passages)
    rows = np.asarray(draw(jax.random.key(7), 8))
    count = min(passages, sample)
    assert len(rows) % 8 == 0 and (rows[count:] == -1).all()
    ends = np.arange(count + 1) * passages // count
    assert (rows[:count] >= ends[:-1]).all() and (rows[:count] < ends[1:]).all()
    np.testing.assert_array_equal(draw(jax.random.key(7), 1)[:count], rows[:count])
    if passages > sample:
        assert (np.asarray(draw(jax.random.key(8), 8)) != rows).mean() > 0.5


@dataclass
class _Program:
    """What `sampled_rows` and `student_loss` read of a program."""

    index_aware: IndexAware
    temperature: float = 2.0
    art: Any = None


@dataclass
class Outcome:
    """A run and what its first three steps gave, with codes that are fitted before the first and before the third."""

    run: ContrastiveRun
    first: TrainState
    last: TrainState
    metrics: list[dict[str, float]]


@pytest.fixture(scope="module")
def outcomes(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Outcome]:
    """Of 1 device and of 8, in steps of gradient descent."""
    made = {}
    for devices in (1, 8):
        mesh = make_mesh(jax.devices()[:devices])
        # One width of texts, so that little is compiled.
        changes = {"encoder": {"max_passage_length": 16}, "index_aware": PRODUCT, "data": {"dev_questions": None}}
        with few_padding_rows():
            run = ContrastiveRun(contrastive_config(tiny_models, **changes), mesh, tmp_path_factory.mktemp("run"))
        run.programs.optimizer = optax.sgd(0.1)
        run.programs.step = compiled_quickly(make_step(run.program, run.programs.optimizer, mesh))
        state = run.init()
        first, metrics = jax.device_get(state.train), []
        for number in range(3):
            state, values = run.step(state, number, run.batch(number))
            metrics.append({name: float(value) for name, value in values.items()})
        made[devices] = Outcome(run, first, state.train, metrics)
    return made


@pytest.mark.parametrize("devices", [1, 8])
def test_the_codes_fit_the_passages_of_the_corpus(outcomes: dict[int, Outcome], devices: int) -> None:
    run, first = outcomes[devices].run, outcomes[devices].first
    assert first.codes is not None and int(first.codes.learnt_at) == 0
    corpus, model = run.examples.passages, run.model
    assert isinstance(model, DualEncoder)
    passages = [{"title": title, "text": text} for title, text in zip(corpus.titles, corpus.texts, strict=True)]
    rows = DualEncoder(model.config, model.params, model.tokenizer).encode_passages(passages, batch_size=20)
    expected = jax.jit(fitted_codebook, static_argnums=(2, 3))(rows, np.ones(20), 4, 4)
    np.testing.assert_allclose(first.codes.codebook, expected, atol=1e-4)
    np.testing.assert_allclose(first.codes.threshold, 0.2 * np.sqrt(np.square(rows).sum(axis=1).mean()), rtol=1e-4)
    planned = run.abstract_state().train.codes
    assert jax.tree.map(lambda x: (x.shape, x.dtype), planned) == jax.tree.map(
        lambda x: (x.shape, x.dtype), first.codes
    )


def test_codes_are_fitted_again_when_they_are_due_and_once(outcomes: dict[int, Outcome]) -> None:
    run, first, last = outcomes[1].run, outcomes[1].first, outcomes[1].last
    assert first.codes is not None and last.codes is not None and int(last.codes.learnt_at) == 2
    assert np.abs(last.codes.codebook - first.codes.codebook).max() > 1e-3
    for number in (2, 3):
        assert run.codes.refitted(last, run.whole.passages, number) is last


def test_one_device_and_eight_take_the_same_steps(outcomes: dict[int, Outcome]) -> None:
    one, many = outcomes[1], outcomes[8]
    for expected, metrics in zip(one.metrics, many.metrics, strict=True):
        assert 0 < metrics["storage_error"] < 1
        for name, value in metrics.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, err_msg=name)
    assert one.last.codes is not None and many.last.codes is not None
    np.testing.assert_allclose(many.last.codes.codebook, one.last.codes.codebook, atol=1e-4)


def test_the_program_of_the_fit_exchanges_nothing_in_its_loops(outcomes: dict[int, Outcome]) -> None:
    run, train = outcomes[8].run, outcomes[8].last
    arguments = train.params, run.whole.passages, train.codes, train.step, train.numbers.seed
    program = Program(run.codes.learn.lower(*arguments).compile().as_text())
    assert program.loops and not [each for each in program.collectives if each.in_loop]


# ---- ART's loss ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["int8", "product"])
def test_arts_loss_is_that_on_the_scores_of_the_index(kind: Any) -> None:
    rng = np.random.default_rng(2)
    q, p, teacher = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 8), (3, 5, 8), (3, 5)))
    settings = IndexAware(kind, block=2, centres=4, commitment=0.5)
    flat, codes = p.reshape(-1, 8), None
    if kind == "int8":
        values = dequantise(*quantise(flat))
    else:
        codebook = fitted_codebook(jnp.asarray(flat), jnp.ones(15), 2, 4)
        codes = ProductCodes(codebook, jnp.float32(0), jnp.int32(0))
        values = np.asarray(decoded(nearest_codes(jnp.asarray(flat), codebook), codebook, 8))
    art: Any = dataclasses.make_dataclass("Settings", ["teacher_temperature", "prior_weight"])(1.0, 0.0)
    program: Any = _Program(settings, art=art)
    loss, (student, terms) = student_loss(
        *(program, q, p, teacher, None),  # pyright: ignore
        stored=index_aware.stored_rows(settings, codes),
    )
    scores = np.einsum("bd,bkd->bk", q, values.reshape(p.shape))
    np.testing.assert_allclose(student, scores / 2, rtol=1e-5, atol=1e-5)
    error = (np.square(values - flat).sum(axis=1) / np.square(flat).sum(axis=1)).mean()
    np.testing.assert_allclose(terms["storage_error"], error, rtol=1e-4)
    np.testing.assert_allclose(
        loss, art_losses(jnp.asarray(scores) / 2, jnp.asarray(teacher)).mean() + 0.5 * error, rtol=1e-5
    )


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_killed_run_ends_as_an_undisturbed_one(tiny_models: Path, tmp_path: Path) -> None:
    """With codes that were fitted two steps before."""
    config = contrastive_config(
        tiny_models,
        data={**write_supervised(tmp_path / "data"), "dev_questions": None},
        negatives={"static": 1},
        train={"steps": 4, "save_every": 1, "eval_every": 4},
        index_aware={**PRODUCT, "relearn_every": 3},
    )
    train(config, tmp_path / "whole")
    small_runs.train_killed_once(ContrastiveRun, config, tmp_path / "resumed", at=2)
    weights = [load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "resumed")]
    for name, value in weights[0].items():
        np.testing.assert_array_equal(weights[1][name], value, err_msg=name)
    errors = [line["storage_error"] for line in read_metrics(tmp_path / "resumed") if "storage_error" in line]
    assert len(errors) == 4 and all(0 < error < 1 for error in errors)


def test_a_checkpoint_from_before_there_were_codes_is_read(tmp_path: Path, tiny_models: Path) -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class Older:
        step: jax.Array
        params: Any
        opt_state: Any
        frozen: Any

    params = {"weights": jnp.arange(3.0)}
    state = TrainState.create(params, optax.adam(1.0))
    with Checkpoints(tmp_path / "checkpoints", contrastive_config(tiny_models)) as checkpoints:
        older = {"train": Older(state.step + 1, state.params, state.opt_state, state.frozen), "index": None}
        checkpoints.save(1, older)
        checkpoints.wait()
        place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), {"train": state, "index": None}
        )
        read = checkpoints.restore(like)
    assert isinstance(read["train"], TrainState) and read["train"].codes is None and int(read["train"].step) == 1
    np.testing.assert_array_equal(read["train"].params["weights"], params["weights"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (IndexAware(weight=0.5), "no kind; set index_aware.kind"),
        (IndexAware("int8", weight=0.0), "above 0 and at most 1"),
        (IndexAware("int8", commitment=-1.0), "at least 0"),
        (IndexAware("product", centres=257), "from 2 to 256"),
        (IndexAware("product", block=0), "must be at least 1"),
        (IndexAware("product", sample=8), "too few to fit 16 centres"),
    ],
)
def test_settings_that_make_no_quantiser_are_refused(settings: IndexAware, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings.check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index_aware": {"kind": "int8", "weight": 2.0}}, "above 0 and at most 1"),
        ({"index_aware": {"kind": "product", "centres": 64}}, "20 passages are too few"),
        ({"index_aware": {"kind": "product"}, "contrastive": {"matryoshka": (4,)}}, "leave one of them out"),
    ],
)
def test_runs_refuse_what_they_cannot_serve(
    changes: dict[str, Any], message: str, tiny_models: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        train(contrastive_config(tiny_models, **changes), tmp_path / "run")
