"""BERT with its masked-language-modelling head; the output matrix is the word embedding."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.models.bert import BertConfig, BertEncoder
from jaxretr.models.layers import ACTIVATIONS, Dense, LayerNorm, Params, initialise


class MlmHead(nnx.Module):
    """Dense, activation, LayerNorm, and a bias for each vocabulary entry."""

    def __init__(self, config: BertConfig, *, dtype: Any, rngs: nnx.Rngs):
        size = config.hidden_size
        self.dense = Dense(size, size, bias=True, std=config.initializer_range, dtype=dtype, rngs=rngs)
        self.norm = LayerNorm(size, config.layer_norm_eps)
        self.bias = nnx.Param(jnp.zeros((config.vocab_size,), jnp.float32))
        self.activation = config.hidden_act

    def __call__(self, states: jax.Array) -> jax.Array:
        return self.norm(ACTIVATIONS[self.activation](self.dense(states)))


class BertMaskedLm(nnx.Module):
    """Predicts the tokens at given positions."""

    def __init__(self, config: BertConfig, *, dtype: Any = jnp.float32, rngs: nnx.Rngs):
        self.bert = BertEncoder(config, dtype=dtype, rngs=rngs)
        self.head = MlmHead(config, dtype=dtype, rngs=rngs)
        self.dtype = dtype

    def __call__(
        self, tokens: jax.Array, lengths: jax.Array, positions: jax.Array, keys: jax.Array | None = None
    ) -> jax.Array:
        """Vocabulary scores at the chosen positions only; the others' would be most of the work.

        Args:
          tokens: ids with masks, [B, L].
          lengths: int32 [B].
          positions: where to predict, int32 [B, P].
          keys: one PRNG key a row [B] switches dropout on.

        Returns:
          float32 [B, P, V].
        """
        states = self.bert(tokens, lengths, keys)
        states = self.head(jnp.take_along_axis(states, positions[..., None], axis=1))
        table = self.bert.word_embedding.table[...].astype(self.dtype)
        scores = jnp.einsum("bpd,vd->bpv", states.astype(self.dtype), table, preferred_element_type=jnp.float32)
        return scores + self.head.bias[...]


def fresh_head(config: BertConfig, seed: int) -> Params:
    """Draws a head for an encoder that has none, float32; it begins near the identity, see context_start.py."""
    head = initialise(lambda rngs: MlmHead(config, dtype=jnp.float32, rngs=rngs), seed)
    head["dense"]["kernel"] += jnp.eye(config.hidden_size)
    return head
