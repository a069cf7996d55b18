"""The encoder of a tower, of any architecture: token ids and lengths to a state for each token."""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.config import AdapterShape
from jaxretr.models.backbones import own
from jaxretr.models.backbones.backbone_config import KINDS, Backbone
from jaxretr.models.backbones.bert import BertEncoder
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.encoder import Encoder
from jaxretr.models.backbones.layers import Params, define, initialise
from jaxretr.models.backbones.own import EncoderShape, OwnEncoder, named, numbered
from jaxretr.models.backbones.rotary import RotaryEncoder
from jaxretr.models.backbones.rotary_config import RotaryConfig
from jaxretr.models.backbones.t5_encoder import T5Encoder
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig
from jaxretr.runtime.errors import UsageError

ENCODERS: dict[type[Backbone], type[Encoder]] = {
    BertConfig: BertEncoder,
    RotaryConfig: RotaryEncoder,
    T5EncoderConfig: T5Encoder,
}
"""Encoders by the classes of their shapes."""


def register_encoder(name: str, shape: type[EncoderShape], module: Callable[..., nnx.Module]) -> None:
    """Make an encoder of one's own known, so that dual encoders can have it, and their folders be read.

    The module is made as module(shape, dtype=..., rngs=...), and called with token ids, int32 [B, L], padded on the right,
    lengths, int32 [B], and keys, one PRNG key a row where dropout is on, otherwise None. It returns states, [B, L, D], of
    which those of padding are ignored. Its variables are parameters alone. `dtype` is the type for its matmuls' operands.
    Every device has all parameters; adapters, packed rows and other libraries' layouts are for the encoders that ship.

    Args:
      name: the name in the folders of models.
      shape: a subclass of `EncoderShape`, a frozen dataclass.
      module: a flax.nnx module, or a function that makes one.

    Raises:
      UsageError: the name is taken, the shape is no such dataclass, or it has another module.
    """
    if not (isinstance(shape, type) and issubclass(shape, EncoderShape) and is_dataclass(shape)):
        raise UsageError(f"register_encoder: {shape!r} is no shape; give a frozen dataclass derived from EncoderShape")
    if name in KINDS or own.SHAPES.get(name, shape).__qualname__ != shape.__qualname__:
        raise UsageError(f"register_encoder: the name {name!r} is taken; give another")
    # Programs are kept by shape.
    if own.MODULES.get(shape, module) is not module:
        raise UsageError(
            f"register_encoder: {shape.__name__} has another module already; define the shape again as well"
        )
    own.SHAPES[name], own.MODULES[shape] = shape, module


def make_backbone(
    backbone: Backbone,
    *,
    adapter: AdapterShape | None = None,
    dtype: Any = jnp.float32,
    stacked: bool = True,
    rngs: nnx.Rngs,
) -> Encoder:
    """Create the encoder of a shape; `stacked=False` keeps the layers apart, for programs without a backward pass."""
    settings: dict[str, Any] = {"adapter": adapter, "dtype": dtype, "stacked": stacked, "rngs": rngs}
    kind: Any = OwnEncoder if isinstance(backbone, EncoderShape) else ENCODERS[type(backbone)]
    return kind(backbone, **settings)


def fresh_params(backbone: Backbone, seed: int) -> Params:
    """Return freshly drawn parameters of an encoder, in a plain dict of float32 arrays whose keys are texts."""
    return named(initialise(lambda rngs: make_backbone(backbone, rngs=rngs), seed))


def token_states(
    backbone: Backbone,
    params: Params,
    tokens: jax.Array,
    lengths: jax.Array,
    *,
    dtype: Any,
    adapter: AdapterShape | None = None,
    keys: jax.Array | None = None,
    **options: Any,
) -> jax.Array:
    """Run an encoder as a pure function; to be traced within `layers.matmuls_in(dtype)`.

    Args:
      params: parameters of the encoder, those of its adapters under "adapter"; for a program without a backward pass
        the layers may be unstacked.
      tokens: token ids, any integer type [B, L], padded on the right or packed, see packed_rows.py.
      lengths: number of real tokens of each row, int32 [B], or of each text of packed rows, int32 [B, M].
      adapter: shape of the adapters that are computed.
      keys: one PRNG key per text, of the lengths' shape, which switches dropout on.
      options: `keep_matmuls`, `words` and `types`, as in `Encoder`.

    Returns:
      float32 [B, L, D].
    """
    return bound_backbone(backbone, params, dtype=dtype, adapter=adapter)(tokens, lengths, keys, **options)


def bound_backbone(backbone: Backbone, params: Params, *, dtype: Any, adapter: AdapterShape | None = None) -> Encoder:
    """Return an encoder with these parameters; see `token_states`."""
    stacked = 0 not in params.get("layers", {})
    params = numbered(params) if isinstance(backbone, EncoderShape) else params
    return nnx.merge(_graph(backbone, adapter, jnp.dtype(dtype).name, stacked), params)


@cache
def _graph(backbone: Backbone, adapter: AdapterShape | None, dtype: str, stacked: bool) -> Any:
    def make(rngs: nnx.Rngs) -> nnx.Module:
        return make_backbone(backbone, adapter=adapter, dtype=jnp.dtype(dtype), stacked=stacked, rngs=rngs)

    return define(make)[0]
