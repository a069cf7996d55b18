"""Checkpoints of encoders with rotary positions to and from our parameters."""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from jaxretr.models.backbones.backbone import make_backbone
from jaxretr.models.backbones.layers import Params, define
from jaxretr.models.backbones.masked_lm import MlmHead, has_masked_lm
from jaxretr.models.backbones.rotary_config import RotaryConfig, RotaryScaling
from jaxretr.models.hub.encoder_checkpoint import ACTIVATION_NAMES, EncoderCheckpoint
from jaxretr.models.hub.hf_files import TensorFiles, config_fields, some_names, stated_architecture
from jaxretr.models.hub.name_table import Row, read_rows, write_rows
from jaxretr.models.hub.rotary_names import ROTARY_NAMES, RotaryNames
from jaxretr.runtime.errors import UserError

# Heads for other tasks, and tables that follow from config.json.
_IGNORED = re.compile(
    r"lm_head\..*|head\.(dense|norm)\.(weight|bias)|decoder\.(weight|bias)|cls\..*|(.*\.)?pooler\.dense\.(weight|bias)"
    r"|(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)|(.*\.)?embeddings\.position_ids"
)
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"


def reads(config: Mapping[str, Any], where: str) -> bool:
    """Whether a config.json belongs to one of these architectures."""
    return _names(config, where) is not None


def _names(config: Mapping[str, Any], where: str) -> RotaryNames | None:
    stated, model_type = stated_architecture(config, where), config.get("model_type")
    by_class = [names for names in ROTARY_NAMES.values() if stated in (names.encoder, *names.classes)]
    if stated and not by_class:
        return None
    if model_type in ROTARY_NAMES:
        names = ROTARY_NAMES[model_type]
        return None if by_class and names not in by_class else names
    return by_class[0] if by_class and not model_type else None


def import_rotary(config: Mapping[str, Any], tensors: TensorFiles) -> EncoderCheckpoint:
    """Translate a Hugging Face checkpoint.

    Args:
      config: the parsed config.json, of an architecture that `reads`.
      tensors: the weights; every one is used, or belongs to a head that no retriever here uses, or is named in an
        error.

    Raises:
      UserError: a setting that is not supported, or tensors that are missing, left over or of a wrong shape.
    """
    shape = rotary_shape(config, tensors.where)
    names = ROTARY_NAMES[shape.architecture]
    tensors.check_sizes(shape.sizes(), "config.json")
    prefix = _prefix(tensors, names)
    shapes: Params = {"encoder": define(lambda rngs: make_backbone(shape, rngs=rngs))[1]}
    has_head = has_masked_lm(shape) and any(row.theirs in tensors.names for row in _head(shape))
    if has_head:
        shapes["mlm_head"] = define(lambda rngs: MlmHead(shape, dtype=np.float32, rngs=rngs))[1]
        tied, words = "decoder.weight", prefix + names.words
        if tied in tensors.names and not np.array_equal(tensors.read(tied), tensors.read(words)):
            raise UserError(f"{tensors.where}: {tied} differs from {words}; only a tied decoder is supported")
    rows = _table(shape, prefix, mlm_head=has_head)
    parts = read_rows(rows, shapes, tensors, ignored=_IGNORED, dtype=np.float32)
    return EncoderCheckpoint(shape, parts["encoder"], None, parts.get("mlm_head"), shape.architecture)


def _table(shape: RotaryConfig, prefix: str, *, mlm_head: bool) -> list[Row]:
    rows = ROTARY_NAMES[shape.architecture].rows(shape)
    rows = [replace(row, ours=f"encoder/{row.ours}", theirs=prefix + row.theirs) for row in rows]
    return rows + (_head(shape) if mlm_head else [])


def _head(shape: RotaryConfig) -> list[Row]:
    """Return the rows of ModernBERT's head of masked language modelling."""
    norm_bias = [Row("mlm_head/norm/bias", "head.norm.bias")] if shape.norm_bias else []
    rows = [Row("mlm_head/dense/kernel", "head.dense.weight", True), Row("mlm_head/norm/scale", "head.norm.weight")]
    return [*rows, *norm_bias, Row("mlm_head/bias", "decoder.bias")]


def _prefix(tensors: TensorFiles, names: RotaryNames) -> str:
    there = set(tensors.names)
    found = [prefix for prefix in names.prefixes if prefix + names.words in there]
    if len(found) == 1:
        return found[0]
    raise UserError(
        f"{tensors.where}: {'two' if found else 'no'} {names.encoder} in this checkpoint ({some_names(sorted(there))}); "
        "give one encoder's folder"
    )


# ---- config.json ------------------------------------------------------------------------------------------------------


def rotary_shape(config: Mapping[str, Any], where: str) -> RotaryConfig:
    """Return the shape that a config.json states, in any of its dialects; raises UserError, which names `where`."""
    names, file = _names(config, where), f"{where}/config.json"
    assert names is not None
    for key, supported in names.constants.items():
        if config.get(key, supported) not in (supported, None):
            raise UserError(f"{file}: '{key}' is {config[key]!r}; only {supported!r} is supported")
    defaults = names.defaults
    stated = {ours: _stated(config, theirs) for ours, theirs in names.settings.items()}
    values = config_fields(stated, {ours: getattr(defaults, ours) for ours in stated}, file)
    if values["hidden_act"] == "swiglu":
        values["hidden_act"] = "silu"
    if values["hidden_act"] not in ACTIVATION_NAMES:
        raise UserError(f"{file}: the activation is '{values['hidden_act']}'; supported: {', '.join(ACTIVATION_NAMES)}")
    values["hidden_act"] = ACTIVATION_NAMES[values["hidden_act"]]
    shape = replace(defaults, **values)
    heads = max(shape.num_attention_heads, 1)
    if config.get("num_key_value_heads") is None and shape.architecture in _AS_MANY_GROUPS:
        shape = replace(shape, num_key_value_heads=heads)
    if config.get("head_dim") is None and shape.architecture != "qwen3" and shape.architecture != "gemma3_text":
        shape = replace(shape, head_dim=shape.hidden_size // heads)
    check_rotary(shape, where)
    return _with_positions(_with_attention(shape, config, file), config, file)


# Architectures where a config.json without num_key_value_heads means as many as there are heads.
_AS_MANY_GROUPS = ("modernbert", "nomic_bert", "gte", "new", "llama")


def _stated(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _with_attention(shape: RotaryConfig, config: Mapping[str, Any], file: str) -> RotaryConfig:
    """Return the shape with the tokens that each layer attends to."""
    layers, architecture = shape.num_hidden_layers, shape.architecture
    causal = shape.causal and config.get("is_causal", True) is not False
    width: Any = None
    if architecture == "gemma3_text":
        causal = not config.get("use_bidirectional_attention")
        shape = replace(
            shape,
            embedding_scale=shape.hidden_size**0.5,
            attention_scale=float(_number(config, "query_pre_attn_scalar", 256, file)) ** -0.5,
        )
        width = _number(config, "sliding_window", 4096, file)
        every = _number(config, "sliding_window_pattern", _number(config, "_sliding_window_pattern", 6, file), file)
        local = [bool((number + 1) % every) for number in range(layers)]
    elif architecture == "modernbert":
        every = _number(config, "global_attn_every_n_layers", 3, file)
        local = [bool(number % every) for number in range(layers)]
    elif architecture in ("mistral", "qwen2", "qwen3"):
        used = architecture == "mistral" or config.get("use_sliding_window", False)
        width = config.get("sliding_window", 4096) if used else None
        first = 0 if architecture == "mistral" else config.get("max_window_layers", 28)
        local = [width is not None and number >= first for number in range(layers)]
    else:
        local = []
    kinds = config.get("layer_types")
    if kinds is not None and architecture != "mistral":
        if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= {_LOCAL, _GLOBAL}:
            raise UserError(
                f"{file}: 'layer_types' must say {_GLOBAL} or {_LOCAL} for each of {layers} layers; correct it"
            )
        local = [kind == _LOCAL for kind in kinds]
    if not any(local):
        return replace(shape, causal=causal, window=0, local_layers=())
    if architecture == "modernbert":
        window = _number(config, "local_attention", 128, file) // 2
    elif not isinstance(width, int) or width < 1:
        raise UserError(f"{file}: 'sliding_window' is {width!r}, but layers are local; give a number of tokens")
    elif causal:
        window = width - 1
    else:
        window = width // 2 if architecture == "gemma3_text" else width
    return replace(shape, causal=causal, window=window, local_layers=tuple(local))


def _with_positions(shape: RotaryConfig, config: Mapping[str, Any], file: str) -> RotaryConfig:
    """Return the shape with its rotary positions: rope_parameters (transformers 5), or rope_theta and rope_scaling."""
    newest = config.get("rope_parameters")
    older = {"rope_theta": shape.rope_theta, **_object(config.get("rope_scaling"), f"{file}: 'rope_scaling'")}
    stated = older if newest is None else _object(newest, f"{file}: 'rope_parameters'")
    far = near = stated
    if _GLOBAL in stated or _LOCAL in stated:
        far, near = (_object(stated.get(kind), f"{file}: rope_parameters.{kind}") for kind in (_GLOBAL, _LOCAL))
        if _scaling(near, file) is not None:
            raise UserError(f"{file}: rotary positions of local layers are scaled, which is not supported")
    theta = config_fields(far, {"rope_theta": shape.rope_theta}, file)["rope_theta"]
    apart = shape.architecture in ("modernbert", "gemma3_text")
    local = shape.local_rope_theta if apart else theta
    if near is not far:
        local = config_fields(near, {"rope_theta": local}, file)["rope_theta"]
    scaling = _scaling(far, file)
    if scaling is not None and any(shape.local_layers) and not apart:
        raise UserError(f"{file}: rotary positions of local layers are scaled, which is not supported")
    return replace(shape, rope_theta=float(theta), local_rope_theta=float(local), rope_scaling=scaling)


def _scaling(stated: Mapping[str, Any], file: str) -> RotaryScaling | None:
    kind = stated.get("rope_type", stated.get("type", "default"))
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "ntk") or stated.get("mixed_b") is not None:
        raise UserError(
            f"{file}: rotary positions are scaled by '{kind}'; supported: default, linear, llama3, ntk. Texts no longer "
            "than those of the pretraining need no scaling: take the entry out of config.json to encode those"
        )
    fields = config_fields(
        stated,
        {
            "factor": 1.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        file,
    )
    scaling = RotaryScaling(
        kind,
        float(fields["factor"]),
        float(fields["low_freq_factor"]),
        float(fields["high_freq_factor"]),
        fields["original_max_position_embeddings"],
    )
    if scaling.factor <= 0 or scaling.high_freq_factor <= scaling.low_freq_factor:
        raise UserError(f"{file}: the factors of the rotary positions' scaling are not possible; correct them")
    return scaling


def _number(config: Mapping[str, Any], name: str, default: int, file: str) -> int:
    value = config_fields(config, {name: default}, file)[name]
    if value < 1:
        raise UserError(f"{file}: '{name}' is {value}, but must be at least 1; correct it")
    return value


def _object(value: Any, what: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise UserError(f"{what} is {value!r}, not an object; copy the file again")
    return value or {}


def check_rotary(shape: RotaryConfig, where: str) -> None:
    """Raise UserError, which names `where`, for sizes that no encoder has."""
    if wrong := next((name for name, size in shape.sizes().items() if size < 1), None):
        raise UserError(f"{where}: {wrong} is {getattr(shape, wrong)}, but must be at least 1; correct it")
    if shape.num_attention_heads % shape.num_key_value_heads:
        raise UserError(
            f"{where}: {shape.num_attention_heads} heads cannot share {shape.num_key_value_heads} heads of keys and "
            "values evenly; correct num_key_value_heads"
        )
    if shape.head_dim % 2 or (shape.fused and shape.head_dim * shape.num_attention_heads != shape.hidden_size):
        raise UserError(
            f"{where}: {shape.num_attention_heads} heads of {shape.head_dim} do not fit a hidden size of "
            f"{shape.hidden_size}; correct num_attention_heads (rotary positions need heads of an even size)"
        )
    if shape.local_layers and len(shape.local_layers) != shape.num_hidden_layers:
        raise UserError(f"{where}: local_layers does not say one thing for each layer; copy the folder again")


# ---- writing ----------------------------------------------------------------------------------------------------------


def export_rotary(
    shape: RotaryConfig, params: Params, mlm_head: Params | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Translate our parameters to a Hugging Face checkpoint; the reverse of `import_rotary`, bit for bit.

    config.json is in both dialects, that of transformers 5 and the older one.

    Args:
      shape: shape of the encoder.
      params: parameters of the encoder, a nested dict of arrays.
      mlm_head: head of masked language modelling, as in `EncoderCheckpoint`.

    Returns:
      The content of config.json, and the tensors of model.safetensors by name.
    """
    names = ROTARY_NAMES[shape.architecture]
    content = {theirs[0]: getattr(shape, ours) for ours, theirs in names.settings.items()}
    if shape.hidden_act == "gelu_new":  # The same function, under a name that servers of decoders know.
        content[names.settings["hidden_act"][0]] = "gelu_pytorch_tanh"
    name, prefix = (names.encoder, names.prefixes[0]) if mlm_head is None else (names.classes[0], names.prefix)
    content |= {"architectures": [name], "model_type": shape.architecture}
    content |= _attention_settings(shape) | _position_settings(shape)
    rows = _table(shape, prefix, mlm_head=mlm_head is not None)
    return content, write_rows(rows, {"encoder": params, "mlm_head": mlm_head or {}})


def _attention_settings(shape: RotaryConfig) -> dict[str, Any]:
    architecture = shape.architecture
    if not ROTARY_NAMES[architecture].defaults.causal and architecture != "modernbert":
        return {}
    local = shape.local_layers or (False,) * shape.num_hidden_layers
    kinds = [_LOCAL if each else _GLOBAL for each in local]
    if architecture == "modernbert":
        return {"layer_types": kinds, "local_attention": 2 * shape.window or 128}
    if architecture == "gemma3_text":
        width = (shape.window + 1 if shape.causal else 2 * shape.window) if shape.window else 4096
        scalar = round(shape.attention_scale**-2)
        bidirectional = {"use_bidirectional_attention": not shape.causal}
        return {"layer_types": kinds, "sliding_window": width, "query_pre_attn_scalar": scalar, **bidirectional}
    content: dict[str, Any] = {} if shape.causal else {"is_causal": False}
    if architecture == "llama":
        return content
    width = shape.window + shape.causal if any(local) else None
    if architecture == "mistral":
        return {**content, "sliding_window": width}
    used = {"use_sliding_window": any(local), "sliding_window": width}
    return {**content, **used, "layer_types": kinds, "max_window_layers": kinds.count(_GLOBAL)}


def _position_settings(shape: RotaryConfig) -> dict[str, Any]:
    scaling: dict[str, Any] = {"rope_type": "default"}
    if shape.rope_scaling is not None:
        stated = asdict(shape.rope_scaling)
        scaling = {"rope_type": stated.pop("kind"), "factor": stated.pop("factor")}
        if scaling["rope_type"] == "llama3":
            scaling |= {"original_max_position_embeddings": stated.pop("original_length"), **stated}
    far = {"rope_theta": shape.rope_theta, **scaling}
    older = {} if shape.rope_scaling is None else {"rope_scaling": {**scaling, "type": scaling["rope_type"]}}
    if shape.architecture == "new":
        return older
    if shape.architecture in ("modernbert", "gemma3_text"):
        near = {"rope_theta": shape.local_rope_theta, "rope_type": "default"}
        return {"rope_parameters": {_GLOBAL: far, _LOCAL: near}, **older}
    return {"rope_parameters": far, **older}
