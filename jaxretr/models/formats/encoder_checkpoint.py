"""What is read from a checkpoint of an encoder, of any architecture."""

from dataclasses import dataclass
from typing import Literal

from jaxretr.models.backbone_config import Backbone
from jaxretr.models.bert_config import BertArchitecture
from jaxretr.models.layers import ACTIVATIONS, Params
from jaxretr.models.rotary_config import RotaryArchitecture

Kind = BertArchitecture | RotaryArchitecture | Literal["dpr-question", "dpr-context", "megatron", "t5"]

ACTIVATION_NAMES = {name: name for name in ACTIVATIONS} | {"gelu_python": "gelu", "gelu_pytorch_tanh": "gelu_new"}
"""Hugging Face's names of activations, and ours."""


@dataclass(frozen=True)
class EncoderCheckpoint:
    """All that was read from an encoder's checkpoint.

    Attributes:
      config: the encoder's shape.
      params: the encoder's parameters, nested dict of float32 numpy arrays.
      projection: DPR's linear layer on the [CLS] state, {"kernel": [D, P], "bias": [P]}, or None.
      mlm_head: {"dense": {"kernel": [D, D], "bias": [D]}, "norm": {"scale": [D], "bias": [D]}, "bias": [V]} of masked
        language modelling, whose decoder is the word embedding; without the biases that the architecture lacks; or None.
      kind: what it is.
    """

    config: Backbone
    params: Params
    projection: Params | None
    mlm_head: Params | None
    kind: Kind
