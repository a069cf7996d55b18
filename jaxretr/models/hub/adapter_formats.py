"""Other libraries' folders of adapters: PEFT's LoRA; adapter_transformers.py has the other library's.

Both keep a settings file of the same name and the tensors of every layer separately. Anything that our adapters cannot
represent is refused, never dropped: a setting that is not listed must be absent, null, false, 0 or empty.
"""

import math
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from flax.traverse_util import flatten_dict

from jaxretr.config import AdapterShape
from jaxretr.models.backbones.adapter_layers import abstract_adapter
from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.layers import Params
from jaxretr.models.hub.architecture import Architecture
from jaxretr.models.hub.bert_family import DPR_PREFIXES
from jaxretr.models.hub.encoder_params import names_of
from jaxretr.models.hub.hf_files import read_json
from jaxretr.models.hub.name_table import NO_NAME, Row, read_rows, write_rows
from jaxretr.models.hub.tensor_files import TensorFiles, write_safetensors
from jaxretr.runtime.errors import UserError, some_names
from jaxretr.runtime.storage.files import atomic_folder, write_json
from jaxretr.runtime.storage.sealed_folder import check_replaceable

NOTE = "adapter_config.json"
_PEFT_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")

_PEFT_PREFIX = "base_model.model."

OTHER_ENCODER = "give the encoder that these adapters were trained in, or one of its shape"

# Settings and their accepted values other than the empty ones; None: any, because it is read below or does not matter
# to trained weights.
Accepted = Mapping[str, Collection[Any] | None]

_PEFT_ACCEPTED: Accepted = {
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
    check_settings(config, _PEFT_ACCEPTED, where, _PEFT_REMEDY)
    rank, alpha = rank_of(config, where), number_of(config, "lora_alpha", where)
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
    tensors = TensorFiles.open_file(weights_file(folder, _PEFT_WEIGHTS))
    names = names_of(backbone)
    prefix = tower_prefix(tensors, _PEFT_PREFIX, backbone)
    shape = AdapterShape(
        lora_rank=rank,
        lora_alpha=alpha * math.sqrt(rank) if config.get("use_rslora") else alpha,
        lora_targets=_peft_targets(config, prefix, backbone, where),
        bottleneck=0,
    )
    pooler = re.compile(re.escape(f"{_PEFT_PREFIX}{prefix}pooler.dense.") + r"lora_[AB]\.weight")
    rows = lora_rows(shape, names, _PEFT_PREFIX + prefix, ".", ".weight")
    return shape, read_table(rows, shape, backbone, tensors, pooler)


def write_peft(
    folder: str | Path, shape: AdapterShape, adapter_params: Params, backbone: Backbone, base_model: str
) -> None:
    """Write LoRA as PEFT does, for `peft.PeftModel.from_pretrained(BertModel..., folder)`, or another encoder's class.

    Args:
      folder: a new or empty folder, or an older one of this kind, which is replaced; both files appear at once.
      adapter_params: parameters of one tower's adapters, laid out as by `init_adapter`.
      base_model: path or hub name of the encoder, noted in the file.

    Raises:
      UserError: there is a parallel adapter, which PEFT does not have, or no LoRA, or LoRA of a part of a module; or
        the folder holds something else or cannot be written.
    """
    folder = Path(os.path.realpath(os.path.expanduser(folder)))
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
        rows = lora_rows(shape, names_of(backbone), _PEFT_PREFIX, ".", ".weight")
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
            f"({', '.join(modules.values())}); {OTHER_ENCODER}"
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


# ---- of both libraries ------------------------------------------------------------------------------------------------------------


def lora_rows(shape: AdapterShape, names: Architecture, prefix: str, before: str, after: str) -> list[Row]:
    """Return the table of names for LoRA: `before` and `after` stand around lora_A and lora_B behind a module's name."""
    within = prefix + names.layer
    return [
        Row(f"lora/{target}/{ours}/kernel", within + names.modules[target] + before + theirs + after, True)
        for target in shape.lora_targets
        for ours, theirs in (("down", "lora_A"), ("up", "lora_B"))
    ]


def read_table(
    rows: list[Row], shape: AdapterShape, backbone: Backbone, tensors: TensorFiles, ignored: re.Pattern[str] = NO_NAME
) -> Params:
    """Read the table's tensors, after checking that they are those of this encoder's layers and no others."""
    layers, where = backbone.num_hidden_layers, tensors.where
    layer = re.compile(re.escape(names_of(backbone).layer).replace(r"\{\}", r"(\d+)"))
    numbers = {int(match[1]) for name in tensors.names if not ignored.fullmatch(name) and (match := layer.search(name))}
    if numbers and max(numbers) + 1 != layers:
        raise UserError(f"{where}: is for {max(numbers) + 1} layers, but the encoder has {layers}; {OTHER_ENCODER}")
    tensors.check_sizes({"r": shape.lora_rank, "bottleneck": shape.bottleneck}, NOTE)
    shapes, source = abstract_adapter(shape, backbone), f"{NOTE} and the encoder"
    return read_rows(rows, shapes, tensors, ignored=ignored, source=source, remedy=OTHER_ENCODER)


def check_settings(
    config: Mapping[str, Any], accepted: Accepted, where: str, remedy: str, required: Collection[str] = ()
) -> None:
    """Raise UserError for a setting that is not accepted, or is required and empty."""
    for key in sorted(config.keys() | set(required)):
        value = config.get(key)
        values = accepted.get(key, ())
        if key in required if not value else values is not None and value not in values:
            only = f" (only {' or '.join(map(str, values))} can)" if values else ""
            raise UserError(f"{where}: '{key}' is {value!r}, which cannot be represented{only}; {remedy}")


def weights_file(folder: Path, names: tuple[str, ...]) -> Path:
    """Return the first of these files that a folder has."""
    found = [folder / name for name in names if (folder / name).exists()]
    if not found:
        raise UserError(f"{folder}: no {' or '.join(names)} beside {NOTE}; copy the whole folder")
    return found[0]


def tower_prefix(tensors: TensorFiles, outer: str, backbone: Backbone) -> str:
    """Return the prefix of the encoder in the names of an adapter's tensors, after `outer`."""
    names = names_of(backbone)
    for prefix in ("", names.prefix, *DPR_PREFIXES):
        if any(name.startswith(outer + prefix + names.layer.split("{}")[0]) for name in tensors.names):
            return prefix
    raise UserError(
        f"{tensors.where}: no adapters of a {names_of(backbone).display_name} encoder ({some_names(tensors.names) or 'no tensors'}); "
        f"{OTHER_ENCODER}, saved with save_pretrained or save_adapter"
    )


def rank_of(config: Mapping[str, Any], where: str) -> int:
    """Return the rank of LoRA."""
    rank = config.get("r")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise UserError(f"{where}: the rank 'r' is {rank!r}, not a positive whole number; copy the file again")
    return rank


def number_of(config: Mapping[str, Any], key: str, where: str) -> float:
    """Return a setting that is a positive number."""
    value = config.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
        raise UserError(f"{where}: '{key}' is {value!r}; only one positive number can be represented")
    return float(value)
