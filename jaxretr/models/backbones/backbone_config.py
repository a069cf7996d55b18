"""The shapes that a tower's encoder can have; backbone.py makes the encoders."""

from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.own import EncoderShape, shape_named
from jaxretr.models.backbones.rotary_config import RotaryConfig
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig

Backbone = BertConfig | RotaryConfig | T5EncoderConfig | EncoderShape

BACKBONE = "bert"
"""Branch of a tower's parameters that holds the encoder of any architecture: the name that the first folders and
checkpoints have, when all encoders were BERT."""

KINDS: dict[str, type[Backbone]] = {"bert": BertConfig, "rotary": RotaryConfig, "t5": T5EncoderConfig}
"""Names of the library's shapes in our own folders."""

OWN = "own:"
"""Beginning of the names of the user's shapes in our own folders."""

TRAINING_ONLY = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
"""Settings of every shape that do not affect the results of trained weights."""


def kind_of(backbone: Backbone) -> str:
    """Return the name of a shape's class in our own folders."""
    if isinstance(backbone, EncoderShape):
        return f"{OWN}{backbone.architecture_name}"
    return next(name for name, cls in KINDS.items() if type(backbone) is cls)


def shape_class(kind: str) -> type[Backbone] | None:
    """Return the class of the shapes that have this name in our own folders; None where there is none."""
    return shape_named(kind.removeprefix(OWN)) if kind.startswith(OWN) else KINDS.get(kind)
