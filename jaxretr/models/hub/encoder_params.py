"""Encoders' checkpoints to and from our parameters: finds the architecture, whose own module does the rest."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.rotary_config import RotaryConfig
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig
from jaxretr.models.hub import bert_names, bert_params, rotary_params, t5_encoder_params
from jaxretr.models.hub.bert_names import Names
from jaxretr.models.hub.encoder_checkpoint import EncoderCheckpoint
from jaxretr.models.hub.hf_files import TensorFiles, read_json, some_names, stated_architecture
from jaxretr.models.hub.rotary_names import ROTARY_NAMES, RotaryNames
from jaxretr.models.hub.t5_encoder_params import T5Names
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.notes import note

_TASK_CLASSES = re.compile(
    r"\w+For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice|NextSentencePrediction)"
)
_TASK_HEADS = re.compile(
    r"(pre_classifier|classifier|classification_head|qa_outputs|score|logit_scale|logit_bias)(\..*)?"
)
# Settings of heads in ModernBERT's config.json, whose values its encoder's reader would refuse.
_SETTINGS_OF_HEADS = ("classifier_bias", "classifier_activation", "decoder_bias")

_log = logging.getLogger(__name__)


def read_checkpoint(
    folder: str | Path, *, expect: Literal["dpr-question", "dpr-context"] | None = None
) -> EncoderCheckpoint:
    """Read a Hugging Face folder: the encoder and anything that follows it.

    A head for another task, which a retriever does not need, is left out, with a line in the log.

    Args:
      folder: folder with config.json and the weights.
      expect: tower that is expected in a DPR model; None: any.

    Raises:
      UserError: an unknown architecture, the other tower, a missing or broken file, or tensors that are missing, left
        over or of a wrong shape.
    """
    config, tensors = read_json(folder, "config.json"), TensorFiles.open(folder)
    bare = without_task(config, tensors.where)
    # ModernBERT's classifier has a dense layer with the names of its head of masked language modelling.
    heads = _TASK_HEADS if bare is config else re.compile(rf"{_TASK_HEADS.pattern}|head\..*")
    if left_out := [name for name in tensors.names if heads.fullmatch(name)]:
        note(
            _log.warning,
            "%s: an encoder is read, and what follows it is left out: %s (load_scorer reads cross-encoders)",
            tensors.where,
            some_names(left_out),
        )
    return import_checkpoint(bare, tensors.select(lambda name: not heads.fullmatch(name)), expect=expect)


def without_task(config: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the config.json of an encoder without its head for another task; any other unchanged."""
    if not _TASK_CLASSES.fullmatch(stated_architecture(config, where)):
        return config
    return {name: value for name, value in config.items() if name not in (*_SETTINGS_OF_HEADS, "architectures")}


def import_checkpoint(
    config: Mapping[str, Any], tensors: TensorFiles, *, expect: Literal["dpr-question", "dpr-context"] | None = None
) -> EncoderCheckpoint:
    """`read_checkpoint` for a parsed config.json and tensors."""
    if rotary_params.reads(config, tensors.where):
        return rotary_params.import_rotary(config, tensors)
    if t5_encoder_params.reads(config, tensors.where):
        return t5_encoder_params.import_t5_encoder(config, tensors)
    _check_supported(config, tensors.where)
    return bert_params.import_bert(config, tensors, expect=expect)


def read(folder: str | Path) -> tuple[Backbone, Params]:
    """Read the encoder of a Hugging Face folder.

    Args:
      folder: folder with config.json and the weights.

    Returns:
      The encoder's shape, and its parameters as a nested dict of float32 numpy arrays.

    Raises:
      UserError: as for `read_checkpoint`; also where a projection follows the encoder, which must not get lost.
    """
    checkpoint = read_checkpoint(folder)
    if checkpoint.projection is not None:
        raise UserError(f"{folder}: has a projection after the encoder; load it as a dual encoder's tower")
    return checkpoint.config, checkpoint.params


def encoder_shape_of(config: Mapping[str, Any], where: str) -> tuple[Backbone, int]:
    """Return the shape that a config.json states, and DPR's projection size, 0 without; UserError names `where`."""
    config = without_task(config, where)
    if rotary_params.reads(config, where):
        return rotary_params.rotary_shape(config, where), 0
    if t5_encoder_params.reads(config, where):
        return t5_encoder_params.t5_encoder_shape(config, where), 0
    _check_supported(config, where)
    return bert_params.bert_shape(config, where)


def _check_supported(config: Mapping[str, Any], where: str) -> None:
    if not bert_params.reads(config, where):
        stated = (config.get("architectures") or ["no stated architecture"])[0]
        rotary = (names.encoder for names in ROTARY_NAMES.values())
        supported = (*bert_params.SUPPORTED, *rotary, t5_encoder_params.ENCODER)
        raise UserError(
            f"{where}: config.json is of {stated} (model_type '{config.get('model_type') or ''}'), which is not a supported "
            f"encoder; supported: {', '.join(supported)}"
        )


def export_encoder(
    backbone: Backbone,
    params: Params,
    *,
    mlm_head: Params | None = None,
    prefix: str = "",
    projection: Params | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Translate our parameters to a Hugging Face checkpoint, bit for bit.

    Args:
      backbone: shape of the encoder.
      params: parameters of the encoder, a nested dict of arrays.
      mlm_head: head of masked language modelling, where the architecture has one.
      prefix: prefix of the encoder's tensors, as for `bert_params.export_bert`.
      projection: projection of a DPR model.

    Returns:
      The content of config.json, and the tensors of model.safetensors by name.
    """
    if isinstance(backbone, BertConfig):
        return bert_params.export_bert(backbone, params, mlm_head, prefix, projection)
    if isinstance(backbone, RotaryConfig):
        return rotary_params.export_rotary(backbone, params, mlm_head)
    return t5_encoder_params.export_t5_encoder(backbone, params)


def check_sizes(backbone: Backbone, where: str, *, bag_of_words: bool = False) -> None:
    """Raise UserError, which names `where`, for sizes that no encoder has; a `bag_of_words` may have no layers."""
    if isinstance(backbone, BertConfig):
        bert_params.check_sizes(backbone, where, bag_of_words=bag_of_words)
    elif isinstance(backbone, RotaryConfig):
        rotary_params.check_rotary(backbone, where)
    else:
        t5_encoder_params.check_t5_encoder(backbone, where)


def names_of(backbone: Backbone) -> Names | RotaryNames | T5Names:
    """Return the names in a shape's folder."""
    if isinstance(backbone, BertConfig):
        return bert_names.names_of(backbone)
    if isinstance(backbone, RotaryConfig):
        return ROTARY_NAMES[backbone.architecture]
    return t5_encoder_params.t5_names(backbone)


def loading_class(backbone: Backbone) -> str:
    """Return the class of transformers that loads such an encoder's folder; for T5's, AutoModel would add a decoder."""
    return t5_encoder_params.ENCODER if isinstance(backbone, T5EncoderConfig) else "AutoModel"


def display_name(backbone: Backbone) -> str:
    """Return the usual name of such an encoder."""
    if isinstance(backbone, BertConfig):
        return bert_names.display_name(backbone)
    if isinstance(backbone, T5EncoderConfig):
        return "T5"
    return names_of(backbone).encoder.removesuffix("Model").replace("Bert", "BERT").removesuffix("Text")
