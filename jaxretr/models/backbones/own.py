"""An encoder of the user's own: a shape and a flax module that are registered under a name."""

import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.models.backbones.packed_rows import are_packed
from jaxretr.runtime.errors import UsageError, UserError, reason
from jaxretr.runtime.own_parts import add_value

ENTRY_POINTS = "jaxretr.encoders"
"""Group of the entry points of installed packages that register encoders."""


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    """The base of the shapes of own encoders: frozen dataclasses whose further fields are JSON values.

    Attributes:
      vocab_size: number of token ids that the module can read.
      hidden_size: D, the size of its states.
      max_position_embeddings: longest row that it can read.
      hidden_dropout_prob, attention_probs_dropout_prob: `encoder.dropout` in a training, for the module to apply.
      initializer_range: standard deviation of the fresh kernels of a projection after the pooling.
    """

    vocab_size: int
    hidden_size: int
    max_position_embeddings: int = 512
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    initializer_range: float = 0.02

    causal: ClassVar[bool] = False
    num_hidden_layers: ClassVar[int] = 0
    """Layers that adapters can be put into: none."""

    def __post_init__(self) -> None:
        """Raise UserError for sizes that no encoder has."""
        for name in ("vocab_size", "hidden_size", "max_position_embeddings"):
            if getattr(self, name) < 1:
                raise UserError(f"{type(self).__name__}: {name} is {getattr(self, name)}; it must be at least 1")

    @property
    def architecture_name(self) -> str:
        """Name under which the shape is registered; UsageError for one that is not."""
        for name, cls in SHAPES.items():
            if cls is type(self):
                return name
        raise UsageError(f"{type(self).__name__}: is not registered; call jaxretr.register_encoder first")

    @property
    def widest(self) -> int:
        """Width of the widest layer that is known."""
        return self.hidden_size

    def dense_sizes(self) -> dict[str, tuple[int, int]]:
        """Dense layers that LoRA can adapt: none."""
        return {}

    def sizes(self) -> dict[str, int]:
        """Lengths of the parameters' axes that cannot be 0, by name."""
        return {"hidden_size": self.hidden_size}


SHAPES: dict[str, type[EncoderShape]] = {}
MODULES: dict[type[EncoderShape], Callable[..., nnx.Module]] = {}
"""Shapes by name and modules by shape, from `register_encoder`."""


def shape_named(name: str) -> type[EncoderShape] | None:
    """Return the shape that is registered under a name, by this process or by an installed package; None if there is none."""
    if name not in SHAPES:
        for entry in importlib.metadata.entry_points(group=ENTRY_POINTS, name=name):
            try:
                entry.load()
            except Exception as error:  # The package's own.
                raise UserError(
                    f"{name}: {entry.value} cannot be imported ({reason(error)}); repair or remove its package"
                ) from error
    return SHAPES.get(name)


def source_of(shape: Any) -> dict[str, str]:
    """Return {"own encoder": a digest of the source of its module and of what that derives from}; {} of any other shape."""
    if not isinstance(shape, EncoderShape):
        return {}
    module, found = MODULES[type(shape)], hashlib.sha256()
    if isinstance(module, functools.partial):
        add_value(found, [module.args, module.keywords])
        module = module.func
    if not isinstance(module, type):
        add_value(found, module)
        return {"own encoder": found.hexdigest()}
    for part in module.__mro__:
        if part.__module__.partition(".")[0] not in ("flax", "builtins"):
            found.update(part.__qualname__.encode())
            with contextlib.suppress(OSError, TypeError):  # Typed into an interpreter.
                found.update(inspect.getsource(part).encode())
    return {"own encoder": found.hexdigest()}


class OwnEncoder(nnx.Module):
    """An own module as the encoder of a tower."""

    def __init__(self, config: EncoderShape, *, dtype: Any, rngs: nnx.Rngs, adapter: Any = None, stacked: bool = True):
        name = config.architecture_name
        self.own: Any = MODULES[type(config)](config, dtype=dtype, rngs=rngs)
        others = nnx.to_flat_state(nnx.state(self.own, nnx.Not(nnx.Param)))
        if others:
            names = ", ".join(".".join(map(str, path)) for path, _ in others)
            raise UsageError(
                f"{name}: holds variables that are no parameters ({names}); draw dropout from `keys`, and "
                "keep no other state"
            )
        self.size = config.hidden_size

    def __call__(self, tokens: jax.Array, lengths: jax.Array, keys: jax.Array | None = None, **_: Any) -> jax.Array:
        """Return the module's states, float32 [B, L, D]; `Encoder`'s further arguments do not concern it."""
        if are_packed(lengths):
            raise UsageError(
                "JAXRETR_ENGINE=packed: an encoder of one's own reads padded rows; set it to padded or auto"
            )
        states = self.own(tokens.astype(jnp.int32), lengths, keys)
        if states.shape != (*tokens.shape, self.size):
            raise UsageError(
                f"the encoder returned states of shape {list(states.shape)} for tokens of {list(tokens.shape)} and hidden_size "
                f"{self.size}; return [B, L, hidden_size]"
            )
        return states.astype(jnp.float32)


def named(params: Any) -> Any:
    """Return parameters with texts in place of the numbers that lists of modules have, as files need them."""
    return {str(key): named(value) for key, value in params.items()} if isinstance(params, dict) else params


def numbered(params: Any) -> Any:
    """Return parameters with the numbers that `named` replaced."""
    if not isinstance(params, dict):
        return params
    return {int(key) if str(key).isdecimal() else key: numbered(value) for key, value in params.items()}
