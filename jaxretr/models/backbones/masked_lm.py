"""Encoders with a head of masked language modelling (Devlin et al. 2019)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.models.backbones.backbone import make_backbone
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import ACTIVATIONS, Dense, LayerNorm, Params, initialise
from jaxretr.models.backbones.products import product
from jaxretr.models.backbones.rotary_config import RotaryConfig

MaskedLmShape = BertConfig | RotaryConfig
"""Shapes that can have a head of masked language modelling; of the latter only ModernBERT."""


class MlmHead(nnx.Module):
    """Dense, activation, LayerNorm, and a bias for each vocabulary entry; ModernBERT's dense layer has no bias."""

    def __init__(self, shape: MaskedLmShape, *, dtype: Any, rngs: nnx.Rngs):
        size = shape.hidden_size
        if isinstance(shape, BertConfig):
            biased, self.activation = True, shape.hidden_act
            self.norm = LayerNorm(size, shape.layer_norm_eps)
        else:
            biased, self.activation = False, "gelu"
            self.norm = LayerNorm(size, shape.norm_eps, bias=shape.norm_bias)
        self.dense = Dense(size, size, bias=biased, std=shape.initializer_range, dtype=dtype, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros((shape.vocab_size,), jnp.float32))

    def __call__(self, states: jax.Array) -> jax.Array:
        return self.norm(ACTIVATIONS[self.activation](self.dense(states).astype(jnp.float32)))


class MaskedLm(nnx.Module):
    """Predicts the tokens at given positions."""

    def __init__(self, shape: MaskedLmShape, *, dtype: Any = jnp.float32, rngs: nnx.Rngs):
        self.bert = make_backbone(shape, dtype=dtype, rngs=rngs)
        self.head = MlmHead(shape, dtype=dtype, rngs=rngs)
        self.dtype = dtype

    def __call__(
        self, tokens: jax.Array, lengths: jax.Array, positions: jax.Array, keys: jax.Array | None = None
    ) -> jax.Array:
        """Return vocabulary scores at the chosen positions only, as the others' would be most of the work.

        Args:
          tokens: ids with masks, [B, L].
          lengths: int32 [B].
          positions: positions to predict, int32 [B, P].
          keys: one PRNG key per row [B], which switches dropout on.

        Returns:
          float32 [B, P, V].
        """
        states = self.bert(tokens, lengths, keys)
        states = self.head(jnp.take_along_axis(states, positions[..., None], axis=1))
        table = self.bert.word_embedding.table[...]
        scores = product("bpd,vd->bpv", states, table, self.dtype, result=jnp.float32)
        return scores + self.head.bias[...]


def fresh_head(shape: MaskedLmShape, seed: int) -> Params:
    """Draw a head for an encoder that has none, float32; it begins near the identity, see starts.py."""
    head = initialise(lambda rngs: MlmHead(shape, dtype=jnp.float32, rngs=rngs), seed)
    head["dense"]["kernel"] += jnp.eye(shape.hidden_size)
    return head
