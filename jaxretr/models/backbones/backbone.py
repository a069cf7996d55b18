"""The encoder of a tower, of any architecture: token ids and lengths to a state for each token."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.config import AdapterShape
from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.bert import BertEncoder
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.encoder import Encoder
from jaxretr.models.backbones.layers import Params, define
from jaxretr.models.backbones.rotary import RotaryEncoder
from jaxretr.models.backbones.rotary_config import RotaryConfig
from jaxretr.models.backbones.t5_encoder import T5Encoder
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig

ENCODERS: dict[type[Backbone], type[Encoder]] = {
    BertConfig: BertEncoder,
    RotaryConfig: RotaryEncoder,
    T5EncoderConfig: T5Encoder,
}
"""Encoders by the classes of their shapes."""


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
    return ENCODERS[type(backbone)](backbone, **settings)


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
      backbone: shape of the encoder.
      params: parameters of the encoder, those of its adapters under "adapter"; for a program without a backward pass
        the layers may be unstacked.
      tokens: token ids, any integer type [B, L], padded on the right or packed, see packed_rows.py.
      lengths: number of real tokens of each row, int32 [B], or of each text of packed rows, int32 [B, M].
      dtype: type of the matmuls' operands.
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
    return nnx.merge(_graph(backbone, adapter, jnp.dtype(dtype).name, stacked), params)


@cache
def _graph(backbone: Backbone, adapter: AdapterShape | None, dtype: str, stacked: bool) -> Any:
    def make(rngs: nnx.Rngs) -> nnx.Module:
        return make_backbone(backbone, adapter=adapter, dtype=jnp.dtype(dtype), stacked=stacked, rngs=rngs)

    return define(make)[0]
