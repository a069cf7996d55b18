"""What is carried from step to step."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxretr.models.layers import Params
from jaxretr.models.partition import join


@jax.tree_util.register_dataclass
@dataclass
class ProductCodes:
    """What a product quantiser has learnt, for index-aware training."""

    codebook: jax.Array
    """float32 [S, C, W]: C centres of each of S blocks of W dimensions; the last block is filled up with zeros."""
    threshold: jax.Array
    """T of the score-aware loss, a length, float32 scalar."""
    learnt_at: jax.Array
    """The number of optimizer steps that the weights behind it had seen, int32 scalar."""


@jax.tree_util.register_dataclass
@dataclass
class TrainState:
    """The trained parameters and what their optimizer remembers."""

    step: jax.Array
    """Number of finished steps, int32 scalar."""
    params: Params
    opt_state: Any
    frozen: Params = field(default_factory=dict)
    """Parameters that are not trained: no gradient is computed for them, and the optimizer knows nothing of them."""
    codes: ProductCodes | None = None
    """Of a run that is aware of product codes."""

    @staticmethod
    def create(params: Params, optimizer: optax.GradientTransformation, frozen: Params | None = None) -> "TrainState":
        """A state before its first step."""
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), frozen or {})

    @property
    def weights(self) -> Params:
        """All parameters, trained and frozen, as the model has them."""
        return join(self.params, self.frozen)

    def apply_gradients(self, gradients: Params, optimizer: optax.GradientTransformation) -> "TrainState":
        """The state after one optimizer update with these gradients."""
        updates, opt_state = optimizer.update(gradients, self.opt_state, self.params)
        params: Any = optax.apply_updates(self.params, updates)
        return TrainState(self.step + 1, params, opt_state, self.frozen, self.codes)


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
