"""Folders of adapters of adapter-transformers (version 3): LoRA, a parallel adapter, or both.

The authors of DDR published their relevance modules in this layout.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxretr.config import AdapterShape
from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params
from jaxretr.models.hub.adapter_formats import (
    NOTE,
    OTHER_ENCODER,
    Accepted,
    check_settings,
    lora_rows,
    number_of,
    rank_of,
    read_table,
    tower_prefix,
    weights_file,
)
from jaxretr.models.hub.encoder_params import names_of
from jaxretr.models.hub.hf_files import read_json
from jaxretr.models.hub.name_table import Row
from jaxretr.models.hub.tensor_files import TensorFiles
from jaxretr.runtime.errors import UserError

_WEIGHTS = ("pytorch_adapter.bin",)
_LORA_ACCEPTED: Accepted = {
    "architecture": ("lora",),
    "composition_mode": ("add",),
    **dict.fromkeys(("r", "alpha", "attn_matrices", "selfattn_lora", "intermediate_lora", "output_lora")),
    **dict.fromkeys(("dropout", "init_weights")),
}
_PARALLEL_ACCEPTED: Accepted = {
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
_REMEDY = "give LoRA, an adapter parallel to the feed-forward network, or the union of both"


def read_adapter_transformers(folder: str | Path, backbone: Backbone) -> tuple[AdapterShape, Params]:
    """Read a folder that `save_adapter` of adapter-transformers 3 wrote: LoRA, a parallel adapter, or both.

    The library adds alpha / r times LoRA's product, and `scaling` times the parallel adapter's result with its bias:
    the same formulas as ours. Where its settings do not name LoRA's projections, as before version 3.1, they are query
    and value.

    Args:
      folder: folder with adapter_config.json and pytorch_adapter.bin; a prediction head in the folder is not read.

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
        raise UserError(f"{where}: the adapters are for BERT, not {names_of(backbone).display_name}; {OTHER_ENCODER}")
    if content.get("hidden_size") != backbone.hidden_size:
        raise UserError(
            f"{where}: the adapters are for a hidden_size of {content.get('hidden_size')}, but the encoder has "
            f"{backbone.hidden_size}; {OTHER_ENCODER}"
        )
    parts = _parts(content.get("config"), where)
    settings: dict[str, Any] = {"lora_rank": 0, "bottleneck": 0}
    for part in parts:
        lora = part.get("architecture") == "lora"
        settings |= _lora_settings(part, where) if lora else _parallel_settings(part, where, backbone)
    if len(parts) > bool(settings["lora_rank"]) + bool(settings["bottleneck"]):
        raise UserError(f"{where}: holds two adapters of one kind; {_REMEDY}")
    shape = AdapterShape(**settings)
    tensors = TensorFiles.open_file(weights_file(folder, _WEIGHTS))
    names = names_of(backbone)
    prefix = tower_prefix(tensors, "", backbone)
    braces = name.replace("{", "{{").replace("}", "}}")
    rows = lora_rows(shape, names, prefix, f".loras.{braces}.", "") if shape.lora_rank else []
    if shape.bottleneck:
        rows += _parallel_rows(f"{prefix}{names.layer}output.adapters.{braces}.")
    return shape, read_table(rows, shape, backbone, tensors)


def _parts(config: Any, where: str) -> list[dict[str, Any]]:
    parts = [config]
    if isinstance(config, dict) and config.get("architecture") == "union":
        parts = config.get("configs")
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise UserError(f"{where}: 'config' does not spell out the adapters' settings; {_REMEDY}")
    for part in parts:
        if (kind := part.get("architecture")) not in (None, "bottleneck", "lora"):
            raise UserError(f"{where}: an adapter of architecture {kind!r} cannot be represented; {_REMEDY}")
    return parts


def _lora_settings(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    check_settings(part, _LORA_ACCEPTED, where, _REMEDY)
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
        raise UserError(f"{where}: LoRA belongs to no dense layer; {_REMEDY}")
    return {
        "lora_rank": rank_of(part, where),
        "lora_alpha": number_of(part, "alpha", where),
        "lora_targets": tuple(targets),
    }


def _parallel_settings(part: Mapping[str, Any], where: str, backbone: Backbone) -> dict[str, Any]:
    check_settings(part, _PARALLEL_ACCEPTED, where, _REMEDY, _PARALLEL_REQUIRED)
    bottleneck = max(1, int(backbone.hidden_size // number_of(part, "reduction_factor", where)))
    return {"bottleneck": bottleneck, "scale": number_of(part, "scaling", where)}


def _parallel_rows(module: str) -> list[Row]:
    return [
        Row(f"parallel/{ours}/{leaf}", f"{module}{theirs}.{name}", name == "weight")
        for ours, theirs in (("down", "adapter_down.0"), ("up", "adapter_up"))
        for leaf, name in (("kernel", "weight"), ("bias", "bias"))
    ]
