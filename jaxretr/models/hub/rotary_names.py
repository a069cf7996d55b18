"""The records of architectures with rotary positions: ModernBERT, Nomic's, Alibaba's, and decoders."""

from dataclasses import replace
from typing import Any

from jaxretr.models.backbones.rotary_config import RotaryArchitecture, RotaryConfig
from jaxretr.models.hub.architecture import WITH_POOLER, HeadNames
from jaxretr.models.hub.rotary_family import RotaryFamily
from jaxretr.models.scorers.cross_encoder_shape import HeadShape

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
_DECODER_NORMS = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_HEAD_NORMS = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}


def _decoder(
    name: RotaryArchitecture, cls: str, norms: dict[str, str], settings: dict[str, tuple[str, ...]], **own: Any
) -> RotaryFamily:
    """Return the record of a decoder; `own` are the values of its shape that differ from most decoders'."""
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
    return RotaryFamily(
        name=name,
        cls=cls,
        classes=(f"{cls.removesuffix('Text')}ForCausalLM",),
        prefixes=("", "model."),
        words="embed_tokens",
        outer={"norm": "norm"},
        modules=_DECODER_MODULES,
        layer="layers.{}.",
        norms=norms,
        head=HeadNames(HeadShape(pooling="lasttoken", dense=False, out_bias=False), "score"),
        defaults=RotaryConfig(name, **(shape | own)),
        settings=_DECODER_SETTINGS | settings,
        groups_are_heads=name == "llama",
        heads_share_width=name not in ("qwen3", "gemma3_text"),
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

_BERT_OUTER = {"type_embedding": "embeddings.token_type_embeddings"}

_NOMIC = RotaryFamily(
    name="nomic_bert",
    cls="NomicBert",
    classes=("NomicBertForMaskedLM", "NomicBertForPreTraining"),
    prefixes=("", "nomic_bert.", "bert."),
    words="embeddings.word_embeddings",
    outer=_BERT_OUTER | {"embedding_norm": "emb_ln"},
    norms={"attention_norm": "norm1", "ffn_norm": "norm2"},
    stored={
        "attention_out": "attn.out_proj",
        "ffn_in": "mlp.fc11",
        "ffn_gate": "mlp.fc12",
        "ffn_out": "mlp.fc2",
    },
    fused={"attn.Wqkv": ("query", "key", "value")},
    modules=_DECODER_MODULES,
    layer="layers.{}.",
    stored_layer="encoder.layers.{}.",
    head=WITH_POOLER,
    groups_are_heads=True,
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

_GTE = RotaryFamily(
    name="gte",
    cls="Gte",
    classes=("GteForMaskedLM",),
    prefixes=("", "gte.", "new."),
    words="embeddings.word_embeddings",
    outer=_BERT_OUTER | {"embedding_norm": "embeddings.LayerNorm"},
    norms={"attention_norm": "attn_ln", "ffn_norm": "mlp_ln"},
    stored={"attention_out": "attention.o_proj", "ffn_out": "mlp.down_proj"},
    fused={"attention.qkv_proj": ("query", "key", "value"), "mlp.up_gate_proj": ("ffn_in", "ffn_gate")},
    modules=_DECODER_MODULES,
    layer="layers.{}.",
    stored_layer="encoder.layer.{}.",
    head=WITH_POOLER,
    groups_are_heads=True,
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

ROTARY_FAMILY: tuple[RotaryFamily, ...] = (
    RotaryFamily(
        name="modernbert",
        cls="ModernBert",
        prefixes=("", "model."),
        words="embeddings.tok_embeddings",
        outer={"embedding_norm": "embeddings.norm", "norm": "final_norm"},
        modules={"qkv": "attn.Wqkv", "attention_out": "attn.Wo", "ffn_in": "mlp.Wi", "ffn_out": "mlp.Wo"},
        norms={"attention_norm": "attn_norm", "ffn_norm": "mlp_norm"},
        mlm_modules={"mlm_head/dense": "head.dense", "mlm_head/norm": "head.norm", "mlm_head": "decoder"},
        decoder={"decoder.weight": "embeddings.tok_embeddings.weight"},
        head=HeadNames(
            HeadShape(activation="gelu", dense_bias=False, norm_eps=1e-5), dense="head.dense", norm="head.norm"
        ),
        groups_are_heads=True,
        layer="layers.{}.",
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
    _NOMIC,
    _GTE,
    # The code on the hub from which transformers' gte was derived: the same folders, older settings.
    replace(
        _GTE,
        name="new",
        cls="New",
        classes=("NewForMaskedLM",),
        prefixes=("", "new.", "gte."),
        # Its other modules hold several of our kernels, which LoRA cannot adapt together.
        modules={"attention_out": "attention.o_proj", "ffn_out": "mlp.down_proj"},
        layer="encoder.layer.{}.",
        defaults=replace(_GTE.defaults, architecture="new", vocab_size=30528, rope_theta=10_000.0),
        constants={"position_embedding_type": "rope", "layer_norm_type": "layer_norm", "logn_attention_scale": False},
        pooler=True,
    ),
    _decoder(
        "qwen2",
        "Qwen2",
        _DECODER_NORMS,
        {},
        vocab_size=151936,
        intermediate_size=22016,
        qkv_bias=True,
    ),
    _decoder(
        "qwen3",
        "Qwen3",
        _DECODER_NORMS | _HEAD_NORMS,
        _ATTENTION_BIAS,
        vocab_size=151936,
        intermediate_size=22016,
        qk_norm=True,
    ),
    _decoder(
        "llama",
        "Llama",
        _DECODER_NORMS,
        _ATTENTION_BIAS | _FFN_BIAS,
        vocab_size=32000,
        intermediate_size=11008,
        max_position_embeddings=2048,
    ),
    _decoder(
        "mistral",
        "Mistral",
        _DECODER_NORMS,
        {},
        vocab_size=32000,
        intermediate_size=14336,
        num_key_value_heads=8,
        max_position_embeddings=131072,
    ),
    _decoder(
        "gemma3_text",
        "Gemma3Text",
        _HEAD_NORMS
        | {
            "attention_norm": "input_layernorm",
            "attention_out_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "ffn_out_norm": "post_feedforward_layernorm",
        },
        _ATTENTION_BIAS | {"hidden_act": ("hidden_activation",), "local_rope_theta": ("rope_local_base_freq",)},
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
)
