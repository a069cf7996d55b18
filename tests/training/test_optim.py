"""The schedule against an interpolation of its corners, and clipping + AdamW + decay masks against torch.optim."""

import dataclasses
from typing import Any

import jax
import numpy as np
import optax
import pytest
from peers import torch

from jaxretr.config import Optimizer
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.embed import DualEncoderConfig, abstract_params
from jaxretr.training.optim import build, decays, schedule

SEED = 3


def expected_rate(config: Optimizer, steps: int, count: int) -> float:
    """The rate of the step after `count` finished ones, from the three corners of the line."""
    warmup = max(1, round(config.warmup * steps))
    corners = [0, warmup, max(steps, warmup + 1)]
    return float(np.interp(count + 1, corners, np.array([0, 1, config.final]) * config.learning_rate))


@pytest.mark.parametrize(("steps", "warmup", "final"), [(1000, 0.01, 0.02), (50, 0.2, 0.0), (40, 0.0, 1.0)])
def test_schedule_warms_up_and_falls_in_straight_lines(steps: int, warmup: float, final: float) -> None:
    config = Optimizer(learning_rate=2e-5, warmup=warmup, final=final)
    rate = schedule(config, steps)
    expected = [expected_rate(config, steps, count) for count in range(steps)]
    np.testing.assert_allclose([rate(count) for count in range(steps)], expected, rtol=1e-5, atol=1e-11)


def test_corners_of_the_schedule_of_art() -> None:
    """The paper's settings: 1% warm-up, the peak at its end, 2% of the peak at the last step and after it."""
    rate = schedule(Optimizer(), 1000)
    np.testing.assert_allclose([rate(0), rate(9), rate(999), rate(2000)], [2e-6, 2e-5, 4e-7, 4e-7], rtol=1e-4)
    assert float(rate(8)) < float(rate(9)) > float(rate(10))
    np.testing.assert_allclose(schedule(Optimizer(), 1)(0), 2e-5, rtol=1e-6)  # A run of one step moves.


SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "query": {"kernel": (2, 4, 4), "bias": (2, 4)},
    "attention_norm": {"scale": (2, 4), "bias": (2, 4)},
    "word_embedding": {"table": (9, 4)},
}


def random_tree(rng: np.random.Generator, size: float) -> Any:
    return {
        module: {name: (size * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}
        for module, shapes in SHAPES.items()
    }


def test_twenty_steps_equal_torch() -> None:
    """Gradients of very different norms, so that some steps are clipped and others are not; float32 rounding only."""
    config = Optimizer(learning_rate=1e-2, weight_decay=0.1, clip=1.0, warmup=0.2)
    rng = np.random.default_rng(SEED)
    start = random_tree(rng, 1.0)
    gradients = [random_tree(rng, 10.0 ** rng.uniform(-3, 1)) for _ in range(20)]
    norms = [float(optax.global_norm(gradient)) for gradient in gradients]
    assert min(norms) < config.clip < max(norms)

    optimizer: Any = build(config, 20)
    params, state = start, optimizer.init(start)
    update = jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(gradient, state, params, peak=config.learning_rate)
        params = optax.apply_updates(params, updates)

    theirs = {
        (module, name): torch.nn.Parameter(torch.tensor(value))
        for module, values in start.items()
        for name, value in values.items()
    }
    undecayed = [key for key in theirs if key[1] in ("bias", "scale")]
    reference = torch.optim.AdamW(
        [
            {"params": [theirs[key] for key in theirs if key not in undecayed], "weight_decay": config.weight_decay},
            {"params": [theirs[key] for key in undecayed], "weight_decay": 0.0},
        ],
        betas=(config.b1, config.b2),
        eps=config.eps,
    )
    for count, gradient in enumerate(gradients):
        for group in reference.param_groups:
            group["lr"] = expected_rate(config, 20, count)
        for (module, name), parameter in theirs.items():
            parameter.grad = torch.tensor(gradient[module][name])
        torch.nn.utils.clip_grad_norm_(list(theirs.values()), config.clip)
        reference.step()

    for (module, name), parameter in theirs.items():
        np.testing.assert_allclose(params[module][name], parameter.detach().numpy(), atol=1e-5, err_msg=name)
        assert np.abs(parameter.detach().numpy() - start[module][name]).max() > 1e-2


def test_only_matrices_and_tables_decay() -> None:
    """Without a gradient only the decay moves a parameter: each kernel and table of a dual encoder, and no other."""
    encoder = DualEncoderConfig(
        backbone=dataclasses.replace(
            BertConfig(), vocab_size=5, hidden_size=4, num_hidden_layers=1, intermediate_size=4
        ),
        projection_size=3,
    )
    params = jax.tree.map(lambda x: np.ones(x.shape, np.float32), abstract_params(encoder))
    optimizer: Any = build(Optimizer(weight_decay=0.5, warmup=0.0, final=1.0), 10)
    updates, _ = optimizer.update(jax.tree.map(np.zeros_like, params), optimizer.init(params), params, peak=0.1)
    moved = jax.tree.map(lambda update: float(np.abs(update).max()), updates)
    flat = {jax.tree_util.keystr(path, simple=True, separator="."): value for path, value in leaves(moved)}
    for name, value in flat.items():
        decayed = name.endswith((".kernel", ".table"))
        assert decayed or name.endswith((".bias", ".scale")), name
        np.testing.assert_allclose(value, 0.05 if decayed else 0.0, rtol=1e-5, err_msg=name)
    assert {value for _, value in leaves(decays(params))} == {True, False}


def leaves(tree: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_flatten_with_path(tree)[0]
