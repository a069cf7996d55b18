"""Cross-encoders: question and passage read together give one score (Nogueira and Cho 2019,
https://arxiv.org/abs/1901.04085).

The score is the raw logit. Such a model was mostly trained for its sigmoid, which compresses the differences that rank
and that students learn from.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxretr.config import AdapterShape
from jaxretr.models.backbones.adapter_layers import abstract_adapter
from jaxretr.models.backbones.backbone import make_backbone, token_states
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.backbones.dropout import Dropout, folded
from jaxretr.models.backbones.layers import ACTIVATIONS, Params, define, layer_norm, linear, matmuls_in
from jaxretr.models.backbones.packed_rows import are_packed, own_tokens
from jaxretr.models.embed import pool
from jaxretr.models.scorers.cross_encoder_shape import CrossEncoderConfig, HeadShape

HEAD = "head"
"""Branch of the parameters that holds the head, beside the encoder's."""

# Number of the place of the head's dropout for `dropout.folded`.
_HEAD = 1 << 18


def init_head(config: CrossEncoderConfig, seed: int) -> Params:
    """Draw a fresh head, float32: {"dense": {"kernel": [D, D], "bias": [D]}, "norm": ..., "out": {"kernel": [D, 1],
    ...}}.

    The dense layer begins near the identity, so that the encoder's state reaches the last layer unchanged.
    """
    size, std = config.backbone.hidden_size, config.backbone.initializer_range
    dense, out = jax.random.split(jax.random.key(seed))
    params: Params = {"out": {"kernel": std * jax.random.normal(out, (size, 1), jnp.float32)}}
    if config.head.out_bias:
        params["out"]["bias"] = jnp.zeros(1, jnp.float32)
    if config.head.dense:
        params["dense"] = {"kernel": jnp.eye(size) + std * jax.random.normal(dense, (size, size), jnp.float32)}
        if config.head.dense_bias:
            params["dense"]["bias"] = jnp.zeros(size, jnp.float32)
    if config.head.norm_eps is not None:
        params["norm"] = {"scale": jnp.ones(size, jnp.float32)}
        if config.head.norm_bias:
            params["norm"]["bias"] = jnp.zeros(size, jnp.float32)
    return params


def abstract_params(config: CrossEncoderConfig, adapter: AdapterShape | None = None) -> Params:
    """Return the shapes of the parameters, as ShapeDtypeStructs: {"bert": the encoder's, "head": as `init_head`}.

    With adapters {"adapter": as by `init_adapter`} as well.
    """
    backbone = define(lambda rngs: make_backbone(config.backbone, rngs=rngs))[1]
    params = {BACKBONE: backbone, HEAD: jax.eval_shape(lambda: init_head(config, 0))}
    return params if adapter is None else {**params, "adapter": abstract_adapter(adapter, config.backbone)}


def relevance(
    config: CrossEncoderConfig,
    params: Params,
    tokens: jax.Array,
    lengths: jax.Array,
    seconds: jax.Array,
    *,
    dtype: Any,
    adapter: AdapterShape | None = None,
    keys: jax.Array | None = None,
    keep_matmuls: bool = False,
) -> jax.Array:
    """Score rows that hold a question and a passage each; part of the compiled programs.

    Args:
      tokens: token ids, any integer type [n, L], padded on the right or packed, see packed_rows.py.
      lengths: int32 [n], or [n, M] of packed rows.
      seconds: start of the second text in each row, int32 [n], or whether a token is of a second text, bool [n, L], as
        `unmarked` returns them; such tokens have type 1, if the encoder has two types.
      adapter: shape of the adapters that are computed, whose parameters are `params["adapter"]`.
      keys: one PRNG key per row [n], which switches dropout on.
      keep_matmuls: as in `jaxretr.models.backbones.layer_stacks.scan_layers`.

    Returns:
      float32 [n], logits; [n * M] of packed rows.
    """
    options: dict[str, Any] = {"adapter": adapter, "keys": keys, "keep_matmuls": keep_matmuls}
    encoder = params[BACKBONE] if adapter is None else {**params[BACKBONE], "adapter": params["adapter"]}
    if getattr(config.backbone, "type_vocab_size", 0) > 1:
        second = seconds if are_packed(lengths) else jnp.arange(tokens.shape[1]) >= seconds[:, None]
        options["types"] = second.astype(jnp.int32)
    with matmuls_in(dtype):
        states = token_states(config.backbone, encoder, tokens, lengths, dtype=dtype, **options)
        ends = _without_padding(tokens, lengths, config.head.pad_token_id)
        pooled = pool(states, lengths, config.head.pooling, ends=ends)
    drop = Dropout(folded(keys, _HEAD), config.backbone.hidden_dropout_prob)
    return head_logits(config.head, params[HEAD], pooled, drop)


def _without_padding(tokens: jax.Array, lengths: jax.Array, padding: int | None) -> jax.Array:
    """Return the lengths of texts up to their last token that is no padding, as transformers' classifiers do, or 1."""
    if padding is None:
        return lengths
    own, place = own_tokens(lengths, tokens.shape[1])
    counted = own & ((tokens[:, None] if are_packed(lengths) else tokens) != padding)
    return jnp.max(jnp.where(counted, place, 0), axis=-1) + 1


def head_logits(shape: HeadShape, params: Params, pooled: jax.Array, drop: Dropout) -> jax.Array:
    """Return the scores of pooled states, float32 [n, D] -> [n]; float32 throughout, as these matmuls are small."""
    x = pooled
    if shape.dense:
        x = ACTIVATIONS_OF_HEADS[shape.activation](linear(params["dense"], x))
    if shape.norm_eps is not None:
        x = layer_norm(x, params["norm"]["scale"], params["norm"].get("bias"), shape.norm_eps)
    # Dropout takes states [n, L, D].
    return linear(params["out"], drop(x[:, None])[:, 0])[:, 0]


ACTIVATIONS_OF_HEADS = {**ACTIVATIONS, "tanh": jnp.tanh}
