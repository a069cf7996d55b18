"""The frame of all encoders: embeddings, layers of one kind with their adapters, and a state for each token."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.config import AdapterShape
from jaxretr.models.backbones.adapter_layers import make_adapters
from jaxretr.models.backbones.dropout import EMBEDDINGS, Dropout, folded, keys_of_texts
from jaxretr.models.backbones.layer_stacks import make_layers, scan_layers
from jaxretr.models.backbones.layers import Embedding, residual


class Encoder(nnx.Module):
    """Encoder from token ids to contextual vectors, without a pooler: DPR and ART use the last layer's state itself.

    Subclasses give the layers' class and the methods below it. Parameters are drawn in the order in which they are made.
    """

    layer: ClassVar[Any]
    word_embedding: Embedding

    def __init__(
        self,
        config: Any,
        *,
        adapter: AdapterShape | None = None,
        dtype: Any = jnp.float32,
        stacked: bool = True,
        rngs: nnx.Rngs,
    ):
        """Create an encoder; `stacked=False` keeps the layers apart, for programs without a backward pass."""
        self.config = config
        self.add_tables(config, rngs)
        layer, count = self.layer, config.num_hidden_layers
        # Without layers there is no branch of parameters either: checkpoints refuse empty arrays.
        if count:
            make = lambda rngs: layer(config, dtype=dtype, rngs=rngs)  # noqa: E731
            self.layers = make_layers(make, count, stacked=stacked, rngs=rngs)
        if count and adapter is not None:
            self.adapter = make_adapters(adapter, config, dtype=dtype, stacked=stacked, rngs=rngs)

    def __call__(
        self,
        tokens: jax.Array,
        lengths: jax.Array,
        keys: jax.Array | None = None,
        *,
        keep_matmuls: bool = False,
        words: jax.Array | None = None,
        types: jax.Array | None = None,
    ) -> jax.Array:
        """Encode a batch.

        Args:
          tokens: token ids, any integer type [B, L], padded on the right or packed.
          lengths: number of real tokens of each row, int32 [B], or of each text of packed rows, int32 [B, M].
          keys: one PRNG key per row [B], or per text of packed rows [B, M], which switches dropout on.
          keep_matmuls: as in `scan_layers`.
          words: the tokens' word embeddings, float32 [B, L, D], where the caller looked them up.
          types: types of the tokens, integers [B, L], where the architecture has types; None: all have type 0, also the
            second segment of a passage's title and text, as in DPR and ART.

        Returns:
          float32 [B, L, D].
        """
        given = keys_of_texts(keys, lengths)
        x = self.word_embedding(tokens.astype(jnp.int32)) if words is None else words
        drop = Dropout(folded(given, EMBEDDINGS), self.config.hidden_dropout_prob)
        x = residual(drop(self.embedded(x, tokens, lengths, types)))
        if self.config.num_hidden_layers:
            apply = self.applied(lengths, tokens.shape[1])
            parts = (self.layers, self.adapter) if hasattr(self, "adapter") else (self.layers,)
            layers = list(zip(*parts, strict=True)) if isinstance(self.layers, nnx.List) else parts
            x = scan_layers(layers, x, apply, given, keep_matmuls=keep_matmuls)
        return self.finished(x, drop)

    def add_tables(self, config: Any, rngs: nnx.Rngs) -> None:
        """Create the tables of embeddings, and the norms outside the layers."""
        raise NotImplementedError

    def embedded(self, words: jax.Array, tokens: jax.Array, lengths: jax.Array, types: jax.Array | None) -> jax.Array:
        """Return the first layer's input without dropout, float32 [B, L, D], from the words' embeddings [B, L, D]."""
        raise NotImplementedError

    def applied(self, lengths: jax.Array, length: int) -> Callable[[Any, jax.Array, jax.Array | None, Any], jax.Array]:
        """Return the function of `scan_layers` for rows of `length` tokens with these lengths, padded or packed.

        It takes a tuple of a layer and its adapter, if there are adapters.
        """
        raise NotImplementedError

    def finished(self, x: jax.Array, drop: Dropout) -> jax.Array:
        """Return the result, float32 [B, L, D], from the last layer's, of the residual stream's type; `drop` is the embeddings' dropout."""
        raise NotImplementedError
