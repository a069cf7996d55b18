"""The BERT encoder (Devlin et al. 2019), and encoders with its layers: Megatron's, RoBERTa's, DistilBERT's, MPNet's."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.models.backbones.adapter_layers import LayerAdapter, adapted, beside_feed_forward
from jaxretr.models.backbones.attention_kernels import KeyBias
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.dropout import ATTENTION, Dropout, folded
from jaxretr.models.backbones.encoder import Encoder
from jaxretr.models.backbones.layer_stacks import traced_once
from jaxretr.models.backbones.layers import (
    ACTIVATIONS,
    Dense,
    Embedding,
    LayerNorm,
    added,
    attend,
    key_bias,
    residual,
)
from jaxretr.models.backbones.packed_rows import are_packed, counted_places, token_places
from jaxretr.models.backbones.positions import relative_bias

FURTHEST = 128
"""The distance from which MPNet's relative positions share a bias."""


class BertLayer(nnx.Module):
    """Self-attention and feed-forward, each with a residual connection."""

    def __init__(self, config: BertConfig, *, dtype: Any, rngs: nnx.Rngs):
        size, inner, std = config.hidden_size, config.intermediate_size, config.initializer_range
        self.query = Dense(size, size, bias=True, std=std, dtype=dtype, rngs=rngs)
        self.key = Dense(size, size, bias=True, std=std, dtype=dtype, rngs=rngs)
        self.value = Dense(size, size, bias=True, std=std, dtype=dtype, rngs=rngs)
        self.attention_out = Dense(size, size, bias=True, std=std, dtype=dtype, rngs=rngs, added=True)
        self.attention_norm = LayerNorm(size, config.layer_norm_eps)
        self.ffn_in = Dense(size, inner, bias=True, std=std, dtype=dtype, rngs=rngs)
        self.ffn_out = Dense(inner, size, bias=True, std=std, dtype=dtype, rngs=rngs, added=True)
        self.ffn_norm = LayerNorm(size, config.layer_norm_eps)
        self.config = config
        self.dtype = dtype

    def __call__(
        self, x: jax.Array, bias: KeyBias, keys: jax.Array | None, adapter: LayerAdapter | None = None
    ) -> jax.Array:
        """Run one layer: x, of the residual stream's type, [B, L, D] -> [B, L, D]."""
        drop_hidden = Dropout(keys, self.config.hidden_dropout_prob)
        drop_attention = Dropout(folded(keys, ATTENTION), self.config.attention_probs_dropout_prob)
        if self.config.pre_layer_norm:
            mixed = self.attention(self.attention_norm(x), bias, drop_attention, adapter)
            x = residual(added(x, drop_hidden(mixed)))
            normed = self.ffn_norm(x)
            fed = drop_hidden(self.feed_forward(normed, adapter))
            return residual(added(x, fed, beside_feed_forward(adapter, normed)))
        mixed = drop_hidden(self.attention(x, bias, drop_attention, adapter))
        x = residual(self.attention_norm(added(x, mixed)))
        fed = drop_hidden(self.feed_forward(x, adapter))
        return residual(self.ffn_norm(added(x, fed, beside_feed_forward(adapter, x))))

    def attention(self, x: jax.Array, bias: KeyBias, drop: Dropout, adapter: LayerAdapter | None) -> jax.Array:
        batch, length, size = x.shape
        heads = self.config.num_attention_heads
        split = (batch, length, heads, size // heads)
        q, k, v = (self.dense(name, x, adapter).reshape(split) for name in ("query", "key", "value"))
        mixed = attend(q, k, v, bias, self.dtype, drop, scale=(size // heads) ** -0.5)
        return self.dense("attention_out", mixed, adapter)

    def feed_forward(self, x: jax.Array, adapter: LayerAdapter | None) -> jax.Array:
        inner = ACTIVATIONS[self.config.hidden_act](self.dense("ffn_in", x, adapter).astype(jnp.float32))
        return self.dense("ffn_out", inner, adapter)

    def dense(self, name: str, x: jax.Array, adapter: LayerAdapter | None) -> jax.Array:
        return adapted(getattr(self, name), name, x, adapter)


class BertEncoder(Encoder):
    """BERT and its kin."""

    layer = BertLayer

    def add_tables(self, config: BertConfig, rngs: nnx.Rngs) -> None:
        size, std = config.hidden_size, config.initializer_range
        self.word_embedding = Embedding(config.vocab_size, size, std=std, rngs=rngs)
        self.position_embedding = Embedding(config.max_position_embeddings, size, std=std, rngs=rngs)
        if config.type_vocab_size:
            self.type_embedding = Embedding(config.type_vocab_size, size, std=std, rngs=rngs)
        if config.relative_attention_num_buckets:
            buckets, heads = config.relative_attention_num_buckets, config.num_attention_heads
            self.relative_positions = Embedding(buckets, heads, std=std, rngs=rngs)
        # Post-LN normalises the embeddings, Megatron's pre-LN the last layer's output instead.
        self.norm = LayerNorm(size, config.layer_norm_eps)

    def embedded(self, words: jax.Array, tokens: jax.Array, lengths: jax.Array, types: jax.Array | None) -> jax.Array:
        positions = self.position_embedding.repeated if are_packed(lengths) else self.position_embedding
        if self.config.positions_skip_padding:
            counted = tokens != self.config.pad_token_id
            place = counted_places(counted, lengths)
            x = words + jnp.where(counted[..., None], positions(place), 0)
        else:
            x = words + positions(token_places(lengths, tokens.shape[1]))
        if self.config.type_vocab_size:
            x = x + self.type_embedding(jnp.zeros((), jnp.int32) if types is None else types)
        return x if self.config.pre_layer_norm else self.norm(x)

    def applied(self, lengths: jax.Array, length: int) -> Any:
        positions = None
        if self.config.relative_attention_num_buckets:
            positions = relative_bias(self.relative_positions, length, FURTHEST, bidirectional=True)
        bias = key_bias(lengths, length, positions)
        return traced_once(lambda pair, x, keys, _: pair[0](x, bias, keys, *pair[1:]))

    def finished(self, x: jax.Array, drop: Dropout) -> jax.Array:
        return self.norm(x) if self.config.pre_layer_norm else x.astype(jnp.float32)
