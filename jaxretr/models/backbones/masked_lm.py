"""Encoders with a head of masked language modelling (Devlin et al. 2019), and SPLADE's vectors of its scores."""

from functools import cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.models.backbones.backbone import make_backbone
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import ACTIVATIONS, Dense, LayerNorm, Params, define, initialise
from jaxretr.models.backbones.packed_rows import are_packed, own_tokens
from jaxretr.models.backbones.products import product
from jaxretr.models.backbones.rotary_config import RotaryConfig
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.split_parameters import whole

# Vocabulary entries whose scores of all tokens are in memory at a time.
_ENTRIES_A_BLOCK = 2048

MaskedLmShape = BertConfig | RotaryConfig
"""Shapes that can have a head of masked language modelling; of the latter only ModernBERT."""


def masked_lm_shape(shape: Any) -> MaskedLmShape:
    """Return the shape of an encoder that can have a head of masked language modelling; raise UserError for another one."""
    if isinstance(shape, BertConfig) or (isinstance(shape, RotaryConfig) and shape.architecture == "modernbert"):
        return shape
    raise UserError(
        "SPLADE's poolings read scores of masked language modelling, which BERT, those of the same layers and ModernBERT "
        "have; give one of these, or another pooling"
    )


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


def word_weights(
    shape: MaskedLmShape,
    head: Params,
    table: jax.Array,
    states: jax.Array,
    lengths: jax.Array,
    *,
    strategy: Literal["max", "sum"] = "max",
    activation: Literal["relu", "log1p_relu"] = "relu",
    dtype: Any,
) -> jax.Array:
    """Return SPLADE's weight of each vocabulary entry for each text (Formal et al. 2021, "SPLADE v2", equation 6).

    w_v = max over the text's tokens i of log(1 + relu(s_iv)), s being the scores of masked language modelling; or their sum, as
    in the first SPLADE (arXiv 2107.05720). With "log1p_relu" it is log(1 + log(1 + relu(s_iv))), as in OpenSearch's. A block of the vocabulary is scored after the other, in the backward pass again: the scores of all tokens never exist together.

    Args:
      head: parameters of an `MlmHead`.
      table: the encoder's word embeddings, float32 [V, D], or this device's part of a split table.
      states: states of the last layer, float32 [B, L, D].
      lengths: int32 [B], or of packed rows [B, M]; a text without tokens gets zeros.
      strategy: whether the tokens' largest value is taken or their sum.
      activation: function of the scores before the last logarithm.

    Returns:
      float32 [B, V], of packed rows [B * M, V].
    """
    own, _ = own_tokens(lengths, states.shape[1])
    own = own if are_packed(lengths) else own[:, None]  # [B, M, L]
    table = whole(table, (shape.vocab_size, shape.hidden_size), dtype)
    states = nnx.merge(_head_graph(shape, jnp.dtype(dtype).name), head)(states)
    # At most as many numbers as one text a row has with a whole block.
    size = max(128, _ENTRIES_A_BLOCK // own.shape[1])
    count = -(-shape.vocab_size // size)
    missing = count * size - shape.vocab_size
    rows = jnp.pad(table, ((0, missing), (0, 0))).reshape(count, size, -1)
    bias = jnp.pad(head["bias"], (0, missing)).reshape(count, size)

    def weighed(scores: jax.Array) -> jax.Array:
        weights = jnp.log1p(jax.nn.relu(scores))
        return weights if activation == "relu" else jnp.log1p(weights)

    @partial(jax.checkpoint, prevent_cse=False)
    def best(block: tuple[jax.Array, jax.Array]) -> jax.Array:
        scores = product("bld,vd->blv", states, block[0], dtype, result=jnp.float32) + block[1]
        if strategy == "sum":
            return jnp.where(own[..., None], weighed(scores)[:, None], 0.0).sum(axis=-2)
        return weighed(jnp.where(own[..., None], scores[:, None], 0.0).max(axis=-2))  # relu: 0 is as good as none

    found = jax.lax.map(best, (rows, bias))  # [blocks, B, M, size]
    return jnp.moveaxis(found, 0, -2).reshape(-1, count * size)[:, : shape.vocab_size]


@cache
def _head_graph(shape: MaskedLmShape, dtype: str) -> Any:
    return define(lambda rngs: MlmHead(shape, dtype=jnp.dtype(dtype), rngs=rngs))[0]


def fresh_head(shape: MaskedLmShape, seed: int) -> Params:
    """Draw a head for an encoder that has none, float32; it begins near the identity, see starts.py."""
    head = initialise(lambda rngs: MlmHead(shape, dtype=jnp.float32, rngs=rngs), seed)
    head["dense"]["kernel"] += jnp.eye(shape.hidden_size)
    return head
