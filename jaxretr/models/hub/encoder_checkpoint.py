"""The content of an encoder's checkpoint, for any architecture."""

from dataclasses import dataclass
from typing import Literal

from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.bert_config import BertArchitecture
from jaxretr.models.backbones.layers import ACTIVATIONS, Params
from jaxretr.models.backbones.rotary_config import RotaryArchitecture

Kind = BertArchitecture | RotaryArchitecture | Literal["dpr-question", "dpr-context", "megatron", "t5"]

ACTIVATION_NAMES = {name: name for name in ACTIVATIONS} | {"gelu_python": "gelu", "gelu_pytorch_tanh": "gelu_new"}
"""Our names of activations by Hugging Face's."""


@dataclass(frozen=True)
class EncoderCheckpoint:
    """Everything that was read from an encoder's checkpoint.

    Attributes:
      config: shape of the encoder.
      params: parameters of the encoder, nested dict of float32 numpy arrays.
      projection: DPR's linear layer on the [CLS] state, {"kernel": [D, P], "bias": [P]}, or None.
      mlm_head: head of masked language modelling, {"dense": {"kernel": [D, D], "bias": [D]}, "norm": {"scale": [D],
        "bias": [D]}, "bias": [V]}, whose decoder is the word embedding; without the biases that the architecture lacks;
        or None.
      kind: kind of the checkpoint.
    """

    config: Backbone
    params: Params
    projection: Params | None
    mlm_head: Params | None
    kind: Kind
