"""Names of classification heads in Hugging Face folders, by the architecture of the encoder below them."""

from dataclasses import dataclass, replace

from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.rotary_config import RotaryConfig
from jaxretr.models.hub.name_table import Row
from jaxretr.models.scorers.cross_encoder_shape import HeadShape


@dataclass(frozen=True)
class HeadNames:
    """The head that transformers puts on an architecture.

    Attributes:
      cls: class in transformers.
      prefix: prefix of the encoder's tensors in that class.
      shape: shape of the head.
      out: name of its last layer.
      dense: name of the dense layer before that, if there is one.
      norm: name of its LayerNorm, if there is one.
    """

    cls: str
    prefix: str
    shape: HeadShape
    out: str
    dense: str = ""
    norm: str = ""

    def rows(self, shape: HeadShape) -> list[Row]:
        """Return the head's table of names."""
        parts = [("out", self.out, shape.out_bias)]
        if shape.dense:
            parts.append(("dense", self.dense, shape.dense_bias))
        rows = []
        for ours, theirs, biased in parts:
            rows.append(Row(f"head/{ours}/kernel", f"{theirs}.weight", True))
            rows += [Row(f"head/{ours}/bias", f"{theirs}.bias")] if biased else []
        if shape.norm_eps is not None:
            rows.append(Row("head/norm/scale", f"{self.norm}.weight"))
            rows += [Row("head/norm/bias", f"{self.norm}.bias")] if shape.norm_bias else []
        return rows


def _with_pooler(cls: str, prefix: str) -> HeadNames:
    """Return the names of BERT's pooler, which the encoder's name precedes, and a linear layer."""
    return HeadNames(cls, prefix, HeadShape(), "classifier", dense=f"{prefix}pooler.dense")


_ROBERTA = HeadNames(
    "RobertaForSequenceClassification", "roberta.", HeadShape(), "classifier.out_proj", dense="classifier.dense"
)

HEADS: dict[str, HeadNames] = {
    "bert": _with_pooler("BertForSequenceClassification", "bert."),
    "megatron": _with_pooler("MegatronBertForSequenceClassification", "bert."),
    "roberta": _ROBERTA,
    "xlm-roberta": replace(_ROBERTA, cls="XLMRobertaForSequenceClassification"),
    "camembert": replace(_ROBERTA, cls="CamembertForSequenceClassification"),
    "mpnet": replace(_ROBERTA, cls="MPNetForSequenceClassification", prefix="mpnet."),
    "distilbert": HeadNames(
        "DistilBertForSequenceClassification",
        "distilbert.",
        HeadShape(activation="relu"),
        "classifier",
        dense="pre_classifier",
    ),
    "modernbert": HeadNames(
        "ModernBertForSequenceClassification",
        "model.",
        HeadShape(activation="gelu", dense_bias=False, norm_eps=1e-5),
        "classifier",
        "head.dense",
        "head.norm",
    ),
    "nomic_bert": _with_pooler("NomicBertForSequenceClassification", "nomic_bert."),
    "gte": _with_pooler("GteForSequenceClassification", "gte."),
    "new": _with_pooler("NewForSequenceClassification", "new."),
    **{
        name: HeadNames(
            f"{cls}ForSequenceClassification",
            "model.",
            HeadShape(pooling="lasttoken", dense=False, out_bias=False),
            "score",
        )
        for name, cls in (
            ("qwen2", "Qwen2"),
            ("qwen3", "Qwen3"),
            ("llama", "Llama"),
            ("mistral", "Mistral"),
            ("gemma3_text", "Gemma3Text"),
        )
    },
}
"""Names of heads by `BertConfig.architecture` and `RotaryConfig.architecture`."""


def head_names(backbone: Backbone) -> HeadNames | None:
    """Return the names of the head that goes on an encoder; None for T5's, which has none."""
    if isinstance(backbone, BertConfig):
        return HEADS["megatron" if backbone.pre_layer_norm else backbone.architecture]
    return HEADS[backbone.architecture] if isinstance(backbone, RotaryConfig) else None


def default_head(backbone: Backbone) -> HeadShape | None:
    """Return the shape of the head that transformers puts on an encoder; None where it has none."""
    names = head_names(backbone)
    if names is None or not isinstance(backbone, RotaryConfig) or names.shape.norm_eps is None:
        return None if names is None else names.shape
    return replace(names.shape, norm_eps=backbone.norm_eps, norm_bias=backbone.norm_bias)
