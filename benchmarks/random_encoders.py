"""Encoders of some 20 million random weights in the shapes of published ones, for measuring how fast they encode."""

from pathlib import Path
from typing import Any

# Half as wide as each family's base model or narrower, six or eight layers, and a BERT's vocabulary.
_COMMON: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "max_position_embeddings": 514,
    "pad_token_id": 0,
}
SHAPES: dict[str, tuple[str, dict[str, Any], str]] = {
    "xlm-roberta": ("XLMRoberta", _COMMON | {"type_vocab_size": 1, "num_attention_heads": 12}, "mean"),
    "modernbert": ("ModernBert", _COMMON | {"intermediate_size": 576, "num_hidden_layers": 8}, "mean"),
    "qwen3": (
        *("Qwen3", _COMMON | {"intermediate_size": 1152, "num_key_value_heads": 3, "head_dim": 64}),
        "lasttoken",
    ),
}
"""The classes' name in transformers, the settings of the config, and the pooling."""


def write_random(shape: str, tokenizer: Path, folder: Path) -> int:
    """Writes a sentence-transformers folder with random weights.

    Args:
      shape: one of SHAPES.
      tokenizer: folder of a BERT tokenizer of 30,522 entries.
      folder: to write into.

    Returns:
      The number of parameters.
    """
    import sentence_transformers
    import torch
    import transformers
    from sentence_transformers import models

    name, settings, pooling = SHAPES[shape]
    torch.manual_seed(0)
    special = (
        {name: 101 if "cls" in name or "bos" in name else 102 for name in _SPECIAL} if shape == "modernbert" else {}
    )
    encoder = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings, **special))
    encoder.save_pretrained(folder / "encoder")
    transformers.AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder / "encoder")
    modules = [
        models.Transformer(str(folder / "encoder"), max_seq_length=256),
        models.Pooling(384, pooling_mode=pooling),
    ]
    sentence_transformers.SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"))
    return sum(parameter.numel() for parameter in encoder.parameters())


_SPECIAL = ("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id")
