"""The shape of a cross-encoder."""

from dataclasses import dataclass, field
from typing import Literal

from jaxretr.config import Pooling
from jaxretr.models.backbones.backbone_config import Backbone


@dataclass(frozen=True)
class HeadShape:
    """Shape of the layers from the encoder's states to one score: pooling, an optional dense layer, a linear one."""

    pooling: Pooling = "cls"
    dense: bool = True
    """Whether there is a dense layer as wide as the encoder before the last one."""
    activation: Literal["tanh", "gelu", "gelu_new", "relu", "silu"] = "tanh"
    """Activation after that layer."""
    dense_bias: bool = True
    norm_eps: float | None = None
    """eps of a LayerNorm after the activation (ModernBERT); None: there is none."""
    norm_bias: bool = False
    out_bias: bool = True
    """Whether the last layer has a bias; decoders' heads have none."""
    pad_token_id: int | None = None
    """Id of a decoder's padding token; the last token is the last one with another id, also if a text or the tokenizer
    ends with this one."""


@dataclass(frozen=True)
class CrossEncoderConfig:
    """A cross-encoder, without its weights and its tokenizer."""

    backbone: Backbone
    """Shape of the encoder."""
    head: HeadShape = field(default_factory=HeadShape)
