"""Encoders of T5 checkpoints (GTR, sentence-T5, and those of whole T5s) to and from our parameters."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from jaxretr.models.backbones.backbone import make_backbone
from jaxretr.models.backbones.backbone_config import TRAINING_ONLY
from jaxretr.models.backbones.layers import Params, define
from jaxretr.models.backbones.t5_encoder_config import T5_DENSE, T5EncoderConfig
from jaxretr.models.hub.encoder_checkpoint import EncoderCheckpoint
from jaxretr.models.hub.hf_files import TensorFiles, config_fields, stated_architecture
from jaxretr.models.hub.name_table import read_rows, write_rows
from jaxretr.models.hub.t5_params import ENCODER_LAYER, check_t5, encoder_rows, without_second_names
from jaxretr.runtime.errors import UserError

ENCODER = "T5EncoderModel"
_CLASSES = (ENCODER, "T5Model", "T5ForConditionalGeneration", "T5WithLMHeadModel")


class T5Names(NamedTuple):
    """Names in the folder of a T5 encoder; see `RotaryNames`."""

    modules: dict[str, str]
    encoder: str = ENCODER
    layer: str = ENCODER_LAYER
    prefix: str = ""
    pooler: bool = False


def t5_names(shape: T5EncoderConfig) -> T5Names:
    """Return the names in a shape's folder."""
    theirs = {row.ours: row.theirs for row in encoder_rows(shape.feed_forward_proj)}
    kernels = {name: theirs["/".join(("layers", *T5_DENSE[name], "kernel"))] for name in shape.dense_sizes()}
    modules = {name: kernel.removeprefix(ENCODER_LAYER).removesuffix(".weight") for name, kernel in kernels.items()}
    return T5Names(modules)


def reads(config: Mapping[str, Any], where: str) -> bool:
    """Whether a config.json belongs to a T5."""
    stated, model_type = stated_architecture(config, where), config.get("model_type")
    return stated in _CLASSES and model_type in ("t5", None) if stated else model_type == "t5"


def import_t5_encoder(config: Mapping[str, Any], tensors: TensorFiles) -> EncoderCheckpoint:
    """Translate the encoder of a Hugging Face checkpoint.

    Args:
      config: the parsed config.json, of a model that `reads`.
      tensors: the weights; every one is used, equals one that is, belongs to the decoder or is named in an error.

    Raises:
      UserError: a setting that is not supported, or tensors that are missing, left over or of a wrong shape.
    """
    shape = t5_encoder_shape(config, tensors.where)
    tensors = without_second_names(tensors.select(lambda name: not name.startswith(("decoder.", "lm_head."))))
    tensors.check_sizes(shape.sizes(), "config.json")
    shapes = define(lambda rngs: make_backbone(shape, rngs=rngs))[1]
    rows = encoder_rows(shape.feed_forward_proj)
    params = read_rows(rows, shapes, tensors, ignored=re.compile("(?!)"), dtype=np.float32)
    return EncoderCheckpoint(shape, params, None, None, "t5")


def t5_encoder_shape(config: Mapping[str, Any], where: str) -> T5EncoderConfig:
    """Return the shape that a config.json states; raises UserError, which names `where`."""
    settings = {name: value for name, value in asdict(T5EncoderConfig()).items() if name not in TRAINING_ONLY}
    fields = config_fields(config, {**settings, "dropout_rate": 0.1}, f"{where}/config.json")
    rate = fields.pop("dropout_rate")
    shape = T5EncoderConfig(**fields, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
    check_t5_encoder(shape, where)
    return shape


def check_t5_encoder(shape: T5EncoderConfig, where: str) -> None:
    """Raise UserError, which names `where`, for settings that no encoder has."""
    check_t5(shape, where)
    buckets, furthest = shape.relative_attention_num_buckets, shape.relative_attention_max_distance
    if buckets < 4 or furthest <= buckets // 4:
        raise UserError(
            f"{where}: has relative_attention_num_buckets {buckets} and relative_attention_max_distance {furthest}; give at "
            "least 4 buckets, and a distance of more than a quarter as many"
        )


def export_t5_encoder(shape: T5EncoderConfig, params: Params) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Translate our parameters to a T5EncoderModel's checkpoint; the reverse of `import_t5_encoder`, bit for bit.

    Args:
      shape: shape of the encoder.
      params: parameters of the encoder, a nested dict of arrays.

    Returns:
      The content of config.json, and the tensors of model.safetensors by name.
    """
    content = {name: value for name, value in asdict(shape).items() if name not in TRAINING_ONLY}
    content |= {"architectures": [ENCODER], "model_type": "t5", "is_encoder_decoder": False, "use_cache": False}
    content["dropout_rate"] = shape.hidden_dropout_prob
    return content, write_rows(encoder_rows(shape.feed_forward_proj), params)
