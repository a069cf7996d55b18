"""The family of encoders with rotary positions: the dialects of their config.json; rotary_names.py has the records."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.rotary_config import RotaryConfig, RotaryScaling
from jaxretr.models.hub.architecture import Architecture
from jaxretr.models.hub.hf_files import config_fields
from jaxretr.models.hub.name_table import Row
from jaxretr.runtime.errors import UserError

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"


@dataclass(frozen=True, kw_only=True)
class RotaryFamily(Architecture):
    """The record of an architecture with rotary positions.

    Attributes:
      groups_are_heads: whether a config.json without num_key_value_heads means as many as there are heads.
      heads_share_width: whether a config.json without head_dim means that the heads divide the hidden size.
    """

    groups_are_heads: bool = False
    heads_share_width: bool = True

    # Heads for other tasks, and tables that follow from config.json.
    ignored: ClassVar[re.Pattern[str]] = re.compile(
        r"lm_head\..*|head\.(dense|norm)\.(weight|bias)|decoder\.(weight|bias)|cls\..*"
        r"|(.*\.)?pooler\.dense\.(weight|bias)"
        r"|(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)|(.*\.)?embeddings\.position_ids"
    )

    def shape(self, config: Mapping[str, Any], where: str) -> RotaryConfig:
        """Return the shape that a config.json states, in any of its dialects; raises UserError, which names `where`."""
        shape, file = replace(self.defaults, **self.values(config, where)), f"{where}/config.json"
        heads = max(shape.num_attention_heads, 1)
        if config.get("num_key_value_heads") is None and self.groups_are_heads:
            shape = replace(shape, num_key_value_heads=heads)
        if config.get("head_dim") is None and self.heads_share_width:
            shape = replace(shape, head_dim=shape.hidden_size // heads)
        self.check(shape, where)
        return _with_positions(_with_attention(shape, config, file), config, file)

    def check(self, shape: RotaryConfig, where: str, *, bag_of_words: bool = False) -> None:
        super().check(shape, where)
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

    def content(self, shape: RotaryConfig, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of config.json in both dialects, that of transformers 5 and the older one."""
        content = super().content(shape, identity)
        if shape.hidden_act == "gelu_new":  # The same function, under a name that servers of decoders know.
            content[self.settings["hidden_act"][0]] = "gelu_pytorch_tanh"
        return content | self._attention_settings(shape) | _position_settings(shape)

    def _attention_settings(self, shape: RotaryConfig) -> dict[str, Any]:
        architecture = shape.architecture
        if not self.defaults.causal and architecture != "modernbert":
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

    def rows(self, shape: RotaryConfig, params: Params) -> list[Row]:
        rows = super().rows(shape, params)
        if shape.first_norm:
            return rows
        missing = {"layers/attention_norm/scale": 1.0, "layers/attention_norm/bias": 0.0}
        return [replace(row, first_layer=missing.get(row.ours)) for row in rows]


# ---- reading config.json ---------------------------------------------------------------------------------------------


def _with_attention(shape: RotaryConfig, config: Mapping[str, Any], file: str) -> RotaryConfig:
    """Return the shape with the tokens that each layer attends to."""
    layers, architecture = shape.num_hidden_layers, shape.architecture
    causal = shape.causal and config.get("is_causal", True) is not False
    width: Any = None
    if architecture == "gemma3_text":
        causal = not config.get("use_bidirectional_attention")
        if config.get("attn_logit_softcapping") is not None:
            raise UserError(
                f"{file}: caps what is attended to (attn_logit_softcapping), which is not supported; give another model"
            )
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


# ---- writing config.json ---------------------------------------------------------------------------------------------


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
