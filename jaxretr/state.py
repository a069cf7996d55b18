"""What is carried from step to step."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxretr.models.layers import Params


@jax.tree_util.register_dataclass
@dataclass
class TrainState:
    """The trained parameters and what their optimizer remembers."""

    step: jax.Array
    """Number of finished steps, int32 scalar."""
    params: Params
    opt_state: Any

    @staticmethod
    def create(params: Params, optimizer: optax.GradientTransformation) -> "TrainState":
        """A state before its first step."""
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    def apply_gradients(self, gradients: Params, optimizer: optax.GradientTransformation) -> "TrainState":
        """The state after one optimizer update with these gradients."""
        updates, opt_state = optimizer.update(gradients, self.opt_state, self.params)
        params: Any = optax.apply_updates(self.params, updates)
        return TrainState(self.step + 1, params, opt_state)


@jax.tree_util.register_dataclass
@dataclass
class CorpusTokens:
    """A corpus's token ids, sharded by row over the devices; rows past the corpus's end have length 0."""

    tokens: jax.Array
    """uint16 (int32 for large vocabularies) [N, L], padded on the right."""
    lengths: jax.Array
    """int32 [N]."""


@jax.tree_util.register_dataclass
@dataclass
class CorpusState:
    """The live index: one embedding a passage, sharded by row over the devices."""

    embeddings: jax.Array
    """bfloat16 or float32 [N, D]."""
    encoded_at: jax.Array
    """The number of optimizer steps that the weights behind each row had seen, int32 [N]."""
