"""Names of tensors and settings in Hugging Face folders, for architectures with rotary positions."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jaxretr.models.backbones.rotary_config import RotaryArchitecture, RotaryConfig
from jaxretr.models.hub.name_table import Row


@dataclass(frozen=True)
class RotaryNames:
    """Names in an architecture's folder.

    Attributes:
      encoder: class of the encoder in transformers, or in the code on the hub.
      classes: other classes with the same encoder; everything else in them is not read.
      prefixes: prefixes of the encoder's tensors in all of these; the first is that of `encoder`'s own folder.
      words: name of the word embeddings.
      tensors: our names of the encoder's tensors -> theirs; kernels, biases, scales and tables alike, without their
        endings.
      fused: their names of tensors that hold several of our kernels -> ours, in order; in transformers' modules these
        kernels are separate.
      modules: our names of the layers' dense parts -> the modules' in the class, within a layer, as PEFT names them.
      layer: prefix of these names, with "{}" for the layer's number.
      stored_layer: the same prefix in the folder's tensors.
      defaults: values that transformers assumes where a config.json is silent.
      settings: our names of settings -> theirs, in the newest dialect first.
      constants: values that config.json must state, or leave out.
      pooler: whether `encoder` has one, which no retriever here uses.
    """

    encoder: str
    classes: tuple[str, ...]
    prefixes: tuple[str, ...]
    words: str
    tensors: dict[str, str]
    modules: dict[str, str]
    layer: str
    stored_layer: str
    defaults: RotaryConfig
    settings: dict[str, tuple[str, ...]]
    fused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    pooler: bool = False

    @property
    def prefix(self) -> str:
        """Prefix of the encoder's tensors in a class that has more than the encoder."""
        return self.prefixes[-1]

    def rows(self, config: RotaryConfig) -> list[Row]:
        """Return the encoder's table of names, without a prefix."""
        place = {ours: (theirs, (0, 1)) for ours, theirs in self.tensors.items()}
        for theirs, parts in self.fused.items():
            place |= {ours: (theirs, (number, len(parts))) for number, ours in enumerate(parts)}
        rows = [Row("word_embedding/table", self.words)]
        if config.type_vocab_size:
            rows.append(Row("type_embedding/table", "embeddings.token_type_embeddings.weight"))
        for name, biased in config.dense_biases().items():
            theirs, part = place[name]
            theirs = self.stored_layer + theirs
            rows.append(Row(f"layers/{name}/kernel", f"{theirs}.weight", True, part=part))
            rows += [Row(f"layers/{name}/bias", f"{theirs}.bias", part=part)] if biased else []
        norms = [name for name in self.tensors if name.endswith("norm")]
        for name in norms:
            within = name not in ("norm", "embedding_norm")
            ours = f"layers/{name}" if within else name
            theirs = self.stored_layer + self.tensors[name] if within else self.tensors[name]
            missing = name == "attention_norm" and not config.first_norm
            rows.append(Row(f"{ours}/scale", f"{theirs}.weight", first_layer=1.0 if missing else None))
            if config.norm == "layer" and config.norm_bias:
                rows.append(Row(f"{ours}/bias", f"{theirs}.bias", first_layer=0.0 if missing else None))
        return rows


_SAME = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_SETTINGS = {name: (name,) for name in (*_SAME, "max_position_embeddings", "initializer_range")}
_BERT_SETTINGS = {
    **_SETTINGS,
    "hidden_act": ("hidden_act",),
    "norm_eps": ("layer_norm_eps",),
    "type_vocab_size": ("type_vocab_size",),
    "hidden_dropout_prob": ("hidden_dropout_prob",),
    "attention_probs_dropout_prob": ("attention_probs_dropout_prob",),
    "rope_theta": ("rope_theta",),
}
_DECODER_SETTINGS = {
    **_SETTINGS,
    "num_key_value_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "hidden_act": ("hidden_act",),
    "norm_eps": ("rms_norm_eps",),
    "attention_probs_dropout_prob": ("attention_dropout",),
    "rope_theta": ("rope_theta",),
}

_DECODER_MODULES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_out": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_in": "mlp.up_proj",
    "ffn_out": "mlp.down_proj",
}
_DECODER_NORMS = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "norm": "norm",
}
_HEAD_NORMS = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}


def _decoder(name: str, norms: dict[str, str], settings: dict[str, tuple[str, ...]], **defaults: Any) -> RotaryNames:
    """Return the names of a decoder; `defaults` are the values that differ from most decoders'."""
    shape: dict[str, Any] = {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "hidden_act": "silu",
        "norm": "rms",
        "norm_eps": 1e-6,
        "causal": True,
    }
    return RotaryNames(
        encoder=f"{name}Model",
        classes=(f"{name.removesuffix('Text')}ForCausalLM",),
        prefixes=("", "model."),
        words="embed_tokens.weight",
        tensors=_DECODER_MODULES | norms,
        modules=_DECODER_MODULES,
        layer="layers.{}.",
        stored_layer="layers.{}.",
        defaults=RotaryConfig(**(shape | defaults)),
        settings=_DECODER_SETTINGS | settings,
    )


_ATTENTION_BIAS: dict[str, tuple[str, ...]] = dict.fromkeys(("qkv_bias", "attention_out_bias"), ("attention_bias",))
_FFN_BIAS: dict[str, tuple[str, ...]] = dict.fromkeys(("ffn_in_bias", "ffn_out_bias"), ("mlp_bias",))

_POST_LN: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "intermediate_size": 3072,
    "norm": "layer",
    "norm_eps": 1e-12,
    "norm_bias": True,
    "norm_order": "post",
    "embedding_norm": True,
}

_NOMIC = RotaryNames(
    encoder="NomicBertModel",
    classes=("NomicBertForMaskedLM", "NomicBertForPreTraining"),
    prefixes=("", "bert.", "nomic_bert."),
    words="embeddings.word_embeddings.weight",
    tensors={
        "attention_out": "attn.out_proj",
        "ffn_in": "mlp.fc11",
        "ffn_gate": "mlp.fc12",
        "ffn_out": "mlp.fc2",
        "attention_norm": "norm1",
        "ffn_norm": "norm2",
        "embedding_norm": "emb_ln",
    },
    fused={"attn.Wqkv": ("query", "key", "value")},
    modules=_DECODER_MODULES,
    layer="layers.{}.",
    stored_layer="encoder.layers.{}.",
    defaults=RotaryConfig(
        "nomic_bert",
        vocab_size=30528,
        max_position_embeddings=2048,
        hidden_act="silu",
        type_vocab_size=2,
        rope_theta=1000.0,
        **_POST_LN,
    ),
    settings=_BERT_SETTINGS
    | {
        "head_dim": ("head_dim",),
        "hidden_size": ("hidden_size", "n_embd"),
        "num_hidden_layers": ("num_hidden_layers", "n_layer"),
        "num_attention_heads": ("num_attention_heads", "n_head"),
        "intermediate_size": ("intermediate_size", "n_inner"),
        "max_position_embeddings": ("max_position_embeddings", "n_positions"),
        "hidden_act": ("hidden_act", "activation_function"),
        "norm_eps": ("layer_norm_eps", "layer_norm_epsilon"),
        "hidden_dropout_prob": ("hidden_dropout_prob", "resid_pdrop"),
        "attention_probs_dropout_prob": ("attention_probs_dropout_prob", "attn_pdrop"),
        "rope_theta": ("rope_theta", "rotary_emb_base"),
    },
    constants={
        "prenorm": False,
        "use_rms_norm": False,
        "parallel_block": False,
        "causal": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
    },
)

_GTE = RotaryNames(
    encoder="GteModel",
    classes=("GteForMaskedLM",),
    prefixes=("", "new.", "gte."),
    words="embeddings.word_embeddings.weight",
    tensors={
        "attention_out": "attention.o_proj",
        "ffn_out": "mlp.down_proj",
        "attention_norm": "attn_ln",
        "ffn_norm": "mlp_ln",
        "embedding_norm": "embeddings.LayerNorm",
    },
    fused={"attention.qkv_proj": ("query", "key", "value"), "mlp.up_gate_proj": ("ffn_in", "ffn_gate")},
    modules=_DECODER_MODULES,
    layer="layers.{}.",
    stored_layer="encoder.layer.{}.",
    defaults=RotaryConfig(
        "gte",
        vocab_size=250048,
        max_position_embeddings=8192,
        hidden_act="gelu",
        type_vocab_size=1,
        rope_theta=160_000.0,
        qkv_bias=True,
        attention_out_bias=True,
        ffn_out_bias=True,
        **_POST_LN,
    ),
    settings=_BERT_SETTINGS,
)

ROTARY_NAMES: dict[RotaryArchitecture, RotaryNames] = {
    "modernbert": RotaryNames(
        encoder="ModernBertModel",
        classes=("ModernBertForMaskedLM",),
        prefixes=("", "model."),
        words="embeddings.tok_embeddings.weight",
        tensors={
            "qkv": "attn.Wqkv",
            "attention_out": "attn.Wo",
            "ffn_in": "mlp.Wi",
            "ffn_out": "mlp.Wo",
            "attention_norm": "attn_norm",
            "ffn_norm": "mlp_norm",
            "embedding_norm": "embeddings.norm",
            "norm": "final_norm",
        },
        modules={"qkv": "attn.Wqkv", "attention_out": "attn.Wo", "ffn_in": "mlp.Wi", "ffn_out": "mlp.Wo"},
        layer="layers.{}.",
        stored_layer="layers.{}.",
        defaults=RotaryConfig(
            "modernbert",
            vocab_size=50368,
            hidden_size=768,
            num_hidden_layers=22,
            num_attention_heads=12,
            num_key_value_heads=12,
            head_dim=64,
            intermediate_size=1152,
            max_position_embeddings=8192,
            hidden_act="gelu",
            norm="layer",
            norm_eps=1e-5,
            first_norm=False,
            embedding_norm=True,
            fused=True,
            window=64,
            rope_theta=160_000.0,
        ),
        settings=_SETTINGS
        | {
            "hidden_act": ("hidden_activation",),
            "norm_eps": ("norm_eps",),
            "norm_bias": ("norm_bias",),
            "hidden_dropout_prob": ("mlp_dropout",),
            "attention_probs_dropout_prob": ("attention_dropout",),
            "rope_theta": ("global_rope_theta",),
            "local_rope_theta": ("local_rope_theta",),
        }
        | _ATTENTION_BIAS
        | _FFN_BIAS,
        # The layers of its head of masked language modelling.
        constants={"classifier_bias": False, "classifier_activation": "gelu", "decoder_bias": True},
    ),
    "nomic_bert": _NOMIC,
    "gte": _GTE,
    # The code on the hub from which transformers' gte was derived: the same folders, older settings.
    "new": replace(
        _GTE,
        encoder="NewModel",
        classes=("NewForMaskedLM",),
        # Its other modules hold several of our kernels, which LoRA cannot adapt together.
        modules={"attention_out": "attention.o_proj", "ffn_out": "mlp.down_proj"},
        layer="encoder.layer.{}.",
        defaults=replace(_GTE.defaults, architecture="new", vocab_size=30528, rope_theta=10_000.0),
        constants={"position_embedding_type": "rope", "layer_norm_type": "layer_norm", "logn_attention_scale": False},
        pooler=True,
    ),
    "qwen2": _decoder(
        "Qwen2",
        _DECODER_NORMS,
        {},
        architecture="qwen2",
        vocab_size=151936,
        intermediate_size=22016,
        qkv_bias=True,
    ),
    "qwen3": _decoder(
        "Qwen3",
        _DECODER_NORMS | _HEAD_NORMS,
        _ATTENTION_BIAS,
        architecture="qwen3",
        vocab_size=151936,
        intermediate_size=22016,
        qk_norm=True,
    ),
    "llama": _decoder(
        "Llama",
        _DECODER_NORMS,
        _ATTENTION_BIAS | _FFN_BIAS,
        architecture="llama",
        vocab_size=32000,
        intermediate_size=11008,
        max_position_embeddings=2048,
    ),
    "mistral": _decoder(
        "Mistral",
        _DECODER_NORMS,
        {},
        architecture="mistral",
        vocab_size=32000,
        intermediate_size=14336,
        num_key_value_heads=8,
        max_position_embeddings=131072,
    ),
    "gemma3_text": _decoder(
        "Gemma3Text",
        _HEAD_NORMS
        | {
            "attention_norm": "input_layernorm",
            "attention_out_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "ffn_out_norm": "post_feedforward_layernorm",
            "norm": "norm",
        },
        _ATTENTION_BIAS | {"hidden_act": ("hidden_activation",), "local_rope_theta": ("rope_local_base_freq",)},
        architecture="gemma3_text",
        vocab_size=262208,
        hidden_size=2304,
        num_hidden_layers=26,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        intermediate_size=9216,
        max_position_embeddings=131072,
        hidden_act="gelu_new",
        norm_offset=True,
        norm_order="sandwich",
        qk_norm=True,
        rope_theta=1_000_000.0,
    ),
}
