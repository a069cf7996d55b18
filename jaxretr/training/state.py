"""The state that a run carries from step to step."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxretr.config import Config
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.partition import join
from jaxretr.runtime.parallel.split_parameters import gathered_like, parts_like


@jax.tree_util.register_dataclass
@dataclass
class ProductCodes:
    """The parameters that a product quantiser has learnt, for index-aware training."""

    codebook: jax.Array
    """float32 [S, C, W]: C centres of each of S blocks of W dimensions; the last block is filled up with zeros."""
    threshold: jax.Array
    """T of the score-aware loss, a length, float32 scalar."""
    learnt_at: jax.Array
    """The number of optimizer steps that the weights behind it had seen, int32 scalar."""


@jax.tree_util.register_dataclass
@dataclass
class StepNumbers:
    """Settings that are arguments of the compiled step: runs that differ in these alone compile one program.

    They are the config's, and no part of a checkpoint.
    """

    peak: Any = field(default_factory=lambda: np.float32(1.0))
    """The highest learning rate, float32 scalar."""
    seed: Any = field(default_factory=lambda: np.uint32(0))
    """The seed of what a step draws, uint32 scalar."""

    @staticmethod
    def of(config: Config) -> "StepNumbers":
        """Return a run's numbers; of the seed, the 32 bits that JAX's keys hold."""
        return StepNumbers(np.float32(config.optimizer.learning_rate), np.uint32(config.train.seed % (1 << 32)))


@jax.tree_util.register_dataclass
@dataclass
class TrainState:
    """The trained parameters, their optimizer's state, and the parameters that stay frozen."""

    step: jax.Array
    """Number of finished steps, int32 scalar."""
    params: Params
    opt_state: Any
    frozen: Params = field(default_factory=dict)
    """Parameters that are not trained: no gradient is computed for them, and the optimizer knows nothing of them."""
    codes: ProductCodes | None = None
    """Product codes, in a run that is aware of them; otherwise None."""
    numbers: StepNumbers = field(default_factory=StepNumbers)
    """The run's learning rate and seed."""
    start: Params | None = None
    """The trained parameters as they were before the first step, where a run needs them (`art.prior`); otherwise None."""

    @staticmethod
    def create(
        params: Params,
        optimizer: optax.GradientTransformation,
        frozen: Params | None = None,
        numbers: StepNumbers | None = None,
        *,
        keeps_start: bool = False,
    ) -> "TrainState":
        """Return a state before its first step; without `numbers`, with a learning rate and a seed of 1 and 0."""
        first, numbers = jnp.zeros((), jnp.int32), numbers or StepNumbers()
        # A copy: a step that updates the parameters in place must leave it.
        start = jax.tree.map(jnp.copy, params) if keeps_start else None
        return TrainState(first, params, optimizer.init(params), frozen or {}, numbers=numbers, start=start)

    @property
    def weights(self) -> Params:
        """All parameters, trained and frozen, as the model has them."""
        return join(self.params, self.frozen)

    @property
    def key(self) -> jax.Array:
        """The PRNG key of the next step."""
        return step_key(self.numbers.seed, self.step)

    def apply_gradients(self, gradients: Params, optimizer: optax.GradientTransformation) -> "TrainState":
        """Return the state after one optimizer update.

        Args:
          gradients: gradients as `reduced` returns them; if a parameter's moments are split over the devices, this
            device's part.
          optimizer: the optimizer that the state was created with.
        """
        parts = parts_like(gradients, self.params)
        update = optax.with_extra_args_support(optimizer).update
        updates, opt_state = update(gradients, self.opt_state, parts, peak=self.numbers.peak)
        params = gathered_like(self.params, optax.apply_updates(parts, updates))
        return dataclasses.replace(self, step=self.step + 1, params=params, opt_state=opt_state)


def step_key(seed: jax.Array, step: jax.Array) -> jax.Array:
    """Return a step's PRNG key, by the run's seed and the step's number."""
    return jax.random.fold_in(jax.random.key(seed), step)


@jax.tree_util.register_dataclass
@dataclass
class TokenRows:
    """Rows of token ids, padded on the right."""

    tokens: jax.Array
    """Token ids, integers [..., L]."""
    lengths: jax.Array
    """Lengths of the rows in tokens, int32 [...]."""


@jax.tree_util.register_dataclass
@dataclass
class CorpusTokens:
    """A corpus's token ids without padding, sharded by row over the devices; rows past the corpus's end have length 0.

    A device holds the ids of its rows one after another. Zeros behind them make the devices' parts equally long, and
    let `width` ids be read from where any row begins.
    """

    ids: jax.Array
    """uint16 (int32 for large vocabularies) [devices * M]; [devices * S, M] where a device has more ids than an int32
    can number: its rows are then cut into S equal parts."""
    offsets: jax.Array
    """Start of each row in its device's part, int32 [N]."""
    lengths: jax.Array
    """Length of each row in tokens, int32 [N]."""
    width: int = field(metadata={"static": True})
    """Number of columns that hold the longest row."""
    guide: jax.Array | None = None
    """Each row's embedding by a guide of the negatives, of length 1, float32 [N, D']; None without one."""
    sets: jax.Array | None = None
    """Number of the set of a mixture whose corpus each row is in, int32 [N], -1 for none; None without a mixture."""

    def ids_at(self, rows: jax.Array, places: jax.Array) -> jax.Array:
        """Return single ids of this device's rows: their numbers and places in them, int32 [...] -> the ids, [...]."""
        if self.ids.ndim == 1:
            return self.ids[self.offsets[rows] + places]
        return self.ids[rows // (len(self.offsets) // len(self.ids)), self.offsets[rows] + places]

    def take(self, rows: jax.Array) -> TokenRows:
        """Return some of this device's rows, padded with 0; call it inside the shard_map, or on a single device.

        Args:
          rows: row numbers on this device, int32 [...].

        Returns:
          tokens [..., width] in the dtype of the ids, and lengths int32 [...].
        """

        def read(row: jax.Array) -> jax.Array:
            start = self.offsets[row]
            if self.ids.ndim == 1:
                return jax.lax.dynamic_slice(self.ids, (start,), (self.width,))
            part = row // (len(self.offsets) // len(self.ids))
            return jax.lax.dynamic_slice(self.ids, (part, start), (1, self.width))[0]

        tokens = jax.vmap(read)(rows.reshape(-1)).reshape(*rows.shape, self.width)
        lengths = self.lengths[rows]
        # The ids after a row's end belong to the next row.
        return TokenRows(jnp.where(jnp.arange(self.width) < lengths[..., None], tokens, 0), lengths)


@jax.tree_util.register_dataclass
@dataclass
class CorpusState:
    """The live index: one embedding a passage, sharded by row over the devices."""

    embeddings: jax.Array
    """One embedding per passage, bfloat16 or float32 [N, D]."""
    encoded_at: jax.Array
    """The number of optimizer steps that the weights behind each row had seen, int32 [N]."""
