"""T5's encoder alone (Raffel et al. 2020), with which GTR and sentence-T5 embed texts (Ni et al. 2022)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.config import AdapterShape
from jaxretr.models.backbones.adapter_layers import layers_and_adapters, make_adapters
from jaxretr.models.backbones.dropout import ATTENTION, EMBEDDINGS, Dropout, folded
from jaxretr.models.backbones.layer_stacks import make_layers, scan_layers
from jaxretr.models.backbones.layers import Embedding, RMSNorm, key_bias
from jaxretr.models.backbones.positions import relative_bias
from jaxretr.models.backbones.t5 import T5EncoderLayer
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig


class T5Encoder(nnx.Module):
    """Encoder from token ids to contextual vectors."""

    def __init__(
        self,
        config: T5EncoderConfig,
        *,
        adapter: AdapterShape | None = None,
        dtype: Any = jnp.float32,
        stacked: bool = True,
        rngs: nnx.Rngs,
    ):
        """Create an encoder; `stacked=False` keeps the layers apart, for programs without a backward pass."""
        size, count, std = config.d_model, config.num_layers, config.initializer_factor
        self.word_embedding = Embedding(config.vocab_size, size, std=std, rngs=rngs)
        buckets, heads = config.relative_attention_num_buckets, config.num_heads
        self.relative_positions = Embedding(buckets, heads, std=std * size**-0.5, rngs=rngs)
        make = lambda rngs: T5EncoderLayer(config, dtype=dtype, rngs=rngs)  # noqa: E731
        self.layers = make_layers(make, count, stacked=stacked, rngs=rngs)
        if adapter is not None:
            self.adapter = make_adapters(adapter, config, dtype=dtype, stacked=stacked, rngs=rngs)
        self.norm = RMSNorm(size, config.layer_norm_epsilon)
        self.config = config

    def __call__(
        self,
        tokens: jax.Array,
        lengths: jax.Array,
        keys: jax.Array | None = None,
        *,
        keep_matmuls: bool = False,
        words: jax.Array | None = None,
    ) -> jax.Array:
        """Encode a batch; arguments and result are those of `BertEncoder`."""
        config, length = self.config, tokens.shape[1]
        drop = Dropout(folded(keys, EMBEDDINGS), config.hidden_dropout_prob)
        x = drop(self.word_embedding(tokens.astype(jnp.int32)) if words is None else words)
        furthest = config.relative_attention_max_distance
        positions = relative_bias(self.relative_positions, length, furthest, bidirectional=True)
        bias = key_bias(lengths, length, positions)

        def apply(pair: Any, x: jax.Array, keys: jax.Array | None, _: Any) -> jax.Array:
            drop_hidden = Dropout(keys, config.hidden_dropout_prob)
            drop_attention = Dropout(folded(keys, ATTENTION), config.attention_probs_dropout_prob)
            return pair[0](x, bias, drop_hidden, drop_attention, *pair[1:])

        x = scan_layers(layers_and_adapters(self), x, apply, keys, keep_matmuls=keep_matmuls)
        return drop(self.norm(x))
