"""Dual encoders in the folders of other libraries: transformers', sentence-transformers', and DPR's files."""

import dataclasses
import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxretr.config import SPLADE, Pooling
from jaxretr.data.tokens import from_transformers, load_tokenizer, reads_pairs, tokenizer_fingerprint
from jaxretr.models.backbones.backbone_config import BACKBONE, TRAINING_ONLY, Backbone
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.term_weights import QUERY_WEIGHTS
from jaxretr.models.embed import WORDS_HEAD, DenseShape, DualEncoderConfig
from jaxretr.models.hub import sentence_transformers
from jaxretr.models.hub.architecture import EncoderCheckpoint
from jaxretr.models.hub.dpr import read_dpr_cp
from jaxretr.models.hub.encoder_params import default_pooling, names_of, read_checkpoint
from jaxretr.models.hub.hf_files import resolve
from jaxretr.models.hub.sentence_transformers import PASSAGE, QUERY
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.notes import note

# Settings that a plain Hugging Face folder does not state.
_USE = ("pooling", "normalise", "passage_template", "max_question_length", "max_passage_length")

_MAX_LENGTH = 256

_log = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """The parts of a dual encoder as a folder contains them.

    Attributes:
      config: configuration of the dual encoder.
      params: laid out as by `init_params`, numpy arrays.
      tokenizer: tokenizer of the model.
      mlm_head: head of masked language modelling, as in `EncoderCheckpoint`; None where there is none.
      guessed: names of the settings of `config` that no file states.
    """

    config: DualEncoderConfig
    params: Params
    tokenizer: Any
    mlm_head: Params | None = None
    guessed: tuple[str, ...] = ()


def load_hugging_face(folder: Path, passage_path: Any, tokenizer: Any, pooling: Pooling | None) -> Loaded:
    """Read a folder of transformers, with the second tower at `passage_path` if it is separate."""
    question = read_checkpoint(folder, expect="dpr-question")
    if passage_path is None:
        if question.kind == "dpr-question":
            raise UserError(
                f"{folder}: is DPR's question encoder alone; give passage_path, the context encoder's folder"
            )
        params = {"shared": _tower(question, folder, pooling)}
    else:
        second = resolve(passage_path)
        passage = read_checkpoint(second, expect="dpr-context")
        params = _two_towers(question, passage, folder, second, pooling)
    config = _config(question.config, params, pooling=pooling or default_pooling(question.config))
    head = question.mlm_head if passage_path is None and not config.sparse else None
    loaded = _tokenizer(tokenizer or folder)
    if not reads_pairs(loaded):
        config = dataclasses.replace(config, passage_template="joined")
    return Loaded(config, params, loaded, head, () if question.kind == "dpr-question" else _USE)


def load_cp(file: Path, passage_path: Any, tokenizer: Any) -> Loaded:
    """Read a .cp file of the original DPR, which has no tokenizer of its own."""
    if passage_path is not None:
        raise UserError(f"{file}: holds both towers; leave passage_path out")
    if tokenizer is None:
        raise UserError(f"{file}: a .cp file has no tokenizer; give the folder of bert-base-uncased's as tokenizer")
    question, passage = read_dpr_cp(file)
    params = _two_towers(question, passage, file)
    return Loaded(_config(question.config, params), params, load_tokenizer(tokenizer))


def load_sentence_transformers(folder: Path, tokenizer: Any, base: Path | None = None) -> Loaded:
    """Read a folder; `base` holds the weights if the folder has none of its own but an adapter."""
    modules = sentence_transformers.read(folder)
    checkpoint = read_checkpoint(modules.transformer if base in (None, folder) else base)
    loaded = _tokenizer(tokenizer or modules.transformer)
    if modules.lower_case:
        loaded = _lower_casing(loaded)
    tower = _tower(checkpoint, modules.transformer, modules.pooling)
    inner, last = modules.dense[:-1], modules.dense[-1:]
    if inner:
        tower["inner_dense"] = {str(number): params for number, (params, _) in enumerate(inner)}
    if last:
        tower["projection"] = last[0][0]
    full_size = checkpoint.config.hidden_size
    for params, _ in modules.dense:
        if (inputs := len(params["kernel"])) != full_size:
            raise UserError(
                f"{folder}: a Dense module takes {inputs} numbers, but what is before it gives {full_size}; the folder is "
                "a mixture of two models"
            )
        full_size = len(params["bias"])
    cut = modules.truncate_dim is not None and modules.truncate_dim < full_size
    if cut and modules.normalise and not modules.cut_by_module:
        note(
            _log.warning,
            "%s: embeddings are cut to %d dimensions and then divided by their length, as sentence-transformers does "
            "with encode(..., normalize_embeddings=True)",
            folder,
            modules.truncate_dim,
        )
    positions = checkpoint.config.max_position_embeddings
    unstated = names_of(checkpoint.config).length or positions
    if (limit := modules.max_length or min(loaded.model_max_length, unstated)) > positions:
        note(
            _log.warning,
            "%s: says max_seq_length %d, but the encoder has %d positions; texts are cut there",
            modules.transformer / sentence_transformers.LIMITS,
            limit,
            positions,
        )
        limit = positions
    config = _config(
        checkpoint.config,
        {"shared": tower},
        pooling=modules.pooling,
        normalise=modules.normalise,
        passage_template="joined",
        inner_dense=tuple(DenseShape(len(params["bias"]), activation) for params, activation in inner),
        projection_activation=last[0][1] if last else "identity",
        query_prompt=modules.query_prompt,
        passage_prompt=modules.passage_prompt,
        prompts=tuple((name, prompt) for name, prompt in modules.prompts.items() if name not in (QUERY, PASSAGE)),
        max_question_length=limit,
        max_passage_length=limit,
        truncate_dim=modules.truncate_dim if cut else None,
    )
    head = None if config.sparse else checkpoint.mlm_head
    found = Loaded(config, {"shared": tower}, loaded, head, modules.guessed)
    return found if modules.queries is None else _with_static_queries(found, modules.queries)


def _with_static_queries(model: Loaded, queries: sentence_transformers.StaticQueries) -> Loaded:
    """Return a model with the query route of a Router in place of a question tower."""
    own = load_tokenizer(queries.folder)
    if tokenizer_fingerprint(own) != tokenizer_fingerprint(model.tokenizer):
        raise UserError(f"{queries.folder}: its tokenizer is another one than the documents'; give both the same")
    weights, size = queries.read(own), model.config.backbone.vocab_size
    if len(weights) > size:
        raise UserError(f"{queries.folder}: has {len(weights)} weights, and the documents' vocabulary {size} entries")
    # Without special tokens there, and with two here; a tokenizer without a limit states an astronomical one.
    length = min(own.model_max_length, model.config.backbone.max_position_embeddings) + 2
    config = dataclasses.replace(model.config, shared=False, query_weights=queries.kind, max_question_length=length)
    params = {"question": {QUERY_WEIGHTS: np.pad(weights, (0, size - len(weights)))}, "passage": model.params["shared"]}
    return model._replace(config=config, params=params)


def _tokenizer(path_or_name: Any) -> Any:
    """Load a tokenizer; one that would cut the beginning of a long text cuts its end, as all do here, and says so."""
    loaded = load_tokenizer(path_or_name)
    if getattr(loaded, "truncation_side", "right") != "right":
        note(
            _log.warning,
            "%s: its tokenizer cuts the beginning of a text that is too long (truncation_side); here the end is cut",
            path_or_name,
        )
        loaded.truncation_side = "right"  # For a folder that is written with it.
    return loaded


def _lower_casing(tokenizer: Any) -> Any:
    from tokenizers import normalizers

    backend = tokenizer.backend_tokenizer
    rest = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
    # A BertTokenizer would be saved with its own do_lower_case, and be loaded again without our normaliser.
    return from_transformers("PreTrainedTokenizerFast")(
        tokenizer_object=backend, model_max_length=tokenizer.model_max_length, **tokenizer.special_tokens_map
    )


def _config(backbone: Backbone, params: Params, **settings: Any) -> DualEncoderConfig:
    projection = next(iter(params.values())).get("projection")
    length = min(_MAX_LENGTH, backbone.max_position_embeddings)
    defaults = {
        "shared": "shared" in params,
        "projection_size": None if projection is None else projection["kernel"].shape[1],
        "max_question_length": length,
        "max_passage_length": length,
    }
    return DualEncoderConfig(backbone, **{**defaults, **settings})


def _tower(checkpoint: EncoderCheckpoint, where: Path, pooling: Pooling | None = None) -> Params:
    """Return the parameters of a tower, a sparse encoder's with its head of masked language modelling."""
    tower: Params = {BACKBONE: checkpoint.params}
    if pooling in SPLADE:
        if checkpoint.mlm_head is None:
            raise UserError(
                f"{where}: pooling '{pooling}' needs a head of masked language modelling, and there is none; give the "
                "encoder's ...ForMaskedLM folder, or train a head with a config of kind mlm"
            )
        tower[WORDS_HEAD] = checkpoint.mlm_head
    return tower if checkpoint.projection is None else {**tower, "projection": checkpoint.projection}


def _two_towers(
    question: EncoderCheckpoint,
    passage: EncoderCheckpoint,
    folder: Path,
    second: Path | None = None,
    pooling: Pooling | None = None,
) -> Params:
    where = f"{folder} and {second}" if second else str(folder)
    shapes = [
        {
            **dataclasses.asdict(checkpoint.config),
            "projection": None if checkpoint.projection is None else checkpoint.projection["kernel"].shape[1],
        }
        for checkpoint in (question, passage)
    ]
    differing = shapes[0].keys() - set(TRAINING_ONLY)
    for name in sorted(differing):
        one, other = (shape[name] for shape in shapes)
        if one != other:
            raise UserError(f"{where}: the towers must be of one shape, but {name} is {one} and {other}")
    return {
        "question": _tower(question, folder, pooling),
        "passage": _tower(passage, second or folder, pooling),
    }
