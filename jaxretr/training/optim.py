"""The optimizer: AdamW, its learning-rate schedule, and the parameters that decay."""

from typing import Any

import jax
import optax

from jaxretr.config import Optimizer
from jaxretr.models.backbones.layers import Params
from jaxretr.runtime.parallel.split_parameters import global_norm


def schedule(config: Optimizer, steps: int) -> optax.Schedule:
    """Return a linear warm-up to the peak, then linear decay to `final` of it at the last step.

    Args:
      config: peak, warm-up share and final share.
      steps: length of the run.

    Returns:
      A function from the number of finished steps to the next step's learning rate. The first step already has a rate
      above 0: with W warm-up steps it is peak / W.
    """
    warmup = max(1, round(config.warmup * steps))
    end = config.final * config.learning_rate

    def rate(count: Any) -> Any:
        number = count + 1
        rising = config.learning_rate * number / warmup
        left = (steps - number) / max(1, steps - warmup)
        falling = end + (config.learning_rate - end) * jax.numpy.clip(left, 0.0, 1.0)
        return jax.numpy.where(number <= warmup, rising, falling)

    return rate


def decays(params: Params) -> Params:
    """Return True for each parameter that weight decay applies to: not biases, LayerNorms and a joint run's weight."""

    def one(path: tuple[Any, ...], _: Any) -> bool:
        return path[-1].key not in ("bias", "scale", "weight")

    return jax.tree_util.tree_map_with_path(one, params)


def clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """`optax.clip_by_global_norm`, also for a gradient that is split over devices: the norm is the whole one's."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        norm = global_norm(updates)
        small = jax.numpy.squeeze(norm < limit)
        return jax.tree.map(lambda x: jax.lax.select(small, x, (x / norm.astype(x.dtype)) * limit), updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def build(config: Optimizer, steps: int) -> optax.GradientTransformation:
    """Return the optimizer: clipping by the global norm, then AdamW with decoupled weight decay.

    Args:
      config: rates, decay, clipping.
      steps: length of the run.
    """
    return optax.chain(
        clip_by_global_norm(config.clip),
        optax.adamw(
            schedule(config, steps),
            b1=config.b1,
            b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            mask=decays,
        ),
    )
