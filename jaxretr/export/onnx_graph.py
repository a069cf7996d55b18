"""BERT as an ONNX graph, built from our parameters: nothing is traced, so the graph is exactly what this file writes."""

import math
from typing import Any, Literal, assert_never

import jax.numpy as jnp
import numpy as np

from jaxretr.errors import UserError, import_extra
from jaxretr.models.backbone_config import BACKBONE
from jaxretr.models.bert import FURTHEST
from jaxretr.models.bert_config import BertConfig
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.layers import Params
from jaxretr.models.positions import relative_bucket

# The oldest that has LayerNormalization, so that older runtimes read it too.
OPSET = 17
_IR_VERSION = 8

IDS, MASK, EMBEDDING = "input_ids", "attention_mask", "embedding"


class _Graph:
    """Nodes and constants in the order in which they are made; values are known by their names."""

    def __init__(self, onnx: Any):
        self.helper, self.numpy_helper = onnx.helper, onnx.numpy_helper
        self.FLOAT: int = onnx.TensorProto.FLOAT
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A node of one output; returns its name."""
        name = name or f"{operator}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, values: Any, name: str = "", dtype: Any = np.float32) -> str:
        name = name or f"constant_{len(self.constants)}"
        self.constants[name] = self.numpy_helper.from_array(np.asarray(values, dtype, order="C"), name)
        return name

    def integers(self, *values: int) -> str:
        return self.constant(values, dtype=np.int64)

    def dense(self, x: str, params: Params, name: str) -> str:
        product = self.add("MatMul", x, self.constant(params["kernel"], f"{name}.kernel"))
        return self.add("Add", product, self.constant(params["bias"], f"{name}.bias"))

    def norm(self, x: str, params: Params, eps: float, name: str) -> str:
        scale, bias = (self.constant(params[part], f"{name}.{part}") for part in ("scale", "bias"))
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=eps)


def build(config: DualEncoderConfig, params: Params) -> Any:
    """The graph of one tower.

    Args:
      config: of the dual encoder, without adapters.
      params: of the tower, float32 numpy arrays, layers stacked.

    Returns:
      onnx.ModelProto: input_ids int64 [batch, length] and attention_mask int64 [batch, length] (1 for tokens, 0 for
      padding on the right) -> embedding float32 [batch, D].

    Raises:
      UserError: onnx is not installed.
    """
    onnx = import_extra("onnx", "export")
    import_extra("onnx.numpy_helper", "export")
    graph, bert, weights = _Graph(onnx), config.backbone, params[BACKBONE]
    if not isinstance(bert, BertConfig):
        raise UserError("this encoder has no ONNX graph here yet; export --to stablehlo")
    mask = graph.add("Cast", MASK, to=graph.FLOAT)
    x = _embeddings(graph, bert, weights)
    if bert.num_hidden_layers:
        hidden = graph.add("Mul", graph.add("Sub", graph.constant(1.0), mask), graph.constant(-1e9))
        bias = graph.add("Unsqueeze", hidden, graph.integers(1, 2))
        if bert.relative_attention_num_buckets:
            bias = graph.add("Add", bias, _relative_bias(graph, bert, weights))
        for number in range(bert.num_hidden_layers):
            x = _layer(graph, bert, _layer_params(weights["layers"], number), x, bias, f"layer.{number}")
    if bert.pre_layer_norm:
        x = graph.norm(x, weights["norm"], bert.layer_norm_eps, "norm")
    _embedding(graph, config, params, x, mask)
    info, types = onnx.helper.make_tensor_value_info, onnx.TensorProto
    inputs = [info(name, types.INT64, ["batch", "length"]) for name in (IDS, MASK)]
    outputs = [info(EMBEDDING, types.FLOAT, ["batch", config.embedding_size])]
    made = onnx.helper.make_graph(graph.nodes, "encoder", inputs, outputs, list(graph.constants.values()))
    opset = [onnx.helper.make_opsetid("", OPSET)]
    return onnx.helper.make_model(made, opset_imports=opset, ir_version=_IR_VERSION, producer_name="jaxretr")


def _embeddings(graph: _Graph, bert: BertConfig, weights: Params) -> str:
    words = graph.add("Gather", graph.constant(weights["word_embedding"]["table"], "word_embedding"), IDS)
    positions = np.asarray(weights["position_embedding"]["table"])
    if bert.type_vocab_size:
        # All tokens have type 0, so its row is added to every position's once, here.
        positions = positions + np.asarray(weights["type_embedding"]["table"])[0]
    length = graph.add("Shape", IDS, start=1, end=2)
    sliced = graph.add(
        "Slice", graph.constant(positions, "position_embedding"), graph.integers(0), length, graph.integers(0)
    )
    x = graph.add("Add", words, sliced)
    return x if bert.pre_layer_norm else graph.norm(x, weights["norm"], bert.layer_norm_eps, "norm")


def _relative_bias(graph: _Graph, bert: BertConfig, weights: Params) -> str:
    """The biases of relative positions, [1, heads, length, length]: those of the longest row, cut to this one's."""
    longest = bert.max_position_embeddings
    position = jnp.arange(longest)
    distance = position - position[:, None]  # key - query, queries first
    buckets = np.asarray(relative_bucket(distance, bert.relative_attention_num_buckets, FURTHEST, bidirectional=True))
    length = graph.add("Shape", IDS, start=1, end=2)
    ends = graph.add("Concat", length, length, axis=0)
    cut = graph.add(
        "Slice", graph.constant(buckets, "buckets", np.int64), graph.integers(0, 0), ends, graph.integers(0, 1)
    )
    table = graph.constant(weights["relative_positions"]["table"], "relative_positions")
    biases = graph.add("Transpose", graph.add("Gather", table, cut), perm=[2, 0, 1])
    return graph.add("Unsqueeze", biases, graph.integers(0))


def _layer(graph: _Graph, bert: BertConfig, weights: Params, x: str, bias: str, name: str) -> str:
    eps = bert.layer_norm_eps

    def attention(x: str) -> str:
        return _attention(graph, bert, weights, x, bias, name)

    def feed_forward(x: str) -> str:
        inner = _activation(graph, bert.hidden_act, graph.dense(x, weights["ffn_in"], f"{name}.ffn_in"))
        return graph.dense(inner, weights["ffn_out"], f"{name}.ffn_out")

    def norm(which: str, x: str) -> str:
        return graph.norm(x, weights[which], eps, f"{name}.{which}")

    if bert.pre_layer_norm:
        x = graph.add("Add", x, attention(norm("attention_norm", x)))
        return graph.add("Add", x, feed_forward(norm("ffn_norm", x)))
    x = norm("attention_norm", graph.add("Add", x, attention(x)))
    return norm("ffn_norm", graph.add("Add", x, feed_forward(x)))


def _attention(graph: _Graph, bert: BertConfig, weights: Params, x: str, bias: str, name: str) -> str:
    heads = bert.num_attention_heads
    size = bert.hidden_size // heads
    split = graph.integers(0, 0, heads, size)  # 0: as it was

    def part(which: str, order: list[int]) -> str:
        values = graph.dense(x, weights[which], f"{name}.{which}")
        return graph.add("Transpose", graph.add("Reshape", values, split), perm=order)

    q, k, v = part("query", [0, 2, 1, 3]), part("key", [0, 2, 3, 1]), part("value", [0, 2, 1, 3])
    scores = graph.add("Mul", graph.add("MatMul", q, k), graph.constant(size**-0.5))
    probabilities = graph.add("Softmax", graph.add("Add", scores, bias), axis=-1)
    mixed = graph.add("Transpose", graph.add("MatMul", probabilities, v), perm=[0, 2, 1, 3])
    flat = graph.add("Reshape", mixed, graph.integers(0, 0, bert.hidden_size))
    return graph.dense(flat, weights["attention_out"], f"{name}.attention_out")


def _activation(graph: _Graph, kind: str, x: str) -> str:
    if kind == "relu":
        return graph.add("Relu", x)
    half = graph.add("Mul", x, graph.constant(0.5))
    if kind == "gelu":
        bent = graph.add("Erf", graph.add("Mul", x, graph.constant(math.sqrt(0.5))))
    elif kind == "gelu_new":
        cube = graph.add("Mul", graph.add("Mul", graph.add("Mul", x, x), x), graph.constant(0.044715))
        inner = graph.add("Mul", graph.add("Add", x, cube), graph.constant(math.sqrt(2 / math.pi)))
        bent = graph.add("Tanh", inner)
    else:
        raise UserError(f"the activation '{kind}' has no ONNX form here; export --to stablehlo")
    return graph.add("Mul", half, graph.add("Add", bent, graph.constant(1.0)))


def _embedding(graph: _Graph, config: DualEncoderConfig, params: Params, x: str, mask: str) -> None:
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
    if config.projection_size:
        # The columns that `truncate_dim` leaves out need not be computed.
        kept = {
            "kernel": np.asarray(params["projection"]["kernel"])[:, :size],
            "bias": np.asarray(params["projection"]["bias"])[:size],
        }
        pooled = graph.dense(pooled, kept, "projection")
        if config.projection_activation == "tanh":
            pooled = graph.add("Tanh", pooled)
    elif size < config.full_size:
        pooled = graph.add("Slice", pooled, graph.integers(0), graph.integers(size), graph.integers(1))
    if config.normalise:
        squares = graph.add("ReduceSum", graph.add("Mul", pooled, pooled), graph.integers(1), keepdims=1)
        length = graph.add("Max", graph.add("Sqrt", squares), graph.constant(1e-12))
        graph.add("Div", pooled, length, name=EMBEDDING)
    else:
        graph.add("Identity", pooled, name=EMBEDDING)


def _pooling_weights(
    graph: _Graph, pooling: Literal["mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"], mask: str
) -> tuple[str, str]:
    """What the tokens' states are multiplied by, [batch, length], and what their sum is divided by, [batch, 1]."""

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
    assert_never(pooling)


def _layer_params(stacked: Params, number: int) -> Params:
    return {
        name: {part: np.asarray(values)[number] for part, values in params.items()} for name, params in stacked.items()
    }
