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

from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.partition import join
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.runtime.parallel.programs import device_jit
from jaxretr.runtime.parallel.sharding import PARAMETERS_OR_STATE, compiled_over_data
from jaxretr.runtime.parallel.split_parameters import global_norm, reduced, varying
from jaxretr.training.state import TrainState
from jaxretr.training.steps.chunks import largest_divisor, zeros_placed_like

SumLoss = Callable[[Params, Any, jax.Array | None], tuple[jax.Array, jax.Array]]
"""Function (all parameters, batch, PRNG keys of its rows' dropout or None) -> (sum of the tokens' losses, number of
tokens), float32 scalars."""


def make_token_step(
    loss: SumLoss,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    chunk: int | None = None,
    dropout: bool = False,
) -> Callable[..., Any]:
    """Build step(state, batch) -> (state, metrics); the batch is split over the devices, `state` is donated.

    Every token of the global batch counts the same, whichever device it is on: sums are reduced, not means.

    Args:
      loss: loss of any rows of a batch.
      optimizer: applied to `state.params`.
      chunk: number of rows that a device takes at once, summing the gradients over the chunks: memory, not mathematics.
        None: all of them.
      dropout: whether the loss is given each row's PRNG key, by the state's key and the row's place in the batch.
    """

    @compiled_over_data(mesh, (P(DATA),), (PARAMETERS_OR_STATE, P()), donate=(0,))
    def step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        params = varying(state.params)
        rows = len(jax.tree.leaves(batch)[0])
        keys = _row_keys(state.key, rows) if dropout else None

        def gradient(part: Any, keys: jax.Array | None) -> Any:
            (total, count), gradients = jax.value_and_grad(
                lambda p: loss(join(p, state.frozen), part, keys), has_aux=True
            )(params)
            return gradients, total, count

        size = rows if chunk is None else _chunk_rows(rows, chunk)
        if size == rows:
            gradients, total, count = gradient(batch, keys)
        else:
            # Chunks of one size in a loop, whose sums are added up; a smaller last chunk comes after it.
            in_chunks = rows // size * size
            parts = jax.tree.map(lambda x: x[:in_chunks].reshape(-1, size, *x.shape[1:]), (batch, keys))
            none = lax.pcast(jnp.zeros(()), DATA, to="varying")
            start = (jax.tree.map(zeros_placed_like, params), none, none)
            sums = lax.scan(lambda sums, part: (jax.tree.map(jnp.add, sums, gradient(*part)), None), start, parts)[0]
            if in_chunks < rows:
                rest = jax.tree.map(lambda x: x[in_chunks:], (batch, keys))
                sums = jax.tree.map(jnp.add, sums, gradient(*rest))
            gradients, total, count = sums
        gradients, (total, count) = reduced(gradients, state.params, state.opt_state, (total, count))
        # A small batch may have nothing to predict: then there is no gradient, instead of 0 / 0.
        count = jnp.maximum(count, 1.0)
        gradients = jax.tree.map(lambda g: g / count, gradients)
        metrics = {"loss": total / count, "gradient_norm": global_norm(gradients)}
        return state.apply_gradients(gradients, optimizer), metrics

    return step


def _chunk_rows(rows: int, limit: int) -> int:
    """Return the rows per chunk: a divisor if one is near the limit, as a smaller last chunk is compiled once more."""
    limit = max(1, min(limit, rows))
    divisor = largest_divisor(rows, limit)
    return divisor if 2 * divisor >= limit else limit


def _row_keys(key: jax.Array, rows: int) -> jax.Array:
    """Return a PRNG key for each of this device's rows, by its place in the global batch; [rows]."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, lax.axis_index(DATA) * rows + jnp.arange(rows))


def make_token_loss(loss: SumLoss, mesh: Mesh) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Build evaluate(params, batch) -> (sum, count) over the global batch, dropout off."""

    @device_jit
    @partial(jax.shard_map, mesh=mesh, axis_names={DATA}, in_specs=(P(), P(DATA)), out_specs=(P(), P()))
    def evaluate(params: Params, batch: Any) -> tuple[jax.Array, jax.Array]:
        total, count = loss(params, batch, None)
        return lax.psum((jnp.asarray(total), jnp.asarray(count)), DATA)

    return evaluate
