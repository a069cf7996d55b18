"""The model that a run starts from: a dual encoder, loaded or new, with adapters or with a frozen lexical encoder."""

import dataclasses
import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxretr.config import AdapterShape, BertShape, Joint
from jaxretr.config import Encoder as EncoderConfig
from jaxretr.data.token_store import ids_dtype
from jaxretr.data.tokens import load_tokenizer, tokenizer_fingerprint, vocabulary_size
from jaxretr.models.adapter import Adapter, same_towers
from jaxretr.models.backbones.adapter_layers import check_shape, init_adapter
from jaxretr.models.backbones.backbone_config import BACKBONE, Backbone
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.own import source_of
from jaxretr.models.backbones.term_weights import QUERY_WEIGHTS
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import (
    WORDS_HEAD,
    DualEncoderConfig,
    JointConfig,
    abstract_params,
    init_params,
    joint_params,
    prompt_of,
    tower,
)
from jaxretr.models.hub.model_shapes import encoder_shape, vocabulary_of
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.notes import note
from jaxretr.runtime.parallel.hosts import fingerprint

log = logging.getLogger(__name__)


def load_model(encoder: EncoderConfig, joint: Joint, seed: int) -> "Model":
    """Load the model that a run starts from, together with the frozen lexical encoder if there is one.

    Raises:
      UserError: a model that cannot be read, or two that do not fit together.
      UsageError: settings that contradict each other.
    """
    if joint.lexical is None:
        return load_encoder(encoder, seed)
    _check_joint(encoder)
    return JointModel(encoder, joint, seed)


class ModelShape(NamedTuple):
    """A run's model in a plan, without its weights and its tokenizer."""

    config: DualEncoderConfig | JointConfig
    params: Params
    """ShapeDtypeStructs."""
    ids: np.dtype
    """Type of its token ids."""
    tokenizer: None = None


def model_shape(encoder: EncoderConfig, joint: Joint) -> ModelShape:
    """Return the shape of the model that `load_model` loads, without reading any weights; raises the same errors."""
    if joint.lexical is None:
        config = encoder_config(encoder)
    else:
        _check_joint(encoder)
        config = _joined(encoder_config(encoder), encoder_shape(joint.lexical), joint.lexical)
    local = Path(encoder.path).expanduser().is_dir()
    ids = ids_dtype(vocabulary_of(encoder.path) if local else config.backbone.vocab_size)
    return ModelShape(config, abstract_params(config), ids)


def frozen_branches(encoder: EncoderConfig, joint: Joint, model: DualEncoderConfig | JointConfig) -> tuple[str, ...]:
    """Return the names of the branches of a model's parameters that a run does not train.

    They are the lexical encoder, if there is one; everything except the adapters, if there are any; or frozen query weights.
    """
    if joint.lexical is not None:
        return ("lexical",)
    if isinstance(model, DualEncoderConfig) and model.query_weights == "frozen":
        return (QUERY_WEIGHTS,)
    return () if encoder.adapter is None else (BACKBONE, "inner_dense", "projection", WORDS_HEAD)


def _check_joint(encoder: EncoderConfig) -> None:
    if encoder.fresh_start != "random":
        raise UsageError(
            "encoder.fresh_start=lexical is for the lexical encoder, not for a base that is trained with a frozen one"
        )
    if encoder.adapter is not None:
        raise UsageError("encoder.adapter and joint.lexical do not go together; leave one of them out")


def load_encoder(config: EncoderConfig, seed: int = 0) -> DualEncoder:
    """Load the dual encoder that a run starts from, with the config's pooling, lengths and dropout."""
    _check(config)
    if config.fresh is None:
        model = DualEncoder.from_pretrained(
            config.path,
            passage_path=config.passage_path,
            shared=config.shared,
            pooling=config.pooling,
            normalise=config.normalise,
        )
        _note_shorter(config, model.config)
    else:
        tokenizer = load_tokenizer(config.path)
        settings = _fresh(config, config.fresh, vocabulary_size(tokenizer))
        if settings.pooling == "unicoil":
            settings = dataclasses.replace(settings, ignored_tokens=tuple(sorted(tokenizer.all_special_ids)))
        model = DualEncoder(settings, init_params(settings, seed), tokenizer)
    settings = encoder_config(config, model.config)
    if settings.query_weights and not model.config.query_weights:
        # The run puts the words' rarity in its passages in place of these ones.
        weights = np.ones(settings.backbone.vocab_size, np.float32)
        model = model.replaced(
            settings, {"question": {QUERY_WEIGHTS: weights}, "passage": tower(model.params, "passage")}
        )
    if config.adapter is not None:
        model = with_new_adapters(model, config.adapter, seed)
    if vocabulary_size(model.tokenizer) > settings.backbone.vocab_size:
        raise UserError(f"{config.path}: the tokenizer has more entries than the model; use the model's own tokenizer")
    return DualEncoder(settings, model.params, model.tokenizer, mlm_head=model.mlm_head)


def encoder_inputs(config: EncoderConfig, model: "Model") -> dict[str, str]:
    """Return fingerprints of a run's encoder and tokenizer as its files hold them, without weights that are drawn, and of the
    source of an encoder of the user's own.
    """
    params: Params = model.params
    if config.fresh is not None:
        params = {"lexical": model.params["lexical"]} if isinstance(model, JointModel) else {}
    elif config.adapter is not None and isinstance(model, DualEncoder):
        params = model.without_adapters().params
    read = {"tokenizer": tokenizer_fingerprint(model.tokenizer), "encoder": fingerprint(params)}
    return {**read, **source_of(model.config.backbone)}


def backbone_of(path: str) -> DualEncoder:
    """Load a model that other layers are put on, without its adapters.

    Raises:
      UserError: no such model, or one of two towers with different encoders.
    """
    model = DualEncoder.bare(path).without_adapters()
    if not same_towers(model.params):
        raise UserError(f"{path}: its two towers are different encoders; give a model that has one")
    return model


def encoder_config(config: EncoderConfig, stated: DualEncoderConfig | None = None) -> DualEncoderConfig:
    """Return the configuration of the model that a run starts from, with the settings of the run's config.

    Args:
      config: settings that name the model, or the shape of a new one.
      stated: what the model states of itself, once it is loaded; None: found without reading any weights.

    Raises:
      UserError: the encoder's shape is not known here, see `encoder_shape`.
      UsageError: settings that contradict each other, or that the model has no place for.
    """
    _check(config)
    if stated is None:
        how = {"passage_path": config.passage_path, "shared": config.shared, "pooling": config.pooling}
        fresh = config.fresh
        stated = _fresh(config, fresh, vocabulary_of(config.path)) if fresh else encoder_shape(config.path, **how)
    settings = _settings(config, stated)
    return settings if config.adapter is None else _adapted(settings, config.adapter)


def _check(config: EncoderConfig) -> None:
    if config.fresh is None and config.fresh_start != "random":
        raise UsageError("encoder.fresh_start says how new weights are drawn; set encoder.fresh as well")


def has_new_query_weights(config: EncoderConfig) -> bool:
    """Whether the query weights of a run are none of the model that it starts from."""
    if config.query_weights is None:
        return False
    return config.fresh is not None or not encoder_shape(config.path, passage_path=config.passage_path).query_weights


def _note_shorter(config: EncoderConfig, model: DualEncoderConfig) -> None:
    """Log the lengths that are shorter in a run than in the model that it starts from; the trained model keeps them."""
    lengths = {
        name: (getattr(config, name), getattr(model, name)) for name in ("max_question_length", "max_passage_length")
    }
    shorter = [f"encoder.{name}={ours} ({own} there)" for name, (ours, own) in lengths.items() if ours < own]
    if shorter:
        note(
            log.info,
            "the trained model will read less of a text than %s does: %s; set the longer ones to keep them",
            config.path,
            ", ".join(shorter),
        )


def _settings(config: EncoderConfig, model: DualEncoderConfig) -> DualEncoderConfig:
    """Return a model's configuration with the settings of the run's config."""
    queries = config.query_weights or model.query_weights
    longest = max(0 if queries else config.max_question_length, config.max_passage_length)
    if longest > model.backbone.max_position_embeddings:
        raise UsageError(
            f"{config.path}: has {model.backbone.max_position_embeddings} positions, the config asks for {longest}; "
            "lower encoder.max_passage_length or encoder.max_question_length"
        )
    backbone = dataclasses.replace(
        model.backbone, hidden_dropout_prob=config.dropout, attention_probs_dropout_prob=config.dropout
    )
    prompts = {
        name: prompt
        for name in ("query_prompt", "passage_prompt")
        if (prompt := prompt_of(model, getattr(config, name))) is not None
    }
    return dataclasses.replace(
        model,
        **prompts,
        backbone=backbone,
        query_weights=queries,
        normalise=config.normalise,
        max_question_length=config.max_question_length,
        max_passage_length=config.max_passage_length,
    )


def with_new_adapters(model: DualEncoder, shape: AdapterShape, seed: int) -> DualEncoder:
    """Return the model with adapters of this shape; those that it has already, if they have that shape."""
    if _adapted(model.config, shape).adapter is model.config.adapter:
        return model.unmerge_lora()
    # Each tower has its own adapters, which begin equal, as the towers do.
    return Adapter(shape, {"shared": init_adapter(shape, model.config.backbone, seed)}).put_into(model)


def _adapted(model: DualEncoderConfig, shape: AdapterShape) -> DualEncoderConfig:
    """Return the configuration with adapters of this shape.

    Raises:
      UsageError: the model has adapters of another shape, or no place for these.
    """
    if model.adapter is not None and model.adapter.equals(shape):
        return dataclasses.replace(model, lora_merged=False)
    if model.adapter is not None:
        raise UsageError(
            "encoder.adapter has another shape than the adapters that encoder.path has already; give the same shape to "
            "train them on, or a path without adapters"
        )
    check_adapter(shape, model.backbone)
    return dataclasses.replace(model, adapter=shape, lora_merged=False)


def check_adapter(shape: AdapterShape, backbone: Backbone) -> None:
    """Raise UsageError for adapters that an encoder has no place for."""
    if not backbone.num_hidden_layers:
        raise UsageError("encoder.adapter: the encoder has no layers to put adapters into; leave it out")
    try:
        check_shape(shape, backbone.dense_sizes())
    except ValueError as error:
        raise UsageError(f"encoder.adapter: {error}") from None


def new_bert(shape: BertShape, vocabulary: int, positions: int) -> BertConfig:
    """Return the configuration of a BERT that is trained from scratch."""
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=positions,
    )


def _fresh(config: EncoderConfig, shape: BertShape, vocabulary: int) -> DualEncoderConfig:
    """Return the configuration of an encoder with newly drawn weights that reads the tokens of `config.path`."""
    if config.passage_path is not None:
        raise UsageError(
            "encoder.passage_path brings weights, and encoder.fresh draws them anew; leave one of them out"
        )
    if shape.hidden_size % max(1, shape.heads):
        raise UsageError(f"encoder.fresh: {shape.heads} heads do not divide a hidden size of {shape.hidden_size}")
    bert = new_bert(shape, vocabulary, max(config.max_question_length, config.max_passage_length))
    return DualEncoderConfig(
        bert,
        shared=config.shared,
        pooling=config.pooling or "cls",
        max_question_length=config.max_question_length,
        max_passage_length=config.max_passage_length,
    )


# ---- with a frozen lexical encoder -------------------------------------------------------------------------------------

_APART = "{}: trained jointly, both encoders read the same token ids, but this one has"


def _joined(base: DualEncoderConfig, lexical: DualEncoderConfig, where: str) -> JointConfig:
    if base.sparse or lexical.sparse:
        raise UserError(f"{where}: sparse and dense encoders are not trained jointly; fuse their runs (jaxretr fuse)")
    longest = max(base.max_question_length, base.max_passage_length)
    if longest > (positions := lexical.backbone.max_position_embeddings):
        raise UserError(
            f"{_APART.format(where)} {positions} positions, the config asks for {longest}; lower encoder.max_*_length"
        )
    frozen = dataclasses.replace(
        lexical,
        backbone=dataclasses.replace(lexical.backbone, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        max_question_length=base.max_question_length,
        max_passage_length=base.max_passage_length,
    )
    return JointConfig(base, frozen)


class JointModel:
    """A base encoder and a frozen lexical one as one model: configuration, first parameters, tokenizer, and both as an encoder."""

    def __init__(self, encoder: EncoderConfig, joint: Joint, seed: int):
        """Load both encoders.

        Args:
          encoder: settings of the base encoder, which is trained.
          joint: settings of the lexical encoder.
          seed: seed of a new base encoder.

        Raises:
          UserError: the two read different rows of token ids, or the lexical one has too few positions.
        """
        base = load_encoder(encoder, seed)
        assert joint.lexical is not None
        lexical = DualEncoder.from_pretrained(joint.lexical)
        apart = _APART.format(joint.lexical)
        remedy = "train the base alone and put the two together with `jaxretr combine`"
        if tokenizer_fingerprint(base.tokenizer) != tokenizer_fingerprint(lexical.tokenizer):
            raise UserError(f"{apart} another tokenizer than {encoder.path}; {remedy}")
        if base.config.passage_template != lexical.config.passage_template:
            raise UserError(f"{apart} the template '{lexical.config.passage_template}' for passages; {remedy}")
        for name in ("query_prompt", "passage_prompt"):
            if getattr(base.config, name) != (prompt := getattr(lexical.config, name)):
                raise UserError(f"{apart} the {name} {prompt!r}; {remedy}")
        self.config = _joined(base.config, lexical.config, joint.lexical)
        self.params: Params = joint_params(base.params, lexical.params, joint.weight)
        self.tokenizer: Any = base.tokenizer

    def combined(self, params: Params) -> CombinedEncoder:
        """Return both encoders and the weight as one model, with a run's parameters or with `self.params`."""
        params = jax.device_get(params)
        parts = [
            DualEncoder(config, params[name], self.tokenizer)
            for name, config in (("base", self.config.base), ("lexical", self.config.lexical))
        ]
        return CombinedEncoder(parts, [1.0, float(params["weight"])], "concatenate", names=["base", "lexical"])


Model = DualEncoder | JointModel
"""The model of a run that searches a corpus."""
