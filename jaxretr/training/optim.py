"""The optimizer: AdamW or another of optax's, its learning-rate schedule, the parameters that decay, and averaged weights."""

import dataclasses
import inspect
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from jaxretr.config import Optimizer
from jaxretr.config.run import ELEMENTWISE
from jaxretr.models.backbones.layers import Params
from jaxretr.runtime.errors import UsageError, UserError, reason
from jaxretr.runtime.own_parts import is_own, own_part
from jaxretr.runtime.parallel.sharding import dotted
from jaxretr.runtime.parallel.split_parameters import OfWhole, global_norm
from jaxretr.training.state import TrainState


def schedule(config: Optimizer, steps: int) -> optax.Schedule:
    """Return the learning rate of every step: a linear warm-up to the peak, then a fall to `final` of it at the last step.

    Args:
      config: peak, warm-up share, form and beginning of the fall, final share.

    Returns:
      A function from the number of finished steps to the next step's learning rate. The first step already has a rate
      above 0: with W warm-up steps it is peak / W.

    Raises:
      UsageError: a schedule of the user's that is not found.
    """
    warmup = max(1, round(config.warmup * steps))
    if is_own(config.schedule):
        share = own_part(config.schedule, "optimizer.schedule")
        found = jax.eval_shape(lambda step: share(step, steps), jax.ShapeDtypeStruct((), "int32"))
        if getattr(found, "shape", None) != ():
            raise UsageError(f"optimizer.schedule={config.schedule}: must return one number; fix the function")
        return lambda count: config.learning_rate * jnp.minimum((count + 1) / warmup, 1.0) * share(count + 1, steps)
    end = config.final * config.learning_rate
    start = warmup if config.decay is None else max(warmup, steps - round(config.decay * steps))

    def rate(count: Any) -> Any:
        number = count + 1
        rising = config.learning_rate * number / warmup
        left = jnp.clip((steps - number) / max(1, steps - start), 0.0, 1.0)
        if config.schedule == "cosine":
            left = (1 - jnp.cos(jnp.pi * left)) / 2
        falling = end + (config.learning_rate - end) * left
        if config.decay is not None:
            falling = jnp.where(number <= start, config.learning_rate, falling)
        return jnp.where(number <= warmup, rising, falling)

    return rate


def decays(params: Params) -> Params:
    """Return True for each parameter that weight decay applies to: not biases, LayerNorms, a joint run's weight and query weights."""

    def one(path: tuple[Any, ...], _: Any) -> bool:
        return path[-1].key not in ("bias", "scale", "weight", "query_weights")

    return jax.tree_util.tree_map_with_path(one, params)


def clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """`optax.clip_by_global_norm`, also for a gradient that is split over devices: the norm is the whole one's."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        norm = global_norm(updates)
        small = jax.numpy.squeeze(norm < limit)
        return jax.tree.map(lambda x: jax.lax.select(small, x, (x / norm.astype(x.dtype)) * limit), updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def build(config: Optimizer, steps: int) -> optax.GradientTransformation:
    """Return the optimizer: clipping by the global norm, then AdamW, or another, with decoupled weight decay.

    Its `update` takes the peak learning rate, a scalar `peak`: runs of other rates share a compiled step.

    Args:
      config: the optimizer and its arguments, rates, decay, clipping, averaging.

    Raises:
      UsageError: an argument that the optimizer does not have, or a function of the user's that is not found.
    """
    share, arguments = schedule(dataclasses.replace(config, learning_rate=1.0), steps), _arguments(config)
    parts = [clip_by_global_norm(config.clip)]
    if config.name == "adamw":
        last = _made(
            config,
            optax.adamw,
            learning_rate=share,
            b1=config.b1,
            b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            mask=decays,
            **arguments,
        )
    else:
        # The direction, at a rate of 1; then what all have in common.
        parts += [
            _made(config, _maker(config.name), learning_rate=1.0, **arguments),
            optax.add_decayed_weights(-config.weight_decay, decays),
        ]
        last = optax.scale_by_schedule(share)
    parts.append(_at_peak(last))
    if config.rates:
        parts.append(scale_by_name(config.rates))
    if config.ema:
        parts.append(averaging(config.ema))
    optimizer = optax.chain(*parts)
    return optimizer if config.name in ELEMENTWISE else _on_whole_matrices(optimizer)


# ---- other optimizers ------------------------------------------------------------------------------------------------


def _arguments(config: Optimizer) -> dict[str, Any]:
    """Return the values of `optimizer.arguments`: numbers, true, false and null as JSON has them, else texts."""
    found: dict[str, Any] = {}
    for word in config.arguments:
        name, _, text = word.partition("=")
        if name in ("learning_rate", "weight_decay") or (config.name == "adamw" and name in ("b1", "b2", "eps")):
            raise UsageError(f"optimizer.arguments={word}: set optimizer.{name}")
        if name in found:
            raise UsageError(f"optimizer.arguments={word}: given twice; give it once")
        try:
            found[name] = json.loads(text)
        except ValueError:
            default = getattr(inspect.signature(_function(config.name)).parameters.get(name), "default", None)
            if isinstance(default, bool | int | float):
                raise UsageError(
                    f"optimizer.arguments={word}: is a text, and {name} is {json.dumps(default)} by default; give a number, true "
                    "or false, as JSON has them"
                ) from None
            found[name] = text
    return found


def _function(name: str) -> Callable[..., optax.GradientTransformation]:
    return own_part(name, "optimizer.name") if is_own(name) else getattr(optax, name, None) or getattr(contrib, name)


def _maker(name: str) -> Callable[..., optax.GradientTransformation]:
    make = _function(name)
    settings: dict[str, Any] = {}
    if "weight_decay" in inspect.signature(make).parameters:
        settings["weight_decay"] = 0.0  # `build` adds it.
    if name == "muon":
        settings["muon_weight_dimension_numbers"] = _matrices
    return lambda **arguments: make(**{**settings, **arguments})


def _matrices(params: Params) -> Any:
    """Return Muon's axes of each kernel, of which a stack of layers has one each; None for tables, biases and scales."""

    def one(path: tuple[Any, ...], x: Any) -> Any:
        return contrib.MuonDimensionNumbers(x.ndim - 2, x.ndim - 1) if path[-1].key == "kernel" else None

    return jax.tree_util.tree_map_with_path(one, params)


def _made(config: Optimizer, make: Callable[..., Any], **arguments: Any) -> optax.GradientTransformation:
    given = " ".join(config.arguments) or "none"
    try:
        made = make(**arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"optimizer.name={config.name}: {error}; optimizer.arguments are {given}") from error
    if not isinstance(made, optax.GradientTransformation):
        raise UsageError(
            f"optimizer.name={config.name}: returned a {type(made).__name__}; return an optax.GradientTransformation"
        )

    def init(params: Any) -> Any:
        try:
            # A number in the state, which optax allows, would not be saved.
            state = jax.tree.map(jnp.asarray, made.init(params))
            updates, _ = jax.eval_shape(made.update, params, state, params)
        except UserError:
            raise
        except Exception as error:  # The optimizer may be the user's, and an argument of any type.
            raise UsageError(
                f"optimizer.name={config.name}: {type(error).__name__}: {reason(error)}; optimizer.arguments are {given}"
            ) from error
        of_params, of_updates = (jax.tree.map(lambda x: x.shape, tree) for tree in (params, updates))
        if of_params != of_updates:
            raise UsageError(
                f"optimizer.name={config.name}: its updates have other shapes than the parameters; return one like each"
            )
        return state

    return made._replace(init=init)


def _at_peak(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return a transformation whose updates are multiplied by the peak learning rate, which `update` is given."""

    def update(updates: Any, state: Any, params: Any = None, **more: Any) -> tuple[Any, Any]:
        updates, state = inner.update(updates, state, params)
        return jax.tree.map(lambda x: (more["peak"] * x).astype(x.dtype), updates), state

    return optax.GradientTransformationExtraArgs(inner.init, update)


def _on_whole_matrices(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return an optimizer whose state every device holds whole, so that it gets whole gradients."""

    def update(updates: Any, state: Any, params: Any = None, **more: Any) -> tuple[Any, Any]:
        updates, inside = optax.with_extra_args_support(inner).update(updates, state.of_whole, params, **more)
        return updates, OfWhole(inside)

    return optax.GradientTransformationExtraArgs(lambda params: OfWhole(inner.init(params)), update)


def scale_by_name(rates: tuple[str, ...]) -> optax.GradientTransformation:
    """Return a transformation that multiplies the updates of parameters by the factors of `Optimizer.rates`."""
    factors = [(pattern, float(factor)) for pattern, _, factor in (word.rpartition("=") for word in rates)]

    def factor_of(path: tuple[Any, ...]) -> float:
        return next((factor for pattern, factor in reversed(factors) if re.search(pattern, dotted(path))), 1.0)

    def init(params: Any) -> Any:
        names = [dotted(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        for pattern, _ in factors:
            if not any(re.search(pattern, name) for name in names):
                raise UsageError(
                    f"optimizer.rates: no trained parameter's name has {pattern}; they are {', '.join(names)}"
                )
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return jax.tree_util.tree_map_with_path(lambda path, x: factor_of(path) * x, updates), state

    return optax.GradientTransformation(init, update)


# ---- averaged weights ------------------------------------------------------------------------------------------------


class Averages(NamedTuple):
    """Exponential moving averages of the trained parameters, in an optimizer's state."""

    average: Params


def averaging(decay: float) -> optax.GradientTransformation:
    """Return a transformation that keeps d a + (1 - d) w of the weights w after each update, from the first weights on."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        new = optax.apply_updates(params, updates)
        return updates, Averages(jax.tree.map(lambda a, w: decay * a + (1 - decay) * w, state.average, new))

    return optax.GradientTransformation(lambda params: Averages(jax.tree.map(jnp.array, params)), update)


def with_averages(state: Any) -> Any:
    """Return a run's state with the averaged weights, where the optimizer keeps some, placed as the weights are.

    It has no live index then: that one's embeddings are of the weights that train.
    """
    train = getattr(state, "train", state)
    if not isinstance(train, TrainState):
        return state
    leaves = jax.tree.leaves(train.opt_state, is_leaf=lambda x: isinstance(x, Averages))
    found = next((each for each in leaves if isinstance(each, Averages)), None)
    if found is None:
        return state
    places = jax.tree.map(lambda x: x.sharding, train.params)
    averaged = dataclasses.replace(train, params=jax.jit(lambda x: x, out_shardings=places)(found.average))
    return averaged if train is state else state._replace(train=averaged, index=None)
