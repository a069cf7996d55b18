"""Parts of a run that a user brings: a loss, an optimizer of optax's or their own, a schedule, averaged weights, a callback."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_runs
from optax import contrib
from safetensors.numpy import load_file
from test_optim import random_tree
from tiny import contrastive_config, write_supervised

from jaxretr.config import Config, Optimizer, override
from jaxretr.runtime import own_parts
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.optim import build, schedule
from jaxretr.training.runs.contrastive import ContrastiveRun

STEPS = 3
SETTINGS = {"steps": STEPS, "save_every": 1, "eval_every": STEPS, "log_every": 1, "best_metric": "average_rank"}

LOSSES = """
import jax, jax.numpy as jnp

def softmax(scores, positive, negative):
    rest = jax.nn.logsumexp(jnp.where(negative, scores, -1e30), axis=-1, keepdims=True)
    return jnp.where(positive, jax.nn.softplus(rest - scores), 0.0).sum(-1)

def two(scores, positive):
    return scores[:, 0]

def margin(scores, positive, negative, margin=0.2):
    own = jnp.where(positive, scores, 0.0).sum(-1, keepdims=True)
    return jnp.where(negative, jax.nn.relu(scores - own + margin), 0.0).mean(-1)

def matrix(scores, positive, negative):
    return scores

def constant(step, steps):
    return jnp.where(step < steps, 1.0, 0.5)

def none(*values, **named):
    return None

def broken(scores, positive, negative):
    return scores.nope

def wide(learning_rate):
    import optax
    return optax.stateless(lambda updates, _: jax.tree.map(lambda x: x[..., None], updates))
"""


@pytest.fixture
def config(tiny_models: Path, tmp_path: Path) -> Callable[..., Any]:
    data = write_supervised(tmp_path / "data")

    def make(**sections: dict[str, Any]) -> Config:
        files = {**data, "dev": data["train"], "dev_questions": None}
        return contrastive_config(tiny_models, data=files, train=SETTINGS, **sections)

    return make


@pytest.fixture
def losses(tmp_path: Path) -> Path:
    (tmp_path / "losses.py").write_text(LOSSES)
    return tmp_path / "losses.py"


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model/model.safetensors")


def figures(folder: Path, name: str = "loss") -> list[float]:
    return [line[name] for line in read_metrics(folder) if "gradient_norm" in line]


def squared(scores: Any, positive: Any, negative: Any) -> Any:
    return jnp.where(negative, jnp.square(scores), 0.0).mean(-1) - jnp.where(positive, scores, 0.0).sum(-1)


def signs(learning_rate: float, size: float) -> optax.GradientTransformation:
    return optax.stateless(lambda updates, _: jax.tree.map(lambda x: -learning_rate * size * jnp.sign(x), updates))


def test_a_run_of_ones_own_functions_resumes_with_them_alone(
    config: Any, losses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(optimizer={"schedule": f"{losses}:constant", "arguments": ("size=0.01",), "ema": 0.5})
    functions: dict[str, Any] = {"loss": squared, "optimizer": lambda learning_rate, size: signs(learning_rate, size)}
    seen: list[int] = []

    def note(step: int, metrics: dict[str, Any]) -> None:
        seen.append(step)
        if seen == [1, 2] and float(metrics["loss"]):
            raise small_runs.Killed

    with pytest.raises(small_runs.Killed):
        train(settings, tmp_path / "run", **functions, on_step=note)
    train(settings, tmp_path / "run", **functions, on_step=note)
    assert seen == [1, 2, 2, 3] or seen == [1, 2, 3], "it goes on from the newest checkpoint"
    assert [line["step"] for line in read_metrics(tmp_path / "run") if "gradient_norm" in line] == [1, 2, 3]

    with pytest.raises(UsageError, match=r"started with other settings \(contrastive\.loss\)"):
        train(settings, tmp_path / "run", **{**functions, "loss": lambda scores, positive, negative: -scores.mean(-1)})
    losses.write_text(LOSSES.replace("1.0, 0.5", "1.0, 0.1"))
    with pytest.raises(
        UserError, match=r"other schedule function than there are now \(optimizer.schedule=.*:constant\)"
    ):
        train(settings, tmp_path / "run", **functions)


@pytest.mark.slow
def test_a_loss_of_ones_own_is_validated_with_too(config: Any, losses: Path, tmp_path: Path) -> None:
    ours = train(config(), tmp_path / "ours")
    theirs = train(config(contrastive={"loss": f"{losses}:softmax"}), tmp_path / "theirs")
    assert figures(tmp_path / "theirs") == pytest.approx(figures(tmp_path / "ours"), rel=1e-6)
    assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-6)
    train(config(contrastive={"loss": f"{losses}:margin", "symmetric": True}), tmp_path / "margin")
    assert figures(tmp_path / "margin") != pytest.approx(figures(tmp_path / "ours"), rel=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"contrastive": {"loss": "triplet"}}, "no such loss; there is softmax, and your own as FILE.py:FUNCTION"),
        ({"contrastive": {"loss": "{losses}:margn"}}, r"defines no function margn; did you mean 'margin'\?"),
        ({"contrastive": {"loss": "nowhere.py:f"}}, "there is no file nowhere.py"),
        ({"contrastive": {"loss": "python:f"}}, "call jaxretr.train with this function again"),
        (
            {"contrastive": {"loss": "{losses}:none"}},
            r"returned NoneType \[\] for scores .*; return one float a question",
        ),
        (
            {"contrastive": {"loss": "{losses}:broken"}},
            r"losses.py:25: AttributeError: .*; fix the function of contrastive.loss",
        ),
        ({"contrastive": {"loss": "{losses}:two"}}, r"losses.py: TypeError: two\(\) takes 2 positional arguments"),
        ({"optimizer": {"schedule": "{losses}:none"}}, r"optimizer.schedule=.*: must return one number"),
        ({"optimizer": {"name": "{losses}:none"}}, r"returned a NoneType; return an optax.GradientTransformation"),
        ({"optimizer": {"ema": 0.9}, "index_aware": {"kind": "product"}}, "the codes are of the weights that train"),
        ({"contrastive": {"loss": "{losses}:matrix"}}, r"return one float a question, \[4, 1\]"),
        ({"contrastive": {"loss": "{losses}:margin", "corpus_softmax": True}}, "is a denominator of the softmax"),
        ({"optimizer": {"name": "loin"}}, "no such optimizer; did you mean 'lion'"),
        ({"optimizer": {"name": "lion", "b1": 0.5}}, r"optimizer.b1=0.5: is AdamW's; give lion its own"),
        (
            {"optimizer": {"name": "lion", "arguments": ("b3=1",)}},
            "optimizer.name=lion: .*unexpected keyword argument 'b3'",
        ),
        (
            {"optimizer": {"name": "muon", "arguments": ("beta=[1]",)}},
            "optimizer.name=muon: TypeError: .*; optimizer.arguments are beta=",
        ),
        (
            {"optimizer": {"name": "muon", "arguments": ("nesterov=maybe",)}},
            "optimizer.arguments=nesterov=maybe: is a text, and nesterov is true by default",
        ),
        ({"optimizer": {"name": "{losses}:wide"}}, "its updates have other shapes than the parameters"),
        ({"optimizer": {"arguments": ("b1=0.5",)}}, "set optimizer.b1"),
        (
            {"optimizer": {"rates": ("nowhere=0.5",)}},
            "no trained parameter's name has nowhere; they are .*word_embedding",
        ),
        ({"optimizer": {"rates": ("(=1",)}}, "give PATTERN=FACTOR"),
        ({"optimizer": {"schedule": "step"}}, "there are linear and cosine"),
        ({"optimizer": {"name": "muon"}, "mesh": {"shard_parameters": True}}, "works on whole matrices"),
    ],
)
def test_mistakes_are_named(
    settings: dict[str, dict[str, Any]], message: str, config: Any, losses: Path, tmp_path: Path
) -> None:
    sections = {
        section: {
            key: value.format(losses=losses) if isinstance(value, str) else value for key, value in values.items()
        }
        for section, values in settings.items()
    }
    with pytest.raises(UsageError, match=message):
        train(config(**sections), tmp_path / "run")


def test_the_command_line_sets_them() -> None:
    words = "--optimizer.name sgd --optimizer.arguments momentum=0.9 nesterov=true --contrastive.loss losses.py:margin"
    settings = override(contrastive_config(Path()), words.split())
    assert settings.optimizer == Optimizer(name="sgd", arguments=("momentum=0.9", "nesterov=true"), learning_rate=1e-3)
    assert settings.contrastive.loss == "losses.py:margin"


def test_a_digest_tells_functions_apart_and_not_processes() -> None:
    def made(factor: Any) -> Callable[..., Any]:
        return lambda scores, positive, negative: factor * scores.mean(-1)

    class Loss:
        def __init__(self, factor: float):
            self.factor = factor

        def __call__(self, scores: Any, positive: Any, negative: Any) -> Any:
            return self.factor * scores.mean(-1)

    def digest(function: Any) -> str:
        return own_parts.source_digest(own_parts.name_of(function, "contrastive.loss"), "contrastive.loss")

    large = np.arange(5000.0)
    several = {
        "closure": [made(1.0), made(2.0)],
        "array": [made(large), made(np.where(large == 2500, 1.0, large))],
        "object": [Loss(1.0), Loss(2.0)],
        "jit": [jax.jit(made(3.0)), jax.jit(made(4.0))],
        "partial": [functools.partial(squared, bound=made(5.0)), functools.partial(squared, bound=made(6.0))],
        "default": [lambda s, p, n, m=1: s, lambda s, p, n, m=2: s],
    }
    digests = [digest(each) for pair in several.values() for each in pair]
    assert len({*digests}) == len(digests)
    assert digest(made(1.0)) == digests[0] and digest(Loss(2.0)) == digests[5]
    assert digest(functools.partial(squared, bound=made(5.0))) == digests[8], "no address is in it"


def test_functions_are_looked_for_without_running_a_script_again(tmp_path: Path) -> None:
    name = own_parts.name_of(random_tree, "optimizer.name")
    assert name == "python:test_optim.random_tree"
    own_parts._GIVEN.clear()
    assert own_parts.own_part(name, "optimizer.name").__wrapped__ is random_tree, "of an importable module"
    first, other = (lambda step, steps: 1.0), (lambda scores, positive, negative: scores)
    names = own_parts.name_of(first, "optimizer.schedule"), own_parts.name_of(other, "contrastive.loss")
    assert (
        names[0] == names[1].replace("contrastive.loss", "")
        and own_parts.own_part(names[0], "optimizer.schedule")(1, 2) == 1.0
    )
    script = tmp_path / "script.py"
    script.write_text("import jaxretr\n\njaxretr.train(None, 'runs')\n")
    with pytest.raises(UsageError, match="put that under: if __name__ == '__main__'"):
        own_parts.own_part(f"{script}:loss", "contrastive.loss")
    script.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(UsageError, match=r"script.py:2: SystemExit: 3; fix the file"):
        own_parts.own_part(f"{script}:loss", "contrastive.loss")
    with pytest.raises(UsageError, match="a function is expected, not a int"):
        train(contrastive_config(tmp_path), tmp_path / "run", loss=3)  # pyright: ignore[reportArgumentType]


def test_a_function_beside_one_that_the_config_names_is_refused(config: Any, losses: Path, tmp_path: Path) -> None:
    settings = config(
        contrastive={"loss": f"{losses}:softmax"}, optimizer={"name": "lion", "schedule": f"{losses}:constant"}
    )
    for given in ({"loss": squared}, {"optimizer": signs}, {"schedule": lambda step, steps: 1.0}):
        with pytest.raises(UsageError, match=rf"{next(iter(given))}.*: the config says so.*leave one of them out"):
            train(settings, tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


# ---- optimizers ------------------------------------------------------------------------------------------------------


def updates_of(config: Optimizer, params: Any, gradients: list[Any]) -> list[Any]:
    optimizer: Any = build(config, len(gradients))
    state, found = optimizer.init(params), []
    for gradient in gradients:
        updates, state = optimizer.update(gradient, state, params, peak=config.learning_rate)
        params = optax.apply_updates(params, updates)
        found.append(params)
    return found


def by_hand(optimizer: optax.GradientTransformation, config: Optimizer, params: Any, gradients: list[Any]) -> list[Any]:
    """w <- w + rate (u - decay w), with u an optimizer's update at a rate of 1; biases and scales do not decay."""
    state, rate, found = optimizer.init(params), schedule(config, len(gradients)), []
    for number, gradient in enumerate(gradients):
        updates, state = optimizer.update(gradient, state, params)
        decayed = jax.tree_util.tree_map_with_path(lambda path, w: w * (path[-1].key in ("kernel", "table")), params)
        params = jax.tree.map(
            lambda w, u, d, r: w + r * (u - config.weight_decay * d),
            *(params, updates, decayed),
            jax.tree.map(lambda _, now=number: rate(now), params),
        )
        found.append(params)
    return found


@pytest.mark.parametrize(
    ("name", "arguments", "theirs"),
    [
        ("lion", ("b1=0.8",), optax.lion(1.0, b1=0.8, weight_decay=0.0)),
        ("sgd", ("momentum=0.9", "nesterov=true"), optax.sgd(1.0, momentum=0.9, nesterov=True)),
        ("adafactor", ("min_dim_size_to_factor=2",), optax.adafactor(1.0, min_dim_size_to_factor=2)),
        ("ademamix", (), contrib.ademamix(1.0, weight_decay=0.0)),
    ],
)
def test_optimizers_are_optax_s_with_our_schedule_and_decay(
    name: str, arguments: tuple[str, ...], theirs: optax.GradientTransformation
) -> None:
    config = Optimizer(name=name, arguments=arguments, learning_rate=1e-2, clip=1e9, warmup=0.4, schedule="cosine")
    rng = np.random.default_rng(0)
    params, gradients = random_tree(rng, 1.0), [random_tree(rng, 1.0) for _ in range(5)]
    found, expected = updates_of(config, params, gradients), by_hand(theirs, config, params, gradients)
    for ours, other in zip(found, expected, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7), ours, other)
    assert not np.allclose(found[0]["query"]["kernel"], params["query"]["kernel"])


def test_muon_takes_each_layers_matrix_and_adam_the_rest() -> None:
    config = Optimizer(name="muon", learning_rate=1e-2, clip=1e9, weight_decay=0.0, warmup=0.0, decay=0.0)
    rng = np.random.default_rng(1)
    params, gradient = random_tree(rng, 1.0), random_tree(rng, 1.0)
    (after,) = updates_of(config, params, [gradient])
    for layer in range(2):
        alone = contrib.muon(1e-2)
        matrix = {"kernel": params["query"]["kernel"][layer]}
        updates, _ = alone.update({"kernel": gradient["query"]["kernel"][layer]}, alone.init(matrix), matrix)
        expected = optax.apply_updates(matrix, updates)["kernel"]
        np.testing.assert_allclose(after["query"]["kernel"][layer], expected, rtol=1e-5, atol=1e-7)
    for module, name in (("query", "bias"), ("word_embedding", "table")):  # Adam's first step is a sign.
        step = (after[module][name] - params[module][name]) / -np.sign(gradient[module][name])
        np.testing.assert_allclose(step, step.mean(), rtol=1e-3)
        assert step.mean() > 5e-3


def test_schedules() -> None:
    peak = {"learning_rate": 1.0, "warmup": 0.1, "final": 0.0}
    stable = [float(schedule(Optimizer(**peak, decay=0.2), 20)(count)) for count in range(20)]
    np.testing.assert_allclose(stable, [0.5, *[1.0] * 15, 0.75, 0.5, 0.25, 0.0], atol=1e-6)
    np.testing.assert_allclose(schedule(Optimizer(**peak, decay=0.0), 20)(19), 1.0)
    cosine = [float(schedule(Optimizer(**peak, schedule="cosine"), 20)(count)) for count in (1, 10, 19)]
    np.testing.assert_allclose(cosine, [1.0, 0.5, 0.0], atol=1e-6)


def test_a_schedule_of_ones_own(losses: Path) -> None:
    settings = Optimizer(schedule=f"{losses}:constant", learning_rate=2.0)
    assert [float(schedule(settings, 3)(count)) for count in range(3)] == [2.0, 2.0, 1.0]


def test_rates_and_averages() -> None:
    rates = ("query=2", "bias=0")
    plain, rated = (Optimizer(learning_rate=1e-2, weight_decay=0.0, rates=each) for each in ((), rates))
    rng = np.random.default_rng(2)
    params, gradients = random_tree(rng, 1.0), [random_tree(rng, 1.0) for _ in range(3)]
    one, other = (updates_of(each, params, gradients)[0] for each in (plain, rated))
    change = jax.tree.map(lambda a, b, w: (a - w) / np.where(b == w, np.nan, b - w), other, one, params)
    np.testing.assert_allclose(change["query"]["kernel"], 2.0, rtol=1e-3)
    np.testing.assert_array_equal(other["query"]["bias"], params["query"]["bias"])
    np.testing.assert_allclose(change["word_embedding"]["table"], 1.0, rtol=1e-3)

    averaged: Any = build(Optimizer(ema=0.5), 3)
    state, weights, expected = averaged.init(params), params, params
    for gradient in gradients:
        updates, state = averaged.update(gradient, state, weights, peak=1e-2)
        weights = optax.apply_updates(weights, updates)
        expected = jax.tree.map(lambda a, w: 0.5 * a + 0.5 * w, expected, weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), state[-1].average, expected)


@pytest.mark.slow
def test_devices_do_not_matter(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Muon's moments are whole on each of eight devices, where Adam's would be split; so are its averages."""
    monkeypatch.setattr(sharding, "SPLIT_FROM", 1)
    settings = config(optimizer={"name": "muon", "learning_rate": 1e-3, "ema": 0.5, "rates": ("layers=2",)})
    train(settings, tmp_path / "eight")
    monkeypatch.setattr("jaxretr.training.loop.make_mesh", lambda model: make_mesh(jax.devices()[:1]))
    train(settings, tmp_path / "one")
    np.testing.assert_allclose(figures(tmp_path / "one"), figures(tmp_path / "eight"), rtol=1e-4)
    one, eight = weights(tmp_path / "one"), weights(tmp_path / "eight")
    for key, value in one.items():
        np.testing.assert_allclose(eight[key], value, rtol=1e-3, atol=1e-4, err_msg=key)


@pytest.mark.slow
def test_the_model_is_the_average_and_a_run_resumes_with_it(config: Any, tmp_path: Path) -> None:
    plain = config(optimizer={"learning_rate": 1e-2})
    averaged = config(optimizer={"learning_rate": 1e-2, "ema": 0.9})
    small_runs.train_killed_once(ContrastiveRun, averaged, tmp_path / "averaged", at=2)
    train(plain, tmp_path / "plain")
    assert figures(tmp_path / "averaged") == figures(tmp_path / "plain"), "the weights that train are not averaged"
    losses = {
        name: {line["step"]: line["loss"] for line in read_metrics(tmp_path / name) if "average_rank" in line}
        for name in ("averaged", "plain")
    }
    start, end = losses["plain"][0], losses["plain"][STEPS]
    assert losses["averaged"][0] == start
    assert min(start, end) < losses["averaged"][STEPS] < max(start, end), "between the start and the end"
