"""The T5 encoder-decoder (Raffel et al. 2020): v1.0 (relu, tied, scaled) and v1.1 (gated gelu, untied)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.models.backbones.adapter_layers import LayerAdapter, adapted, beside_feed_forward
from jaxretr.models.backbones.attention_kernels import KeyBias
from jaxretr.models.backbones.dropout import NO_DROPOUT, Dropout
from jaxretr.models.backbones.kept_keys import KeptKeys, attend_kept
from jaxretr.models.backbones.layer_stacks import make_layers, map_layers, scan_layers
from jaxretr.models.backbones.layers import (
    ACTIVATIONS,
    Dense,
    Embedding,
    RMSNorm,
    added,
    attend,
    chosen_log_probs,
    key_bias,
    residual,
)
from jaxretr.models.backbones.packed_rows import hidden_keys
from jaxretr.models.backbones.positions import relative_bias, relative_bucket
from jaxretr.models.backbones.products import product
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig


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
    """Kind of the feed-forward block: "relu" (v1.0) or "gated-gelu" (v1.1)."""
    tie_word_embeddings: bool = False
    """Whether the output layer is the embedding, as in v1.0, which first scales the state by d_model ** -0.5."""
    decoder_start_token_id: int = 0
    pad_token_id: int = 0
    eos_token_id: int = 1
    initializer_factor: float = 1.0

    def sizes(self) -> dict[str, int]:
        """The numbers of layers and all lengths of the parameters' axes, and their factors, by name."""
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
        std = factor * inner**-0.5
        self.out = Dense(inner, size, bias=False, std=std, dtype=dtype, rngs=rngs, added=True)
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
        """Attend from x [B, L, D] to memory [B, M, D]; bias broadcastable to [B, H, M, L]."""
        return self.attend_to(x, *self.keys_and_values(memory, adapter), bias, drop, adapter)

    def keys_and_values(self, memory: jax.Array, adapter: LayerAdapter | None = None) -> tuple[jax.Array, jax.Array]:
        """Return keys and values of memory [B, M, D], of the matmuls' type, [B, M, H, d] each."""
        read = (("key", self.key), ("value", self.value))
        k, v = (self._heads(adapted(dense, name, memory, adapter)).astype(self.dtype) for name, dense in read)
        return k, v

    def attend_to(
        self,
        x: jax.Array,
        k: jax.Array,
        v: jax.Array,
        bias: jax.Array | KeyBias,
        drop: Dropout = NO_DROPOUT,
        adapter: LayerAdapter | None = None,
    ) -> jax.Array:
        """Attend from x [B, L, D] to keys and values [B, M, H, d]; bias broadcastable to [B, H, M, L]."""
        q = self._heads(adapted(self.query, "query", x, adapter))
        return adapted(self.out, "attention_out", attend(q, k, v, bias, self.dtype, drop), adapter)

    def attend_to_kept(self, x: jax.Array, kept: KeptKeys, bias: jax.Array) -> jax.Array:
        """Attend from x [B, 1, D] to kept keys; bias broadcastable to [B, H, 1, M]."""
        return self.out(attend_kept(self._heads(self.query(x)), kept, bias, self.dtype))

    def _heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:2], self.heads, -1)


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
        self.outer = Dense(inner, size, bias=False, std=std, dtype=dtype, rngs=rngs, added=True)

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
        """Run one layer.

        Args:
          x: states, of the residual stream's type, [B, L, D].
          bias: bias of the attention scores, broadcastable to [B, H, L, L]: relative positions and padding.
          drop: dropout of the additions to the states, and within the feed-forward network.
          drop_attention: dropout of the attention probabilities.

        Returns:
          [B, L, D] of x's type.
        """
        normed = self.attention_norm(x)
        x = residual(added(x, drop(self.attention(normed, normed, bias, drop_attention, adapter))))
        normed = self.ffn_norm(x)
        return residual(added(x, drop(self.ffn(normed, drop, adapter)), beside_feed_forward(adapter, normed)))


class T5DecoderLayer(nnx.Module):
    """Causal self-attention, attention to the encoder's output, feed-forward."""

    def __init__(self, config: T5Config, *, dtype: Any, rngs: nnx.Rngs):
        self.attention = T5Attention(config, dtype=dtype, rngs=rngs)
        self.attention_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.cross = T5Attention(config, dtype=dtype, rngs=rngs)
        self.cross_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.ffn = T5FeedForward(config, dtype=dtype, rngs=rngs)
        self.ffn_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def __call__(self, x: jax.Array, bias: jax.Array, k: jax.Array, v: jax.Array, memory_bias: jax.Array) -> jax.Array:
        """Attend from x [B, T, D] to itself and to the passages' keys and values [B, M, H, d]."""
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed, bias)
        x = x + self.cross.attend_to(self.cross_norm(x), k, v, memory_bias)
        return x + self.ffn(self.ffn_norm(x))

    def follow(
        self, x: jax.Array, number: jax.Array, own: KeptKeys, bias: jax.Array, read: KeptKeys, read_bias: jax.Array
    ) -> tuple[jax.Array, KeptKeys]:
        """Attend from token `number` of each target, x [B, 1, D], to the tokens before it, `own`, and to the passage,
        `read`; returns `own` with it too."""
        normed = self.attention_norm(x)
        own = own.with_token(*self.attention.keys_and_values(normed), number)
        x = x + self.attention.attend_to_kept(normed, own, bias)
        x = x + self.cross.attend_to_kept(self.cross_norm(x), read, read_bias)
        return x + self.ffn(self.ffn_norm(x)), own


@jax.tree_util.register_dataclass
@dataclass
class PassagesRead:
    """E encoded passages in the form that the decoder reads, each for any number of targets."""

    states: jax.Array | tuple[jax.Array, jax.Array]
    """Output of the encoder, float32 [E, M, D], from which each layer computes its keys and values when it is called;
    or the keys and the values of all layers, [layers, E, M, H, d] each, for several calls with the same passages."""
    lengths: jax.Array
    """Number of real positions of each passage, int32 [E]."""


class T5Model(nnx.Module):
    """Encoder, decoder and output layer: they score given targets, or generate them token by token."""

    def __init__(self, config: T5Config, *, dtype: Any = jnp.float32, stacked: bool = True, rngs: nnx.Rngs):
        """Create a model; `stacked=False` keeps the layers apart, as `follow` needs them."""
        size, factor = config.d_model, config.initializer_factor
        buckets, heads = config.relative_attention_num_buckets, config.num_heads
        self.embedding = Embedding(config.vocab_size, size, std=factor, rngs=rngs)
        self.encoder_positions = Embedding(buckets, heads, std=factor * size**-0.5, rngs=rngs)
        self.decoder_positions = Embedding(buckets, heads, std=factor * size**-0.5, rngs=rngs)

        def encoder_layer(rngs: nnx.Rngs) -> T5EncoderLayer:
            return T5EncoderLayer(config, dtype=dtype, rngs=rngs)

        def decoder_layer(rngs: nnx.Rngs) -> T5DecoderLayer:
            return T5DecoderLayer(config, dtype=dtype, rngs=rngs)

        self.encoder = make_layers(encoder_layer, config.num_layers, stacked=stacked, rngs=rngs)
        self.encoder_norm = RMSNorm(size, config.layer_norm_epsilon)
        self.decoder = make_layers(decoder_layer, config.num_decoder_layers, stacked=stacked, rngs=rngs)
        self.decoder_norm = RMSNorm(size, config.layer_norm_epsilon)
        if not config.tie_word_embeddings:
            self.output = Dense(
                size, config.vocab_size, bias=False, std=factor, dtype=dtype, rngs=rngs, result=jnp.float32
            )
        self.config = config
        self.dtype = dtype

    def encode(self, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        """Encode passages: ids [B, M] padded on the right, lengths int32 [B] -> float32 [B, M, D]."""
        length = tokens.shape[1]
        positions = self.relative_bias(self.encoder_positions, length, bidirectional=True)
        bias = key_bias(lengths, length, positions)
        x = self.embedding(tokens.astype(jnp.int32))
        x = scan_layers(self.encoder, x, lambda layer, x, *_: layer(x, bias), None)
        return self.encoder_norm(x)

    def read(self, tokens: jax.Array, lengths: jax.Array, *, keep: bool = False) -> PassagesRead:
        """Encode passages for the decoder.

        Args:
          tokens: ids [E, M], padded on the right.
          lengths: int32 [E].
          keep: whether to compute the decoder's keys and values of all layers now: once, for all calls of `decode`, in
            exchange for the memory of 2 x layers x E x M x H x d numbers.
        """
        memory = self.encode(tokens, lengths)
        if not keep:
            return PassagesRead(memory, lengths)
        graph, params = nnx.split(self.decoder)

        def of_layer(params: Any) -> tuple[jax.Array, jax.Array]:
            layer: Any = nnx.merge(graph, params)
            return layer.cross.keys_and_values(memory)

        return PassagesRead(map_layers(of_layer, params, self.dtype), lengths)

    def decode(self, targets: jax.Array, read: PassagesRead, of: jax.Array | None = None) -> jax.Array:
        """Return the states from which each target token is predicted (teacher forcing).

        Args:
          targets: ids of the targets, [B, T]; the decoder reads them shifted right after the start token.
          read: the passages.
          of: number of the passage that each target is read with, int32 [B]; None: target i with passage i.

        Returns:
          float32 [B, T, D]. Padding needs no mask: it lies to the right of every real target token.
        """
        length = targets.shape[1]
        start = jnp.full_like(targets[:, :1], self.config.decoder_start_token_id)
        shifted = jnp.concatenate([start, targets[:, :-1]], axis=1).astype(jnp.int32)
        position = jnp.arange(length)
        causal = jnp.where(position[:, None] <= position[None, :], 0.0, -1e9)  # [key, query]
        bias = causal + self.relative_bias(self.decoder_positions, length, bidirectional=False)

        def chosen(x: jax.Array) -> jax.Array:
            return x if of is None else x[of]

        def apply(layer: T5DecoderLayer, x: jax.Array, _: jax.Array | None, number: Any) -> jax.Array:
            if isinstance(states, tuple):
                k, v = (kept[number] for kept in states)
            else:
                k, v = layer.cross.keys_and_values(states)
            return layer(x, bias, chosen(k), chosen(v), memory_bias)

        states = read.states
        longest = states[0].shape[2] if isinstance(states, tuple) else states.shape[1]
        memory_bias = hidden_keys(chosen(read.lengths), longest)
        x = scan_layers(self.decoder, self.embedding(shifted), apply, None)
        return self.decoder_norm(x)

    def follow(
        self,
        tokens: jax.Array,
        number: jax.Array,
        kept: list[KeptKeys],
        read: list[KeptKeys],
        lengths: jax.Array,
    ) -> tuple[jax.Array, list[KeptKeys]]:
        """Read the next token of each target; the layers are apart.

        Args:
          tokens: ids of the tokens, int32 [B]; number 0 is the start token.
          number: number of these tokens in their targets, int32.
          kept: each layer's keys and values of the targets.
          read: each layer's keys and values of the passages.
          lengths: number of real positions of each passage, int32 [B].

        Returns:
          The states from which the tokens after these are predicted, float32 [B, D], and `kept` with these.
        """
        config, slots = self.config, jnp.arange(kept[0].places)
        buckets, furthest = config.relative_attention_num_buckets, config.relative_attention_max_distance
        bias = self.decoder_positions(relative_bucket(slots - number, buckets, furthest, bidirectional=False))  # [T, H]
        bias = bias.T[None, :, None] + jnp.where(slots > number, -1e9, 0.0)  # [1, H, 1, T]
        read_bias = jnp.where(jnp.arange(read[0].places) < lengths[:, None], 0.0, -1e9)[:, None, None]
        assert isinstance(self.decoder, nnx.List)
        x, kept = self.embedding(tokens[:, None]), list(kept)
        for n, layer in enumerate(self.decoder):
            x, kept[n] = layer.follow(x, number, kept[n], bias, read[n], read_bias)
        return self.decoder_norm(x)[:, 0], kept

    def logits(self, states: jax.Array) -> jax.Array:
        """Return vocabulary scores of decoder states: [B, T, D] -> float32 [B, T, V]."""
        if not self.config.tie_word_embeddings:
            return self.output(states)
        states = states * self.config.d_model**-0.5
        return product("btd,vd->btv", states, self.embedding.table[...], self.dtype, result=jnp.float32)

    def target_log_probs(self, targets: jax.Array, read: PassagesRead, of: jax.Array | None = None) -> jax.Array:
        """Return log p(target token | tokens before it, passage) of every target position, float32 [B, T]."""
        return chosen_log_probs(self.logits(self.decode(targets, read, of)), targets)

    def relative_bias(self, table: Embedding, length: int, *, bidirectional: bool) -> jax.Array:
        """Return T5's bucketed relative position bias, float32 [1, H, keys, queries]."""
        furthest = self.config.relative_attention_max_distance
        return relative_bias(table, length, furthest, bidirectional=bidirectional)
