"""Writing sentence-transformers folders, in the schema that its older releases and other servers read too.

text-embeddings-inference needs every pooling_mode_* boolean and max_seq_length; neither it nor vLLM heeds truncate_dim.
So a cut to the first dimensions is written as a Dense module with that many outputs, which all of them obey.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxretr.config import SPLADE
from jaxretr.exports.huggingface import tokenizer_for, tower_checkpoint
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.term_weights import QUERY_WEIGHTS
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, Side, tower
from jaxretr.models.hub.dual_encoder_folder import save_tokenizer
from jaxretr.models.hub.export_note import ExportNote
from jaxretr.models.hub.hf_folder import write_folder
from jaxretr.models.hub.poolings import POOLINGS
from jaxretr.models.hub.sentence_transformers import (
    ACTIVATIONS,
    LIMITS,
    MODULES,
    PASSAGE,
    QUERY,
    ROUTER,
    SETTINGS,
    STATIC,
    Activation,
    cutting_projection,
)
from jaxretr.models.hub.tensor_files import write_safetensors
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.mesh import to_host
from jaxretr.runtime.storage.files import write_json

_SPARSE_MODULES = "MLMTransformer", "SpladePooling", STATIC

# The release whose schema this is: a newer one would make older releases warn. Router and sparse encoders are of release 5.
_SCHEMA, _ROUTER_SCHEMA = {"sentence_transformers": "3.0.0"}, {"sentence_transformers": "5.0.0"}

_log = logging.getLogger(__name__)


def write(folder: Path, encoder: DualEncoder, prompts: Mapping[str, str]) -> ExportNote:
    """Write a folder that `SentenceTransformer(folder)` loads; return the note for jaxretr.json.

    Two towers lie in question/ and passage/, which are whole models as well, below a Router that `encode_query` and
    `encode_document` know; query weights are in question/ alone. One tower has one maximum length: the longer one where questions and passages differ.

    Args:
      prompts: name -> prompt, prompts beyond the encoder's own, noted for the users of the folder. No default is set:
        `encode` applies none unasked, `encode_query` and `encode_document` the encoder's.

    Raises:
      UserError: the library has no module for the model, or no place for its vocabulary.
    """
    config = encoder.config
    if config.pooling == "unicoil":
        raise UserError("sentence-transformers has no module for UniCOIL; use to=jaxretr, or to=pyserini for an index")
    lengths: dict[Side, int] = {"question": config.max_question_length, "passage": config.max_passage_length}
    note = ExportNote(
        layout="sentence-transformers",
        shared=config.shared,
        separate=not config.shared,
        passage_template=config.passage_template,
    )
    if note.separate:
        routes = {}
        for (side, length), place in zip(lengths.items(), note.folders(folder), strict=True):
            if config.query_weights and side == "question":
                routes[QUERY] = _write_static_queries(place, encoder)
            else:
                routes[QUERY if side == "question" else PASSAGE] = _write_tower(place, encoder, side, length, prompts)
        _write_router(folder, routes)
        _write_json(folder / SETTINGS, {**_settings(config, prompts), "__version__": _ROUTER_SCHEMA})
        return note
    longest = max(lengths.values())
    _write_tower(folder, encoder, "question", longest, prompts)
    if min(lengths.values()) == longest:
        return note
    _log.warning(
        "sentence-transformers has one maximum length and cuts questions and passages at %d tokens; jaxretr goes on cutting "
        "questions at %d and passages at %d",
        longest,
        *lengths.values(),
    )
    return dataclasses.replace(note, **{f"max_{side}_length": length for side, length in lengths.items()})


def _write_router(folder: Path, routes: Mapping[str, list[dict[str, Any]]]) -> None:
    """Write the Router that leads sentence-transformers to the towers; `routes` has each folder's modules.json."""
    places = {QUERY: "question", PASSAGE: "passage"}
    paths = {
        route: {f"{places[route]}/{module['path']}".rstrip("/"): module["type"] for module in modules}
        for route, modules in routes.items()
    }
    _write_json(
        folder / ROUTER,
        {
            "types": {path: kind for of_route in paths.values() for path, kind in of_route.items()},
            "structure": {route: list(of_route) for route, of_route in paths.items()},
            "parameters": {"default_route": PASSAGE, "allow_empty_key": True, "route_mappings": {}},
        },
    )
    _write_modules(folder, ["Router"])


def _write_static_queries(folder: Path, encoder: DualEncoder) -> list[dict[str, Any]]:
    """Write the module of query weights; return it as `_write_tower` does.

    Raises:
      UserError: the encoder has more entries than the tokenizer, which the module has no place for.
    """
    weights = np.maximum(to_host(encoder.params["question"][QUERY_WEIGHTS]), 0)
    if (size := len(encoder.tokenizer.get_vocab())) != len(weights):
        raise UserError(
            f"sentence-transformers' {STATIC} has a weight for each of the tokenizer's {size} entries, and this encoder "
            f"{len(weights)}; export --to jaxretr"
        )
    folder.mkdir(parents=True)
    write_safetensors(folder / "model.safetensors", {"weight": weights}, {"format": "pt"})
    _write_json(folder / "config.json", {"frozen": encoder.config.query_weights == "frozen"})
    # It reads no special tokens, of which there are two here.
    save_tokenizer(tokenizer_for(encoder, encoder.config.max_question_length - 2), folder)
    return [{"path": "", "type": _type_of(STATIC)}]


def _type_of(module: str) -> str:
    library = "sentence_transformers.sparse_encoder" if module in _SPARSE_MODULES else "sentence_transformers"
    return f"{library}.models.{module}"


def _write_tower(
    folder: Path, encoder: DualEncoder, side: Side, length: int, prompts: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Write a tower as a model of its own; return its modules.json."""
    config, params = encoder.config, jax.tree.map(to_host, tower(encoder.params, side))
    write_folder(folder, *tower_checkpoint(config.backbone, params), tokenizer_for(encoder, length))
    modules: list[str] = list(_SPARSE_MODULES[:2]) if config.sparse else ["Transformer", "Pooling"]
    if config.sparse:
        pooling: dict[str, Any] = dict(
            zip(("pooling_strategy", "activation_function"), SPLADE[config.pooling], strict=True)
        )
    else:
        chosen = {names.key: mode == config.pooling for mode, names in POOLINGS.items() if names.key}
        pooling = {"word_embedding_dimension": config.backbone.hidden_size, **chosen, "include_prompt": True}
    _write_json(folder / f"1_{modules[1]}/config.json", pooling)
    dense: list[tuple[Params, Activation]] = [
        (params["inner_dense"][str(number)], each.activation) for number, each in enumerate(config.inner_dense)
    ]
    if (projection := _projection(encoder, params)) is not None:
        dense.append((projection, config.projection_activation))
    for layer, activation in dense:
        _write_dense(folder / f"{len(modules)}_Dense", layer, activation)
        modules.append("Dense")
    if config.normalise:
        modules.append("Normalize")
    _write_json(folder / LIMITS, {"max_seq_length": length, "do_lower_case": False})
    _write_json(folder / SETTINGS, _settings(config, prompts))
    return _write_modules(folder, modules)


def _write_modules(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{name}" if number else "",
            "type": _type_of(name),
        }
        for number, name in enumerate(names)
    ]
    _write_json(folder / MODULES, modules)
    return modules


def _settings(config: DualEncoderConfig, prompts: Mapping[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "__version__": _ROUTER_SCHEMA if config.sparse else _SCHEMA,
        "model_type": "SparseEncoder" if config.sparse else "SentenceTransformer",
        "prompts": {**prompts, QUERY: config.query_prompt, PASSAGE: config.passage_prompt},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if config.normalise else "dot",
    }
    if config.embedding_size < config.full_size:
        settings["truncate_dim"] = config.embedding_size
    return settings


def _projection(encoder: DualEncoder, params: Params) -> Params | None:
    size, full_size = encoder.config.embedding_size, encoder.config.full_size
    if "projection" in params:
        return {"kernel": params["projection"]["kernel"][:, :size], "bias": params["projection"]["bias"][:size]}
    return cutting_projection(full_size, size) if size < full_size else None


def _write_dense(folder: Path, projection: Params, activation: Activation) -> None:
    inputs, outputs = projection["kernel"].shape
    _write_json(
        folder / "config.json",
        {
            "in_features": inputs,
            "out_features": outputs,
            "bias": True,
            "activation_function": ACTIVATIONS[activation],
        },
    )
    tensors = {"linear.weight": projection["kernel"].T, "linear.bias": projection["bias"]}
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})


def _write_json(path: Path, content: Any) -> None:
    write_json(path, content, indent=2)
