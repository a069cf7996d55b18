"""BERT and related encoders as nodes of an ONNX graph."""

import jax.numpy as jnp
import numpy as np

from jaxretr.models.backbones.bert import FURTHEST
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.positions import relative_bucket
from jaxretr.models.onnx.nodes import IDS, Graph, layer_params


def states(graph: Graph, bert: BertConfig, weights: Params, mask: str) -> str:
    """The last layer's states, as `BertEncoder` computes them.

    Args:
      graph: the graph that takes the nodes.
      weights: the encoder's parameters, float32 numpy arrays, layers stacked.
      mask: name of the mask, float32 [batch, length].

    Returns:
      The name of float32 [batch, length, hidden_size].
    """
    x = _embeddings(graph, bert, weights)
    if bert.num_hidden_layers:
        bias = graph.padding_bias(mask)
        if bert.relative_attention_num_buckets:
            bias = graph.add("Add", bias, _relative_bias(graph, bert, weights))
        for number in range(bert.num_hidden_layers):
            x = _layer(graph, bert, layer_params(weights["layers"], number), x, bias, f"layer.{number}")
    if bert.pre_layer_norm:
        x = graph.layer_norm(x, weights["norm"], bert.layer_norm_eps, "norm")
    return x


def _embeddings(graph: Graph, bert: BertConfig, weights: Params) -> str:
    words = graph.add("Gather", graph.constant(weights["word_embedding"]["table"], "word_embedding"), IDS)
    positions = np.asarray(weights["position_embedding"]["table"])
    if bert.type_vocab_size:
        # All tokens have type 0, so its row is added to every position's once, here.
        positions = positions + np.asarray(weights["type_embedding"]["table"])[0]
    if bert.positions_skip_padding:
        # A first row for the padding token, which is not counted; the others are numbered from 1.
        types = np.asarray(weights["type_embedding"]["table"])[:1] if bert.type_vocab_size else 0 * positions[:1]
        counted = graph.add("Not", graph.add("Equal", IDS, graph.integers(bert.pad_token_id)))
        ones = graph.add("Cast", counted, to=graph.INT64)
        place = graph.add("Mul", graph.add("CumSum", ones, graph.constant(1, dtype=np.int64)), ones)
        found = graph.add("Gather", graph.constant(np.concatenate([types, positions]), "position_embedding"), place)
    else:
        table = graph.constant(positions, "position_embedding")
        found = graph.add("Slice", table, graph.integers(0), graph.length(), graph.integers(0))
    x = graph.add("Add", words, found)
    return x if bert.pre_layer_norm else graph.layer_norm(x, weights["norm"], bert.layer_norm_eps, "norm")


def _relative_bias(graph: Graph, bert: BertConfig, weights: Params) -> str:
    """The biases of relative positions, [1, heads, length, length]: those of the longest row, cut to this one's."""
    longest = bert.max_position_embeddings
    position = jnp.arange(longest)
    distance = position - position[:, None]  # key - query, queries first
    buckets = np.asarray(relative_bucket(distance, bert.relative_attention_num_buckets, FURTHEST, bidirectional=True))
    length = graph.length()
    ends = graph.add("Concat", length, length, axis=0)
    cut = graph.add(
        "Slice", graph.constant(buckets, "buckets", np.int64), graph.integers(0, 0), ends, graph.integers(0, 1)
    )
    table = graph.constant(weights["relative_positions"]["table"], "relative_positions")
    biases = graph.add("Transpose", graph.add("Gather", table, cut), perm=[2, 0, 1])
    return graph.add("Unsqueeze", biases, graph.integers(0))


def _layer(graph: Graph, bert: BertConfig, weights: Params, x: str, bias: str, name: str) -> str:
    size = bert.hidden_size // bert.num_attention_heads
    heads = graph.integers(0, 0, bert.num_attention_heads, size)  # 0: as it was

    def dense(which: str, x: str) -> str:
        return graph.dense(x, weights[which], f"{name}.{which}")

    def attention(x: str) -> str:
        q, k, v = (graph.add("Reshape", dense(which, x), heads) for which in ("query", "key", "value"))
        return dense("attention_out", graph.attend(q, k, v, size**-0.5, bias))

    def feed_forward(x: str) -> str:
        return dense("ffn_out", graph.activation(bert.hidden_act, dense("ffn_in", x)))

    def norm(which: str, x: str) -> str:
        return graph.layer_norm(x, weights[which], bert.layer_norm_eps, f"{name}.{which}")

    if bert.pre_layer_norm:
        x = graph.add("Add", x, attention(norm("attention_norm", x)))
        return graph.add("Add", x, feed_forward(norm("ffn_norm", x)))
    x = norm("attention_norm", graph.add("Add", x, attention(x)))
    return norm("ffn_norm", graph.add("Add", x, feed_forward(x)))
