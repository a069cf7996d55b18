"""The folder of an adapter, and other libraries' folders that adapters are read from."""

import os
from dataclasses import dataclass
from pathlib import Path

from flax.traverse_util import flatten_dict

from jaxretr.config import AdapterShape
from jaxretr.models.backbones.adapter_layers import abstract_adapter
from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.layers import Params
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.hub import adapter_formats
from jaxretr.models.hub.adapter_transformers import read_adapter_transformers
from jaxretr.models.hub.encoder_params import check_sizes
from jaxretr.models.hub.hf_files import read_json, resolve
from jaxretr.models.hub.name_table import read_tree
from jaxretr.models.hub.tensor_files import TensorFiles, write_safetensors
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.mesh import to_host
from jaxretr.runtime.storage.files import atomic_folder, write_json
from jaxretr.runtime.storage.sealed_folder import check_replaceable

NOTE = "adapter.json"
WEIGHTS = "adapter.safetensors"
FOLDER = "adapter"
"""Name of the adapter's folder within the folder of a model."""

_FORMAT = "jaxretr-adapter"
_VERSION = 1


@dataclass(frozen=True)
class AdapterParts:
    """Content of an adapter's folder; see `jaxretr.models.adapter.Adapter`."""

    shape: AdapterShape
    params: Params
    encoder: DualEncoderConfig | None = None
    tokenizer: str | None = None


def find(path: str | Path) -> Path | None:
    """Return our own adapter's folder that a path leads to: itself, or a model's or a run's; None if there is none."""
    folder = resolve(path)
    places = (folder, folder / FOLDER, folder / "model" / FOLDER)
    return next((place for place in places if (place / NOTE).is_file()), None)


def load(path: str | Path, backbone: Backbone | None) -> AdapterParts:
    """Read adapters; see `Adapter.from_pretrained`."""
    folder = find(path)
    if folder is not None:
        return _load_ours(folder)
    folder = resolve(path)
    kind = adapter_formats.kind_of(folder)
    if kind is not None:
        if backbone is None:
            raise UserError(f"{folder}: is a folder of {kind}, which does not describe the encoder; name that as well")
        read = adapter_formats.read_peft if kind == "peft" else read_adapter_transformers
        shape, params = read(folder, backbone)
        return AdapterParts(shape, {"shared": params})
    raise UserError(
        f"{folder}: holds no adapters; give a run that was trained with encoder.adapter, or a folder of adapters"
    )


def _load_ours(folder: Path) -> AdapterParts:
    where = str(folder / NOTE)
    content = read_json(folder, NOTE)
    if content.get("format") != _FORMAT or not isinstance(content.get("encoder"), dict):
        raise UserError(f"{where}: is not an adapter's; give a folder that Adapter.save wrote")
    if content.get("version") != _VERSION:
        raise UserError(f"{where}: is of version {content.get('version')}, not {_VERSION}; install a newer jaxretr")
    encoder = DualEncoderConfig.from_json(content["encoder"], where)
    if encoder.adapter is None:
        raise UserError(f"{where}: names no adapter; copy the folder again")
    return AdapterParts(encoder.adapter, read_modules(folder, encoder), encoder, content.get("tokenizer"))


def read_modules(folder: Path, encoder: DualEncoderConfig) -> Params:
    """Read the parameters of a dual encoder's adapters, laid out as `Adapter.params`.

    Args:
      folder: folder with adapter.safetensors.

    Raises:
      UserError: the file is missing, or tensors are missing, left over, or of another shape.
    """
    assert encoder.adapter is not None
    check_sizes(encoder.backbone, str(folder / NOTE))
    sides = ("shared",) if encoder.shared else ("question", "passage")
    tensors = TensorFiles.open_file(folder / WEIGHTS)
    shape, backbone = encoder.adapter, encoder.backbone
    sizes = {name: getattr(backbone, name) for name in ("num_hidden_layers", "hidden_size")}
    if shape.lora_rank:
        for target in shape.lora_targets:
            sizes |= dict(
                zip((f"{target}'s inputs", f"{target}'s outputs"), backbone.dense_sizes()[target], strict=True)
            )
    tensors.check_sizes({**sizes, "lora_rank": shape.lora_rank, "bottleneck": shape.bottleneck}, NOTE)
    shapes: Params = {side: abstract_adapter(shape, backbone) for side in sides}
    return read_tree(tensors, shapes, NOTE)


def save(folder: Path, adapter: AdapterParts) -> None:
    """Write the folder under another name and rename it; see `Adapter.save`."""
    folder = Path(os.path.realpath(folder))
    check_replaceable(folder, "an adapter", lambda names: True, (NOTE, WEIGHTS))
    with atomic_folder(folder) as partial:
        write(partial, adapter)


def write(folder: Path, adapter: AdapterParts) -> None:
    """Write an adapter's two files into an existing folder."""
    if adapter.encoder is None:
        raise UserError("these adapters do not know their encoder; put them into one and save the model")
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "encoder": adapter.encoder.to_json(),
        "tokenizer": adapter.tokenizer,
    }
    write_json(folder / NOTE, content, indent=2)
    tensors = {name: to_host(array) for name, array in flatten_dict(adapter.params, sep=".").items()}
    write_safetensors(folder / WEIGHTS, tensors, {"format": _FORMAT})
