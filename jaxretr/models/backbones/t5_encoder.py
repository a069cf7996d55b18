"""T5's encoder alone (Raffel et al. 2020), with which GTR and sentence-T5 embed texts (Ni et al. 2022)."""

from typing import Any

import jax
from flax import nnx

from jaxretr.models.backbones.dropout import ATTENTION, Dropout, folded
from jaxretr.models.backbones.encoder import Encoder
from jaxretr.models.backbones.layers import Embedding, RMSNorm, key_bias
from jaxretr.models.backbones.positions import relative_bias
from jaxretr.models.backbones.t5 import T5EncoderLayer
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig


class T5Encoder(Encoder):
    """T5's encoder; its tokens have no types."""

    layer = T5EncoderLayer

    def add_tables(self, config: T5EncoderConfig, rngs: nnx.Rngs) -> None:
        size, std = config.d_model, config.initializer_factor
        self.word_embedding = Embedding(config.vocab_size, size, std=std, rngs=rngs)
        buckets, heads = config.relative_attention_num_buckets, config.num_heads
        self.relative_positions = Embedding(buckets, heads, std=std * size**-0.5, rngs=rngs)
        self.norm = RMSNorm(size, config.layer_norm_epsilon)

    def embedded(self, words: jax.Array, tokens: jax.Array, lengths: jax.Array, types: jax.Array | None) -> jax.Array:
        return words

    def applied(self, lengths: jax.Array, length: int) -> Any:
        config = self.config
        furthest = config.relative_attention_max_distance
        positions = relative_bias(self.relative_positions, length, furthest, bidirectional=True)
        bias = key_bias(lengths, length, positions)

        def apply(pair: Any, x: jax.Array, keys: jax.Array | None, _: Any) -> jax.Array:
            drop_hidden = Dropout(keys, config.hidden_dropout_prob)
            drop_attention = Dropout(folded(keys, ATTENTION), config.attention_probs_dropout_prob)
            return pair[0](x, bias, drop_hidden, drop_attention, *pair[1:])

        return apply

    def finished(self, x: jax.Array, drop: Dropout) -> jax.Array:
        return drop(self.norm(x))
