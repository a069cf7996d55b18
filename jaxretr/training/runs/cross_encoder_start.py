"""The cross-encoder that a run starts from: one that continues its training, or an encoder with a new head."""

import dataclasses
from pathlib import Path
from typing import Any

from jaxretr.config import PairEncoder
from jaxretr.models.any_scorer import holds_cross_encoder
from jaxretr.models.backbones.backbone_config import BACKBONE, Backbone
from jaxretr.models.hub.cross_encoder_folder import cross_encoder_shape, is_cross_encoder
from jaxretr.models.hub.dual_encoder_folder import model_folder
from jaxretr.models.hub.encoder_params import default_head, names_of
from jaxretr.models.hub.hf_files import read_json
from jaxretr.models.hub.model_shapes import encoder_shape
from jaxretr.models.pair_scorer import CrossEncoder
from jaxretr.models.scorers import pair_texts
from jaxretr.models.scorers.cross_encoder import HEAD, init_head
from jaxretr.models.scorers.cross_encoder_shape import CrossEncoderConfig
from jaxretr.runtime.errors import UserError
from jaxretr.training.runs.encoder_start import backbone_of, check_adapter


def load_cross_encoder(encoder: PairEncoder, seed: int) -> CrossEncoder:
    """Load the cross-encoder that a run starts from, with the config's lengths and dropout.

    Args:
      seed: seed of a new head.

    Raises:
      UserError: no such model, a model that takes no head, or lengths that it has no positions for.
    """
    lengths: dict[str, Any] = {"max_question_length": encoder.max_question_length, "dtype": encoder.dtype}
    if holds_cross_encoder(encoder.path):
        start = CrossEncoder.from_pretrained(encoder.path, max_length=encoder.max_length, **lengths)
        config, params, tokenizer, texts = start.config, start.params, start.tokenizer, start.texts
    else:
        model = backbone_of(encoder.path)
        config = with_new_head(model.config.backbone, encoder.path)
        params = {BACKBONE: next(iter(model.params.values()))[BACKBONE], HEAD: init_head(config, seed)}
        tokenizer, texts = model.tokenizer, pair_texts.of_tokenizer(model.tokenizer, encoder.max_length)
    return CrossEncoder(as_trained(config, encoder), params, tokenizer, texts, **lengths)


def start_shape(encoder: PairEncoder) -> CrossEncoderConfig:
    """Return the shape of the model that `load_cross_encoder` loads, without reading any weights.

    Raises:
      UserError: the encoder's shape is not known here, see `encoder_shape`; or it takes no head.
    """
    folder = model_folder(Path(encoder.path).expanduser())
    if (folder / "config.json").is_file() and is_cross_encoder(read_json(folder, "config.json"), str(folder)):
        shape = cross_encoder_shape(folder)
    else:
        shape = with_new_head(encoder_shape(encoder.path).backbone, encoder.path)
    if encoder.max_length > (positions := shape.backbone.max_position_embeddings):
        raise UserError(
            f"{encoder.path}: has {positions} positions, the config asks for {encoder.max_length}; lower "
            "encoder.max_length"
        )
    return as_trained(shape, encoder)


def with_new_head(backbone: Backbone, path: str) -> CrossEncoderConfig:
    """Return an encoder's shape with the head that transformers puts on it; UserError names `path`."""
    head = default_head(backbone)
    if head is None:
        raise UserError(
            f"{path}: is {names_of(backbone).display_name}, which no head of a cross-encoder goes on; give another"
        )
    return CrossEncoderConfig(backbone, head)


def as_trained(config: CrossEncoderConfig, encoder: PairEncoder) -> CrossEncoderConfig:
    """Return the shape with the dropout of the settings; UsageError for adapters that it has no place for."""
    if encoder.adapter is not None:
        check_adapter(encoder.adapter, config.backbone)
    dropout = encoder.dropout
    backbone = dataclasses.replace(config.backbone, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    return dataclasses.replace(config, backbone=backbone)
