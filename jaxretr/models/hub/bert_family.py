"""The architectures that have BERT's layers, in Hugging Face folders.

RoBERTa and its kin count positions from `pad_token_id` + 1, so that the first rows of their table belong to no
position; MPNet adds biases of relative positions to it; DistilBERT and MPNet have no token types; the rest is BERT's
layers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from jaxretr.models.backbones.bert_config import BertArchitecture, BertConfig
from jaxretr.models.backbones.layers import Params
from jaxretr.models.hub.architecture import WITH_POOLER, Architecture, DprKind, HeadNames
from jaxretr.models.hub.hf_files import config_fields
from jaxretr.models.hub.name_table import Row
from jaxretr.models.hub.tensor_files import TensorFiles
from jaxretr.models.scorers.cross_encoder_shape import HeadShape
from jaxretr.runtime.errors import UserError

DPR_PREFIXES: dict[str, DprKind] = {
    "question_encoder.bert_model.": "dpr-question",
    "ctx_encoder.bert_model.": "dpr-context",
    "question_model.": "dpr-question",
    "ctx_model.": "dpr-context",
}
"""Prefixes of DPR's encoders in a checkpoint; the first two are Hugging Face's."""
DPR_CLASSES: dict[str, DprKind] = {"DPRQuestionEncoder": "dpr-question", "DPRContextEncoder": "dpr-context"}

_TYPES = ("bert", "dpr", "megatron-bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet")
_ONLY = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}

_WORDS = "embeddings.word_embeddings"
_OUTER = {
    "position_embedding": "embeddings.position_embeddings",
    "type_embedding": "embeddings.token_type_embeddings",
    "relative_positions": "encoder.relative_attention_bias",
    "norm": "embeddings.LayerNorm",
}
_MODULES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_out": "attention.output.dense",
    "ffn_in": "intermediate.dense",
    "ffn_out": "output.dense",
}
_POST_NORMS = {"attention_norm": "attention.output.LayerNorm", "ffn_norm": "output.LayerNorm"}
_SETTINGS = {
    name: (name,)
    for name in (
        *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
        *("max_position_embeddings", "type_vocab_size", "hidden_act", "layer_norm_eps", "hidden_dropout_prob"),
        *("attention_probs_dropout_prob", "initializer_range"),
    )
}
_BERT_HEAD = {
    "mlm_head/dense": "cls.predictions.transform.dense",
    "mlm_head/norm": "cls.predictions.transform.LayerNorm",
    "mlm_head": "cls.predictions",
}
_LM_HEAD = {"mlm_head/dense": "lm_head.dense", "mlm_head/norm": "lm_head.layer_norm", "mlm_head": "lm_head"}
_BERT_DECODER = {
    "cls.predictions.decoder.weight": f"{_WORDS}.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_LM_DECODER = {"lm_head.decoder.weight": f"{_WORDS}.weight", "lm_head.decoder.bias": "lm_head.bias"}
_ROBERTA_HEAD = HeadNames(HeadShape(), "classifier.out_proj", dense="classifier.dense")


@dataclass(frozen=True, kw_only=True)
class BertFamily(Architecture):
    """The record of an architecture with BERT's layers; whatever a record does not state is BERT's."""

    words: str = _WORDS
    outer: Mapping[str, str] = field(default_factory=lambda: _OUTER)
    modules: Mapping[str, str] = field(default_factory=lambda: _MODULES)
    layer: str = "encoder.layer.{}."
    norms: Mapping[str, str] = field(default_factory=lambda: _POST_NORMS)
    mlm_modules: Mapping[str, str] = field(default_factory=lambda: _BERT_HEAD)
    decoder: Mapping[str, str] = field(default_factory=lambda: _BERT_DECODER)
    head: HeadNames | None = WITH_POOLER
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _SETTINGS)
    constants: Mapping[str, Any] = field(default_factory=lambda: _ONLY)
    pooler: bool = True

    # Position ids are 0, 1, 2, ...; the pooler and the next-sentence head are not part of any retriever here.
    ignored: ClassVar[re.Pattern[str]] = re.compile(
        r"(.*\.)?embeddings\.position_ids|(.*\.)?pooler\.dense\.(weight|bias)|cls\.seq_relationship\..*"
    )

    def reads(self, stated: str, model_type: Any) -> bool:
        """As every architecture's, but its classes may have the type of its kin."""
        if stated:
            return stated in self.all_classes and (not model_type or model_type in _TYPES)
        return super().reads(stated, model_type) or (self.name == "bert" and model_type == "dpr")

    def shape(self, config: Mapping[str, Any], where: str) -> BertConfig:
        values = self.values(config, where)
        shape = replace(self.defaults, **values)
        shape = replace(shape, max_position_embeddings=max(0, shape.max_position_embeddings - skipped(shape)))
        self.check(shape, where)
        return shape

    def projection(self, config: Mapping[str, Any], where: str) -> int:
        return config_fields(config, {"projection_dim": 0}, where)["projection_dim"]

    def content(self, shape: BertConfig, identity: Mapping[str, Any]) -> dict[str, Any]:
        stated = replace(shape, max_position_embeddings=shape.max_position_embeddings + skipped(shape))
        content = {**super().content(stated, identity), "pad_token_id": shape.pad_token_id}
        if self.name in ("bert", "megatron"):
            content["position_embedding_type"] = "absolute"
        return content

    def check(self, shape: BertConfig, where: str, *, bag_of_words: bool = False) -> None:
        super().check(shape, where, bag_of_words=bag_of_words)
        if shape.num_attention_heads < 1 or shape.hidden_size % shape.num_attention_heads:
            raise UserError(
                f"{where}: {shape.num_hidden_layers} layers of {shape.num_attention_heads} heads do not fit a hidden "
                f"size of {shape.hidden_size}; correct num_hidden_layers and num_attention_heads"
            )

    def prepared(self, tensors: TensorFiles) -> TensorFiles:
        # Checkpoints that once came from TensorFlow, bert-base-uncased among them, have its names for scale and bias.
        tensors = tensors.rename(lambda name: re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name))
        return tensors.rename(lambda name: re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))

    def rows(self, shape: BertConfig, params: Params) -> list[Row]:
        rows = super().rows(shape, params)
        return [replace(row, skipped=skipped(shape)) if row.ours == "position_embedding/table" else row for row in rows]

    def finish(self, shape: BertConfig, params: Params, tensors: TensorFiles, prefix: str) -> None:
        """Add the padding token's row among the positions, zeros in trained models, which belongs to no other token."""
        if shape.positions_skip_padding:
            padding: np.ndarray = tensors.read(f"{prefix}{self.outer['position_embedding']}.weight")[shape.pad_token_id]
            params["word_embedding"]["table"][shape.pad_token_id] += padding


def skipped(config: BertConfig) -> int:
    """Return the number of rows of their table of positions that belong to no position."""
    return config.pad_token_id + 1 if config.positions_skip_padding else 0


def _roberta(name: BertArchitecture, cls: str, vocabulary: int) -> BertFamily:
    return BertFamily(
        name=name,
        cls=cls,
        prefixes=("", "roberta."),
        mlm_modules=_LM_HEAD,
        decoder=_LM_DECODER,
        head=_ROBERTA_HEAD,
        settings=_SETTINGS | {"pad_token_id": ("pad_token_id",)},
        defaults=BertConfig(architecture=name, vocab_size=vocabulary, pad_token_id=1),
    )


def _without(*names: str) -> dict[str, tuple[str, ...]]:
    """Return BERT's settings without those that an architecture does not have."""
    return {ours: theirs for ours, theirs in _SETTINGS.items() if ours not in names}


_BUCKETS = "relative_attention_num_buckets"

BERT_FAMILY: tuple[BertFamily, ...] = (
    BertFamily(
        name="bert",
        cls="Bert",
        classes=("BertForPreTraining", *DPR_CLASSES),
        prefixes=("", "bert.", *DPR_PREFIXES),
        defaults=BertConfig(),
    ),
    _roberta("roberta", "Roberta", 50265),
    _roberta("xlm-roberta", "XLMRoberta", 30522),
    _roberta("camembert", "Camembert", 30522),
    BertFamily(
        name="distilbert",
        cls="DistilBert",
        prefixes=("", "distilbert."),
        modules={
            "query": "attention.q_lin",
            "key": "attention.k_lin",
            "value": "attention.v_lin",
            "attention_out": "attention.out_lin",
            "ffn_in": "ffn.lin1",
            "ffn_out": "ffn.lin2",
        },
        norms={"attention_norm": "sa_layer_norm", "ffn_norm": "output_layer_norm"},
        layer="transformer.layer.{}.",
        mlm_modules={
            "mlm_head/dense": "vocab_transform",
            "mlm_head/norm": "vocab_layer_norm",
            "mlm_head": "vocab_projector",
        },
        decoder={"vocab_projector.weight": f"{_WORDS}.weight"},
        head=HeadNames(HeadShape(activation="relu"), dense="pre_classifier"),
        defaults=BertConfig(architecture="distilbert", num_hidden_layers=6, type_vocab_size=0),
        settings=_without("type_vocab_size", "layer_norm_eps")
        | {
            "hidden_size": ("dim",),
            "num_hidden_layers": ("n_layers",),
            "num_attention_heads": ("n_heads",),
            "intermediate_size": ("hidden_dim",),
            "hidden_act": ("activation",),
            "hidden_dropout_prob": ("dropout",),
            "attention_probs_dropout_prob": ("attention_dropout",),
        },
        pooler=False,
    ),
    BertFamily(
        name="mpnet",
        cls="MPNet",
        prefixes=("", "mpnet."),
        modules=_MODULES
        | {
            "query": "attention.attn.q",
            "key": "attention.attn.k",
            "value": "attention.attn.v",
            "attention_out": "attention.attn.o",
        },
        norms=_POST_NORMS | {"attention_norm": "attention.LayerNorm"},
        mlm_modules=_LM_HEAD,
        decoder=_LM_DECODER,
        head=_ROBERTA_HEAD,
        defaults=BertConfig(
            architecture="mpnet",
            vocab_size=30527,
            type_vocab_size=0,
            pad_token_id=1,
            relative_attention_num_buckets=32,
        ),
        settings=_without("type_vocab_size") | {"pad_token_id": ("pad_token_id",), _BUCKETS: (_BUCKETS,)},
        # transformers' code has 32 buckets and a padding of 1, for any config.json.
        constants={**_ONLY, _BUCKETS: 32, "pad_token_id": 1},
    ),
    # BERT with other norms; BertConfig.pre_layer_norm tells it from BERT.
    BertFamily(
        name="megatron",
        cls="MegatronBert",
        prefixes=("", "bert."),
        model_type="megatron-bert",
        title="Megatron-BERT",
        outer=_OUTER | {"norm": "encoder.ln"},
        norms={"attention_norm": "attention.ln", "ffn_norm": "ln"},
        defaults=BertConfig(
            vocab_size=29056,
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
            pre_layer_norm=True,
        ),
    ),
)
NAMES = {record.name: record for record in BERT_FAMILY}
"""The records by `BertConfig.architecture_name`."""
