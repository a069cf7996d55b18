"""Folders of dual encoders: our own, and those of other libraries that can be read."""

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxretr.config import SPLADE, Pooling
from jaxretr.data.stored_tokenizer import is_stored, statement, stored
from jaxretr.data.tokens import load_tokenizer, tokenizer_fingerprint
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.partition import join, partition
from jaxretr.models.backbones.term_weights import TERM_HEAD, new_term_head
from jaxretr.models.embed import WORDS_HEAD, DualEncoderConfig, abstract_params, as_sparse
from jaxretr.models.hub import adapter_folder, adapter_formats, sentence_transformers
from jaxretr.models.hub.encoder_params import check_sizes
from jaxretr.models.hub.export_note import FORMAT as EXPORT_FORMAT
from jaxretr.models.hub.export_note import NOTE, SETTINGS, ExportNote, Layout, read_note
from jaxretr.models.hub.foreign_folders import Loaded, load_cp, load_hugging_face, load_sentence_transformers
from jaxretr.models.hub.hf_files import read_json, refuse_file, resolve
from jaxretr.models.hub.name_table import read_tree
from jaxretr.models.hub.tensor_files import TensorFiles, has_weights, write_safetensors
from jaxretr.runtime.errors import UserError, path_text
from jaxretr.runtime.notes import note
from jaxretr.runtime.parallel.mesh import to_host
from jaxretr.runtime.storage.files import atomic_folder, check_place, refuse_input, restore, write_json
from jaxretr.runtime.storage.sealed_folder import check_replaceable

_WEIGHTS = "model.safetensors"
_HEAD = "mlm_head.safetensors"
_FORMAT = "jaxretr-dual-encoder"
_VERSION = 1

COMBINED_FORMAT = "jaxretr-combined"
"""Format name of the folder that CombinedEncoder.save writes."""

# All files that a folder of ours may hold, with any kind of tokenizer and `jaxretr merge`'s curve: a folder with anything
# else is never replaced.
_OURS = (
    *(NOTE, _WEIGHTS, "tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.*", "merges.txt", "*.model", "chat_template*", adapter_folder.FOLDER, _HEAD),
    *("curve.json", "curve.png"),
)

_log = logging.getLogger(__name__)


def load(
    path_or_name: str | Path,
    *,
    passage_path: str | Path | None = None,
    tokenizer: str | Path | None = None,
    shared: bool | None = None,
    pooling: Pooling | None = None,
) -> Loaded:
    """Read a model's parts from any of the supported folders; see `DualEncoder.from_pretrained` for the arguments."""
    file = Path(path_text(path_or_name)).expanduser()
    if pooling == "unicoil":
        loaded = load(path_or_name, passage_path=passage_path, tokenizer=tokenizer, shared=shared)
        return loaded if loaded.config.pooling == pooling else _weighing_terms(loaded, path_or_name)
    if file.is_file():
        if tokenizer is None or file.suffix not in (".bin", ".pt", ".pth", ".ckpt"):
            refuse_file(file)
        loaded = load_cp(file, passage_path, tokenizer)
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
            loaded = load_sentence_transformers(folder, tokenizer, base)
        elif base != folder:
            loaded = load(base, passage_path=passage_path, tokenizer=tokenizer, pooling=pooling)
        else:
            loaded = load_hugging_face(folder, passage_path, tokenizer, pooling)
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
        adapter = adapter_folder.load(folder, loaded.config.backbone)
    except UserError as error:
        raise UserError(
            f"{folder}: {adapter_formats.NOTE} names an adapter that cannot be applied ({error}); move that file away to "
            "load the weights alone"
        ) from error
    params = {name: {**tower, "adapter": adapter.params["shared"]} for name, tower in loaded.params.items()}
    config = dataclasses.replace(loaded.config, adapter=adapter.shape, lora_merged=False)
    return loaded._replace(config=config, params=params)


def model_folder(folder: Path) -> Path:
    """Return the folder of a run directory's model, in Hugging Face's layout or ours; otherwise the folder itself."""
    holds = any((folder / "model" / name).exists() for name in (NOTE, "config.json"))
    return folder / "model" if holds else folder


def check_finished(model: str | Path) -> None:
    """Raise UserError for the folder of a run that has not written a model yet."""
    folder = Path(path_text(model)).expanduser()
    restore(folder / "model")
    if (folder / "checkpoints").is_dir() and not (folder / "model").is_dir():
        raise UserError(f"{folder}: this run has written no model yet; finish it with `jaxretr train`")


def states_use(path_or_name: str | Path) -> bool:
    """Whether a model's folder states its use: by our own note, or by files of sentence-transformers."""
    folder = model_folder(resolve(path_or_name))
    return (folder / NOTE).exists() or sentence_transformers.wrote(folder)


def use_note(config: DualEncoderConfig, layout: Layout = "bert", *, separate: bool = False) -> ExportNote:
    """Return the note with which a folder in another library's layout is read back as the same model."""
    settings: Any = {name: None if (value := getattr(config, name)) in ("", ()) else value for name in SETTINGS}
    return ExportNote(layout=layout, shared=config.shared, separate=separate, **settings)


def is_ours(folder: Path) -> bool:
    """Whether `DualEncoder.save` wrote the folder."""
    return (folder / NOTE).exists() and read_json(folder, NOTE).get("format") == _FORMAT


def needs_transformers(folder: Path) -> bool:
    """Whether transformers reads a folder's tokenizer."""
    return not (is_ours(folder) and is_stored(folder, read_json(folder, NOTE).get("tokenizer")))


def _with_pooling(loaded: Loaded, pooling: Pooling | None, where: Any) -> Loaded:
    if pooling not in (None, *get_args(Pooling)):
        raise UserError(f"pooling {pooling!r} is not supported; use {' or '.join(map(repr, get_args(Pooling)))}")
    stated = loaded.config.pooling
    if pooling in SPLADE and not loaded.config.sparse and loaded.mlm_head is not None:
        text = "%s: was trained with pooling '%s'; its head of masked language modelling takes that one's place"
        note(_log.warning, text, where, stated)
        return _with_head(loaded, pooling, WORDS_HEAD, loaded.mlm_head)
    # A sparse encoder's head was read where the folder was: it is not among the parameters of another pooling.
    if pooling is not None and "pooling" in loaded.guessed and (pooling in SPLADE) == loaded.config.sparse:
        return loaded._replace(config=dataclasses.replace(loaded.config, pooling=pooling))
    if pooling not in (None, stated):
        lacks_head = pooling in SPLADE and not loaded.config.sparse
        remedy = "train a head of masked language modelling with a config of kind mlm" if lacks_head else "correct it"
        raise UserError(f"{where}: was trained with pooling '{stated}', not '{pooling}'; leave pooling out or {remedy}")
    return loaded


def _weighing_terms(loaded: Loaded, where: Any) -> Loaded:
    """Return a model's encoder with a new head for the weights of a text's own tokens, in place of its pooling and layers."""
    note(
        _log.warning, "%s: every word weighs 1 in its vectors of pooling 'unicoil' until a run has trained them", where
    )
    if loaded.config.query_weights:
        raise UserError(f"{where}: has query weights, which pooling 'unicoil' has no place for; leave pooling out")
    ignored = tuple(sorted(loaded.tokenizer.all_special_ids))
    return _with_head(loaded, "unicoil", TERM_HEAD, new_term_head(loaded.config.backbone.hidden_size), ignored)


def _with_head(loaded: Loaded, pooling: Pooling, name: str, head: Params, ignored: tuple[int, ...] = ()) -> Loaded:
    """Return a model's encoder with the head of a sparse pooling, which is copied, in place of its pooling and layers."""
    keep = (BACKBONE, "adapter")
    towers = {
        side: {**{part: tower[part] for part in keep if part in tower}, name: jax.tree.map(np.array, head)}
        for side, tower in loaded.params.items()
    }
    guessed = tuple(setting for setting in loaded.guessed if setting not in ("pooling", "normalise"))
    return Loaded(as_sparse(loaded.config, pooling, ignored), towers, loaded.tokenizer, None, guessed)


def _with_towers(loaded: Loaded, shared: bool | None, where: Any) -> Loaded:
    config, params = loaded.config, loaded.params
    if shared is None or shared == config.shared:
        return loaded
    if shared:
        raise UserError(f"{where}: has two towers of different weights; leave shared out or set it to False")
    # A copy: two towers are trained separately, and donated buffers must not be the same.
    params = {"question": params["shared"], "passage": jax.tree.map(np.copy, params["shared"])}
    return loaded._replace(config=dataclasses.replace(config, shared=False), params=params)


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
    params = read_tree(tensors, shapes, NOTE)
    if config.adapter is not None:
        modules = adapter_folder.read_modules(folder / adapter_folder.FOLDER, config)
        params = join(params, {name: {"adapter": modules[name]} for name in modules})
    own = None if tokenizer else stored(folder, content.get("tokenizer"))
    return Loaded(config, params, own or load_tokenizer(tokenizer or folder), _read_head(folder))


def _load_export(folder: Path, content: dict[str, Any], tokenizer: Any) -> Loaded:
    note = read_note(content, str(folder / NOTE))
    question, passage = note.folders(folder)
    if note.layout != "sentence-transformers":
        # DPR's two kinds of encoder know their side; for a shared tower outside DPR there is only one folder.
        second = passage if note.separate else None
        config, params, loaded, head, _ = load_hugging_face(question, second, tokenizer, note.pooling)
    elif sentence_transformers.has_static_queries(folder):
        config, params, loaded, head, _ = load_sentence_transformers(folder, tokenizer)
    else:
        config, params, loaded, head, _ = load_sentence_transformers(question, tokenizer)
        if note.separate:
            other, other_params, other_tokenizer, *_ = load_sentence_transformers(passage, tokenizer)
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


def check_new_model(folder: str | Path, *inputs: str | Path) -> None:
    """Raise UserError unless a model may be written there: to a new or empty folder, or over an older model, no input."""
    refuse_input(folder, *inputs, [Path(path_text(each)) / "model" for each in inputs])
    folder = Path(folder).expanduser()
    check_replaceable(folder, "a model of jaxretr", lambda names: NOTE in names, _OURS)
    check_place(folder)


def save(folder: Path, model: Loaded, adapter: adapter_folder.AdapterParts | None) -> None:
    """Write our own folder under another name and rename it; see `DualEncoder.save`.

    Raises:
      UserError: the folder holds anything but an older model of this kind, or cannot be written.
    """
    folder = Path(os.path.realpath(folder))
    check_new_model(folder)
    content = {"format": _FORMAT, "version": _VERSION, "config": model.config.to_json()}
    params, _ = partition(model.params, ("adapter",))
    with atomic_folder(folder) as partial:
        _write_tensors(partial / _WEIGHTS, params)
        # Separate, so that the few megabytes of a relevance module can be moved to another encoder.
        if adapter is not None:
            (partial / adapter_folder.FOLDER).mkdir()
            adapter_folder.write(partial / adapter_folder.FOLDER, adapter)
        if model.mlm_head is not None:
            _write_tensors(partial / _HEAD, model.mlm_head)
        save_tokenizer(model.tokenizer, partial)
        content["tokenizer"] = statement(partial, model.tokenizer)
        write_json(partial / NOTE, content, indent=2)


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
