"""The shapes of models without their weights: from config.json, the hub's cache, or a table of known names."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxretr.config import Pooling
from jaxretr.data.tokens import load_tokenizer, vocabulary_size
from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.t5 import T5Config
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.hub import adapter_formats
from jaxretr.models.hub.bert_family import NAMES
from jaxretr.models.hub.cross_encoder_folder import is_causal_lm, is_cross_encoder
from jaxretr.models.hub.dual_encoder_folder import is_ours, load, model_folder, states_use
from jaxretr.models.hub.encoder_params import default_pooling, encoder_shape_of
from jaxretr.models.hub.encoder_params import shape_of as rotary_shape
from jaxretr.models.hub.export_note import NOTE
from jaxretr.models.hub.hf_files import is_hub_name, read_json
from jaxretr.models.hub.t5_params import t5_shape
from jaxretr.runtime.errors import UserError

# Content of their config.json on the hub, which is public, so that nothing need be fetched to plan a run.
_BERT_BASE = BertConfig()
_LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
_BERTS = {
    "bert-base-uncased": _BERT_BASE,
    "bert-base-cased": dataclasses.replace(_BERT_BASE, vocab_size=28996),
    "bert-base-chinese": dataclasses.replace(_BERT_BASE, vocab_size=21128),
    "bert-large-uncased": BertConfig(**_LARGE),
}
_MINILM = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
_ROBERTA = BertConfig(architecture="roberta", vocab_size=50265, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1)
_XLM_ROBERTA = dataclasses.replace(_ROBERTA, architecture="xlm-roberta", vocab_size=250002)
_XLM_ROBERTA_LARGE = dataclasses.replace(_XLM_ROBERTA, **_LARGE)
_MPNET = dataclasses.replace(NAMES["mpnet"].defaults, layer_norm_eps=1e-5)
_T5_ENCODER_BASE = T5EncoderConfig(d_model=768, d_ff=3072, num_layers=12, num_heads=12)
_T5_ENCODER_LARGE = T5EncoderConfig(d_model=1024, d_ff=4096, num_layers=24, num_heads=16)
_T5_ENCODER_XL = T5EncoderConfig(d_model=1024, d_kv=128, d_ff=16384, num_layers=24, num_heads=32)
# Shapes by the config.json of the hub's models, without transformers' defaults.
_MODERNBERT: dict[str, Any] = {"model_type": "modernbert"}
_QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1_000_000,
    "vocab_size": 151665,
}
_ROTARY: dict[str, dict[str, Any]] = {
    "answerdotai/ModernBERT-base": _MODERNBERT,
    "answerdotai/ModernBERT-large": {
        **_MODERNBERT,
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 2624,
    },
    "Qwen/Qwen3-Embedding-0.6B": {
        **_QWEN3,
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 3072,
        "max_position_embeddings": 32768,
        "vocab_size": 151669,
    },
    "Qwen/Qwen3-Embedding-4B": {
        **_QWEN3,
        "hidden_size": 2560,
        "num_hidden_layers": 36,
        "intermediate_size": 9728,
    },
    "Qwen/Qwen3-Embedding-8B": {
        **_QWEN3,
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "intermediate_size": 12288,
    },
    "google/embeddinggemma-300m": {
        "model_type": "gemma3_text",
        "hidden_size": 768,
        "num_hidden_layers": 24,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "intermediate_size": 1152,
        "vocab_size": 262144,
        "max_position_embeddings": 2048,
        "sliding_window": 512,
        "use_bidirectional_attention": True,
    },
    "intfloat/e5-mistral-7b-instruct": {
        "model_type": "mistral",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
    },
}
KNOWN_ENCODERS: dict[str, Backbone] = {
    **_BERTS,
    **{f"google-bert/{name}": bert for name, bert in _BERTS.items()},
    "sentence-transformers/all-MiniLM-L6-v2": _MINILM,
    "FacebookAI/roberta-base": _ROBERTA,
    "FacebookAI/xlm-roberta-base": _XLM_ROBERTA,
    "FacebookAI/xlm-roberta-large": _XLM_ROBERTA_LARGE,
    "intfloat/multilingual-e5-base": _XLM_ROBERTA,
    "intfloat/multilingual-e5-large": _XLM_ROBERTA_LARGE,
    "BAAI/bge-m3": dataclasses.replace(_XLM_ROBERTA_LARGE, max_position_embeddings=8192),
    "distilbert/distilbert-base-uncased": NAMES["distilbert"].defaults,
    "microsoft/mpnet-base": _MPNET,
    "sentence-transformers/all-mpnet-base-v2": _MPNET,
    "sentence-transformers/gtr-t5-base": _T5_ENCODER_BASE,
    "sentence-transformers/gtr-t5-large": _T5_ENCODER_LARGE,
    "sentence-transformers/gtr-t5-xl": _T5_ENCODER_XL,
    "sentence-transformers/sentence-t5-base": _T5_ENCODER_BASE,
    **{name: rotary_shape(stated, name) for name, stated in _ROTARY.items()},
}

_T5_BASE = T5Config(d_model=768, d_ff=2048, num_heads=12, num_layers=12, num_decoder_layers=12)
_T5_LARGE = T5Config(d_model=1024, d_ff=2816, num_heads=16, num_layers=24, num_decoder_layers=24)
_T5_XL = T5Config(d_model=2048, d_ff=5120, num_heads=32, num_layers=24, num_decoder_layers=24)
_T5_XXL = T5Config(d_model=4096, d_ff=10240, num_heads=64, num_layers=24, num_decoder_layers=24)
KNOWN_T5S = {
    "bigscience/T0_3B": _T5_XL,
    "bigscience/T0": _T5_XXL,
    **{
        template.format(size): shape
        for template in ("google/t5-v1_1-{}", "google/t5-{}-lm-adapt", "google/flan-t5-{}")
        for size, shape in (("base", _T5_BASE), ("large", _T5_LARGE), ("xl", _T5_XL), ("xxl", _T5_XXL))
    },
}


def encoder_shape(
    path: str,
    *,
    passage_path: str | None = None,
    shared: bool | None = None,
    pooling: Pooling | None = None,
) -> DualEncoderConfig:
    """Return the configuration that `DualEncoder.from_pretrained` loads, from config.json without weights if possible.

    Args:
      path: as for `DualEncoder.from_pretrained`, or one of KNOWN_ENCODERS.
      passage_path: as there; nothing is read of the second tower, as both have one shape.
      shared: as there.
      pooling: as there.

    Raises:
      UserError: neither a folder, nor a model in the hub's cache or on the hub, nor a known one.
    """
    file = Path(path).expanduser()
    folder = model_folder(file) if file.is_dir() else None
    if folder is not None and is_ours(folder):
        config = DualEncoderConfig.from_json(read_json(folder, NOTE)["config"], str(folder / NOTE))
    elif file.is_file() or (folder is not None and (states_use(folder) or adapter_formats.kind_of(folder))):
        # Loaded on the host only, and small: the content of such a folder is known only when it is read.
        return load(path, passage_path=passage_path, shared=shared, pooling=pooling).config
    else:
        backbone, projection = _backbone(path)
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
    return vocabulary_size(load_tokenizer(path)) if Path(path).expanduser().is_dir() else _backbone(path)[0].vocab_size


def scorer_shape(path: str) -> T5Config:
    """Return the shape of a T5.

    Args:
      path: a Hugging Face folder, a hub name, or one of KNOWN_T5S.

    Raises:
      UserError: as for `encoder_shape`; or not a T5.
    """
    found = _config_json(path, KNOWN_T5S)
    return found if isinstance(found, T5Config) else t5_shape(found, path)


def holds_t5(path: str) -> bool:
    """Whether a model is neither a cross-encoder nor a causal language model; `path` as for `scorer_shape`."""
    found = _config_json(path, KNOWN_T5S)
    return isinstance(found, T5Config) or not (is_cross_encoder(found, path) or is_causal_lm(found, path))


def _backbone(path: str) -> tuple[Backbone, int]:
    found = _config_json(path, KNOWN_ENCODERS)
    return (found, 0) if isinstance(found, Backbone) else encoder_shape_of(found, path)


def _config_json(path: str, known: Mapping[str, Any]) -> Any:
    """Return the parsed config.json of a folder or of a hub's model, or a known model's shape."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return read_json(model_folder(folder), "config.json")
    unknown = UserError(
        f"{path}: no such model folder, and none of the known models ({', '.join(known)}); to plan without it, name one "
        "of the same shape"
    )
    if not is_hub_name(path):
        raise unknown
    import huggingface_hub as hub

    if isinstance(cached := hub.try_to_load_from_cache(path, "config.json"), str):
        return read_json(Path(cached).parent, "config.json")
    if path in known:
        return known[path]
    try:
        return read_json(Path(hub.hf_hub_download(path, "config.json", etag_timeout=10)).parent, "config.json")
    except UserError:
        raise
    except Exception as error:  # Each of the hub's client's dozen kinds means that the shape is unavailable.
        raise unknown from error
