"""The T5 encoder-decoder (Raffel et al. 2020): v1.0 (relu, tied, scaled) and v1.1 (gated gelu, untied)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.models.adapter_layers import LayerAdapter, adapted
from jaxretr.models.attention_kernels import KeyBias
from jaxretr.models.dropout import Dropout
from jaxretr.models.layers import (
    ACTIVATIONS,
    Dense,
    Embedding,
    RMSNorm,
    attend,
    chosen_log_probs,
    key_bias,
    mask_bias,
    scan_layers,
    stack_layers,
)
from jaxretr.models.positions import relative_bias
from jaxretr.models.products import product
from jaxretr.models.t5_encoder_config import T5EncoderConfig

NO_DROPOUT = Dropout(None, 0.0)


@dataclass(frozen=True)
class T5Config:
    """The shape of a T5 model; the field names are Hugging Face's."""

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 1024
    num_layers: int = 8
    num_decoder_layers: int = 8
    num_heads: int = 6
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "gated-gelu"
    """"relu" (v1.0) or "gated-gelu" (v1.1)."""
    tie_word_embeddings: bool = False
    """v1.0 shares the embedding with the output and scales the decoder's state by d_model ** -0.5 before it."""
    decoder_start_token_id: int = 0
    pad_token_id: int = 0
    eos_token_id: int = 1
    initializer_factor: float = 1.0

    def sizes(self) -> dict[str, int]:
        """The numbers of layers and all lengths of the parameters' axes, by name, and what they are products of."""
        names = ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads")
        return {name: getattr(self, name) for name in (*names, "relative_attention_num_buckets")}


class T5Attention(nnx.Module):
    """Attention without biases and without scaling (the initialisation takes care of the scale)."""

    def __init__(self, config: T5Config | T5EncoderConfig, *, dtype: Any, rngs: nnx.Rngs):
        size, inner, factor = config.d_model, config.num_heads * config.d_kv, config.initializer_factor
        std = factor * size**-0.5
        self.query = Dense(size, inner, bias=False, std=std * config.d_kv**-0.5, dtype=dtype, rngs=rngs)
        self.key = Dense(size, inner, bias=False, std=std, dtype=dtype, rngs=rngs)
        self.value = Dense(size, inner, bias=False, std=std, dtype=dtype, rngs=rngs)
        # What is added to the residual stream is not rounded before.
        std = factor * inner**-0.5
        self.out = Dense(inner, size, bias=False, std=std, dtype=dtype, rngs=rngs, result=jnp.float32)
        self.heads = config.num_heads
        self.dtype = dtype

    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array,
        bias: jax.Array | KeyBias,
        drop: Dropout = NO_DROPOUT,
        adapter: LayerAdapter | None = None,
    ) -> jax.Array:
        """x [B, L, D] attends to memory [B, M, D]; bias broadcastable to [B, H, M, L]."""
        read = (("query", self.query, x), ("key", self.key, memory), ("value", self.value, memory))
        parts = [adapted(dense, name, source, adapter) for name, dense, source in read]
        q, k, v = (y.reshape(*y.shape[:2], self.heads, -1) for y in parts)
        return adapted(self.out, "attention_out", attend(q, k, v, bias, self.dtype, drop), adapter)


class T5FeedForward(nnx.Module):
    """relu(x W) V, or gelu(x W) * (x G) V."""

    def __init__(self, config: T5Config | T5EncoderConfig, *, dtype: Any, rngs: nnx.Rngs):
        size, inner, factor = config.d_model, config.d_ff, config.initializer_factor
        gated = config.feed_forward_proj.startswith("gated-")
        name = config.feed_forward_proj.removeprefix("gated-")
        # The original's "gated-gelu" is the tanh approximation.
        self.activation = "gelu_new" if name == "gelu" else name
        self.inner = Dense(size, inner, bias=False, std=factor * size**-0.5, dtype=dtype, rngs=rngs)
        self.gate = Dense(size, inner, bias=False, std=factor * size**-0.5, dtype=dtype, rngs=rngs) if gated else None
        std = factor * inner**-0.5
        self.outer = Dense(inner, size, bias=False, std=std, dtype=dtype, rngs=rngs, result=jnp.float32)

    def __call__(self, x: jax.Array, drop: Dropout = NO_DROPOUT, adapter: LayerAdapter | None = None) -> jax.Array:
        inner = ACTIVATIONS[self.activation](adapted(self.inner, "ffn_in", x, adapter).astype(jnp.float32))
        if self.gate is not None:
            inner = inner * adapted(self.gate, "ffn_gate", x, adapter)
        return adapted(self.outer, "ffn_out", drop(inner), adapter)


class T5EncoderLayer(nnx.Module):
    """Self-attention, then feed-forward; each pre-normalised, with a residual connection."""

    def __init__(self, config: T5Config | T5EncoderConfig, *, dtype: Any, rngs: nnx.Rngs):
        self.attention = T5Attention(config, dtype=dtype, rngs=rngs)
        self.attention_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.ffn = T5FeedForward(config, dtype=dtype, rngs=rngs)
        self.ffn_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def __call__(
        self,
        x: jax.Array,
        bias: jax.Array | KeyBias,
        drop: Dropout = NO_DROPOUT,
        drop_attention: Dropout = NO_DROPOUT,
        adapter: LayerAdapter | None = None,
    ) -> jax.Array:
        """One layer.

        Args:
          x: the states, float32 [B, L, D].
          bias: of the attention scores, broadcastable to [B, H, L, L]: relative positions and padding.
          drop: dropout of what is added to the states, and within the feed-forward network.
          drop_attention: dropout of the attention probabilities.
          adapter: of this layer.

        Returns:
          float32 [B, L, D].
        """
        normed = self.attention_norm(x)
        x = x + drop(self.attention(normed, normed, bias, drop_attention, adapter))
        normed = self.ffn_norm(x)
        x = x + drop(self.ffn(normed, drop, adapter))
        return x if adapter is None else x + adapter.beside_feed_forward(normed)


class T5DecoderLayer(nnx.Module):
    """Causal self-attention, attention to the encoder's output, feed-forward."""

    def __init__(self, config: T5Config, *, dtype: Any, rngs: nnx.Rngs):
        self.attention = T5Attention(config, dtype=dtype, rngs=rngs)
        self.attention_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.cross = T5Attention(config, dtype=dtype, rngs=rngs)
        self.cross_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.ffn = T5FeedForward(config, dtype=dtype, rngs=rngs)
        self.ffn_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def __call__(self, x: jax.Array, bias: jax.Array, memory: jax.Array, memory_bias: jax.Array) -> jax.Array:
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed, bias)
        x = x + self.cross(self.cross_norm(x), memory, memory_bias)
        return x + self.ffn(self.ffn_norm(x))


class T5Model(nnx.Module):
    """Encoder, decoder and output layer; used to score given targets, so there is no generation here."""

    def __init__(self, config: T5Config, *, dtype: Any = jnp.float32, rngs: nnx.Rngs):
        size, factor = config.d_model, config.initializer_factor
        buckets, heads = config.relative_attention_num_buckets, config.num_heads
        self.embedding = Embedding(config.vocab_size, size, std=factor, rngs=rngs)
        self.encoder_positions = Embedding(buckets, heads, std=factor * size**-0.5, rngs=rngs)
        self.decoder_positions = Embedding(buckets, heads, std=factor * size**-0.5, rngs=rngs)
        self.encoder = stack_layers(
            lambda rngs: T5EncoderLayer(config, dtype=dtype, rngs=rngs), config.num_layers, rngs
        )
        self.encoder_norm = RMSNorm(size, config.layer_norm_epsilon)
        self.decoder = stack_layers(
            lambda rngs: T5DecoderLayer(config, dtype=dtype, rngs=rngs), config.num_decoder_layers, rngs
        )
        self.decoder_norm = RMSNorm(size, config.layer_norm_epsilon)
        if not config.tie_word_embeddings:
            self.output = Dense(
                size, config.vocab_size, bias=False, std=factor, dtype=dtype, rngs=rngs, result=jnp.float32
            )
        self.config = config
        self.dtype = dtype

    def encode(self, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        """Encodes passages: ids [B, M] padded on the right, lengths int32 [B] -> float32 [B, M, D]."""
        length = tokens.shape[1]
        positions = self.relative_bias(self.encoder_positions, length, bidirectional=True)
        bias = key_bias(lengths, length, positions)
        x = self.embedding(tokens.astype(jnp.int32))
        x = scan_layers(self.encoder, x, lambda layer, x, *_: layer(x, bias), None)
        return self.encoder_norm(x)

    def decode(self, targets: jax.Array, memory: jax.Array, memory_lengths: jax.Array) -> jax.Array:
        """The states from which each target token is predicted (teacher forcing).

        Args:
          targets: ids of the targets, [B, T]; the decoder reads them shifted right behind the start token.
          memory: the encoder's output, float32 [B, M, D].
          memory_lengths: number of real positions of the memory, int32 [B].

        Returns:
          float32 [B, T, D]. Padding needs no mask: it lies to the right of every real target token.
        """
        length = targets.shape[1]
        start = jnp.full_like(targets[:, :1], self.config.decoder_start_token_id)
        shifted = jnp.concatenate([start, targets[:, :-1]], axis=1).astype(jnp.int32)
        position = jnp.arange(length)
        causal = jnp.where(position[:, None] <= position[None, :], 0.0, -1e9)  # [key, query]
        bias = causal + self.relative_bias(self.decoder_positions, length, bidirectional=False)
        memory_bias = mask_bias(memory_lengths, memory.shape[1])
        x = self.embedding(shifted)
        x = scan_layers(self.decoder, x, lambda layer, x, *_: layer(x, bias, memory, memory_bias), None)
        return self.decoder_norm(x)

    def logits(self, states: jax.Array) -> jax.Array:
        """Vocabulary scores of decoder states: [B, T, D] -> float32 [B, T, V]."""
        if not self.config.tie_word_embeddings:
            return self.output(states)
        states = states * self.config.d_model**-0.5
        return product("btd,vd->btv", states, self.embedding.table[...], self.dtype, result=jnp.float32)

    def target_log_probs(self, targets: jax.Array, memory: jax.Array, memory_lengths: jax.Array) -> jax.Array:
        """log p(target token | tokens before it, memory) for every target position, float32 [B, T]."""
        logits = self.logits(self.decode(targets, memory, memory_lengths))
        return chosen_log_probs(logits, targets)

    def relative_bias(self, table: Embedding, length: int, *, bidirectional: bool) -> jax.Array:
        """T5's bucketed relative position bias, float32 [1, H, keys, queries]."""
        furthest = self.config.relative_attention_max_distance
        return relative_bias(table, length, furthest, bidirectional=bidirectional)
