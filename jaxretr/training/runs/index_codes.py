"""The product codes of an index-aware run: fitted before the first step, and again at a fixed interval of steps."""

import dataclasses

import jax
from jax.sharding import Mesh, NamedSharding

from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel import sharding
from jaxretr.training.state import CorpusTokens, ProductCodes, TrainState
from jaxretr.training.steps.index_aware import make_learn
from jaxretr.training.steps.live_index import IndexProgram


class IndexCodes:
    """Adds product codes to a run's state and keeps them fitted; for runs without any it does nothing.

    Attributes:
      active: whether the run has any.
      every: steps between two fits.
      learn: the compiled fit.
    """

    def __init__(self, program: IndexProgram, mesh: Mesh, rows: int):
        """Prepare the programs; nothing is compiled yet.

        Args:
          program: the run's constants.
          mesh: the devices.
          rows: number of passages on the devices, from the first, that the codes are fitted to.

        Raises:
          UsageError: fewer passages than centres.
        """
        settings = program.index_aware
        self.active = settings.kind == "product"
        if self.active and rows < settings.centres:
            raise UsageError(
                f"index_aware.centres={settings.centres}: {rows} passages are too few to fit them to; give at most {rows}"
            )
        self.every = settings.relearn_every
        self.learn = make_learn(program, mesh, rows)
        self._mesh = mesh

    def abstract(self, train: TrainState, passages: CorpusTokens) -> TrainState:
        """Return the shapes of a state, with those of its codes."""
        if not self.active:
            return train
        codes = jax.eval_shape(self.learn, train.weights, passages, None, train.step, train.numbers.seed)
        return dataclasses.replace(
            train, codes=sharding.abstract(codes, self._mesh, NamedSharding(self._mesh, sharding.REPLICATED))
        )

    def first(self, train: TrainState, passages: CorpusTokens) -> TrainState:
        """Return the state before the first step, with codes fitted from scratch."""
        return self._fitted(train, passages, None) if self.active else train

    def refitted(self, train: TrainState, passages: CorpusTokens, number: int) -> TrainState:
        """Return the state with fresh codes, if they are due before step `number` and were not fitted since."""
        if train.codes is None or not number or number % self.every or int(train.codes.learnt_at) == number:
            return train
        return self._fitted(train, passages, train.codes)

    def _fitted(self, train: TrainState, passages: CorpusTokens, start: ProductCodes | None) -> TrainState:
        return dataclasses.replace(
            train, codes=self.learn(train.weights, passages, start, train.step, train.numbers.seed)
        )
