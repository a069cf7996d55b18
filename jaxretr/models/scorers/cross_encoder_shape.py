"""The shape of a cross-encoder."""

from dataclasses import dataclass, field
from typing import Literal

from jaxretr.config import Pooling
from jaxretr.models.backbone_config import Backbone


@dataclass(frozen=True)
class HeadShape:
    """What makes one score of the encoder's states: pooling, a dense layer that may be missing, and a linear one."""

    pooling: Pooling = "cls"
    dense: bool = True
    """A dense layer as wide as the encoder before the last one."""
    activation: Literal["tanh", "gelu", "gelu_new", "relu", "silu"] = "tanh"
    """Behind that layer."""
    dense_bias: bool = True
    norm_eps: float | None = None
    """A LayerNorm behind the activation (ModernBERT); None: there is none."""
    norm_bias: bool = False
    out_bias: bool = True
    """Of the last layer; decoders' heads have none."""
    pad_token_id: int | None = None
    """Decoders': the last token is the last one that is not this, also where a text or the tokenizer ends with it."""


@dataclass(frozen=True)
class CrossEncoderConfig:
    """A cross-encoder, apart from its weights and its tokenizer."""

    backbone: Backbone
    """The shape of the encoder."""
    head: HeadShape = field(default_factory=HeadShape)
