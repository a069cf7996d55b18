"""The files of an ONNX graph, and ONNX Runtime, which runs them."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from jaxretr.models.backbones.layers import Params
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.onnx import graph
from jaxretr.models.onnx.nodes import IDS, MASK
from jaxretr.runtime.errors import UserError, import_extra
from jaxretr.runtime.parallel.machine import cpu_threads
from jaxretr.runtime.parallel.mesh import to_host

PACKAGES = "onnx", "onnxruntime"

MODEL = "model.onnx"
WEIGHTS = "model.onnx.data"

# A protobuf message has at most 2 GiB; above this the weights go into a file of their own.
_INSIDE = 3 << 29


def write(folder: Path, config: DualEncoderConfig, params: Params, *, int8: bool = False) -> None:
    """Write the graph of one tower; the arguments are those of `graph.build`, the parameters of any kind."""
    onnx = import_extra("onnx", "export")
    params = jax.tree.map(to_host, params)
    model = graph.build(config, params, int8=int8)
    apart = sum(leaf.nbytes for leaf in jax.tree.leaves(params)) > _INSIDE
    path = str(folder / MODEL)
    onnx.save_model(model, path, save_as_external_data=apart, location=WEIGHTS if apart else None)
    onnx.checker.check_model(path)


def load(folder: Path) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return the function (input_ids [B, L], attention_mask [B, L]) -> float32 [B, D] of the graph in a folder.

    Raises:
      UserError: onnxruntime is not installed, or cannot load it.
    """
    runtime = import_extra("onnxruntime", "export")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = cpu_threads()
    # Threads that wait for work by spinning take the cores from the tokenizer and from other processes: half the speed there.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = runtime.InferenceSession(str(folder / MODEL), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a dozen classes of its own.
        raise UserError(f"{folder / MODEL}: onnxruntime cannot load it ({str(error).splitlines()[0]})") from error
    return lambda ids, mask: session.run(None, {IDS: ids, MASK: mask})[0]
