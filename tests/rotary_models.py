"""Tiny encoders with rotary positions, made by transformers with random weights: every architecture and every setting."""

from typing import Any

from encoder_parity import LENGTH, SEED, VOCABULARY, WIDTH, randomised
from peers import torch, transformers

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": LENGTH,
    "pad_token_id": 0,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
HEADS = GROUPED | {"head_dim": 8}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MODERN = SIZES | dict.fromkeys(("bos_token_id", "cls_token_id"), 1) | dict.fromkeys(("eos_token_id", "sep_token_id"), 2)

# The class's name in transformers, and its settings. Windows are shorter than the texts.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "modernbert": ("ModernBert", MODERN | {"local_attention": 8}),
    "modernbert with biases": (
        "ModernBert",
        MODERN | {"local_attention": 8} | dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias"), True),
    ),
    "nomic_bert": ("NomicBert", SIZES),
    "gte": ("Gte", SIZES),
    "gte without types": ("Gte", SIZES | {"type_vocab_size": 0}),
    "qwen2": ("Qwen2", GROUPED),
    "qwen2 with windows": (
        "Qwen2",
        GROUPED | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", HEADS),
    "qwen3 of both directions": ("Qwen3", HEADS | {"is_causal": False}),
    "llama": ("Llama", HEADS),
    "llama 3.1": (
        "Llama",
        HEADS | {"rope_parameters": LLAMA3 | {"rope_theta": 1e4, "original_max_position_embeddings": 8}},
    ),
    "llama with biases": ("Llama", SIZES | {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", GROUPED | {"sliding_window": None}),
    "mistral with windows": ("Mistral", HEADS | {"sliding_window": 5}),
    "mistral of both directions": ("Mistral", GROUPED | {"is_causal": False, "sliding_window": 5}),
    "gemma3_text": (
        "Gemma3Text",
        HEADS | {"use_bidirectional_attention": True, "sliding_window": 8, "query_pre_attn_scalar": 8},
    ),
    "gemma3_text, causal": (
        "Gemma3Text",
        HEADS
        | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
        | {
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
                "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
            }
        },
    ),
}


def random_model(case: str) -> Any:
    """The model of transformers of one of `MODELS`, with every parameter drawn at random."""
    name, settings = MODELS[case]
    torch.manual_seed(SEED)
    return randomised(getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings)))
