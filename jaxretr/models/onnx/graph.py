"""An encoder as an ONNX graph, built from our parameters: nothing is traced, so the graph is exactly what is written here."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxretr.config import Pooling
from jaxretr.models.backbones.backbone_config import BACKBONE, Backbone
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.rotary_config import RotaryConfig
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig
from jaxretr.models.embed import DualEncoderConfig, dense_params
from jaxretr.models.onnx import bert, rotary, t5
from jaxretr.models.onnx.nodes import EMBEDDING, IDS, MASK, RUNTIME, Graph
from jaxretr.runtime.errors import UserError, import_extra

# The oldest that has LayerNormalization, so that older runtimes read it too.
OPSET = 17
_IR_VERSION = 8
# What adds the nodes of an encoder, by the class of its shape.
_STATES: dict[type[Backbone], Callable[..., str]] = {
    BertConfig: bert.states,
    RotaryConfig: rotary.states,
    T5EncoderConfig: t5.states,
}


def without_graph(config: DualEncoderConfig) -> str | None:
    """Return the name of the kind of encoder that no graph is written for; None for all others."""
    if config.sparse or type(config.backbone) not in _STATES:
        return "a sparse encoder" if config.sparse else "an encoder of your own"
    return None


def build(config: DualEncoderConfig, params: Params, *, int8: bool = False) -> Any:
    """Build the graph of one tower.

    Args:
      config: the configuration of the dual encoder, without adapters.
      params: the tower's parameters, float32 numpy arrays, layers stacked.
      int8: whether the layers' products are in 8 bits, by an operator that ONNX Runtime alone has; attention, norms and what
        follows the pooling stay in float32.

    Returns:
      onnx.ModelProto: input_ids int64 [batch, length] and attention_mask int64 [batch, length] (1 for tokens, 0 for
      padding on the right) -> embedding float32 [batch, D].

    Raises:
      UserError: onnx is not installed; or the encoder is a sparse one, or one of the user's own.
    """
    if (what := without_graph(config)) is not None:
        raise UserError(f"{what} is not written as ONNX; export --to stablehlo, or --to jaxretr")
    onnx = import_extra("onnx", "export")
    import_extra("onnx.numpy_helper", "export")
    graph, backbone, weights = Graph(onnx, int8), config.backbone, params[BACKBONE]
    mask = graph.add("Cast", MASK, to=graph.FLOAT)
    x = _STATES[type(backbone)](graph, backbone, weights, mask)
    graph.int8 = False
    _embedding(graph, config, params, x, mask)
    info, types = onnx.helper.make_tensor_value_info, onnx.TensorProto
    inputs = [info(name, types.INT64, ["batch", "length"]) for name in (IDS, MASK)]
    outputs = [info(EMBEDDING, types.FLOAT, ["batch", config.embedding_size])]
    made = onnx.helper.make_graph(graph.nodes, "encoder", inputs, outputs, list(graph.constants.values()))
    opset = [onnx.helper.make_opsetid(*each) for each in (("", OPSET), (RUNTIME, 1))[: 1 + int8]]
    return onnx.helper.make_model(made, opset_imports=opset, ir_version=_IR_VERSION, producer_name="jaxretr")


def _embedding(graph: Graph, config: DualEncoderConfig, params: Params, x: str, mask: str) -> None:
    """Pools, projects, cuts and normalises into the output."""
    if config.pooling == "cls":
        pooled = graph.add("Gather", x, graph.constant(0, dtype=np.int64), axis=1)
    elif config.pooling == "max":
        hidden = graph.add("Mul", graph.add("Sub", graph.constant(1.0), mask), graph.constant(-2e9))
        shown = graph.add("Add", x, graph.add("Unsqueeze", hidden, graph.integers(2)))
        pooled = graph.add("ReduceMax", shown, axes=[1], keepdims=0)
    else:
        weights, divisor = _pooling_weights(graph, config.pooling, mask)
        weighted = graph.add("Mul", x, graph.add("Unsqueeze", weights, graph.integers(2)))
        pooled = graph.add("Div", graph.add("ReduceSum", weighted, graph.integers(1), keepdims=0), divisor)
    size = config.embedding_size
    layers = dense_params(config, params)
    for number, (layer, shape) in enumerate(layers, start=1):
        # The columns that `truncate_dim` leaves out need not be computed.
        columns = size if number == len(layers) else shape.size
        kept = {part: np.asarray(values)[..., :columns] for part, values in layer.items()}
        pooled = graph.dense(pooled, kept, f"dense.{number}")
        pooled = graph.add("Tanh", pooled) if shape.activation == "tanh" else pooled
    if not layers and size < config.full_size:
        pooled = graph.add("Slice", pooled, graph.integers(0), graph.integers(size), graph.integers(1))
    if config.normalise:
        squares = graph.add("ReduceSum", graph.add("Mul", pooled, pooled), graph.integers(1), keepdims=1)
        length = graph.add("Max", graph.add("Sqrt", squares), graph.constant(1e-12))
        graph.add("Div", pooled, length, name=EMBEDDING)
    else:
        graph.add("Identity", pooled, name=EMBEDDING)


def _pooling_weights(graph: Graph, pooling: Pooling, mask: str) -> tuple[str, str]:
    """The names of the weights of the tokens' states, [batch, length], and of the divisor of their sum, [batch, 1]."""

    def total(x: str) -> str:
        return graph.add("ReduceSum", x, graph.integers(1), keepdims=1)

    def at_least(x: str) -> str:
        return graph.add("Max", x, graph.constant(1e-9))

    count = total(mask)
    if pooling == "mean":
        return mask, at_least(count)
    if pooling == "mean_sqrt_len_tokens":
        return mask, graph.add("Sqrt", at_least(count))
    number = graph.add("CumSum", mask, graph.constant(1, dtype=np.int64))  # 1, 2, 3, ... of the real tokens
    if pooling == "weightedmean":
        weights = graph.add("Mul", number, mask)
        return weights, at_least(total(weights))
    if pooling == "lasttoken":
        last = graph.add("Cast", graph.add("Equal", number, count), to=graph.FLOAT)
        return graph.add("Mul", last, mask), graph.constant(1.0)
    raise AssertionError(pooling)
