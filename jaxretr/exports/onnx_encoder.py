"""Encoders as ONNX, for onnxruntime and other readers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxretr.exports import encoder_folders, onnx_graph
from jaxretr.exports.encoder_folders import Tower
from jaxretr.exports.onnx_nodes import IDS, MASK
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UserError, import_extra
from jaxretr.runtime.parallel.mesh import to_host
from jaxretr.runtime.storage.files import write_json

KIND = "onnx"
MODEL = "model.onnx"
WEIGHTS = "model.onnx.data"

# A protobuf message has at most 2 GiB; above this the weights go into a file of their own.
_INSIDE = 3 << 29


def _write(folder: Path, one: Tower) -> None:
    onnx = import_extra("onnx", "export")
    params = jax.tree.map(to_host, one.params)
    model = onnx_graph.build(one.encoder.config, params)
    apart = sum(leaf.nbytes for leaf in jax.tree.leaves(params)) > _INSIDE
    path = str(folder / MODEL)
    onnx.save_model(model, path, save_as_external_data=apart, location=WEIGHTS if apart else None)
    onnx.checker.check_model(path)
    _write_settings(folder, one)


def _write_settings(folder: Path, one: Tower) -> None:
    """Write the files that fastembed reads beside tokenizer.json, which states how to cut and to pad."""
    from tokenizers import Tokenizer

    padding = Tokenizer.from_file(str(folder / encoder_folders.TOKENIZER)).padding
    assert padding is not None
    files = {
        "tokenizer_config.json": {"model_max_length": one.max_length, "pad_token": padding["pad_token"]},
        # Releases before 0.8.1 want these two as well.
        "config.json": {"pad_token_id": padding["pad_id"]},
        "special_tokens_map.json": {},
    }
    for name, content in files.items():
        write_json(folder / name, content, indent=2)


def _load(folder: Path) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    runtime = import_extra("onnxruntime", "export")
    try:
        session = runtime.InferenceSession(str(folder / MODEL), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a dozen classes of its own.
        raise UserError(f"{folder / MODEL}: onnxruntime cannot load it ({str(error).splitlines()[0]})") from error
    return lambda ids, mask: session.run(None, {IDS: ids, MASK: mask})[0]


def _readme(name: str, facts: dict[str, Any]) -> str:
    code = f"""\
import numpy as np
import onnxruntime
from tokenizers import Tokenizer


def encode(towers, texts):
    found = []
    for folder, weight in towers:
        rows = Tokenizer.from_file(f"{{folder}}/tokenizer.json").encode_batch(texts)
        session = onnxruntime.InferenceSession(f"{{folder}}/model.onnx", providers=["CPUExecutionProvider"])
        inputs = {{"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}}
        found.append(np.float32(weight) * session.run(None, {{name: np.array(one) for name, one in inputs.items()}})[0])
    return {encoder_folders.joined(facts)}


{encoder_folders.example(facts, name)}"""
    notes = [
        "Make tokenizers and sessions once in a program of your own. `input_ids` and `attention_mask` are int64 "
        "[batch, length], padded on the right, of any batch and length up to the maximum; `embedding` is float32. "
        f"Opset {onnx_graph.OPSET}, float32 throughout.",
        *([_for_fastembed(name, facts)] if facts["how"] == "single" else []),
    ]
    return encoder_folders.readme(name, facts, "an encoder as ONNX", code, notes)


def _for_fastembed(name: str, facts: dict[str, Any]) -> str:
    one = facts["towers"][0]
    text = facts["example_question"] if one["side"] == "question" else facts["example"]
    folders = " and ".join(f"`{tower['folder']}/`" for tower in facts["towers"])
    return f"""\
fastembed reads {folders} without further files. The vectors come out pooled, which is what `DISABLED` says:

```python
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

TextEmbedding.add_custom_model(
    model={json.dumps(name)},
    pooling=PoolingType.DISABLED,
    normalization=False,
    sources=ModelSource(hf={json.dumps(name)}),
    dim={facts["settings"]["dimensions"]},
    model_file="{MODEL}",
)
model = TextEmbedding({json.dumps(name)}, specific_model_path={json.dumps(f"{name}/{one['folder']}")})
print(next(model.embed([{json.dumps(text, ensure_ascii=False)}])).shape)
```"""


FORMAT = encoder_folders.Program(
    KIND, "onnxruntime", ("onnx", "onnxruntime"), DualEncoder.as_plain, _write, _load, _readme
)
export, verify = FORMAT.export, FORMAT.verify
