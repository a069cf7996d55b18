"""The shapes of models without their weights: from config.json, the hub's cache, or a table of known names."""

import dataclasses
from pathlib import Path
from typing import Any

from jaxretr.config import SPLADE, Pooling
from jaxretr.data.tokens import load_tokenizer, vocabulary_size
from jaxretr.models.backbones.t5 import T5Config
from jaxretr.models.embed import DualEncoderConfig, as_sparse
from jaxretr.models.hub import adapter_formats
from jaxretr.models.hub.cross_encoder_folder import is_causal_lm, is_cross_encoder
from jaxretr.models.hub.dual_encoder_folder import is_ours, load, model_folder, states_use
from jaxretr.models.hub.encoder_params import default_pooling, encoder_shape_of
from jaxretr.models.hub.export_note import NOTE
from jaxretr.models.hub.hf_files import is_hub_name, name_and_revision, read_json
from jaxretr.models.hub.t5_params import t5_shape
from jaxretr.runtime.errors import UserError


def _sizes(model_type: str, width: int, layers: int, heads: int, inner: int, **others: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        **others,
    }


def _qwen3(width: int, layers: int, heads: int, inner: int, **others: Any) -> dict[str, Any]:
    attention = {"num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1_000_000}
    return _sizes("qwen3", width, layers, heads, inner, **attention, **others)


def _t5_encoder(width: int, layers: int, heads: int, inner: int, **others: Any) -> dict[str, Any]:
    sizes = {"d_model": width, "num_layers": layers, "num_heads": heads, "d_ff": inner, "vocab_size": 32128}
    return {"model_type": "t5", **sizes, **others}


def _t5(width: int, layers: int, heads: int, inner: int) -> dict[str, Any]:
    return _t5_encoder(width, layers, heads, inner, feed_forward_proj="gated-gelu", tie_word_embeddings=False)


_BERT = _sizes("bert", 768, 12, 12, 3072)
_BERTS = {
    "bert-base-uncased": _BERT,
    "bert-base-cased": {**_BERT, "vocab_size": 28996},
    "bert-base-chinese": {**_BERT, "vocab_size": 21128},
    "bert-large-uncased": _sizes("bert", 1024, 24, 16, 4096),
}
_LIKE_ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
_XLM_ROBERTA = _sizes("xlm-roberta", 768, 12, 12, 3072, vocab_size=250002, **_LIKE_ROBERTA)
_XLM_ROBERTA_LARGE = _sizes("xlm-roberta", 1024, 24, 16, 4096, vocab_size=250002, **_LIKE_ROBERTA)
_MPNET = {"model_type": "mpnet", "max_position_embeddings": 514, "layer_norm_eps": 1e-5}
_T5S = {"base": _t5(768, 12, 12, 2048), "large": _t5(1024, 24, 16, 2816)}
_T5S |= {"xl": _t5(2048, 24, 32, 5120), "xxl": _t5(4096, 24, 64, 10240)}
KNOWN: dict[str, dict[str, Any]] = {
    **_BERTS,
    **{f"google-bert/{name}": bert for name, bert in _BERTS.items()},
    "sentence-transformers/all-MiniLM-L6-v2": _sizes("bert", 384, 6, 12, 1536),
    "FacebookAI/roberta-base": _sizes("roberta", 768, 12, 12, 3072, vocab_size=50265, **_LIKE_ROBERTA),
    "FacebookAI/xlm-roberta-base": _XLM_ROBERTA,
    "FacebookAI/xlm-roberta-large": _XLM_ROBERTA_LARGE,
    "intfloat/multilingual-e5-base": _XLM_ROBERTA,
    "intfloat/multilingual-e5-large": _XLM_ROBERTA_LARGE,
    "BAAI/bge-m3": {**_XLM_ROBERTA_LARGE, "max_position_embeddings": 8194},
    "distilbert/distilbert-base-uncased": {"model_type": "distilbert"},
    "microsoft/mpnet-base": _MPNET,
    "sentence-transformers/all-mpnet-base-v2": _MPNET,
    "sentence-transformers/gtr-t5-base": _t5_encoder(768, 12, 12, 3072),
    "sentence-transformers/gtr-t5-large": _t5_encoder(1024, 24, 16, 4096),
    "sentence-transformers/gtr-t5-xl": _t5_encoder(1024, 24, 32, 16384, d_kv=128),
    "sentence-transformers/sentence-t5-base": _t5_encoder(768, 12, 12, 3072),
    "answerdotai/ModernBERT-base": {"model_type": "modernbert"},
    "answerdotai/ModernBERT-large": _sizes("modernbert", 1024, 28, 16, 2624),
    "Qwen/Qwen3-Embedding-0.6B": _qwen3(1024, 28, 16, 3072, max_position_embeddings=32768, vocab_size=151669),
    "Qwen/Qwen3-Embedding-4B": _qwen3(2560, 36, 32, 9728, max_position_embeddings=40960, vocab_size=151665),
    "Qwen/Qwen3-Embedding-8B": _qwen3(4096, 36, 32, 12288, max_position_embeddings=40960, vocab_size=151665),
    "google/embeddinggemma-300m": {
        **_sizes("gemma3_text", 768, 24, 3, 1152, num_key_value_heads=1, head_dim=256, vocab_size=262144),
        **{"max_position_embeddings": 2048, "sliding_window": 512, "use_bidirectional_attention": True},
    },
    "intfloat/e5-mistral-7b-instruct": {
        **{"model_type": "mistral", "rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "sliding_window": 4096}
    },
    "bigscience/T0_3B": _T5S["xl"],
    "bigscience/T0": _T5S["xxl"],
    **{
        name.format(size): t5
        for name in ("google/t5-v1_1-{}", "google/t5-{}-lm-adapt", "google/flan-t5-{}")
        for size, t5 in _T5S.items()
    },
}
"""Shapes of models on the hub, as their config.json states them, so that the shipped configs can be planned offline."""


def encoder_shape(
    path: str,
    *,
    passage_path: str | None = None,
    shared: bool | None = None,
    pooling: Pooling | None = None,
) -> DualEncoderConfig:
    """Return the configuration that `DualEncoder.from_pretrained` loads, from config.json without weights if possible.

    Args:
      path: as for `DualEncoder.from_pretrained`, or one of KNOWN.
      passage_path: as there; nothing is read of the second tower, as both have one shape.
      shared: as there.
      pooling: as there.

    Raises:
      UserError: neither a folder, nor a model in the hub's cache or on the hub, nor a known one.
    """
    if pooling == "unicoil":
        config = encoder_shape(path, passage_path=passage_path, shared=shared)
        return config if config.pooling == pooling else as_sparse(config, "unicoil")
    file = Path(path).expanduser()
    folder = model_folder(file) if file.is_dir() else None
    if folder is not None and is_ours(folder):
        config = DualEncoderConfig.from_json(read_json(folder, NOTE)["config"], str(folder / NOTE))
        if pooling in SPLADE and not config.sparse:
            config = as_sparse(config, pooling)
    elif file.is_file() or (folder is not None and (states_use(folder) or adapter_formats.kind_of(folder))):
        # Loaded on the host only, and small: the content of such a folder is known only when it is read.
        return load(path, passage_path=passage_path, shared=shared, pooling=pooling).config
    else:
        backbone, projection = encoder_shape_of(_config_json(path), path)
        config = DualEncoderConfig(
            backbone,
            shared=passage_path is None,
            pooling=pooling or default_pooling(backbone),
            projection_size=projection or None,
        )
    if shared and not config.shared:
        raise UserError(f"{path}: has two towers of different weights; leave shared out or set it to False")
    return config if shared is None else dataclasses.replace(config, shared=shared)


def vocabulary_of(path: str) -> int:
    """Return the number of entries of a model's tokenizer; the model's own number if the tokenizer is not available."""
    if Path(path).expanduser().is_dir():
        return vocabulary_size(load_tokenizer(path))
    return encoder_shape_of(_config_json(path), path)[0].vocab_size


def scorer_shape(path: str) -> T5Config:
    """Return the shape of a T5.

    Args:
      path: a Hugging Face folder, a hub name, or one of KNOWN.

    Raises:
      UserError: as for `encoder_shape`; or not a T5.
    """
    return t5_shape(_config_json(path), path)


def holds_t5(path: str) -> bool:
    """Whether a model is neither a cross-encoder nor a causal language model; `path` as for `scorer_shape`."""
    found = _config_json(path)
    return not (is_cross_encoder(found, path) or is_causal_lm(found, path))


def _config_json(path: str) -> dict[str, Any]:
    """Return the parsed config.json of a folder or of a hub's model, or what is known of it."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return read_json(model_folder(folder), "config.json")
    unknown = UserError(
        f"{path}: no such model folder, and none of the known models ({', '.join(KNOWN)}); to plan without it, name one "
        "of the same shape"
    )
    if not is_hub_name(path):
        raise unknown
    import huggingface_hub as hub

    repository, revision = name_and_revision(path)
    if isinstance(cached := hub.try_to_load_from_cache(repository, "config.json", revision=revision), str):
        return read_json(Path(cached).parent, "config.json")
    if path in KNOWN:
        return KNOWN[path]
    try:
        found = hub.hf_hub_download(repository, "config.json", revision=revision, etag_timeout=10)
        return read_json(Path(found).parent, "config.json")
    except UserError:
        raise
    except Exception as error:  # Each of the hub's client's dozen kinds means that the shape is unavailable.
        raise unknown from error
