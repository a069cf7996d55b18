"""Encoders with rotary positions (Su et al. 2021) and gated feed-forward blocks: ModernBERT, and decoders."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.models.backbones.adapter_layers import LayerAdapter, adapted, beside_feed_forward
from jaxretr.models.backbones.dropout import ATTENTION, NO_DROPOUT, Dropout, folded
from jaxretr.models.backbones.encoder import Encoder
from jaxretr.models.backbones.kept_keys import KeptKeys, attend_kept
from jaxretr.models.backbones.layer_stacks import scan_layers
from jaxretr.models.backbones.layers import (
    ACTIVATIONS,
    Dense,
    Embedding,
    LayerNorm,
    RMSNorm,
    added,
    attend,
    residual,
    scaled,
)
from jaxretr.models.backbones.packed_rows import hidden_keys, token_places
from jaxretr.models.backbones.positions import rotary_frequencies, rotate
from jaxretr.models.backbones.rotary_config import RotaryConfig


class Sight(NamedTuple):
    """Positions and mask of the layers of one kind, global or local.

    Attributes:
      cos: cosines of each position's angles, float32 [L, d / 2], of packed rows [B, L, d / 2].
      sin: sines of each position's angles, of the same shape.
      hidden: addition to the scores, float32 [1, 1, keys, queries]: 0, or a very negative number.
    """

    cos: jax.Array
    sin: jax.Array
    hidden: jax.Array


Attends = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, Sight], jax.Array]
"""Attention: queries [B, L, H, d], keys and values [B, L, G, d], the bias of padding, and the sight -> [B, L, H * d]."""


class RotaryLayer(nnx.Module):
    """Self-attention and a gated feed-forward block, each with a residual connection."""

    def __init__(self, config: RotaryConfig, *, dtype: Any, rngs: nnx.Rngs):
        biased = config.dense_biases()
        for name, (inputs, outputs) in config.dense_sizes().items():
            std = config.initializer_range
            is_added, bias = name.endswith("_out"), biased[name]
            setattr(self, name, Dense(inputs, outputs, bias=bias, std=std, dtype=dtype, rngs=rngs, added=is_added))
        self.attention_norm = _norm(config)
        self.ffn_norm = _norm(config)
        if config.norm_order == "sandwich":
            self.attention_out_norm = _norm(config)
            self.ffn_out_norm = _norm(config)
        if config.qk_norm:
            self.query_norm = RMSNorm(config.head_dim, config.norm_eps, offset=config.norm_offset)
            self.key_norm = RMSNorm(config.head_dim, config.norm_eps, offset=config.norm_offset)
        self.config = config
        self.dtype = dtype

    def __call__(
        self,
        x: jax.Array,
        number: Any,
        sight: Sight,
        padding: jax.Array,
        keys: jax.Array | None,
        adapter: LayerAdapter | None = None,
        attends: Attends | None = None,
    ) -> jax.Array:
        """Run one layer.

        Args:
          x: states, of the residual stream's type, [B, L, D].
          number: number of this layer, an int or a traced int32 scalar.
          sight: positions and mask of this layer's kind.
          padding: bias that hides padding keys and other texts, as `hidden_keys` returns it.
          keys: one PRNG key per row [B], which switches dropout on.
          attends: attention to other keys than the row's own; it receives rotated queries and keys.

        Returns:
          [B, L, D] of x's type.
        """
        drop_hidden = Dropout(keys, self.config.hidden_dropout_prob)
        drop_attention = Dropout(folded(keys, ATTENTION), self.config.attention_probs_dropout_prob)
        if self.config.norm_order == "post":
            mixed = drop_hidden(self.attention(x, sight, padding, drop_attention, adapter, attends))
            x = residual(self.attention_norm(added(x, mixed)))
            fed = drop_hidden(self.feed_forward(x, adapter))
            return residual(self.ffn_norm(added(x, fed, beside_feed_forward(adapter, x))))
        normed = self.attention_norm(x)
        if not self.config.first_norm:
            normed = jnp.where(number == 0, x.astype(jnp.float32), normed)
        mixed = self.attention(normed, sight, padding, drop_attention, adapter, attends)
        sandwich = self.config.norm_order == "sandwich"
        x = residual(added(x, drop_hidden(self.attention_out_norm(mixed) if sandwich else mixed)))
        normed = self.ffn_norm(x)
        inner = self.feed_forward(normed, adapter)
        inner = self.ffn_out_norm(inner) if sandwich else inner
        return residual(added(x, drop_hidden(inner), beside_feed_forward(adapter, normed)))

    def attention(
        self,
        x: jax.Array,
        sight: Sight,
        padding: jax.Array,
        drop: Dropout,
        adapter: LayerAdapter | None,
        attends: Attends | None = None,
    ) -> jax.Array:
        config, size = self.config, self.config.head_dim
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        if config.fused:
            cuts = (heads * size, (heads + groups) * size)
            parts = jnp.split(self.dense("qkv", x, adapter), cuts, axis=-1)
        else:
            parts = [self.dense(name, x, adapter) for name in ("query", "key", "value")]
        q, k, v = (part.reshape(*part.shape[:2], -1, size) for part in parts)
        if config.qk_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        scale = config.attention_scale or size**-0.5
        q, k = (
            rotate(scaled(q.astype(jnp.float32), scale), sight.cos, sight.sin),
            rotate(k.astype(jnp.float32), sight.cos, sight.sin),
        )
        attends = attends or partial(self.attend_to_row, drop=drop)
        return self.dense("attention_out", attends(q, k, v, padding, sight), adapter)

    def attend_to_row(
        self, q: jax.Array, k: jax.Array, v: jax.Array, padding: jax.Array, sight: Sight, *, drop: Dropout = NO_DROPOUT
    ) -> jax.Array:
        """Attend from queries [B, L, H, d] to the keys and values [B, L, G, d] of the same row -> [B, L, H * d]."""
        if q.shape[2] != k.shape[2]:
            k, v = (jnp.repeat(part, q.shape[2] // k.shape[2], axis=2) for part in (k, v))
        return attend(q, k, v, padding + sight.hidden, self.dtype, drop)

    def feed_forward(self, x: jax.Array, adapter: LayerAdapter | None) -> jax.Array:
        if self.config.fused:
            gate, inner = jnp.split(self.dense("ffn_in", x, adapter), 2, axis=-1)
        else:
            gate, inner = self.dense("ffn_gate", x, adapter), self.dense("ffn_in", x, adapter)
        return self.dense("ffn_out", ACTIVATIONS[self.config.hidden_act](gate.astype(jnp.float32)) * inner, adapter)

    def dense(self, name: str, x: jax.Array, adapter: LayerAdapter | None) -> jax.Array:
        return adapted(getattr(self, name), name, x, adapter)


def _norm(config: RotaryConfig) -> LayerNorm | RMSNorm:
    size, eps = config.hidden_size, config.norm_eps
    if config.norm == "rms":
        return RMSNorm(size, eps, offset=config.norm_offset)
    return LayerNorm(size, eps, bias=config.norm_bias)


class RotaryEncoder(Encoder):
    """ModernBERT, decoders and others; the head that predicts a decoder's next token is left out."""

    layer = RotaryLayer

    def add_tables(self, config: RotaryConfig, rngs: nnx.Rngs) -> None:
        size, std = config.hidden_size, config.initializer_range
        self.word_embedding = Embedding(config.vocab_size, size, std=std, rngs=rngs)
        if config.type_vocab_size:
            self.type_embedding = Embedding(config.type_vocab_size, size, std=std, rngs=rngs)
        if config.embedding_norm:
            self.embedding_norm = _norm(config)
        if config.norm_order != "post":
            self.norm = _norm(config)

    def embedded(self, words: jax.Array, tokens: jax.Array, lengths: jax.Array, types: jax.Array | None) -> jax.Array:
        config = self.config
        x = words * config.embedding_scale if config.embedding_scale != 1.0 else words
        if config.type_vocab_size:
            x = x + self.type_embedding(jnp.zeros((), jnp.int32) if types is None else types)
        return self.embedding_norm(x) if config.embedding_norm else x

    def applied(self, lengths: jax.Array, length: int) -> Any:
        padding, kinds = hidden_keys(lengths, length), self.kinds
        sights = {local: _sight(self.config, lengths, length, local=local) for local in sorted(set(kinds))}

        def apply(
            pair: Any, x: jax.Array, keys: jax.Array | None, number: Any, attends: Attends | None = None
        ) -> jax.Array:
            return pair[0](x, number, self._of_layer(sights, number), padding, keys, *pair[1:], attends=attends)

        return apply

    def _of_layer(self, sights: dict[bool, Sight], number: Any) -> Sight:
        """Return a layer's sight, by its number, an int or traced."""
        if len(sights) == 1 or isinstance(number, int):
            return sights[self.kinds[number if len(sights) > 1 else 0]]
        local = jnp.asarray(self.kinds)[number]
        return jax.tree.map(lambda far, near: jnp.where(local, near, far), sights[False], sights[True])

    @property
    def kinds(self) -> tuple[bool, ...]:
        """Whether each layer is local."""
        return self.config.local_layers or (False,) * self.config.num_hidden_layers

    def finished(self, x: jax.Array, drop: Dropout) -> jax.Array:
        return x.astype(jnp.float32) if self.config.norm_order == "post" else self.norm(x)

    # ---- several texts behind one row, by a decoder ------------------------------------------------------------------

    def continued(
        self, tokens: jax.Array, lengths: jax.Array, texts: jax.Array, of_text: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Read rows once, and texts each of which follows one of them.

        Args:
          tokens: token ids of the rows, any integer type [P, L], padded on the right.
          lengths: number of real tokens of each row, int32 [P].
          texts: token ids of the texts, any integer type [B, T], padded on the right.
          of_text: the row that each text follows, int32 [B].

        Returns:
          The states of the rows' tokens, float32 [P, L, D], and of the texts' [B, T, D].
        """
        (count, length), (others, room) = tokens.shape, texts.shape
        slots, before = jnp.arange(length), lengths[of_text][:, None]
        place = before + jnp.arange(room)  # [B, T]
        key_place = jnp.concatenate([jnp.broadcast_to(slots, (others, length)), place], axis=1)
        unread = jnp.concatenate([slots >= before, jnp.zeros(place.shape, bool)], axis=1)  # [B, L + T]
        distance = place[:, None, :] - key_place[:, :, None]  # [B, keys, queries]
        places = jnp.concatenate([jnp.tile(slots, count), place.reshape(-1)])[None]
        of_rows, behind = {}, {}
        for local in sorted(set(self.kinds)):
            hidden = unread[:, :, None] | (distance < 0) | (distance > self.config.window if local else False)
            angles = _angles(self.config, places, local=local)
            sight = Sight(jnp.cos(angles), jnp.sin(angles), jnp.where(hidden, -1e9, 0.0)[:, None])
            behind[local] = sight
            of_rows[local] = sight._replace(hidden=_sight(self.config, lengths, length, local=local).hidden)
        padding = hidden_keys(lengths, length)

        def apart(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            """The rows' part [P, L, ...] and the texts' [B, T, ...] of what all tokens have, [1, P L + B T, ...]."""
            rows, followers = jnp.split(x[0], [count * length])
            return rows.reshape(count, length, *x.shape[2:]), followers.reshape(others, room, *x.shape[2:])

        def together(rows: jax.Array, followers: jax.Array) -> jax.Array:
            return jnp.concatenate([x.reshape(-1, *x.shape[2:]) for x in (rows, followers)])[None]

        def apply(pair: Any, x: jax.Array, _: jax.Array | None, number: Any) -> jax.Array:
            layer: RotaryLayer = pair[0]

            def attends(q: jax.Array, k: jax.Array, v: jax.Array, padding: jax.Array, sight: Sight) -> jax.Array:
                (q, asks), (k, own_k), (v, own_v) = map(apart, (q, k, v))
                keys, values = (jnp.concatenate([x[of_text], own], axis=1) for x, own in ((k, own_k), (v, own_v)))
                followers = layer.attend_to_row(asks, keys, values, jnp.zeros(()), self._of_layer(behind, number))
                return together(layer.attend_to_row(q, k, v, padding, sight), followers)

            return layer(x, number, self._of_layer(of_rows, number), padding, None, attends=attends)

        x = together(self._first_states(tokens, lengths), self._first_states(texts, lengths))
        x = scan_layers((self.layers,), x, apply, None)
        return apart(self.finished(x, NO_DROPOUT))

    # ---- one token after another, by a decoder whose layers are apart ------------------------------------------------

    def begin(self, tokens: jax.Array, lengths: jax.Array, room: int) -> tuple[jax.Array, list[KeptKeys]]:
        """Read prompts.

        Args:
          tokens: token ids, any integer type [B, L], padded on the right.
          lengths: number of real tokens of each row, int32 [B].
          room: number of tokens that may follow.

        Returns:
          The state of each token, float32 [B, L, D], and each layer's keys and values, of M = L + room places.
        """
        kept: list[KeptKeys] = []
        apply, x = self.applied(lengths, tokens.shape[1]), self._first_states(tokens, lengths)
        for number, layer in enumerate(self._layers_apart):

            def attends(q: Any, k: Any, v: Any, *sight: Any, layer: RotaryLayer = layer) -> jax.Array:
                kept.append(KeptKeys.of(k, v, room, layer.dtype))
                return layer.attend_to_row(q, k, v, *sight)

            x = apply((layer,), x, None, number, attends)
        return self.finished(x, NO_DROPOUT), kept

    def follow(
        self, tokens: jax.Array, lengths: jax.Array, number: jax.Array, kept: list[KeptKeys]
    ) -> tuple[jax.Array, list[KeptKeys]]:
        """Read the next token of each row.

        Args:
          tokens: token ids, int32 [B].
          lengths: lengths of the prompts, int32 [B].
          number: number of tokens between the prompts and these, int32.
          kept: each layer's keys and values; place L + t is token t after the prompt, whatever the prompt's length.

        Returns:
          The states of these tokens, float32 [B, D], and `kept` with them.
        """
        prompt = kept[0].prompt
        slots, place = jnp.arange(kept[0].keys.shape[2]), lengths[:, None] + number  # [M], [B, 1]
        key_places = jnp.where(slots < prompt, slots, lengths[:, None] + slots - prompt)  # [B, M]
        unread = (slots >= lengths[:, None]) & (slots < prompt) | (slots > prompt + number)
        sights = {}
        for local in sorted(set(self.kinds)):
            hidden = unread | (place - key_places > self.config.window) if local else unread
            angles = _angles(self.config, place, local=local)
            sights[local] = Sight(jnp.cos(angles), jnp.sin(angles), jnp.where(hidden, -1e9, 0.0))
        x, kept = self._first_states(tokens[:, None], lengths), list(kept)
        for n, layer in enumerate(self._layers_apart):

            def attends(
                q: Any, k: Any, v: Any, _: Any, sight: Sight, n: int = n, layer: RotaryLayer = layer
            ) -> jax.Array:
                kept[n] = kept[n].with_token(k, v, prompt + number)
                return attend_kept(q, kept[n], sight.hidden[:, None, None], layer.dtype)

            x = layer(x, n, sights[self.kinds[n]], jnp.zeros(()), None, attends=attends)
        return self.finished(x, NO_DROPOUT)[:, 0], kept

    @property
    def _layers_apart(self) -> list[RotaryLayer]:
        assert isinstance(self.layers, nnx.List)
        return list(self.layers)

    def _first_states(self, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        return residual(self.embedded(self.word_embedding(tokens.astype(jnp.int32)), tokens, lengths, None))


def _angles(config: RotaryConfig, places: jax.Array, *, local: bool) -> jax.Array:
    """Return the angles of rotation at places [...] in global or local layers, float32 [..., d / 2]."""
    theta, scaling = (config.local_rope_theta, None) if local else (config.rope_theta, config.rope_scaling)
    turns = jnp.asarray(rotary_frequencies(config.head_dim, theta, scaling), jnp.float32)
    return places[..., None].astype(jnp.float32) * turns


def _sight(config: RotaryConfig, lengths: jax.Array, length: int, *, local: bool = False) -> Sight:
    """Return the positions and mask of the global or the local layers, for rows of `length` tokens."""
    angles = _angles(config, token_places(lengths, length), local=local)
    place = jnp.arange(length)
    distance = place[:, None] - place[None, :]  # key - query
    hidden = distance > (0 if config.causal else length)
    if local:
        hidden |= jnp.abs(distance) > config.window
    return Sight(jnp.cos(angles), jnp.sin(angles), jnp.where(hidden, -1e9, 0.0)[None, None])
