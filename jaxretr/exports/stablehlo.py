"""Encoders as StableHLO by jax.export: any batch and length, for CPUs, CUDA and TPUs, without this package.

The parameters are next to the program, never in it: as constants they would be held once more by the program, XLA would
fold them for minutes, and each process would compile them in; as a file they are mapped into memory as they are.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxretr.exports import encoder_folders
from jaxretr.exports.encoder_folders import Tower
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.backbones.layer_stacks import unstack
from jaxretr.models.backbones.layers import Params
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import embed
from jaxretr.models.hub.tensor_files import write_safetensors
from jaxretr.runtime.errors import UserError, import_extra, reason
from jaxretr.runtime.parallel.mesh import to_host
from jaxretr.runtime.storage.files import atomic_write

KIND = "stablehlo"
PROGRAM = "encoder.stablehlo"
PARAMETERS = "parameters.safetensors"
PLATFORMS = ("cpu", "cuda", "tpu")


def _write(folder: Path, one: Tower) -> None:
    config = one.encoder.config
    params = _flat(jax.tree.map(to_host, one.params))

    def encode(flat: dict[str, jax.Array], ids: jax.Array, mask: jax.Array) -> jax.Array:
        return embed(config, _nested(flat), ids, mask.sum(axis=1), dtype=jnp.float32)

    # A length beyond the positions would silently read the last of them.
    batch, length = jax.export.symbolic_shape(
        "batch, length", constraints=[f"length <= {config.backbone.max_position_embeddings}"]
    )
    shape = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in params.items()}
    # Accelerators would otherwise round the operands of float32 matmuls.
    with jax.default_matmul_precision("highest"):
        exported = jax.export.export(jax.jit(encode), platforms=PLATFORMS)(shapes, shape, shape)
    with atomic_write(folder / PROGRAM, "wb") as file:
        file.write(exported.serialize())
    write_safetensors(folder / PARAMETERS, params, {})


def _flat(params: Params) -> dict[str, np.ndarray]:
    """The parameters by name, layers apart: on CPUs a stacked kernel would be cut and copied at every call."""
    if "layers" in params.get(BACKBONE, {}):
        params = {**params, BACKBONE: {**params[BACKBONE], "layers": unstack(params[BACKBONE]["layers"])}}
    if "adapter" in params:
        params = {**params, "adapter": unstack(params["adapter"])}
    flat: dict[tuple[Any, ...], np.ndarray] = flatten_dict(params)  # pyright: ignore[reportAssignmentType]
    return {".".join(map(str, path)): np.ascontiguousarray(array, np.float32) for path, array in flat.items()}


def _nested(flat: dict[str, Any]) -> Params:
    paths = {
        tuple(int(part) if part.isdecimal() else part for part in name.split(".")): array
        for name, array in flat.items()
    }
    return unflatten_dict(paths)


def _load(folder: Path) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    from safetensors.numpy import load_file

    import_extra("flatbuffers", "export")  # jax.export reads its files with it, and writes them.
    try:
        program = jax.export.deserialize(bytearray((folder / PROGRAM).read_bytes()))
        params = load_file(folder / PARAMETERS)
    except Exception as error:  # flatbuffers, MLIR and safetensors have classes of their own.
        raise UserError(f"{folder}: cannot be loaded ({reason(error)})") from error
    return lambda ids, mask: np.asarray(program.call(params, ids.astype(np.int32), mask.astype(np.int32)))


def _readme(name: str, facts: dict[str, Any]) -> str:
    code = f"""\
import json

import jax
import numpy as np
from jax import export
from tokenizers import Tokenizer


def load(folder):
    program = export.deserialize(bytearray(open(f"{{folder}}/encoder.stablehlo", "rb").read()))
    raw = np.memmap(f"{{folder}}/parameters.safetensors", np.uint8, "r")
    first = 8 + int(raw[:8].view("<u8")[0])
    found = json.loads(bytes(raw[8:first])).items()
    places = {{name: (one["shape"], *one["data_offsets"]) for name, one in found if name != "__metadata__"}}
    params = {{name: raw[first + a : first + b].view("<f4").reshape(size) for name, (size, a, b) in places.items()}}
    return Tokenizer.from_file(f"{{folder}}/tokenizer.json"), jax.jit(program.call), jax.device_put(params)


def encode(towers, texts):
    found = []
    for folder, weight in towers:
        tokenizer, call, params = load(folder)
        rows = tokenizer.encode_batch(texts)
        ids, mask = (np.array([getattr(row, one) for row in rows], np.int32) for one in ("ids", "attention_mask"))
        found.append(np.float32(weight) * np.asarray(call(params, ids, mask)))
    return {encoder_folders.joined(facts)}


{encoder_folders.example(facts, name)}"""
    notes = [
        "It needs jax with flatbuffers (`pip install jax flatbuffers numpy tokenizers`), and nothing of jaxretr. Load "
        "once in a program of your own; each shape [batch, length] is compiled when it is first seen, and the "
        f"tokenizer pads to multiples of 16 to keep them few. For {', '.join(PLATFORMS)}; float32 throughout.",
        "The parameters are a file next to the program, not constants in it, which XLA would copy and fold at length. "
        f"Exported by jax {jax.__version__}, which promises to read such files for six months of later releases.",
    ]
    return encoder_folders.readme(name, facts, "an encoder as StableHLO", code, notes)


FORMAT = encoder_folders.Program(KIND, "StableHLO", ("flatbuffers",), DualEncoder.merge_lora, _write, _load, _readme)
export, verify = FORMAT.export, FORMAT.verify
