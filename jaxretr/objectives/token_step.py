"""The training step of language models: the mean over all tokens of the global batch, one reduction."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxretr.models.layers import Params
from jaxretr.parallel.mesh import DATA
from jaxretr.state import TrainState

SumLoss = Callable[[Params, Any], tuple[jax.Array, jax.Array]]
"""(params, batch) -> (sum of the tokens' losses, number of tokens), float32 scalars."""


def masked_sum(losses: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum and count of the positions whose weight is 1; losses and weights float32 of one shape."""
    return (losses * weights).sum(), weights.sum()


def make_token_step(loss: SumLoss, optimizer: optax.GradientTransformation, mesh: Mesh) -> Callable[..., Any]:
    """Builds step(state, batch) -> (state, metrics); the batch is split over the devices, `state` is donated.

    Every token of the global batch counts the same, whichever device it is on: sums are reduced, not means.
    """

    @partial(jax.jit, donate_argnums=0)
    @partial(jax.shard_map, mesh=mesh, axis_names={DATA}, in_specs=(P(), P(DATA)), out_specs=(P(), P()))
    def step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        params = jax.tree.map(lambda x: lax.pcast(x, DATA, to="varying"), state.params)
        (total, count), gradients = jax.value_and_grad(lambda p: loss(p, batch), has_aux=True)(params)
        gradients, total, count = lax.psum((gradients, total, count), DATA)
        gradients = jax.tree.map(lambda g: g / count, gradients)
        metrics = {"loss": total / count, "gradient_norm": optax.global_norm(gradients)}
        return state.apply_gradients(gradients, optimizer), metrics

    return step


def make_token_loss(loss: SumLoss, mesh: Mesh) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Builds evaluate(params, batch) -> (sum, count) over the global batch."""

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, axis_names={DATA}, in_specs=(P(), P(DATA)), out_specs=(P(), P()))
    def evaluate(params: Params, batch: Any) -> tuple[jax.Array, jax.Array]:
        total, count = loss(params, batch)
        return lax.psum((jnp.asarray(total), jnp.asarray(count)), DATA)

    return evaluate
