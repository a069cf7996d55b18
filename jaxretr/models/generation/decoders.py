"""Models that generate text token by token: causal language models, and T5s."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.models.backbones.backbone import bound_backbone
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.backbones.kept_keys import KeptKeys
from jaxretr.models.backbones.layer_stacks import as_operands, unstack
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.t5 import T5Config
from jaxretr.models.encode import unrolled
from jaxretr.models.scorers import t5_scorer
from jaxretr.models.scorers.causal_lm import CausalLmConfig, next_logits


class Read(NamedTuple):
    """A state of generation: what was read of B rows.

    Attributes:
      kept: each layer's keys and values of what was generated, and of a causal language model's prompts.
      prompt: each layer's keys and values of a T5's prompts; empty for others.
      lengths: lengths of the prompts, int32 [B].
    """

    kept: list[KeptKeys]
    prompt: list[KeptKeys]
    lengths: jax.Array

    def repeated(self, times: int) -> "Read":
        """Return this state with each row so many times."""
        return jax.tree.map(lambda x: jnp.repeat(x, times, axis=0), self)


@dataclass(frozen=True)
class CausalDecoder:
    """A decoder whose prompt and continuation are one row; its layers must be apart."""

    config: CausalLmConfig

    @property
    def vocabulary(self) -> int:
        """V."""
        return self.config.backbone.vocab_size

    def prepared(self, params: Params, dtype: str) -> Params:
        """Return the model's parameters, numpy arrays with stacked layers, as the other methods take them."""
        return unrolled(as_operands(params, dtype))

    def begin(
        self, params: Params, tokens: jax.Array, lengths: jax.Array, room: int, *, dtype: Any
    ) -> tuple[Any, Read]:
        """Read prompts.

        Args:
          tokens: token ids of the prompts, int32 [B, L], padded on the right.
          lengths: int32 [B]; 0 for rows without a prompt.
          room: number of tokens to generate, at most.

        Returns:
          The vocabulary's scores for the first token, float32 [B, V], and the state.
        """
        encoder: Any = bound_backbone(self.config.backbone, params[BACKBONE], dtype=dtype)
        states, kept = encoder.begin(tokens, lengths, room)
        last = jnp.maximum(lengths - 1, 0)[:, None, None]
        logits = next_logits(self.config, params, jnp.take_along_axis(states, last, axis=1), dtype=dtype)
        return logits[:, 0], Read(kept, [], lengths)

    def follow(
        self, params: Params, tokens: jax.Array, number: jax.Array, read: Read, *, dtype: Any
    ) -> tuple[Any, Read]:
        """Read one more token of each row.

        Args:
          tokens: generated tokens, int32 [B].
          number: their number, from 0, int32.

        Returns:
          The vocabulary's scores for the next token, float32 [B, V], and the state.
        """
        encoder: Any = bound_backbone(self.config.backbone, params[BACKBONE], dtype=dtype)
        states, kept = encoder.follow(tokens, read.lengths, number, read.kept)
        return next_logits(self.config, params, states[:, None], dtype=dtype)[:, 0], read._replace(kept=kept)


@dataclass(frozen=True)
class T5Decoder:
    """A T5, whose encoder reads the prompt; its layers must be apart. See `CausalDecoder` for the methods."""

    config: T5Config

    @property
    def vocabulary(self) -> int:
        return self.config.vocab_size

    def prepared(self, params: Params, dtype: str) -> Params:
        # Its matmuls cast their operands themselves.
        return {name: unstack(part) if name in ("encoder", "decoder") else part for name, part in params.items()}

    def begin(
        self, params: Params, tokens: jax.Array, lengths: jax.Array, room: int, *, dtype: Any
    ) -> tuple[Any, Read]:
        config, model = self.config, self._model(params, dtype)
        memory = model.encode(tokens, lengths)
        crosses = [layer.cross.keys_and_values(memory) for layer in model.decoder]
        empty = jnp.zeros((len(tokens), 0, config.num_heads, config.d_kv), dtype)
        kept = [KeptKeys.of(empty, empty, room, dtype) for _ in crosses]
        read = Read(kept, [KeptKeys.of(k, v, 0, dtype) for k, v in crosses], lengths)
        start = jnp.full(len(tokens), config.decoder_start_token_id, jnp.int32)
        return self._follow(model, start, jnp.zeros((), jnp.int32), read)

    def follow(
        self, params: Params, tokens: jax.Array, number: jax.Array, read: Read, *, dtype: Any
    ) -> tuple[Any, Read]:
        # The start token has number 0.
        return self._follow(self._model(params, dtype), tokens, number + 1, read)

    def _follow(self, model: Any, tokens: jax.Array, place: jax.Array, read: Read) -> tuple[Any, Read]:
        states, kept = model.follow(tokens, place, read.kept, read.prompt, read.lengths)
        return model.logits(states[:, None])[:, 0], read._replace(kept=kept)

    def _model(self, params: Params, dtype: Any) -> Any:
        return nnx.merge(t5_scorer.graph(self.config, dtype, stacked=False), params)


Decoder = CausalDecoder | T5Decoder


def decoder_of(config: CausalLmConfig | T5Config) -> Decoder:
    """Return the decoder of a model's shape."""
    if isinstance(config, T5Config):
        return T5Decoder(config)
    # How many tokens of a question are scored has no effect on what is generated.
    return CausalDecoder(replace(config, max_question_length=1))
