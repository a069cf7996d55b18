"""Encoders with rotary positions as nodes of an ONNX graph."""

from typing import NamedTuple

import numpy as np

from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.positions import rotary_frequencies
from jaxretr.models.backbones.rotary_config import RotaryConfig
from jaxretr.models.onnx.nodes import IDS, Graph, layer_params


class _Sight(NamedTuple):
    """The names of the inputs to attention that the layers of one kind, global or local, share.

    Attributes:
      cos: the cosines of each position's angles, float32 [length, 1, d].
      sin: the sines, in the same shape, negated in the first half of d.
      bias: the bias that hides keys, float32, broadcastable to [batch, heads, queries, keys].
    """

    cos: str
    sin: str
    bias: str


def states(graph: Graph, config: RotaryConfig, weights: Params, mask: str) -> str:
    """The last layer's states, as `RotaryEncoder` computes them; arguments and result are those of `bert.states`."""
    x = graph.add("Gather", graph.constant(weights["word_embedding"]["table"], "word_embedding"), IDS)
    if config.embedding_scale != 1.0:
        x = graph.add("Mul", x, graph.constant(config.embedding_scale))
    if config.type_vocab_size:
        x = graph.add("Add", x, graph.constant(np.asarray(weights["type_embedding"]["table"])[0], "type_embedding"))
    if config.embedding_norm:
        x = _norm(graph, config, x, weights["embedding_norm"], "embedding_norm")
    kinds = config.local_layers or (False,) * config.num_hidden_layers
    length = graph.add("Squeeze", graph.length(), graph.integers(0))
    place = graph.add("Range", _number(graph, 0), length, _number(graph, 1))
    padding = graph.padding_bias(mask)
    sights = {local: _sight(graph, config, place, padding, local=local) for local in sorted(set(kinds))}
    for number, local in enumerate(kinds):
        params = layer_params(weights["layers"], number)
        x = _layer(graph, config, params, x, sights[local], number)
    return x if config.norm_order == "post" else _norm(graph, config, x, weights["norm"], "norm")


def _number(graph: Graph, value: int) -> str:
    return graph.constant(value, dtype=np.int64)


def _sight(graph: Graph, config: RotaryConfig, place: str, padding: str, *, local: bool) -> _Sight:
    """Add the angles and the bias for the layers of one kind; `place` holds the positions, int64 [length]."""
    theta, scaling = (config.local_rope_theta, None) if local else (config.rope_theta, config.rope_scaling)
    turns = rotary_frequencies(config.head_dim, theta, scaling)
    # Computed from the frequencies: tables would be as long as the longest text.
    column = graph.add("Unsqueeze", graph.add("Cast", place, to=graph.FLOAT), graph.integers(1, 2))
    angles = graph.add("Mul", column, graph.constant(np.concatenate([turns, turns])))
    signs = graph.constant(np.repeat([-1.0, 1.0], config.head_dim // 2))
    cos, sin = graph.add("Cos", angles), graph.add("Mul", graph.add("Sin", angles), signs)
    if not (config.causal or local):
        return _Sight(cos, sin, padding)
    distance = graph.add("Sub", place, graph.add("Unsqueeze", place, graph.integers(1)))  # key - query, queries first
    hidden = []
    if config.causal:
        hidden.append(graph.add("Greater", distance, _number(graph, 0)))
    if local:
        hidden.append(graph.add("Greater", graph.add("Abs", distance), _number(graph, config.window)))
    either = hidden[0] if len(hidden) == 1 else graph.add("Or", *hidden)
    bias = graph.add("Where", either, graph.constant(-1e9), graph.constant(0.0))
    return _Sight(cos, sin, graph.add("Add", padding, bias))


def _layer(graph: Graph, config: RotaryConfig, weights: Params, x: str, sight: _Sight, number: int) -> str:
    def dense(which: str, x: str) -> str:
        return graph.dense(x, weights[which], f"layer.{number}.{which}")

    def norm(which: str, x: str) -> str:
        return _norm(graph, config, x, weights[which], f"layer.{number}.{which}")

    def head_norm(which: str, x: str) -> str:
        return _rms_norm(graph, config, x, weights[which], f"layer.{number}.{which}")

    def attention(x: str) -> str:
        size, heads, groups = config.head_dim, config.num_attention_heads, config.num_key_value_heads
        if config.fused:
            parts = graph.split(dense("qkv", x), [heads * size, groups * size, groups * size])
        else:
            parts = [dense(which, x) for which in ("query", "key", "value")]
        shape = graph.integers(0, 0, -1, size)  # 0: as it was
        q, k, v = (graph.add("Reshape", part, shape) for part in parts)
        if config.qk_norm:
            q, k = head_norm("query_norm", q), head_norm("key_norm", k)
        q, k = (_rotate(graph, part, sight, size) for part in (q, k))
        if heads != groups:
            k, v = (_repeat(graph, part, heads // groups, shape) for part in (k, v))
        return dense("attention_out", graph.attend(q, k, v, config.attention_scale or size**-0.5, sight.bias))

    def feed_forward(x: str) -> str:
        if config.fused:
            gate, inner = graph.split(dense("ffn_in", x), [config.intermediate_size] * 2)
        else:
            gate, inner = dense("ffn_gate", x), dense("ffn_in", x)
        return dense("ffn_out", graph.add("Mul", graph.activation(config.hidden_act, gate), inner))

    if config.norm_order == "post":
        x = norm("attention_norm", graph.add("Add", x, attention(x)))
        return norm("ffn_norm", graph.add("Add", x, feed_forward(x)))
    mixed = attention(norm("attention_norm", x) if number or config.first_norm else x)
    if config.norm_order == "sandwich":
        mixed = norm("attention_out_norm", mixed)
    x = graph.add("Add", x, mixed)
    inner = feed_forward(norm("ffn_norm", x))
    if config.norm_order == "sandwich":
        inner = norm("ffn_out_norm", inner)
    return graph.add("Add", x, inner)


def _norm(graph: Graph, config: RotaryConfig, x: str, params: Params, name: str) -> str:
    if config.norm == "layer":
        return graph.layer_norm(x, params, config.norm_eps, name)
    return _rms_norm(graph, config, x, params, name)


def _rms_norm(graph: Graph, config: RotaryConfig, x: str, params: Params, name: str) -> str:
    return graph.rms_norm(x, np.asarray(params["scale"]) + config.norm_offset, config.norm_eps, name)


def _rotate(graph: Graph, x: str, sight: _Sight, size: int) -> str:
    """Turn each pair of dimensions (i, i + d / 2) by the position's angle."""
    one, other = graph.split(x, [size // 2] * 2)
    swapped = graph.add("Concat", other, one, axis=-1)
    return graph.add("Add", graph.add("Mul", x, sight.cos), graph.add("Mul", swapped, sight.sin))


def _repeat(graph: Graph, x: str, times: int, shape: str) -> str:
    """Give each query head of a group the group's keys or values, [batch, length, groups, d]."""
    wide = graph.add("Expand", graph.add("Unsqueeze", x, graph.integers(3)), graph.integers(1, 1, 1, times, 1))
    return graph.add("Reshape", wide, shape)
