"""T5 checkpoints of Hugging Face (v1.0, v1.1, LM-adapted, Flan, T0) to and from our parameters: whole scorers."""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.models.backbones.layers import Params, define
from jaxretr.models.backbones.t5 import T5Config, T5Model
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig
from jaxretr.models.hub.hf_files import config_fields, stated_architecture
from jaxretr.models.hub.name_table import Place, Row, read_rows, rows_of, write_rows
from jaxretr.models.hub.tensor_files import TensorFiles, open_scorer
from jaxretr.runtime.errors import UserError

ENCODER_LAYER = "encoder.block.{}.layer."
_DECODER = "decoder.block.{}.layer."


def _attention(ours: str, theirs: str) -> dict[str, str]:
    letters = {"query": "q", "key": "k", "value": "v", "out": "o"}
    return {f"{ours}/{name}": f"{theirs}.{letter}" for name, letter in letters.items()}


def _feed_forward(block: int, *, gated: bool) -> dict[str, str]:
    inner = {"inner": "wi_0", "gate": "wi_1"} if gated else {"inner": "wi"}
    return {f"ffn/{ours}": f"{block}.DenseReluDense.{theirs}" for ours, theirs in {**inner, "outer": "wo"}.items()}


def encoder_modules(*, gated: bool) -> dict[str, str]:
    """Return our names of the modules within a layer of T5's encoder -> theirs."""
    norms = {"attention_norm": "0.layer_norm", "ffn_norm": "1.layer_norm"}
    return {**_attention("attention", "0.SelfAttention"), **_feed_forward(1, gated=gated), **norms}


def _decoder_modules(*, gated: bool) -> dict[str, str]:
    attention = {**_attention("attention", "0.SelfAttention"), **_attention("cross", "1.EncDecAttention")}
    norms = {"attention_norm": "0.layer_norm", "cross_norm": "1.layer_norm", "ffn_norm": "2.layer_norm"}
    return {**attention, **_feed_forward(2, gated=gated), **norms}


# Only the first layer has a table of relative positions; the others reuse it.
_OUTER = {
    "embedding": "shared",
    "encoder_positions": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    "decoder_positions": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    "encoder_norm": "encoder.final_layer_norm",
    "decoder_norm": "decoder.final_layer_norm",
    "output": "lm_head",
}

_SECOND_NAMES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_NOT_TIED = "if it is a T5 v1.1, set tie_word_embeddings to false in config.json"
_ARCHITECTURES = ("T5ForConditionalGeneration", "T5WithLMHeadModel")
_FEED_FORWARDS = ("relu", "gated-gelu")

# The first T5 checkpoints carry this table although no T5 has ever used it.
_IGNORED = re.compile(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight")


def read(folder: str | Path, dtype: Any = None, place: Place | None = None) -> tuple[T5Config, Params]:
    """Read a Hugging Face T5 folder.

    Each tensor goes straight into its place of the result: a 3B model in bfloat16 needs its 6 GB and little more.

    Args:
      dtype: numpy dtype of the parameters, such as jnp.bfloat16; float32 by default.
      place: function that takes each parameter as soon as it is read, as in `read_rows`.

    Returns:
      The model's shape, and its parameters as a nested dict of numpy arrays.

    Raises:
      UserError: as `import_t5`; also for a missing or broken file.
    """
    return import_t5(*open_scorer(folder), dtype, place)


def import_t5(
    config: Mapping[str, Any], tensors: TensorFiles, dtype: Any = None, place: Place | None = None
) -> tuple[T5Config, Params]:
    """Translate a Hugging Face T5 checkpoint.

    Args:
      config: the parsed config.json.
      tensors: the weights; every one is used, or equals one that is, or is named in an error.
      dtype: numpy dtype of the parameters; float32 by default.
      place: as in `read_rows`.

    Returns:
      The model's shape and its parameters. An output layer that is tied to the embedding but not scaled, which
      transformers 5 may write, becomes an output layer of its own.

    Raises:
      UserError: another architecture, or tensors that are missing, left over or of a wrong shape.
    """
    t5 = t5_shape(config, tensors.where)
    tensors = without_second_names(tensors)
    output = "lm_head.weight"
    if t5.tie_word_embeddings:
        tensors = tensors.without_copies({output: "shared.weight"}, _NOT_TIED)
    elif output not in tensors.names and config.get("tie_word_embeddings", True):
        output = "shared.weight"
    tensors.check_sizes(t5.sizes(), "config.json")
    shapes = define(lambda rngs: T5Model(t5, rngs=rngs))[1]
    rows = [replace(row, theirs=output) if row.ours == "output/kernel" else row for row in _rows(t5, shapes)]
    dtype = np.float32 if dtype is None else dtype
    return t5, read_rows(rows, shapes, tensors, ignored=_IGNORED, dtype=dtype, place=place)


def _rows(config: T5Config, params: Params) -> list[Row]:
    gated = config.feed_forward_proj.startswith("gated-")
    encoder, decoder = encoder_modules(gated=gated), _decoder_modules(gated=gated)
    return rows_of(
        params,
        _OUTER
        | {f"encoder/{ours}": ENCODER_LAYER + theirs for ours, theirs in encoder.items()}
        | {f"decoder/{ours}": _DECODER + theirs for ours, theirs in decoder.items()},
    )


def without_second_names(tensors: TensorFiles) -> TensorFiles:
    """Return the tensors with the embedding only as shared.weight; UserError if its other names' tensors differ."""
    names = set(tensors.names)
    if "shared.weight" not in names:
        first = next((name for name in _SECOND_NAMES if name in names), None)
        tensors = tensors.rename(lambda name: "shared.weight" if name == first else name)
    return tensors.without_copies(dict.fromkeys(_SECOND_NAMES, "shared.weight"), _NOT_TIED)


def t5_shape(config: Mapping[str, Any], where: str) -> T5Config:
    """Return the shape that a config.json states; raises UserError, which names `where`, for another kind of model."""
    architecture = stated_architecture(config, where)
    model_type = config.get("model_type")
    supported = f"supported: {_ARCHITECTURES[0]} (v1.0, v1.1, LM-adapted, Flan, T0)"
    if architecture == "T5EncoderModel":
        raise UserError(f"{where}: a T5EncoderModel has no decoder, so it cannot score questions; {supported}")
    if model_type != "t5" or (architecture and architecture not in _ARCHITECTURES):
        raise UserError(
            f"{where}: config.json is of {architecture or 'no stated architecture'} (model_type '{model_type}'), not "
            f"of a T5 that scores text; {supported}"
        )
    # transformers' defaults, which differ from ours: they are those of T5-small v1.0.
    defaults = asdict(T5Config(d_ff=2048, num_layers=6, num_heads=8, feed_forward_proj="relu"))
    del defaults["tie_word_embeddings"]
    defaults["num_decoder_layers"] = config.get("num_layers") or defaults["num_layers"]
    defaults["decoder_start_token_id"] = config.get("pad_token_id") or 0
    fields = config_fields(config, defaults, f"{where}/config.json")
    # transformers 5 writes tie_word_embeddings true for any model; the scaling of the output decides.
    scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True) is not False)
    t5 = T5Config(**fields, tie_word_embeddings=bool(scaled))
    check_t5(t5, where)
    return t5


def check_t5(shape: T5Config | T5EncoderConfig, where: str) -> None:
    """Raise UserError, which names `where`, for settings that no T5 has."""
    if shape.feed_forward_proj not in _FEED_FORWARDS:
        raise UserError(
            f"{where}: has feed_forward_proj '{shape.feed_forward_proj}'; supported: {', '.join(_FEED_FORWARDS)}"
        )
    if wrong := next((name for name, size in shape.sizes().items() if size < 1), None):
        raise UserError(f"{where}: has {wrong} {shape.sizes()[wrong]}, but it must be at least 1; correct it")


def export_t5(config: T5Config, params: Params) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Translate our parameters to a Hugging Face checkpoint; the reverse of `import_t5`, bit for bit.

    Returns:
      The content of config.json, and the tensors of model.safetensors by name.
    """
    content = asdict(config)
    content |= {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": True}
    return content, write_rows(_rows(config, params), params)
