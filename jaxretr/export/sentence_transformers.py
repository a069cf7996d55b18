"""Writing sentence-transformers folders, in the schema that its older releases and other servers read too.

text-embeddings-inference wants every pooling_mode_* boolean and max_seq_length; neither it nor vLLM heeds truncate_dim.
So a cut to the first dimensions is written as what all of them obey: a Dense module with that many outputs.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxretr.export.huggingface import tokenizer_for, tower_checkpoint
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import Side, tower
from jaxretr.models.formats.export_note import ExportNote
from jaxretr.models.formats.hf_files import write_safetensors
from jaxretr.models.formats.hf_folder import write_folder
from jaxretr.models.formats.sentence_transformers import (
    ACTIVATIONS,
    MODULES,
    PASSAGE,
    POOLING_MODES,
    QUERY,
    SETTINGS,
    Activation,
    cutting_projection,
)
from jaxretr.models.layers import Params
from jaxretr.parallel.mesh import to_host
from jaxretr.storage.files import atomic_write

# The release whose schema this is: a newer one would make older releases warn.
_SCHEMA = {"sentence_transformers": "3.0.0"}


def write(folder: Path, encoder: DualEncoder, prompts: Mapping[str, str]) -> ExportNote:
    """Writes one folder, or question/ and passage/ where the towers or their maximum lengths differ.

    Args:
      folder: to write into.
      encoder: what is exported.
      prompts: name -> prompt, further ones than the encoder's own, noted for the users of the folder. No default is
        set: `encode` applies none unasked, `encode_query` and `encode_document` the encoder's.

    Returns:
      What is to be noted in jaxretr.json.
    """
    config = encoder.config
    separate = not config.shared or config.max_question_length != config.max_passage_length
    note = ExportNote(
        layout="sentence-transformers",
        shared=config.shared,
        separate=separate,
        passage_template=config.passage_template,
    )
    question, passage = note.folders(folder)
    _write_tower(question, encoder, "question", prompts)
    if separate:
        _write_tower(passage, encoder, "passage", prompts)
    return note


def _write_tower(folder: Path, encoder: DualEncoder, side: Side, prompts: Mapping[str, str]) -> None:
    config, params = encoder.config, jax.tree.map(to_host, tower(encoder.params, side))
    length = getattr(config, f"max_{side}_length")
    write_folder(folder, *tower_checkpoint(config.backbone, params), tokenizer_for(encoder, length))
    modules = ["Transformer", "Pooling"]
    _write_json(
        folder / "1_Pooling/config.json",
        {
            "word_embedding_dimension": config.backbone.hidden_size,
            **{key: mode == config.pooling for key, mode in POOLING_MODES.items()},
            "include_prompt": True,
        },
    )
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
    _write_json(
        folder / MODULES,
        [
            {
                "idx": number,
                "name": str(number),
                "path": f"{number}_{name}" if number else "",
                "type": f"sentence_transformers.models.{name}",
            }
            for number, name in enumerate(modules)
        ],
    )
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})
    settings: dict[str, Any] = {
        "__version__": _SCHEMA,
        "model_type": "SentenceTransformer",
        "prompts": {**prompts, QUERY: config.query_prompt, PASSAGE: config.passage_prompt},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if config.normalise else "dot",
    }
    if config.embedding_size < config.full_size:
        settings["truncate_dim"] = config.embedding_size
    _write_json(folder / SETTINGS, settings)


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
    with atomic_write(path) as file:
        json.dump(content, file, indent=2)
