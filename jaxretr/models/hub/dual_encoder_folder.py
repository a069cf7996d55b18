"""Folders of dual encoders: our own, and those of other libraries that can be read."""

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxretr.config import Pooling
from jaxretr.data.tokens import load_tokenizer, reads_pairs, tokenizer_fingerprint
from jaxretr.models.backbones.backbone_config import BACKBONE, TRAINING_ONLY, Backbone
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.partition import join, partition
from jaxretr.models.embed import DenseShape, DualEncoderConfig, abstract_params
from jaxretr.models.hub import adapter_folder, adapter_formats, sentence_transformers
from jaxretr.models.hub.architecture import EncoderCheckpoint
from jaxretr.models.hub.dpr import read_dpr_cp
from jaxretr.models.hub.encoder_params import check_sizes, default_pooling, names_of, read_checkpoint
from jaxretr.models.hub.export_note import FORMAT as EXPORT_FORMAT
from jaxretr.models.hub.export_note import NOTE, ExportNote, Layout, read_note
from jaxretr.models.hub.hf_files import (
    TensorFiles,
    has_weights,
    read_json,
    refuse_file,
    resolve,
    write_safetensors,
)
from jaxretr.models.hub.name_table import read_tree
from jaxretr.models.hub.sentence_transformers import PASSAGE, QUERY
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.notes import note
from jaxretr.runtime.parallel.mesh import to_host
from jaxretr.runtime.storage.files import atomic_folder, restore, write_json
from jaxretr.runtime.storage.sealed_folder import check_replaceable

_WEIGHTS = "model.safetensors"
_HEAD = "mlm_head.safetensors"
_FORMAT = "jaxretr-dual-encoder"
_VERSION = 1

COMBINED_FORMAT = "jaxretr-combined"
"""Format name of the folder that CombinedEncoder.save writes."""

# All files that a folder of ours may hold, with any kind of tokenizer: a folder with anything else is never replaced.
_OURS = (
    *(NOTE, _WEIGHTS, "tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.*", "merges.txt", "*.model", "chat_template*", adapter_folder.FOLDER, _HEAD),
)

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


def load(
    path_or_name: str | Path,
    *,
    passage_path: str | Path | None = None,
    tokenizer: str | Path | None = None,
    shared: bool | None = None,
    pooling: Pooling | None = None,
) -> Loaded:
    """Read any of the supported folders; see `DualEncoder.from_pretrained` for the arguments.

    Returns:
      The model's parts.
    """
    file = Path(path_or_name).expanduser()
    if file.is_file():
        if tokenizer is None or file.suffix not in (".bin", ".pt", ".pth", ".ckpt"):
            refuse_file(file)
        loaded = _load_cp(file, passage_path, tokenizer)
    else:
        folder = model_folder(resolve(path_or_name))
        ours, theirs = (folder / NOTE).exists(), sentence_transformers.wrote(folder)
        if (ours or theirs) and passage_path is not None:
            raise UserError(f"{folder}: holds a whole dual encoder; leave passage_path out")
        places = () if ours else (folder, folder / "0_Transformer")
        adapter = next((place for place in places if adapter_formats.kind_of(place) is not None), None)
        base = folder if adapter is None or has_weights(adapter) else _base_of(adapter)
        if ours:
            loaded = _load_ours(folder, tokenizer)
        elif theirs:
            loaded = _load_sentence_transformers(folder, tokenizer, base)
        elif base != folder:
            loaded = load(base, passage_path=passage_path, tokenizer=tokenizer, pooling=pooling)
        else:
            loaded = _load_hugging_face(folder, passage_path, tokenizer, pooling)
        if adapter is not None:
            loaded = _with_adapter(loaded, adapter, base)
    return _with_towers(_with_pooling(loaded, pooling, path_or_name), shared, path_or_name)


def _base_of(folder: Path) -> Path:
    """Return the model that an adapter's folder names, relative to it, to the working directory, or on the hub."""
    config = read_json(folder, adapter_formats.NOTE)
    name = config.get("base_model_name_or_path") or config.get("model_name") or ""
    try:
        if not isinstance(name, str) or not name:
            raise UserError("its file names none")
        found = folder / name if (folder / name).is_dir() else resolve(name)
        if found.samefile(folder):
            raise UserError("its file names its own folder")
        return found
    except UserError as error:
        raise UserError(
            f"{folder}: holds an adapter alone, and the model that it is for cannot be found ({error}); load that model, "
            "and then the adapter with load_adapter, or put both together with `jaxretr assemble`"
        ) from error


def _with_adapter(loaded: Loaded, folder: Path, base: Path) -> Loaded:
    """A model with the adapter that lies in its folder, as transformers and sentence-transformers load it."""
    note(_log.warning, "%s: its adapter is applied to the weights of %s", folder, base)
    try:
        shape, modules, *_ = adapter_folder.load(folder, loaded.config.backbone)
    except UserError as error:
        raise UserError(
            f"{folder}: {adapter_formats.NOTE} names an adapter that cannot be applied ({error}); move that file away to "
            "load the weights alone"
        ) from error
    params = {name: {**tower, "adapter": modules["shared"]} for name, tower in loaded.params.items()}
    config = dataclasses.replace(loaded.config, adapter=shape, lora_merged=False)
    return loaded._replace(config=config, params=params)


def model_folder(folder: Path) -> Path:
    """Return the folder of a run directory's model, in Hugging Face's layout or ours; otherwise the folder itself."""
    holds = any((folder / "model" / name).exists() for name in (NOTE, "config.json"))
    return folder / "model" if holds else folder


def check_finished(model: str | Path) -> None:
    """Raise UserError for the folder of a run that has not written a model yet."""
    folder = Path(model).expanduser()
    restore(folder / "model")
    if (folder / "checkpoints").is_dir() and not (folder / "model").is_dir():
        raise UserError(f"{folder}: this run has written no model yet; finish it with `jaxretr train`")


def states_use(path_or_name: str | Path) -> bool:
    """Whether a model's folder states its use: by our own note, or by files of sentence-transformers."""
    folder = model_folder(resolve(path_or_name))
    return (folder / NOTE).exists() or sentence_transformers.wrote(folder)


def use_note(config: DualEncoderConfig, layout: Layout = "bert", *, separate: bool = False) -> ExportNote:
    """Return the note with which a folder in another library's layout is read back as the same model."""
    return ExportNote(
        layout=layout,
        shared=config.shared,
        separate=separate,
        passage_template=config.passage_template,
        query_prompt=config.query_prompt or None,
        passage_prompt=config.passage_prompt or None,
        prompts=config.prompts or None,
        pooling=config.pooling,
        normalise=config.normalise,
        truncate_dim=config.truncate_dim,
        max_question_length=config.max_question_length,
        max_passage_length=config.max_passage_length,
    )


def is_ours(folder: Path) -> bool:
    """Whether `DualEncoder.save` wrote the folder."""
    return (folder / NOTE).exists() and read_json(folder, NOTE).get("format") == _FORMAT


def _with_pooling(loaded: Loaded, pooling: Pooling | None, where: Any) -> Loaded:
    if pooling not in (None, *get_args(Pooling)):
        raise UserError(f"pooling {pooling!r} is not supported; use {' or '.join(map(repr, get_args(Pooling)))}")
    stated = loaded.config.pooling
    if pooling is not None and "pooling" in loaded.guessed:
        return loaded._replace(config=dataclasses.replace(loaded.config, pooling=pooling))
    if pooling not in (None, stated):
        raise UserError(
            f"{where}: was trained with pooling '{stated}', not '{pooling}'; leave pooling out or correct it"
        )
    return loaded


def _with_towers(loaded: Loaded, shared: bool | None, where: Any) -> Loaded:
    config, params = loaded.config, loaded.params
    if shared is None or shared == config.shared:
        return loaded
    if shared:
        raise UserError(f"{where}: has two towers of different weights; leave shared out or set it to False")
    # A copy: two towers are trained separately, and donated buffers must not be the same.
    params = {"question": params["shared"], "passage": jax.tree.map(np.copy, params["shared"])}
    return loaded._replace(config=dataclasses.replace(config, shared=False), params=params)


# ---- the folders of others -------------------------------------------------------------------------------------------


def _load_hugging_face(folder: Path, passage_path: Any, tokenizer: Any, pooling: Pooling | None) -> Loaded:
    question = read_checkpoint(folder, expect="dpr-question")
    if passage_path is None:
        if question.kind == "dpr-question":
            raise UserError(
                f"{folder}: is DPR's question encoder alone; give passage_path, the context encoder's folder"
            )
        params = {"shared": _tower(question)}
    else:
        second = resolve(passage_path)
        passage = read_checkpoint(second, expect="dpr-context")
        params = _two_towers(question, passage, f"{folder} and {second}")
    config = _config(question.config, params, pooling=pooling or default_pooling(question.config))
    head = question.mlm_head if passage_path is None else None
    loaded = load_tokenizer(tokenizer or folder)
    if not reads_pairs(loaded):
        config = dataclasses.replace(config, passage_template="joined")
    return Loaded(config, params, loaded, head, () if question.kind == "dpr-question" else _USE)


def _load_cp(file: Path, passage_path: Any, tokenizer: Any) -> Loaded:
    if passage_path is not None:
        raise UserError(f"{file}: holds both towers; leave passage_path out")
    if tokenizer is None:
        raise UserError(f"{file}: a .cp file has no tokenizer; give the folder of bert-base-uncased's as tokenizer")
    question, passage = read_dpr_cp(file)
    params = _two_towers(question, passage, str(file))
    return Loaded(_config(question.config, params), params, load_tokenizer(tokenizer))


def _load_sentence_transformers(folder: Path, tokenizer: Any, base: Path | None = None) -> Loaded:
    """Read a folder; `base` holds the weights if the folder has none of its own but an adapter."""
    modules = sentence_transformers.read(folder)
    checkpoint = read_checkpoint(modules.transformer if base in (None, folder) else base)
    loaded = load_tokenizer(tokenizer or modules.transformer)
    if modules.lower_case:
        loaded = _lower_casing(loaded)
    tower: Params = {BACKBONE: checkpoint.params}
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
    return Loaded(config, {"shared": tower}, loaded, checkpoint.mlm_head, modules.guessed)


def _lower_casing(tokenizer: Any) -> Any:
    from tokenizers import normalizers
    from transformers import PreTrainedTokenizerFast

    backend = tokenizer.backend_tokenizer
    rest = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
    # A BertTokenizer would be saved with its own do_lower_case, and be loaded again without our normaliser.
    return PreTrainedTokenizerFast(
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


def _tower(checkpoint: EncoderCheckpoint) -> Params:
    tower: Params = {BACKBONE: checkpoint.params}
    return tower if checkpoint.projection is None else {**tower, "projection": checkpoint.projection}


def _two_towers(question: EncoderCheckpoint, passage: EncoderCheckpoint, where: str) -> Params:
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
    return {"question": _tower(question), "passage": _tower(passage)}


# ---- our own folder --------------------------------------------------------------------------------------------------


def _load_ours(folder: Path, tokenizer: Any) -> Loaded:
    where = str(folder / NOTE)
    content = read_json(folder, NOTE)
    if content.get("format") == EXPORT_FORMAT:
        return _load_export(folder, content, tokenizer)
    if content.get("format") == COMBINED_FORMAT:
        raise UserError(
            f"{folder}: is a combined encoder; load it with CombinedEncoder.from_pretrained, or load one of its parts, "
            f"{folder / 'part-0'}"
        )
    if content.get("format") != _FORMAT or not isinstance(content.get("config"), dict):
        raise UserError(f"{where}: is not a dual encoder's; give a folder that DualEncoder.save wrote")
    if content.get("version") != _VERSION:
        raise UserError(f"{where}: is of version {content.get('version')}, not {_VERSION}; install a newer jaxretr")
    config = DualEncoderConfig.from_json(content["config"], where)
    check_sizes(config.backbone, where, bag_of_words=True)
    tensors = TensorFiles.open(folder)
    tensors.check_sizes({**config.backbone.sizes(), "projection_size": config.projection_size or 0}, NOTE)
    shapes, _ = partition(abstract_params(config), ("adapter",))
    params = read_tree(tensors, shapes, f"{folder}: the weights are a checkpoint of another shape than {NOTE} says:")
    if config.adapter is not None:
        modules = adapter_folder.read_modules(folder / adapter_folder.FOLDER, config)
        params = join(params, {name: {"adapter": modules[name]} for name in modules})
    return Loaded(config, params, load_tokenizer(tokenizer or folder), _read_head(folder))


def _load_export(folder: Path, content: dict[str, Any], tokenizer: Any) -> Loaded:
    note = read_note(content, str(folder / NOTE))
    question, passage = note.folders(folder)
    if note.layout != "sentence-transformers":
        # DPR's two kinds of encoder know their side; for a shared tower outside DPR there is only one folder.
        second = passage if note.separate else None
        config, params, loaded, head, _ = _load_hugging_face(question, second, tokenizer, note.pooling)
    else:
        config, params, loaded, head, _ = _load_sentence_transformers(question, tokenizer)
        if note.separate:
            other, other_params, other_tokenizer, *_ = _load_sentence_transformers(passage, tokenizer)
            _check_same_kind(config, other, folder)
            if tokenizer_fingerprint(loaded) != tokenizer_fingerprint(other_tokenizer):
                raise UserError(f"{folder}: question/ and passage/ have different tokenizers; export the model again")
            config = dataclasses.replace(config, shared=False, max_passage_length=other.max_passage_length)
            params = {"question": params["shared"], "passage": other_params["shared"]}
    if note.shared and not config.shared:
        same = jax.tree.map(np.array_equal, params["question"], params["passage"])
        if not all(jax.tree.leaves(same)):
            raise UserError(
                f"{folder}: {NOTE} says that both towers have the same weights, but question/ and passage/ differ; "
                "export the model again"
            )
        config, params = dataclasses.replace(config, shared=True), {"shared": params["question"]}
    return Loaded(dataclasses.replace(config, **note.stated()), params, loaded, head)


def _check_same_kind(question: DualEncoderConfig, passage: DualEncoderConfig, folder: Path) -> None:
    for field in dataclasses.fields(question):
        one, other = getattr(question, field.name), getattr(passage, field.name)
        if one != other and field.name not in ("max_question_length", "max_passage_length"):
            raise UserError(
                f"{folder}: the towers must be of one kind, but {field.name} is {one} in question/ and {other} in "
                "passage/; export the model again"
            )


def save(folder: Path, model: Loaded, adapter: adapter_folder.AdapterParts | None) -> None:
    """Write our own folder under another name and rename it; see `DualEncoder.save`.

    Args:
      folder: folder of the model.
      model: parts of the model.
      adapter: adapters of the model, if it has any.

    Raises:
      UserError: the folder holds anything but an older model of this kind, or cannot be written.
    """
    folder = Path(os.path.realpath(folder))
    check_replaceable(folder, "a model of jaxretr", lambda names: NOTE in names, _OURS)
    content = {"format": _FORMAT, "version": _VERSION, "config": model.config.to_json()}
    params, _ = partition(model.params, ("adapter",))
    with atomic_folder(folder) as partial:
        write_json(partial / NOTE, content, indent=2)
        _write_tensors(partial / _WEIGHTS, params)
        # Separate, so that the few megabytes of a relevance module can be moved to another encoder.
        if adapter is not None:
            (partial / adapter_folder.FOLDER).mkdir()
            adapter_folder.write(partial / adapter_folder.FOLDER, adapter)
        if model.mlm_head is not None:
            _write_tensors(partial / _HEAD, model.mlm_head)
        save_tokenizer(model.tokenizer, partial)


def _write_tensors(path: Path, params: Params) -> None:
    tensors = {name: to_host(array) for name, array in flatten_dict(params, sep=".").items()}
    write_safetensors(path, tensors, {"format": _FORMAT})


def _read_head(folder: Path) -> Params | None:
    if not (folder / _HEAD).exists():
        return None
    tensors = TensorFiles.open_file(folder / _HEAD)
    return unflatten_dict({name: tensors.read(name) for name in tensors.names}, sep=".")


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer's files; raises UserError where that fails."""
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:  # The Rust library raises bare Exceptions, also for a full disk.
        raise UserError(f"{folder}: the tokenizer cannot be written ({error}); free some space there") from error
