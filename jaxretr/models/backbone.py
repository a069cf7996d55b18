"""The encoder of a tower, whatever its architecture: token ids and lengths to a state for each token."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from jaxretr.config import AdapterShape
from jaxretr.models.backbone_config import Backbone
from jaxretr.models.bert import BertEncoder
from jaxretr.models.bert_config import BertConfig
from jaxretr.models.rotary import RotaryEncoder
from jaxretr.models.rotary_config import RotaryConfig
from jaxretr.models.t5_encoder import T5Encoder


def make_backbone(
    backbone: Backbone,
    *,
    adapter: AdapterShape | None = None,
    dtype: Any = jnp.float32,
    stacked: bool = True,
    rngs: nnx.Rngs,
) -> BertEncoder | RotaryEncoder | T5Encoder:
    """Makes the encoder of a shape; `stacked=False` keeps the layers apart, for programs without a backward pass."""
    settings: dict[str, Any] = {"adapter": adapter, "dtype": dtype, "stacked": stacked, "rngs": rngs}
    if isinstance(backbone, BertConfig):
        return BertEncoder(backbone, **settings)
    if isinstance(backbone, RotaryConfig):
        return RotaryEncoder(backbone, **settings)
    return T5Encoder(backbone, **settings)
