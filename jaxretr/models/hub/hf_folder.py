"""Writes a Hugging Face folder: config.json, model.safetensors, tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.models.hub.tensor_files import write_safetensors
from jaxretr.runtime.storage.files import write_json


def write_folder(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], tokenizer: Any, dtype: str = "float32"
) -> None:
    """Write a model that `transformers` loads.

    Args:
      folder: folder of the model, created when missing; its files are replaced.
      tensors: tensors by Hugging Face's names.
      tokenizer: tokenizer to save next to the weights.
      dtype: type of the stored tensors; "float16" halves the size of a small model that ships with the package.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: np.ascontiguousarray(tensor.astype(dtype)) for name, tensor in tensors.items()}
    # Settings that config.json does not have yet; for some architectures transformers has other defaults.
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    stated = config if "pad_token_id" in config else {**config, **ids}
    write_json(folder / "config.json", {**stated, "torch_dtype": dtype}, indent=2)
    write_safetensors(folder / "model.safetensors", stored, {"format": "pt"})
    tokenizer.save_pretrained(folder)
