"""T5's encoder as nodes of an ONNX graph."""

import jax.numpy as jnp
import numpy as np

from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.positions import relative_bucket
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig
from jaxretr.models.onnx.nodes import IDS, Graph, layer_params


def states(graph: Graph, config: T5EncoderConfig, weights: Params, mask: str) -> str:
    """The last layer's states, as `T5Encoder` computes them; arguments and result are those of `bert.states`."""
    x = graph.add("Gather", graph.constant(weights["word_embedding"]["table"], "word_embedding"), IDS)
    bias = graph.add("Add", graph.padding_bias(mask), _relative_bias(graph, config, weights))
    for number in range(config.num_layers):
        x = _layer(graph, config, layer_params(weights["layers"], number), x, bias, f"layer.{number}")
    return graph.rms_norm(x, weights["norm"]["scale"], config.layer_norm_epsilon, "norm")


def _relative_bias(graph: Graph, config: T5EncoderConfig, weights: Params) -> str:
    """The biases of relative positions, [1, heads, length, length].

    Every distance from `relative_attention_max_distance` on shares the last bucket of its direction, so the table of all
    distances up to there, clipped, serves rows of any length.
    """
    furthest = config.relative_attention_max_distance
    distances = jnp.arange(-furthest, furthest + 1)  # key - query
    buckets = relative_bucket(distances, config.relative_attention_num_buckets, furthest, bidirectional=True)
    table = np.asarray(weights["relative_positions"]["table"])[np.asarray(buckets)]
    length = graph.add("Squeeze", graph.length(), graph.integers(0))
    zero, one = (graph.constant(value, dtype=np.int64) for value in (0, 1))
    place = graph.add("Range", zero, length, one)
    distance = graph.add("Sub", place, graph.add("Unsqueeze", place, graph.integers(1)))  # queries first
    limits = [graph.constant(value, dtype=np.int64) for value in (-furthest, furthest)]
    row = graph.add("Add", graph.add("Clip", distance, *limits), limits[1])
    biases = graph.add("Gather", graph.constant(table, "relative_positions"), row)
    return graph.add("Unsqueeze", graph.add("Transpose", biases, perm=[2, 0, 1]), graph.integers(0))


def _layer(graph: Graph, config: T5EncoderConfig, weights: Params, x: str, bias: str, name: str) -> str:
    attention, ffn = weights["attention"], weights["ffn"]
    heads = graph.integers(0, 0, config.num_heads, config.d_kv)  # 0: as it was

    def norm(which: str, x: str) -> str:
        return graph.rms_norm(x, weights[which]["scale"], config.layer_norm_epsilon, f"{name}.{which}")

    normed = norm("attention_norm", x)
    q, k, v = (
        graph.add("Reshape", graph.dense(normed, attention[part], f"{name}.{part}"), heads)
        for part in ("query", "key", "value")
    )
    x = graph.add("Add", x, graph.dense(graph.attend(q, k, v, 1.0, bias), attention["out"], f"{name}.out"))
    normed = norm("ffn_norm", x)
    activation = "gelu_new" if config.feed_forward_proj == "gated-gelu" else "relu"
    inner = graph.activation(activation, graph.dense(normed, ffn["inner"], f"{name}.inner"))
    if "gate" in ffn:
        inner = graph.add("Mul", inner, graph.dense(normed, ffn["gate"], f"{name}.gate"))
    return graph.add("Add", x, graph.dense(inner, ffn["outer"], f"{name}.outer"))
