"""Names of tensors and settings in Hugging Face folders, for the architectures that have BERT's layers.

RoBERTa and its kin count positions from `pad_token_id` + 1, so that the first rows of their table belong to no
position; MPNet adds biases of relative positions to it; DistilBERT and MPNet have no token types; the rest is BERT's
layers.
"""

from dataclasses import dataclass, field

from jaxretr.models.backbones.bert_config import BertArchitecture, BertConfig
from jaxretr.models.hub.name_table import Row

_LAYER = "encoder.layer.{}."
_DISTILBERT_LAYER = "transformer.layer.{}."

WORDS = "embeddings.word_embeddings.weight"
"""Name of the word embeddings, the only one that all of them share."""


def _dense(names: dict[str, str], layer: str) -> tuple[Row, ...]:
    """Return rows of the layers' dense parts, from our names to theirs."""
    return tuple(
        row
        for ours, theirs in names.items()
        for row in (
            Row(f"layers/{ours}/kernel", f"{layer}{theirs}.weight", True),
            Row(f"layers/{ours}/bias", f"{layer}{theirs}.bias"),
        )
    )


def _norms(names: dict[str, str]) -> tuple[Row, ...]:
    return tuple(
        row
        for ours, theirs in names.items()
        for row in (Row(f"{ours}/scale", f"{theirs}.weight"), Row(f"{ours}/bias", f"{theirs}.bias"))
    )


def _head(dense: str, norm: str, bias: str) -> tuple[Row, ...]:
    return (
        Row("mlm_head/dense/kernel", f"{dense}.weight", True),
        Row("mlm_head/dense/bias", f"{dense}.bias"),
        *_norms({"mlm_head/norm": norm}),
        Row("mlm_head/bias", bias),
    )


@dataclass(frozen=True)
class Names:
    """Names in an architecture's folder.

    Attributes:
      encoder: class of the encoder in transformers.
      masked_lm: class that also has the head of masked language modelling.
      prefix: prefix of the encoder's tensors in `masked_lm`.
      modules: our names of the layers' dense parts -> theirs, within a layer.
      layer: prefix of these names, with "{}" for the layer's number.
      norms: our names of the norms -> theirs.
      head: rows of the head.
      decoder: the head's second name of the word embedding, and of its bias where that has one.
      defaults: values that transformers assumes where a config.json is silent.
      settings: names of settings that differ from `BertConfig`'s, ours -> theirs; None: the architecture does not have
        the setting, which is always the default.
      constants: values that config.json must state, or leave out.
      pooler: whether `encoder` has one, which no retriever here uses.
    """

    encoder: str
    masked_lm: str
    prefix: str
    modules: dict[str, str]
    layer: str
    norms: dict[str, str]
    head: tuple[Row, ...]
    decoder: dict[str, str]
    defaults: BertConfig
    settings: dict[str, str | None] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)
    pooler: bool = True

    def rows(self, config: BertConfig) -> tuple[Row, ...]:
        """Return the encoder's table of names, without a prefix."""
        positions = Row("position_embedding/table", "embeddings.position_embeddings.weight", skipped=skipped(config))
        types = Row("type_embedding/table", "embeddings.token_type_embeddings.weight")
        relative = Row("relative_positions/table", "encoder.relative_attention_bias.weight")
        return (
            Row("word_embedding/table", WORDS),
            positions,
            *((types,) if config.type_vocab_size else ()),
            *((relative,) if config.relative_attention_num_buckets else ()),
            *_dense(self.modules, self.layer),
            *_norms(self.norms),
        )


def skipped(config: BertConfig) -> int:
    """Return the number of rows of their table of positions that belong to no position."""
    return config.pad_token_id + 1 if config.positions_skip_padding else 0


_BERT_MODULES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_out": "attention.output.dense",
    "ffn_in": "intermediate.dense",
    "ffn_out": "output.dense",
}
_POST_NORMS = {
    "norm": "embeddings.LayerNorm",
    "layers/attention_norm": _LAYER + "attention.output.LayerNorm",
    "layers/ffn_norm": _LAYER + "output.LayerNorm",
}
_BERT = Names(
    encoder="BertModel",
    masked_lm="BertForMaskedLM",
    prefix="bert.",
    modules=_BERT_MODULES,
    layer=_LAYER,
    norms=_POST_NORMS,
    head=_head("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    decoder={"cls.predictions.decoder.weight": WORDS, "cls.predictions.decoder.bias": "cls.predictions.bias"},
    defaults=BertConfig(),
)

_LM_HEAD = _head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
_LM_DECODER = {"lm_head.decoder.weight": WORDS, "lm_head.decoder.bias": "lm_head.bias"}


def _roberta(architecture: BertArchitecture, name: str, vocabulary: int) -> Names:
    return Names(
        encoder=f"{name}Model",
        masked_lm=f"{name}ForMaskedLM",
        prefix="roberta.",
        modules=_BERT_MODULES,
        layer=_LAYER,
        norms=_POST_NORMS,
        head=_LM_HEAD,
        decoder=_LM_DECODER,
        defaults=BertConfig(architecture=architecture, vocab_size=vocabulary, pad_token_id=1),
    )


NAMES: dict[BertArchitecture, Names] = {
    "bert": _BERT,
    "roberta": _roberta("roberta", "Roberta", 50265),
    "xlm-roberta": _roberta("xlm-roberta", "XLMRoberta", 30522),
    "camembert": _roberta("camembert", "Camembert", 30522),
    "distilbert": Names(
        encoder="DistilBertModel",
        masked_lm="DistilBertForMaskedLM",
        prefix="distilbert.",
        modules={
            "query": "attention.q_lin",
            "key": "attention.k_lin",
            "value": "attention.v_lin",
            "attention_out": "attention.out_lin",
            "ffn_in": "ffn.lin1",
            "ffn_out": "ffn.lin2",
        },
        layer=_DISTILBERT_LAYER,
        norms={
            "norm": "embeddings.LayerNorm",
            "layers/attention_norm": _DISTILBERT_LAYER + "sa_layer_norm",
            "layers/ffn_norm": _DISTILBERT_LAYER + "output_layer_norm",
        },
        head=_head("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
        decoder={"vocab_projector.weight": WORDS},
        defaults=BertConfig(architecture="distilbert", num_hidden_layers=6, type_vocab_size=0),
        settings={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
            "hidden_dropout_prob": "dropout",
            "attention_probs_dropout_prob": "attention_dropout",
            "type_vocab_size": None,
            "layer_norm_eps": None,
        },
        pooler=False,
    ),
    "mpnet": Names(
        encoder="MPNetModel",
        masked_lm="MPNetForMaskedLM",
        prefix="mpnet.",
        modules=_BERT_MODULES
        | {
            "query": "attention.attn.q",
            "key": "attention.attn.k",
            "value": "attention.attn.v",
            "attention_out": "attention.attn.o",
        },
        layer=_LAYER,
        norms=_POST_NORMS | {"layers/attention_norm": _LAYER + "attention.LayerNorm"},
        head=_LM_HEAD,
        decoder=_LM_DECODER,
        defaults=BertConfig(
            architecture="mpnet",
            vocab_size=30527,
            type_vocab_size=0,
            pad_token_id=1,
            relative_attention_num_buckets=32,
        ),
        # transformers' code has 32 buckets and a padding of 1, for any config.json.
        settings={"type_vocab_size": None},
        constants={"relative_attention_num_buckets": 32, "pad_token_id": 1},
    ),
}

MEGATRON = Names(
    encoder="MegatronBertModel",
    masked_lm="MegatronBertForMaskedLM",
    prefix="bert.",
    modules=_BERT_MODULES,
    layer=_LAYER,
    norms={
        "norm": "encoder.ln",
        "layers/attention_norm": _LAYER + "attention.ln",
        "layers/ffn_norm": _LAYER + "ln",
    },
    head=_BERT.head,
    decoder=_BERT.decoder,
    defaults=BertConfig(
        vocab_size=29056,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        pre_layer_norm=True,
    ),
)
"""Names of BERT with other norms; BertConfig.pre_layer_norm tells it from BERT."""


def names_of(config: BertConfig) -> Names:
    """Return the names in a shape's folder."""
    return MEGATRON if config.pre_layer_norm else NAMES[config.architecture]


def display_name(config: BertConfig) -> str:
    """Return the usual name of such an encoder."""
    if config.pre_layer_norm:
        return "Megatron-BERT"
    return (
        names_of(config)
        .encoder.removesuffix("Model")
        .replace("Bert", "BERT")
        .replace("berta", "BERTa")
        .replace("bert", "BERT")
    )
