"""Encoders' checkpoints to and from our parameters, by the record of their architecture."""

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.config import Pooling
from jaxretr.models.backbones.backbone import make_backbone
from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.layers import Params, define
from jaxretr.models.backbones.masked_lm import MlmHead
from jaxretr.models.backbones.own import EncoderShape
from jaxretr.models.hub.architecture import Architecture, DprKind, EncoderCheckpoint
from jaxretr.models.hub.bert_family import BERT_FAMILY, DPR_CLASSES, DPR_PREFIXES
from jaxretr.models.hub.hf_files import read_json, stated_architecture
from jaxretr.models.hub.name_table import Row, read_rows, rows_of, write_rows
from jaxretr.models.hub.rotary_names import ROTARY_FAMILY
from jaxretr.models.hub.t5_encoder import T5_FAMILY
from jaxretr.models.hub.tensor_files import TensorFiles
from jaxretr.models.scorers.cross_encoder_shape import HeadShape
from jaxretr.runtime.errors import UserError, some_names
from jaxretr.runtime.notes import note

ARCHITECTURES: dict[str, Architecture] = {record.name: record for record in (*BERT_FAMILY, *ROTARY_FAMILY, *T5_FAMILY)}
"""All architectures whose folders are read and written, by `Architecture.name`."""

MASKED_LM = "AutoModelForMaskedLM"
"""Class of transformers that loads a sparse encoder's folder."""

_TASK_CLASSES = re.compile(
    r"\w+For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice|NextSentencePrediction)"
)
_TASK_HEADS = re.compile(
    r"(pre_classifier|classifier|classification_head|qa_outputs|score|logit_scale|logit_bias)(\..*)?"
)
# Settings of heads in ModernBERT's config.json, whose values its encoder's reader would refuse.
_SETTINGS_OF_HEADS = ("classifier_bias", "classifier_activation", "decoder_bias")

_log = logging.getLogger(__name__)


def names_of(backbone: Backbone) -> Architecture:
    """Return the record of a shape's architecture.

    Raises:
      UserError: an encoder of one's own, which has none.
    """
    if (record := ARCHITECTURES.get(backbone.architecture_name)) is None:
        raise UserError(
            f"{backbone.architecture_name}: no other library has this encoder of your own; keep it in jaxretr's own layout"
        )
    return record


def _stated(config: Mapping[str, Any], where: str) -> Architecture:
    """Return the record of the architecture that a config.json states; UserError names `where`."""
    stated, model_type = stated_architecture(config, where), config.get("model_type") or ""
    found = next((record for record in ARCHITECTURES.values() if record.reads(stated, model_type)), None)
    if found is None:
        supported = dict.fromkeys(name for record in ARCHITECTURES.values() for name in record.all_classes)
        raise UserError(
            f"{where}: config.json is of {stated or 'no stated architecture'} (model_type '{model_type}'), which is not a "
            f"supported encoder; supported: {', '.join(supported)}"
        )
    return found


def encoder_shape_of(config: Mapping[str, Any], where: str) -> tuple[Backbone, int]:
    """Return the shape that a config.json states, and DPR's projection size, 0 without; UserError names `where`."""
    config = without_task(config, where)
    record = _stated(config, where)
    return record.shape(config, where), record.projection(config, where)


def shape_of(config: Mapping[str, Any], where: str) -> Backbone:
    """Return the shape that a config.json states; UserError names `where`."""
    return encoder_shape_of(config, where)[0]


def without_task(config: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the config.json of an encoder without its head for another task; any other unchanged."""
    if not _TASK_CLASSES.fullmatch(stated_architecture(config, where)):
        return config
    return {name: value for name, value in config.items() if name not in (*_SETTINGS_OF_HEADS, "architectures")}


def check_sizes(backbone: Backbone, where: str, *, bag_of_words: bool = False) -> None:
    """Raise UserError, which names `where`, for sizes that no encoder has; a `bag_of_words` may have no layers."""
    if not isinstance(backbone, EncoderShape):
        names_of(backbone).check(backbone, where, bag_of_words=bag_of_words)


def default_pooling(backbone: Backbone) -> Pooling:
    """Return the pooling for an encoder whose folder states none: the last token if a token sees only what came before
    it, otherwise that of its architecture."""
    return "lasttoken" if backbone.causal else names_of(backbone).pooling


def default_head(backbone: Backbone) -> HeadShape | None:
    """Return the shape of the head that transformers puts on an encoder; None where it has none."""
    head = names_of(backbone).head
    if head is None or head.shape.norm_eps is None:
        return None if head is None else head.shape
    shape: Any = backbone
    return replace(head.shape, norm_eps=shape.norm_eps, norm_bias=shape.norm_bias)


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_checkpoint(folder: str | Path, *, expect: DprKind | None = None) -> EncoderCheckpoint:
    """Read a Hugging Face folder: the encoder and anything that follows it.

    A head for another task, which a retriever does not need, is left out, with a line in the log.

    Args:
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


def import_checkpoint(
    config: Mapping[str, Any], tensors: TensorFiles, *, expect: DprKind | None = None
) -> EncoderCheckpoint:
    """`read_checkpoint` for a parsed config.json and tensors.

    Every tensor is used, or is among the few without a use here (position ids, pooler, heads for other tasks), or is
    named in an error.
    """
    where = tensors.where
    shape = _stated(config, where).shape(config, where)
    record = names_of(shape)
    tensors = record.prepared(tensors)
    prefix = _prefix(tensors, record)
    stated, found = stated_architecture(config, where), DPR_PREFIXES.get(prefix)
    if found is not None and stated and DPR_CLASSES.get(stated) != found:
        raise UserError(f"{where}: config.json says {stated}, but the tensors are a {found} encoder's ({prefix}*)")
    tower = found or DPR_CLASSES.get(stated)
    if None not in (expect, tower) and tower != expect:
        raise UserError(
            f"{where}: the towers are swapped: this is the {tower} encoder, where the {expect} encoder is expected; "
            "exchange the two folders"
        )
    projected = record.projection(config, where) if tower is not None else 0
    return translate(shape, tensors, prefix, tower or record.name, projected=projected)


def translate(
    shape: Backbone, tensors: TensorFiles, prefix: str, kind: str, *, projected: int = 0
) -> EncoderCheckpoint:
    """Read the tensors of an encoder.

    Args:
      tensors: the tensors, as `Architecture.prepared` returns them.
      kind: `EncoderCheckpoint.kind`.
      projected: size of DPR's projection; 0: there is none.

    Raises:
      UserError: tensors are missing, left over or of a wrong shape, or the head has a decoder of its own.
    """
    record = names_of(shape)
    words = f"{record.words}.weight"
    tied = {name: prefix + own if own == words else own for name, own in record.decoder.items()}
    tensors = tensors.without_copies(tied, "only a tied decoder is supported")
    tensors.check_sizes({**shape.sizes(), "projection_dim": projected}, "config.json")
    shapes: Params = {"encoder": define(lambda rngs: make_backbone(shape, rngs=rngs))[1]}
    if projected:
        sizes = {"kernel": (shape.hidden_size, projected), "bias": (projected,)}
        shapes["projection"] = {name: jax.ShapeDtypeStruct(size, jnp.float32) for name, size in sizes.items()}
    if record.mlm_modules:
        masked: Any = shape
        head = define(lambda rngs: MlmHead(masked, dtype=jnp.float32, rngs=rngs))[1]
        if any(row.theirs in tensors.names for row in rows_of({"mlm_head": head}, record.mlm_modules)):
            shapes["mlm_head"] = head
    rows = _rows(shape, shapes, prefix)
    parts = read_rows(rows, shapes, tensors, ignored=record.ignored)
    record.finish(shape, parts["encoder"], tensors, prefix)
    return EncoderCheckpoint(shape, parts["encoder"], parts.get("projection"), parts.get("mlm_head"), kind)


def _rows(shape: Backbone, params: Params, prefix: str) -> list[Row]:
    """Return the table of names for an encoder and what follows it, by their parameters or their shapes."""
    record = names_of(shape)
    rows = [
        replace(row, ours=f"encoder/{row.ours}", theirs=prefix + row.theirs)
        for row in record.rows(shape, params["encoder"])
    ]
    place = prefix.removesuffix("bert_model.") if prefix in DPR_PREFIXES else ""
    others = {name: params[name] for name in ("projection", "mlm_head") if name in params}
    return rows + rows_of(others, {"projection": f"{place}encode_proj", **record.mlm_modules})


def _prefix(tensors: TensorFiles, record: Architecture) -> str:
    names, words = set(tensors.names), f"{record.words}.weight"
    found = [prefix for prefix in record.prefixes if prefix + words in names]
    if len(found) == 1:
        return found[0]
    kind = record.display_name
    what = f"two {kind} encoders" if found else f"no {words}, so no {kind} encoder,"
    raise UserError(
        f"{tensors.where}: {what} in this checkpoint ({some_names(sorted(names))}); give one encoder's folder"
    )


# ---- writing ---------------------------------------------------------------------------------------------------------


def export_encoder(
    backbone: Backbone,
    params: Params,
    *,
    mlm_head: Params | None = None,
    prefix: str = "",
    projection: Params | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Translate our parameters to a Hugging Face checkpoint; the reverse of `import_checkpoint`, bit for bit.

    Args:
      params: parameters of the encoder, a nested dict of arrays.
      mlm_head: head of masked language modelling, where the architecture has one.
      prefix: prefix of the encoder's tensors: "" (BertModel; with a head it means "bert."), "bert." (BertForMaskedLM),
        or one of DPR's, "question_encoder.bert_model." or "ctx_encoder.bert_model.".
      projection: projection of a DPR model, as in `EncoderCheckpoint`.

    Returns:
      The content of config.json, and the tensors of model.safetensors by name.

    Raises:
      ValueError: the prefix is not one of these, or does not fit the head, the projection or the architecture.
    """
    record = names_of(backbone)
    kind = DPR_PREFIXES[prefix] if prefix in record.prefixes and prefix.endswith("bert_model.") else None
    dpr = next((name for name, tower in DPR_CLASSES.items() if tower == kind), None)
    prefix = record.prefix if mlm_head is not None and not prefix else prefix
    expected = record.prefix if mlm_head is not None else ""
    if (prefix != expected if dpr is None else mlm_head is not None) or (projection is not None and dpr is None):
        raise ValueError(f"prefix {prefix!r} does not go with this head, projection or architecture")
    cls = dpr or (record.masked_lm if mlm_head is not None else record.encoder)
    identity = {"architectures": [cls], "model_type": "dpr" if dpr else record.model_type or record.name}
    content = record.content(backbone, identity)
    if dpr:
        content["projection_dim"] = 0 if projection is None else int(np.shape(projection["kernel"])[1])
    parts = {"encoder": params, "mlm_head": mlm_head, "projection": projection}
    parts = {name: part for name, part in parts.items() if part is not None}
    return content, write_rows(_rows(backbone, parts, prefix), parts)
