"""Encoders as ONNX, for onnxruntime and other readers."""

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any, Literal

from jaxretr.exports import encoder_folders
from jaxretr.exports.encoder_folders import Tower
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.onnx.graph import OPSET
from jaxretr.models.onnx.int8 import LEAST_COSINE, Cosines
from jaxretr.models.onnx.nodes import RUNTIME
from jaxretr.models.onnx.program import MODEL, PACKAGES, load, write
from jaxretr.runtime.storage.files import write_json

KIND = "onnx"


def _write(folder: Path, one: Tower, int8: bool) -> None:
    write(folder, one.encoder.config, one.params, int8=int8)
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
        f"Opset {OPSET}, "
        + (
            f"the layers' products in int8 by an operator of ONNX Runtime's own ({RUNTIME}), the rest in float32: the cosine to "
            f"the float32 model is {Cosines(**facts['cosine'])}."
            if "cosine" in facts
            else "float32 throughout."
        ),
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
    KIND, "onnxruntime", PACKAGES, DualEncoder.as_plain, partial(_write, int8=False), load, _readme
)
verify = FORMAT.verify


def export(
    encoder: DualEncoder | CombinedEncoder,
    out: str | Path,
    *,
    quantise: Literal["int8"] | None = None,
    least_cosine: float | None = None,
    **options: Any,
) -> str:
    """Write an encoder as ONNX.

    Args:
      quantise: "int8": the layers' products in 8 bits.
      least_cosine: for int8: the least mean cosine of its golden vectors to the model's; None: `LEAST_COSINE`.
      options: those of `Program.export`, which also states what is returned and raised.
    """
    if quantise is None:
        return FORMAT.export(encoder, out, **options)
    written = dataclasses.replace(FORMAT, write=partial(_write, int8=True))
    return written.export(encoder, out, **options, least_cosine=LEAST_COSINE if least_cosine is None else least_cosine)
