"""BERT checkpoints to and from our parameters: Hugging Face's BERT, DPR and Megatron-BERT, and DPR's own .cp files."""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.models.backbones.bert import BertEncoder
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params, define
from jaxretr.models.hub.bert_names import MEGATRON, NAMES, WORDS, Names, display_name, names_of, skipped
from jaxretr.models.hub.encoder_checkpoint import ACTIVATION_NAMES, EncoderCheckpoint, Kind
from jaxretr.models.hub.hf_files import TensorFiles, config_fields, load_torch, some_names, stated_architecture
from jaxretr.models.hub.name_table import Row, read_rows, write_rows
from jaxretr.runtime.errors import UserError

# Prefixes of DPR's encoder in a checkpoint, and of its projection if it has one.
_DPR_PREFIXES: dict[str, Kind] = {
    "question_encoder.bert_model.": "dpr-question",
    "ctx_encoder.bert_model.": "dpr-context",
    "question_model.": "dpr-question",
    "ctx_model.": "dpr-context",
}
_DPR_EXPORTS = {"question_encoder.bert_model.": "DPRQuestionEncoder", "ctx_encoder.bert_model.": "DPRContextEncoder"}
_DPR_ARCHITECTURES: dict[str, Kind] = {"DPRQuestionEncoder": "dpr-question", "DPRContextEncoder": "dpr-context"}

# Class in transformers -> the architecture's names.
_ARCHITECTURES: dict[str, Names] = {
    **{name: names for names in (*NAMES.values(), MEGATRON) for name in (names.encoder, names.masked_lm)},
    "BertForPreTraining": NAMES["bert"],
    **dict.fromkeys(_DPR_ARCHITECTURES, NAMES["bert"]),
}
SUPPORTED = tuple(_ARCHITECTURES)
"""Classes whose folders can be read."""
_MODEL_TYPES: dict[str, Names] = {**NAMES, "dpr": NAMES["bert"], "megatron-bert": MEGATRON}
_BUCKETS = "relative_attention_num_buckets"
_ONLY = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}

# Position ids are 0, 1, 2, ...; the pooler and the next-sentence head are not part of any retriever here.
_IGNORED = re.compile(r"(.*\.)?embeddings\.position_ids|(.*\.)?pooler\.dense\.(weight|bias)|cls\.seq_relationship\..*")


def import_bert(
    config: Mapping[str, Any], tensors: TensorFiles, *, expect: Literal["dpr-question", "dpr-context"] | None = None
) -> EncoderCheckpoint:
    """Translate a Hugging Face checkpoint.

    Args:
      config: the parsed config.json.
      tensors: the weights; every one is used, or is among the few without a use here (position ids, pooler,
        next-sentence head), or is named in an error.
      expect: tower that is expected in a DPR model; None: any.

    Returns:
      The checkpoint in our layout.

    Raises:
      UserError: another architecture, the other tower, or tensors that are missing, left over or of a wrong shape.
    """
    where = tensors.where
    bert, projected = bert_shape(config, where)
    prefix = _prefix(tensors, names_of(bert))
    architecture, found = stated_architecture(config, where), _DPR_PREFIXES.get(prefix)
    stated = _DPR_ARCHITECTURES.get(architecture)
    if found is not None and architecture and stated != found:
        raise UserError(
            f"{where}: config.json says {architecture}, but the tensors are a {found} encoder's ({prefix}*)"
        )
    kind: Kind = found or stated or ("megatron" if bert.pre_layer_norm else bert.architecture)
    if expect is not None and kind.startswith("dpr-") and kind != expect:
        raise UserError(
            f"{where}: the towers are swapped: this is the {kind} encoder, where the {expect} encoder is expected; "
            "exchange the two folders"
        )
    return _translate(bert, tensors, prefix, kind, projected=projected if kind.startswith("dpr-") else 0)


def read_dpr_cp(
    path: str | Path, *, num_attention_heads: int | None = None
) -> tuple[EncoderCheckpoint, EncoderCheckpoint]:
    """Read both towers of a checkpoint of the original DPR code (a .cp file; needs torch).

    Such a file does not state the model's shape: sizes are taken from the tensors, and the rest is that of BERT-base
    (64 dimensions per head, exact gelu, eps 1e-12).

    Args:
      path: the file.
      num_attention_heads: number of heads, if they do not have 64 dimensions.

    Returns:
      The question encoder and the context encoder.

    Raises:
      UserError: torch is missing, or the file is not a DPR checkpoint or is incomplete.
    """
    state = load_torch(path, ignore_objects=True)
    model = state.get("model_dict") if isinstance(state, Mapping) else None
    if not isinstance(model, Mapping):
        raise UserError(f"{path}: holds no 'model_dict'; give a .cp file of DPR's train_dense_encoder.py")
    tensors = TensorFiles.of(model, str(path))
    prefixes = ("question_model.", "ctx_model.")
    if strange := [name for name in tensors.names if not name.startswith(prefixes)]:
        raise UserError(
            f"{path}: {len(strange)} tensors belong to neither question_model nor ctx_model: {some_names(strange)}; "
            "give the checkpoint of a biencoder (not of a reader)"
        )
    question, context = (
        _dpr_tower(tensors.select(lambda name, prefix=prefix: name.startswith(prefix)), prefix, num_attention_heads)
        for prefix in prefixes
    )
    return question, context


def _dpr_tower(tensors: TensorFiles, prefix: str, heads: int | None) -> EncoderCheckpoint:
    names = set(tensors.names)

    def shape(name: str) -> tuple[int, ...]:
        if prefix + name not in names:
            raise UserError(
                f"{tensors.where}: {prefix}{name} is missing; give a complete checkpoint of a BERT biencoder"
            )
        return tensors.shape(prefix + name)

    vocabulary, size = shape("embeddings.word_embeddings.weight")
    numbers = [
        int(found[1]) for name in names if (found := re.match(re.escape(prefix) + r"encoder\.layer\.(\d+)\.", name))
    ]
    bert = BertConfig(
        vocab_size=vocabulary,
        hidden_size=size,
        num_hidden_layers=max(numbers, default=-1) + 1,
        num_attention_heads=heads or max(size // 64, 1),
        intermediate_size=shape("encoder.layer.0.intermediate.dense.weight")[0],
        max_position_embeddings=shape("embeddings.position_embeddings.weight")[0],
        type_vocab_size=shape("embeddings.token_type_embeddings.weight")[0],
    )
    check_sizes(bert, tensors.where)
    projection = prefix + "encode_proj.weight"
    projected = tensors.shape(projection)[0] if projection in names else 0
    return _translate(bert, tensors, prefix, _DPR_PREFIXES[prefix], projected=projected)


def _translate(bert: BertConfig, tensors: TensorFiles, prefix: str, kind: Kind, *, projected: int) -> EncoderCheckpoint:
    # Checkpoints that once came from TensorFlow, bert-base-uncased among them, have its names for scale and bias.
    tensors = tensors.rename(lambda name: re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name))
    tensors = tensors.rename(lambda name: re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
    tensors, has_head = _without_tied_decoder(tensors, prefix, names_of(bert))
    tensors.check_sizes({**bert.sizes(), "projection_dim": projected}, "config.json")
    size = bert.hidden_size
    shapes: Params = {"encoder": define(lambda rngs: BertEncoder(bert, rngs=rngs))[1]}
    if projected:
        shapes["projection"] = _shapes(kernel=(size, projected), bias=(projected,))
    if has_head:
        shapes["mlm_head"] = _shapes(bias=(bert.vocab_size,))
        shapes["mlm_head"]["dense"] = _shapes(kernel=(size, size), bias=(size,))
        shapes["mlm_head"]["norm"] = _shapes(scale=(size,), bias=(size,))
    rows = _table(bert, prefix, projection=projected > 0, mlm_head=has_head)
    parts = read_rows(rows, shapes, tensors, ignored=_IGNORED, dtype=np.float32)
    if bert.positions_skip_padding:
        # The padding token's row among the positions, zeros in trained models, belongs to no other token.
        padding = tensors.read(prefix + "embeddings.position_embeddings.weight")[bert.pad_token_id]
        parts["encoder"]["word_embedding"]["table"][bert.pad_token_id] += padding
    return EncoderCheckpoint(bert, parts["encoder"], parts.get("projection"), parts.get("mlm_head"), kind)


def _shapes(**shapes: tuple[int, ...]) -> Params:
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


def _table(config: BertConfig, prefix: str, *, projection: bool, mlm_head: bool) -> list[Row]:
    names = names_of(config)
    rows = [replace(row, ours=f"encoder/{row.ours}", theirs=prefix + row.theirs) for row in names.rows(config)]
    if projection:
        place = (prefix.removesuffix("bert_model.") if prefix in _DPR_PREFIXES else "") + "encode_proj."
        rows += [Row("projection/kernel", place + "weight", True), Row("projection/bias", place + "bias")]
    return rows + list(names.head if mlm_head else ())


def _prefix(tensors: TensorFiles, names: Names) -> str:
    there = set(tensors.names)
    prefixes = ("", names.prefix, *(_DPR_PREFIXES if names is NAMES["bert"] else ()))
    found = [prefix for prefix in prefixes if prefix + WORDS in there]
    if len(found) == 1:
        return found[0]
    kind = display_name(names.defaults)
    what = f"two {kind} encoders" if found else f"no {WORDS}, so no {kind} encoder,"
    raise UserError(
        f"{tensors.where}: {what} in this checkpoint ({some_names(sorted(there))}); give one encoder's folder"
    )


def _without_tied_decoder(tensors: TensorFiles, prefix: str, names: Names) -> tuple[TensorFiles, bool]:
    """Drop the head's second names for the word embedding and its bias, after checking that they are equal."""
    there = set(tensors.names)
    tied = {name: prefix + own if own == WORDS else own for name, own in names.decoder.items()}
    for name, original in tied.items():
        if name in there and original in there and not np.array_equal(tensors.read(name), tensors.read(original)):
            raise UserError(f"{tensors.where}: {name} differs from {original}; only a tied decoder is supported")
    tensors = tensors.select(lambda name: name not in tied or tied[name] not in there)
    return tensors, any(row.theirs in there for row in names.head)


def reads(config: Mapping[str, Any], where: str) -> bool:
    """Whether a config.json belongs to one of these architectures."""
    stated, model_type = stated_architecture(config, where), config.get("model_type") or ""
    return not (
        (stated and stated not in _ARCHITECTURES) or ((model_type or not stated) and model_type not in _MODEL_TYPES)
    )


def bert_shape(config: Mapping[str, Any], where: str) -> tuple[BertConfig, int]:
    """Return the shape that a config.json states, and DPR's projection size, 0 without; UserError names `where`."""
    architecture = stated_architecture(config, where)
    names = _ARCHITECTURES[architecture] if architecture else _MODEL_TYPES[config["model_type"]]
    for key, supported in {**_ONLY, **names.constants}.items():
        if config.get(key, supported) not in (supported, None):
            raise UserError(f"{where}: config.json has {key} {config[key]!r}; only {supported!r} is supported")
    theirs = {ours: names.settings.get(ours, ours) for ours in _settings(names.defaults)}
    defaults = {their: getattr(names.defaults, ours) for ours, their in theirs.items() if their is not None}
    found = config_fields(config, defaults, f"{where}/config.json")
    bert = replace(names.defaults, **{ours: found[their] for ours, their in theirs.items() if their is not None})
    if bert.hidden_act not in ACTIVATION_NAMES:
        raise UserError(
            f"{where}: config.json has hidden_act '{bert.hidden_act}'; supported: {', '.join(ACTIVATION_NAMES)}"
        )
    bert = replace(
        bert,
        hidden_act=ACTIVATION_NAMES[bert.hidden_act],
        max_position_embeddings=max(0, bert.max_position_embeddings - skipped(bert)),
    )
    check_sizes(bert, where)
    return bert, config_fields(config, {"projection_dim": 0}, where)["projection_dim"]


def _settings(bert: BertConfig) -> list[str]:
    """Return the names of a shape's settings that its architecture has."""
    settings = asdict(bert)
    for name in ("pre_layer_norm", "architecture", *(() if bert.relative_attention_num_buckets else (_BUCKETS,))):
        del settings[name]
    if not bert.positions_skip_padding:
        del settings["pad_token_id"]  # It has no effect there.
    return list(settings)


def check_sizes(bert: BertConfig, where: str, *, bag_of_words: bool = False) -> None:
    """Raise UserError, which names `where`, for sizes that no encoder has; a `bag_of_words` may have no layers."""
    least = {"num_hidden_layers": 0} if bag_of_words else {}
    if wrong := next((name for name, size in bert.sizes().items() if size < least.get(name, 1)), None):
        raise UserError(f"{where}: {wrong} is {getattr(bert, wrong)}, but must be at least 1; correct it")
    if bert.num_attention_heads < 1 or bert.hidden_size % bert.num_attention_heads:
        raise UserError(
            f"{where}: {bert.num_hidden_layers} layers of {bert.num_attention_heads} heads do not fit a hidden size of "
            f"{bert.hidden_size}; correct num_hidden_layers and num_attention_heads"
        )


def export_bert(
    config: BertConfig,
    params: Params,
    mlm_head: Params | None = None,
    prefix: str = "",
    projection: Params | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Translate our parameters to a Hugging Face checkpoint; the reverse of `import_bert`, bit for bit.

    Args:
      config: shape of the encoder.
      params: parameters of the encoder, a nested dict of arrays.
      mlm_head: head of masked language modelling, as in `EncoderCheckpoint`.
      prefix: prefix of the encoder's tensors: "" (BertModel; with a head it means "bert."), "bert." (BertForMaskedLM),
        "question_encoder.bert_model." or "ctx_encoder.bert_model." (DPR). With `config.pre_layer_norm` the first two
        are MegatronBert's.
      projection: DPR's projection, as in `EncoderCheckpoint`.

    Returns:
      The content of config.json, and the tensors of model.safetensors by name.

    Raises:
      ValueError: the prefix is not one of these, or does not fit the head, the projection or pre-LayerNorm.
    """
    names = names_of(config)
    prefix = names.prefix if mlm_head is not None and not prefix else prefix
    dpr = _DPR_EXPORTS.get(prefix)
    if prefix not in ("", names.prefix, *_DPR_EXPORTS):
        raise ValueError(f"unknown prefix {prefix!r}")
    misplaced = names is not NAMES["bert"] if dpr else projection is not None
    if misplaced or (mlm_head is not None) != (prefix == names.prefix):
        raise ValueError(f"prefix {prefix!r} does not go with this head, projection or architecture")
    stated = replace(config, max_position_embeddings=config.max_position_embeddings + skipped(config))
    content: dict[str, Any] = {
        their: getattr(stated, ours)
        for ours in _settings(config)
        if (their := names.settings.get(ours, ours)) is not None
    }
    content["architectures"] = [dpr or (names.masked_lm if mlm_head is not None else names.encoder)]
    content["model_type"] = "dpr" if dpr else "megatron-bert" if config.pre_layer_norm else config.architecture
    content["pad_token_id"] = config.pad_token_id
    if names is NAMES["bert"] or config.pre_layer_norm:
        content["position_embedding_type"] = "absolute"
    if dpr:
        content["projection_dim"] = 0 if projection is None else int(np.shape(projection["kernel"])[1])
    rows = _table(config, prefix, projection=projection is not None, mlm_head=mlm_head is not None)
    parts = {"encoder": params, "mlm_head": mlm_head or {}, "projection": projection or {}}
    return content, write_rows(rows, parts)
