"""Other libraries' folders of adapters: PEFT's LoRA, and adapter-transformers (version 3).

The authors of DDR published their relevance modules in the latter. Both keep a settings file of the same name and the
tensors of every layer separately. Anything that our adapters cannot represent is refused, never dropped: a setting that
is not listed below must be absent, null, false, 0 or empty.
"""

import math
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flax.traverse_util import flatten_dict

from jaxretr.config import AdapterShape
from jaxretr.models.backbones.adapter_layers import abstract_adapter
from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params
from jaxretr.models.hub.architecture import Architecture
from jaxretr.models.hub.bert_family import DPR_PREFIXES
from jaxretr.models.hub.encoder_params import names_of
from jaxretr.models.hub.hf_files import TensorFiles, read_json, some_names, write_safetensors
from jaxretr.models.hub.name_table import Row, read_rows, write_rows
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.files import atomic_folder, write_json
from jaxretr.runtime.storage.sealed_folder import check_replaceable

NOTE = "adapter_config.json"
_PEFT_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_TRANSFORMERS_WEIGHTS = ("pytorch_adapter.bin",)

_PEFT_PREFIX = "base_model.model."

_OTHER_ENCODER = "give the encoder that these adapters were trained in, or one of its shape"

# Settings and their accepted values other than the empty ones; None: any, because it is read below or does not matter
# to trained weights.
_Accepted = Mapping[str, Collection[Any] | None]

_PEFT_ACCEPTED: _Accepted = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    # pissa, olora, corda, loftq and lora_ga also change the encoder that contains the adapters.
    "init_lora_weights": (True, "gaussian", "eva", "orthogonal"),
    **dict.fromkeys(("r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules")),
    **dict.fromkeys(("rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern")),
    **dict.fromkeys(("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision")),
    **dict.fromkeys(("inference_mode", "lora_dropout", "eva_config", "megatron_core", "qalora_group_size")),
}
_PEFT_REMEDY = "let peft merge it into its encoder (merge_and_unload), and give that encoder"

_LORA_ACCEPTED: _Accepted = {
    "architecture": ("lora",),
    "composition_mode": ("add",),
    **dict.fromkeys(("r", "alpha", "attn_matrices", "selfattn_lora", "intermediate_lora", "output_lora")),
    **dict.fromkeys(("dropout", "init_weights")),
}
_PARALLEL_ACCEPTED: _Accepted = {
    "architecture": ("bottleneck",),
    "output_adapter": (True,),
    "is_parallel": (True,),
    "non_linearity": ("relu",),
    "original_ln_after": (True,),
    **dict.fromkeys(("reduction_factor", "scaling", "init_weights", "dropout")),
    # A parallel adapter reads the unmodified input of the feed-forward network, and has no residual connection.
    **dict.fromkeys(("original_ln_before", "residual_before_ln", "adapter_residual_before_ln")),
    # Without inv_adapter and phm_layer, which are refused, these settings have no effect.
    **dict.fromkeys(("inv_adapter_reduction_factor", "phm_dim", "phm_c_init", "phm_init_range", "phm_rank")),
    **dict.fromkeys(("phm_bias", "learn_phm", "factorized_phm_W", "factorized_phm_rule", "shared_W_phm")),
    **dict.fromkeys(("shared_phm_rule", "hypercomplex_nonlinearity")),
}
_PARALLEL_REQUIRED = ("output_adapter", "is_parallel", "non_linearity", "original_ln_after")
_TRANSFORMERS_REMEDY = "give LoRA, an adapter parallel to the feed-forward network, or the union of both"


def kind_of(folder: str | Path) -> Literal["peft", "adapter-transformers"] | None:
    """Return the library whose adapters a folder holds, by its adapter_config.json; None if it is not one of these.

    Raises:
      UserError: that file is broken.
    """
    if not (Path(folder) / NOTE).is_file():
        return None
    config = read_json(folder, NOTE)
    if "peft_type" in config:
        return "peft"
    return "adapter-transformers" if {"config", "model_type"} <= config.keys() else None


# ---- PEFT ------------------------------------------------------------------------------------------------------------


def read_peft(folder: str | Path, backbone: Backbone) -> tuple[AdapterShape, Params]:
    """Read a LoRA checkpoint of PEFT (https://github.com/huggingface/peft).

    Args:
      folder: folder with adapter_config.json, and adapter_model.safetensors or adapter_model.bin.
      backbone: shape of the encoder, which the folder does not state.

    Returns:
      The adapters' shape, whose alpha includes the effect of `use_rslora`; and the parameters of one tower's, laid out
      as by `init_adapter`, numpy float32. LoRA on the pooler, which no retriever here has, is left out.

    Raises:
      UserError: another method of PEFT, a setting that cannot be represented, layers that differ, another encoder's
        shape, or tensors that are missing, left over or of another shape.
    """
    folder = Path(folder)
    where = str(folder / NOTE)
    config = read_json(folder, NOTE)
    if config.get("peft_type") != "LORA":
        raise UserError(
            f"{where}: its peft_type is {config.get('peft_type')!r}; of PEFT's methods only LORA can be read; {_PEFT_REMEDY}"
        )
    _check_settings(config, _PEFT_ACCEPTED, where, _PEFT_REMEDY)
    rank, alpha = _rank(config, where), _number(config, "lora_alpha", where)
    for key, value in (("rank_pattern", rank), ("alpha_pattern", alpha)):
        pattern = config.get(key) or {}
        if not isinstance(pattern, dict) or any(other != value for other in pattern.values()):
            raise UserError(f"{where}: '{key}' gives modules different values, which cannot be kept; {_PEFT_REMEDY}")
    some = config.get("layers_to_transform")
    if some not in (None, []) and not (isinstance(some, list) and set(range(backbone.num_hidden_layers)) <= set(some)):
        raise UserError(
            f"{where}: 'layers_to_transform' is {some}, but all {backbone.num_hidden_layers} layers must have the same "
            f"adapters; {_PEFT_REMEDY}"
        )
    tensors = TensorFiles.open_file(_weights(folder, _PEFT_WEIGHTS))
    names = names_of(backbone)
    prefix = _prefix(tensors, _PEFT_PREFIX, backbone)
    shape = AdapterShape(
        lora_rank=rank,
        lora_alpha=alpha * math.sqrt(rank) if config.get("use_rslora") else alpha,
        lora_targets=_peft_targets(config, prefix, backbone, where),
        bottleneck=0,
    )
    pooler = re.compile(re.escape(f"{_PEFT_PREFIX}{prefix}pooler.dense.") + r"lora_[AB]\.weight")
    rows = _lora_rows(shape, names, _PEFT_PREFIX + prefix, ".", ".weight")
    return shape, _read(rows, shape, backbone, tensors, pooler)


def write_peft(
    folder: str | Path, shape: AdapterShape, adapter_params: Params, backbone: Backbone, base_model: str
) -> None:
    """Write LoRA as PEFT does, for `peft.PeftModel.from_pretrained(BertModel..., folder)`, or another encoder's class.

    Args:
      folder: a new or empty folder, or an older one of this kind, which is replaced; both files appear at once.
      shape: shape of the adapters.
      adapter_params: parameters of one tower's adapters, laid out as by `init_adapter`.
      backbone: shape of the encoder.
      base_model: path or hub name of the encoder, noted in the file.

    Raises:
      UserError: there is a parallel adapter, which PEFT does not have, or no LoRA, or LoRA of a part of a module; or
        the folder holds something else or cannot be written.
    """
    folder = Path(os.path.realpath(folder))
    if shape.bottleneck:
        raise UserError(
            f"{folder}: PEFT has no parallel adapter beside the feed-forward network; train with "
            "encoder.adapter.bottleneck 0, or keep the adapters in jaxretr's own folder"
        )
    if not shape.lora_rank:
        raise UserError(f"{folder}: there is no LoRA to write; train with encoder.adapter.lora_rank above 0")
    for module, parts in _inseparable(backbone).items():
        if targets := [target for target in parts if target in shape.lora_targets]:
            raise UserError(
                f"{folder}: {names_of(backbone).encoder} has no modules for {', '.join(targets)}, only {module} for "
                f"{', '.join(parts)}, which PEFT's LoRA would adapt as one; merge the adapters into the encoder, or train "
                "with other encoder.adapter.lora_targets"
            )
    given, wanted = (
        {path: tuple(leaf.shape) for path, leaf in flatten_dict(params, sep="/").items()}  # pyright: ignore[reportAttributeAccessIssue]
        for params in (adapter_params, abstract_adapter(shape, backbone))
    )
    if given != wanted:
        raise ValueError(f"the parameters are not of this shape: {given} instead of {wanted}")
    check_replaceable(folder, "adapters", lambda names: True, (NOTE, _PEFT_WEIGHTS[0]))
    alpha = shape.lora_rank if shape.lora_alpha is None else shape.lora_alpha
    config = {
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": base_model,
        "inference_mode": True,
        "r": shape.lora_rank,
        # PEFT declares an integer, and accepts any number.
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "lora_dropout": 0.0,
        "use_rslora": False,
        "use_dora": False,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "target_modules": _peft_names(shape.lora_targets, names_of(backbone)),
    }
    with atomic_folder(folder) as partial:
        write_json(partial / NOTE, config, indent=2)
        rows = _lora_rows(shape, names_of(backbone), _PEFT_PREFIX, ".", ".weight")
        write_safetensors(partial / _PEFT_WEIGHTS[0], write_rows(rows, adapter_params), {"format": "pt"})


def _peft_targets(config: Mapping[str, Any], prefix: str, backbone: Backbone, where: str) -> tuple[str, ...]:
    """Return our names of the modules in `target_modules`, which PEFT matches to the modules' full names."""
    wanted, excluded = config.get("target_modules"), config.get("exclude_modules") or []
    modules, layer = names_of(backbone).modules, names_of(backbone).layer
    layers = range(backbone.num_hidden_layers)
    for module, parts in _inseparable(backbone).items():
        names = [prefix + layer.format(number) + module for number in layers]
        meant = [name for name in names if wanted == "all-linear" or _named(name, wanted, where)]
        if not all(_named(name, excluded, where) for name in meant):
            raise UserError(
                f"{where}: 'target_modules' names {module}, one module for {', '.join(parts)}, whose LoRA cannot be "
                f"represented; {_PEFT_REMEDY}"
            )
    if wanted == "all-linear":
        wanted = list(modules.values())
    found = {}
    for target, module in modules.items():
        names = [prefix + layer.format(number) + module for number in layers]
        found[target] = [_named(name, wanted, where) and not _named(name, excluded, where) for name in names]
        if any(found[target]) and not all(found[target]):
            raise UserError(
                f"{where}: 'target_modules' and 'exclude_modules' name {module} in {sum(found[target])} of "
                f"{len(layers)} layers, but all layers must have the same adapters; {_PEFT_REMEDY}"
            )
    targets = tuple(target for target in found if all(found[target]))
    if not targets:
        raise UserError(
            f"{where}: 'target_modules' {wanted!r} names no dense layer of {names_of(backbone).display_name}'s "
            f"({', '.join(modules.values())}); {_OTHER_ENCODER}"
        )
    return targets


def _inseparable(backbone: Backbone) -> dict[str, tuple[str, ...]]:
    """Return modules that hold several of our dense layers, with these: one LoRA would adapt all of a module's."""
    names = names_of(backbone)
    return {module: parts for module, parts in names.fused.items() if not names.modules.keys() & set(parts)}


def _named(name: str, patterns: Any, where: str) -> bool:
    """Whether PEFT's list of names and endings, or its regular expression, matches the module of this name."""
    if isinstance(patterns, str):
        try:
            return re.fullmatch(patterns, name) is not None
        except re.error as error:
            raise UserError(f"{where}: {patterns!r} is not a regular expression ({error}); correct it") from error
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise UserError(f"{where}: {patterns!r} is not a list of modules' names; copy the file again")
    return any(name == pattern or name.endswith(f".{pattern}") for pattern in patterns)


def _peft_names(targets: tuple[str, ...], names: Architecture) -> list[str] | str:
    wanted = [names.modules[target] for target in targets]
    if any(other.endswith(f".{name}") for name in wanted for other in set(names.modules.values()) - set(wanted)):
        # PEFT would accept "output.dense" as the end of "attention.output.dense" as well.
        layer = re.escape(names.layer).replace(r"\{\}", r"\d+")
        return rf"(.*\.)?{layer}(" + "|".join(map(re.escape, wanted)) + ")"
    attention = ("query", "key", "value")
    return [
        module.rsplit(".", 1)[-1] if target in attention else module
        for target, module in zip(targets, wanted, strict=True)
    ]


# ---- adapter-transformers --------------------------------------------------------------------------------------------


def read_adapter_transformers(folder: str | Path, backbone: Backbone) -> tuple[AdapterShape, Params]:
    """Read a folder that `save_adapter` of adapter-transformers 3 wrote: LoRA, a parallel adapter, or both.

    The library adds alpha / r times LoRA's product, and `scaling` times the parallel adapter's result with its bias:
    the same formulas as ours. Where its settings do not name LoRA's projections, as before version 3.1, they are query
    and value.

    Args:
      folder: folder with adapter_config.json and pytorch_adapter.bin; a prediction head in the folder is not read.
      backbone: shape of the encoder.

    Returns:
      The adapters' shape; and the parameters of one tower's, laid out as by `init_adapter`, numpy float32.

    Raises:
      UserError: another kind of adapter, a setting that cannot be represented, another encoder's shape, tensors that
        are missing, left over or of another shape, or torch is not installed.
    """
    folder = Path(folder)
    where = str(folder / NOTE)
    content = read_json(folder, NOTE)
    name = content.get("name")
    if content.get("model_type") != "bert" or not isinstance(name, str):
        raise UserError(
            f"{where}: is of model_type {content.get('model_type')!r} and name {name!r}; only named adapters for bert "
            "can be read"
        )
    if not isinstance(backbone, BertConfig):
        raise UserError(f"{where}: the adapters are for BERT, not {names_of(backbone).display_name}; {_OTHER_ENCODER}")
    if content.get("hidden_size") != backbone.hidden_size:
        raise UserError(
            f"{where}: the adapters are for a hidden_size of {content.get('hidden_size')}, but the encoder has "
            f"{backbone.hidden_size}; {_OTHER_ENCODER}"
        )
    parts = _parts(content.get("config"), where)
    settings: dict[str, Any] = {"lora_rank": 0, "bottleneck": 0}
    for part in parts:
        lora = part.get("architecture") == "lora"
        settings |= _lora_settings(part, where) if lora else _parallel_settings(part, where, backbone)
    if len(parts) > bool(settings["lora_rank"]) + bool(settings["bottleneck"]):
        raise UserError(f"{where}: holds two adapters of one kind; {_TRANSFORMERS_REMEDY}")
    shape = AdapterShape(**settings)
    tensors = TensorFiles.open_file(_weights(folder, _TRANSFORMERS_WEIGHTS))
    names = names_of(backbone)
    prefix = _prefix(tensors, "", backbone)
    braces = name.replace("{", "{{").replace("}", "}}")
    rows = _lora_rows(shape, names, prefix, f".loras.{braces}.", "") if shape.lora_rank else []
    if shape.bottleneck:
        rows += _parallel_rows(f"{prefix}{names.layer}output.adapters.{braces}.")
    return shape, _read(rows, shape, backbone, tensors, re.compile(r"(?!)"))


def _parts(config: Any, where: str) -> list[dict[str, Any]]:
    parts = [config]
    if isinstance(config, dict) and config.get("architecture") == "union":
        parts = config.get("configs")
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise UserError(f"{where}: 'config' does not spell out the adapters' settings; {_TRANSFORMERS_REMEDY}")
    for part in parts:
        if (kind := part.get("architecture")) not in (None, "bottleneck", "lora"):
            raise UserError(
                f"{where}: an adapter of architecture {kind!r} cannot be represented; {_TRANSFORMERS_REMEDY}"
            )
    return parts


def _lora_settings(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    _check_settings(part, _LORA_ACCEPTED, where, _TRANSFORMERS_REMEDY)
    targets = []
    if part.get("selfattn_lora", True):
        letters = {"q": "query", "k": "key", "v": "value"}
        matrices = part.get("attn_matrices", ["q", "v"])
        if not isinstance(matrices, list) or not all(letter in list(letters) for letter in matrices):
            raise UserError(f"{where}: 'attn_matrices' is {matrices!r}; it must be a list of q, k and v")
        targets += [letters[letter] for letter in letters if letter in matrices]
    targets += ["ffn_in"] if part.get("intermediate_lora") else []
    targets += ["ffn_out"] if part.get("output_lora") else []
    if not targets:
        raise UserError(f"{where}: LoRA belongs to no dense layer; {_TRANSFORMERS_REMEDY}")
    return {
        "lora_rank": _rank(part, where),
        "lora_alpha": _number(part, "alpha", where),
        "lora_targets": tuple(targets),
    }


def _parallel_settings(part: Mapping[str, Any], where: str, backbone: Backbone) -> dict[str, Any]:
    _check_settings(part, _PARALLEL_ACCEPTED, where, _TRANSFORMERS_REMEDY, _PARALLEL_REQUIRED)
    bottleneck = max(1, int(backbone.hidden_size // _number(part, "reduction_factor", where)))
    return {"bottleneck": bottleneck, "scale": _number(part, "scaling", where)}


# ---- both ------------------------------------------------------------------------------------------------------------


def _lora_rows(shape: AdapterShape, names: Architecture, prefix: str, before: str, after: str) -> list[Row]:
    within = prefix + names.layer
    return [
        Row(f"lora/{target}/{ours}/kernel", within + names.modules[target] + before + theirs + after, True)
        for target in shape.lora_targets
        for ours, theirs in (("down", "lora_A"), ("up", "lora_B"))
    ]


def _parallel_rows(module: str) -> list[Row]:
    return [
        Row(f"parallel/{ours}/{leaf}", f"{module}{theirs}.{name}", name == "weight")
        for ours, theirs in (("down", "adapter_down.0"), ("up", "adapter_up"))
        for leaf, name in (("kernel", "weight"), ("bias", "bias"))
    ]


def _read(
    rows: list[Row], shape: AdapterShape, backbone: Backbone, tensors: TensorFiles, ignored: re.Pattern[str]
) -> Params:
    """Read the table's tensors, after checking that they are those of this encoder's layers and no others."""
    layers, where = backbone.num_hidden_layers, tensors.where
    there = {name for name in tensors.names if not ignored.fullmatch(name)}
    layer = re.compile(re.escape(names_of(backbone).layer).replace(r"\{\}", r"(\d+)"))
    numbers = {int(match[1]) for name in there if (match := layer.search(name))}
    if numbers and max(numbers) + 1 != layers:
        raise UserError(f"{where}: is for {max(numbers) + 1} layers, but the encoder has {layers}; {_OTHER_ENCODER}")
    tensors.check_sizes({"r": shape.lora_rank, "bottleneck": shape.bottleneck}, NOTE)
    shapes = abstract_adapter(shape, backbone)
    flat: dict[str, Any] = flatten_dict(shapes, sep="/")  # pyright: ignore[reportAssignmentType]
    wanted = {name: tuple(flat[row.ours].shape[1:]) for row in rows for name in row.names(layers)}
    transposed = {name for row in rows if row.transposed for name in row.names(layers)}
    if missing := sorted(wanted.keys() - there):
        raise UserError(f"{where}: lacks {some_names(missing)}, which {NOTE} promises; copy the folder again")
    if extra := sorted(there - wanted.keys()):
        raise UserError(
            f"{where}: has {some_names(extra)}, for which there is no place here; give LoRA of "
            f"{names_of(backbone).display_name}'s layers"
        )
    for name, ours in wanted.items():
        theirs = ours[::-1] if name in transposed else ours
        if tensors.shape(name) != theirs:
            raise UserError(
                f"{where}: {name} is {list(tensors.shape(name))}, but by {NOTE} and the encoder it must be "
                f"{list(theirs)}; {_OTHER_ENCODER}"
            )
    return read_rows(rows, shapes, tensors, ignored=ignored, dtype=np.float32)


def _check_settings(
    config: Mapping[str, Any], accepted: _Accepted, where: str, remedy: str, required: Collection[str] = ()
) -> None:
    for key in sorted(config.keys() | set(required)):
        value = config.get(key)
        values = accepted.get(key, ())
        if key in required if not value else values is not None and value not in values:
            only = f" (only {' or '.join(map(str, values))} can)" if values else ""
            raise UserError(f"{where}: '{key}' is {value!r}, which cannot be represented{only}; {remedy}")


def _weights(folder: Path, names: tuple[str, ...]) -> Path:
    found = [folder / name for name in names if (folder / name).exists()]
    if not found:
        raise UserError(f"{folder}: no {' or '.join(names)} beside {NOTE}; copy the whole folder")
    return found[0]


def _prefix(tensors: TensorFiles, outer: str, backbone: Backbone) -> str:
    names = names_of(backbone)
    for prefix in ("", names.prefix, *DPR_PREFIXES):
        if any(name.startswith(outer + prefix + names.layer.split("{}")[0]) for name in tensors.names):
            return prefix
    raise UserError(
        f"{tensors.where}: no adapters of a {names_of(backbone).display_name} encoder ({some_names(tensors.names) or 'no tensors'}); "
        f"{_OTHER_ENCODER}, saved with save_pretrained or save_adapter"
    )


def _rank(config: Mapping[str, Any], where: str) -> int:
    rank = config.get("r")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise UserError(f"{where}: the rank 'r' is {rank!r}, not a positive whole number; copy the file again")
    return rank


def _number(config: Mapping[str, Any], key: str, where: str) -> float:
    value = config.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
        raise UserError(f"{where}: '{key}' is {value!r}; only one positive number can be represented")
    return float(value)
