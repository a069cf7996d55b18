"""Cross-encoders and causal language models in Hugging Face folders."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.models.backbones.backbone_config import BACKBONE, Backbone
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.rotary_config import RotaryConfig
from jaxretr.models.hub.architecture import ACTIVATION_NAMES
from jaxretr.models.hub.encoder_params import (
    ARCHITECTURES,
    default_head,
    export_encoder,
    import_checkpoint,
    names_of,
    shape_of,
    without_task,
)
from jaxretr.models.hub.hf_files import config_fields, read_json, stated_architecture
from jaxretr.models.hub.name_table import read_rows, write_rows
from jaxretr.models.hub.tensor_files import open_scorer
from jaxretr.models.scorers.causal_lm import LM_HEAD, CausalLmConfig
from jaxretr.models.scorers.cross_encoder import HEAD, abstract_params
from jaxretr.models.scorers.cross_encoder_shape import CrossEncoderConfig, HeadShape
from jaxretr.runtime.errors import UserError

_IDENTITY = "torch.nn.modules.linear.Identity"
_OUTPUT = "lm_head.weight"


def is_cross_encoder(config: Mapping[str, Any], where: str) -> bool:
    """Whether a config.json belongs to an encoder with a classification head."""
    return stated_architecture(config, where).endswith("ForSequenceClassification")


def is_causal_lm(config: Mapping[str, Any], where: str) -> bool:
    """Whether a config.json belongs to a decoder with its output layer."""
    return stated_architecture(config, where).endswith("ForCausalLM")


def cross_encoder_shape(folder: Path) -> CrossEncoderConfig:
    """Return the shape of an encoder with a classification head, by its config.json alone; raises as
    `read_cross_encoder`."""
    config = read_json(folder, "config.json")
    backbone = _below_head(config, str(folder))
    return CrossEncoderConfig(backbone, _head_shape(backbone, config, str(folder)))


def read_cross_encoder(folder: Path) -> tuple[CrossEncoderConfig, Params]:
    """Read an encoder with a classification head of one score.

    Returns:
      The cross-encoder's shape, and its parameters as a nested dict of float32 numpy arrays.

    Raises:
      UserError: an architecture without such a head, another number of scores, a setting that is not supported, or
        tensors that are missing, left over or of a wrong shape.
    """
    config, tensors = open_scorer(folder)
    backbone = _below_head(config, tensors.where)
    record = names_of(backbone)
    assert record.head is not None
    shape = _head_shape(backbone, config, tensors.where)
    names, out = set(tensors.names), f"{record.head.out}.weight"
    if out in names and (labels := tensors.shape(out)[0]) != 1:
        raise UserError(
            f"{folder}: its head gives {labels} scores, one for each of {labels} classes; give a cross-encoder with one "
            "score (num_labels 1)"
        )
    shapes = {HEAD: abstract_params(CrossEncoderConfig(backbone, shape))[HEAD]}
    rows = record.head_rows(shapes)
    of_head = {row.theirs for row in rows}
    bare = {**without_task(config, tensors.where), "architectures": [record.encoder]}
    encoder = import_checkpoint(bare, tensors.select(lambda name: name not in of_head))
    head = read_rows(rows, shapes, tensors.select(of_head.__contains__))
    return CrossEncoderConfig(encoder.config, shape), {BACKBONE: encoder.params, **head}


def read_answers(folder: Path, yes: int, no: int | None) -> tuple[CrossEncoderConfig, Params]:
    """Read a causal language model as a cross-encoder whose score is the logit of one token less that of another.

    Args:
      yes: id of the token for a passage that answers the question.
      no: id of the other token; None: the score is the first one's logit alone.

    Raises:
      UserError: as for `read_causal_lm`.
    """
    backbone, params, output = _read_decoder(folder)
    table = params["word_embedding"]["table"] if output is None else output
    if not all(0 <= token < len(table) for token in (yes, no or 0)):
        raise UserError(
            f"{folder}: the answers' ids {yes} and {no} are not in its vocabulary; copy the tokenizer again"
        )
    kernel = table[yes] - (0.0 if no is None else table[no])
    head = default_head(backbone)
    assert head is not None
    return CrossEncoderConfig(backbone, head), {BACKBONE: params, HEAD: {"out": {"kernel": kernel[:, None]}}}


def read_causal_lm(folder: Path, max_question_length: int) -> tuple[CausalLmConfig, Params]:
    """Read a decoder with its output layer.

    Returns:
      The language model's shape, and its parameters as a nested dict of float32 numpy arrays.

    Raises:
      UserError: not a decoder, or tensors that are missing, left over or of a wrong shape.
    """
    backbone, params, output = _read_decoder(folder)
    found = CausalLmConfig(backbone, max_question_length, tied=output is None)
    own = {} if output is None else {LM_HEAD: {"kernel": np.ascontiguousarray(output.T)}}
    return found, {BACKBONE: params, **own}


def _read_decoder(folder: Path) -> tuple[RotaryConfig, Params, np.ndarray | None]:
    """Return a decoder's shape and parameters, and its output layer's rows [V, D]; None if they are the embeddings."""
    config, tensors = open_scorer(folder)
    encoder = import_checkpoint(config, tensors)
    if not isinstance(encoder.config, RotaryConfig) or not encoder.config.causal:
        raise UserError(f"{folder}: is no causal language model; give a decoder with its output layer (...ForCausalLM)")
    if config.get("final_logit_softcapping") is not None:
        raise UserError(
            f"{folder}: caps its logits (final_logit_softcapping), which is not supported; give another model"
        )
    words = encoder.params["word_embedding"]["table"]
    stated = config.get("tie_word_embeddings")
    if _OUTPUT not in tensors.names:
        if stated is False:
            raise UserError(f"{folder}: lacks {_OUTPUT}, though config.json says that it is not tied; copy it again")
        return encoder.config, encoder.params, None
    if tensors.shape(_OUTPUT) != words.shape:
        raise UserError(
            f"{folder}: {_OUTPUT} has shape {list(tensors.shape(_OUTPUT))}, but by config.json it must have "
            f"{list(words.shape)}; config.json and the weights are not of the same model"
        )
    output = None if stated is True else tensors.read(_OUTPUT)
    return encoder.config, encoder.params, None if output is None or np.array_equal(output, words) else output


def export_cross_encoder(config: CrossEncoderConfig, params: Params) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Translate our parameters to a Hugging Face checkpoint, bit for bit.

    config.json also tells sentence-transformers to give raw scores, as we do, instead of their sigmoid.

    Returns:
      The content of config.json, and the tensors of model.safetensors by name.
    """
    record = names_of(config.backbone)
    content, tensors = export_encoder(config.backbone, params[BACKBONE])
    tensors = {record.prefix + name: tensor for name, tensor in tensors.items()}
    tensors |= write_rows(record.head_rows({HEAD: params[HEAD]}), {HEAD: params[HEAD]})
    content |= {
        "architectures": [record.classifier],
        "num_labels": 1,
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "sentence_transformers": {"activation_fn": _IDENTITY},
    }
    if config.head.norm_eps is not None:
        content |= {
            "classifier_pooling": config.head.pooling,
            "classifier_bias": config.head.dense_bias,
            "classifier_activation": config.head.activation,
        }
    return content, tensors


def _below_head(config: Mapping[str, Any], where: str) -> Backbone:
    """Return the shape of the encoder below a head."""
    backbone = shape_of(config, where)
    stated = stated_architecture(config, where)
    if stated != names_of(backbone).classifier:
        raise UserError(
            f"{where}: config.json is of {stated}, which is not a supported cross-encoder; supported: "
            + ", ".join(record.classifier for record in ARCHITECTURES.values() if record.classifier)
        )
    return backbone


def _head_shape(backbone: Backbone, config: Mapping[str, Any], where: str) -> HeadShape:
    shape = default_head(backbone)
    assert shape is not None
    if shape.norm_eps is None:
        return shape
    defaults = {"classifier_pooling": "cls", "classifier_bias": False, "classifier_activation": "gelu"}
    stated = config_fields(config, defaults, f"{where}/config.json")
    if stated["classifier_pooling"] not in ("cls", "mean") or stated["classifier_activation"] not in ACTIVATION_NAMES:
        raise UserError(
            f"{where}: config.json has classifier_pooling '{stated['classifier_pooling']}' and classifier_activation "
            f"'{stated['classifier_activation']}'; supported: cls and mean, and {', '.join(ACTIVATION_NAMES)}"
        )
    activation: Any = ACTIVATION_NAMES[stated["classifier_activation"]]
    return replace(
        shape, pooling=stated["classifier_pooling"], dense_bias=stated["classifier_bias"], activation=activation
    )
