"""What the parity tests of encoders share: models of transformers with random weights, one batch, and our run of it."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from peers import torch

from jaxretr.models.backbones.backbone import make_backbone
from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.layers import define
from jaxretr.models.hub.architecture import EncoderCheckpoint
from jaxretr.models.hub.encoder_params import read_checkpoint

SEED = 11
VOCABULARY, WIDTH, LENGTH = 37, 16, 24
LENGTHS = np.array([LENGTH, 7, 1], np.int32)  # Padded rows, down to a single token.

_rng = np.random.default_rng(SEED)
TOKENS = _rng.integers(1, VOCABULARY, (3, LENGTH))
REAL = np.arange(LENGTH) < LENGTHS[:, None]
WEIGHTS = _rng.normal(size=(3, LENGTH, WIDTH)).astype(np.float32) / 8 * REAL[..., None]
BATCH = TOKENS, REAL, WEIGHTS
"""Token ids [B, L], which positions are real [B, L], and the weights [B, L, D] of a random linear functional."""


@dataclass
class Case:
    """A model of transformers with random weights, its folder, and what our import made of it."""

    theirs: Any
    folder: Path
    ours: EncoderCheckpoint


def randomised(model: Any) -> Any:
    """The model with every parameter drawn at random, norms and biases too: at their initial 0 and 1 a swapped one would
    not show."""
    generator = torch.Generator().manual_seed(SEED)
    for parameter in model.parameters():
        parameter.data += 0.25 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def case_of(theirs: Any, folder: Path) -> Case:
    """Saves a model in the folder, and imports that."""
    theirs.save_pretrained(folder)
    return Case(theirs, folder, read_checkpoint(folder))


@partial(jax.jit, static_argnums=(0, 1))
def run(config: Backbone, dtype: str, params: Any, tokens: Any, weights: Any) -> tuple[Any, Any]:
    """Hidden states, and the gradient of sum(weights * states) with respect to every parameter."""
    graph, _ = define(lambda rngs: make_backbone(config, dtype=jnp.dtype(dtype), rngs=rngs))

    def functional(params: Any) -> tuple[Any, Any]:
        states = nnx.merge(graph, params)(tokens, LENGTHS)
        return (states * weights).sum(), states

    gradients, states = jax.grad(functional, has_aux=True)(params)
    return states, gradients


def states_of(case: Case, dtype: str = "float32", tokens: np.ndarray = TOKENS) -> np.ndarray:
    """Our hidden states of the batch, float32 [B, L, D]."""
    return np.asarray(run(case.ours.config, dtype, case.ours.params, tokens, WEIGHTS)[0])


def by_transformers(model: Any, tokens: np.ndarray, real: np.ndarray) -> Any:
    """Hidden states by transformers."""
    return model(input_ids=torch.tensor(tokens), attention_mask=torch.tensor(real.astype(int))).last_hidden_state


def check_padding(case: Case) -> None:
    """What is in padding does not reach real positions, not by a bit."""
    other = np.where(REAL, TOKENS, (TOKENS + 5) % VOCABULARY)
    np.testing.assert_array_equal(states_of(case)[REAL], states_of(case, tokens=other)[REAL])


def check_bfloat16(case: Case) -> None:
    """Operands of 8 bits: each product is off by up to 2 ** -8, and the sums of a few layers by some percent."""
    exact, rounded = (states_of(case, dtype)[REAL] for dtype in ("float32", "bfloat16"))
    error = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
    assert 1e-5 < error < 0.05


def check_states_and_loss(case: Case) -> Any:
    """Our states equal theirs; their gradients have been taken when this returns, ours are what it returns."""
    states, gradients = run(case.ours.config, "float32", case.ours.params, TOKENS, WEIGHTS)
    case.theirs.zero_grad()
    expected = by_transformers(case.theirs, TOKENS, REAL)
    assert expected.detach()[torch.tensor(REAL)].abs().max() > 0.5  # Not trivially equal.
    np.testing.assert_allclose(np.asarray(states)[REAL], expected.detach().numpy()[REAL], atol=1e-5, rtol=1e-5)
    (expected * torch.tensor(WEIGHTS)).sum().backward()
    return jax.device_get(gradients)


def check_gradient(ours: np.ndarray, expected: np.ndarray, name: str) -> None:
    """To 1e-4, of the largest entry where that is above 1."""
    atol = 1e-4 * max(np.abs(expected).max(), 1)
    np.testing.assert_allclose(ours, expected, atol=atol, rtol=1e-4, err_msg=name)
