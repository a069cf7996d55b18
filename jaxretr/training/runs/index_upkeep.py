"""Renewal before a step: of a run's live index, or a part of it, and of the product codes of an index-aware run."""

import dataclasses
import logging
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxretr.config import LiveIndex, Train
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.matmul_flops import matmul_flops
from jaxretr.runtime.parallel.mesh import replicate, to_host
from jaxretr.training.runs.whole_corpus import WholeCorpus
from jaxretr.training.state import CorpusState, CorpusTokens, ProductCodes, TrainState
from jaxretr.training.steps.index_aware import make_learn
from jaxretr.training.steps.live_index import IndexProgram

log = logging.getLogger(__name__)


class IndexUpkeep:
    """Keeps the index of one run up to date, as a function of the config and of the number of the step.

    Args:
      train: number of steps, and interval of evaluations.
      evaluates: whether there are dev questions.
    """

    def __init__(self, config: LiveIndex, train: Train, evaluates: bool, whole: WholeCorpus):
        self.config, self.train, self.evaluates, self.whole = config, train, evaluates, whole
        self._every = None if config.rolling and config.refresh_share is not None else config.refresh_every

    # ---- R -----------------------------------------------------------------------------------------------------------

    def counted(self, train: TrainState, index: CorpusState, trace_step: Callable[[], Any]) -> jax.Array | None:
        """Return R of a run that begins, int32 scalar, to be kept in its state; None where the config states it.

        The state keeps it because it depends a little on the devices, whose blocks may hold padding: a run that is
        resumed on others continues with the same slices.

        Args:
          train: the first state.
          index: the first index.
          trace_step: returns the training step's `trace`.
        """
        share = self.config.refresh_share
        if self._every is not None or share is None:
            return None
        corpus: Any = self.whole.refresh_program
        refresh = matmul_flops(corpus.trace(train.weights, self.whole.passages, index, train.step))
        every = steps_of_a_round(share, matmul_flops(trace_step()), refresh)
        log.info("index.refresh_share=%g: every row of the index is encoded again every %d steps", share, every)
        return replicate(self.whole.mesh, np.int32(every))

    def abstract_every(self) -> Any:
        """Return the shape of the result of `counted`."""
        if self._every is not None:
            return None
        return jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(self.whole.mesh, sharding.REPLICATED))

    # ---- what is due -------------------------------------------------------------------------------------------------

    def refreshed(self, train: TrainState, index: CorpusState, number: int) -> CorpusState:
        """Return the index, fully encoded again if that is due before step `number`; a fresh one stays unchanged."""
        return self.whole.refresh(train, index) if self._all_is_due(number) else index

    def rolled(self, train: TrainState, index: CorpusState, number: int, every: jax.Array | None) -> CorpusState:
        """Return the index with the slice of step `number` encoded again, unless all of it is fresh.

        Args:
          index: the index, which is used up.
          number: number of the step, from 0.
          every: the result of `counted` when the run began.
        """
        # The first step finds the index that the run began with.
        if not self.config.rolling or number == 0 or self._all_is_due(number):
            return index
        if self._every is None:
            assert every is not None
            self._every = int(to_host(every))  # Only once, as this waits for the devices.
        return self.whole.roll(train, index, self._every)

    def _all_is_due(self, number: int) -> bool:
        if self.config.rolling:
            return self.evaluates and number > 0 and self.train.is_evaluated(number)
        # After the last step nothing is trained on the index any more, but an evaluation needs a fresh one.
        is_last = self.evaluates and number == self.train.steps
        return is_last or (number > 0 and number % self.config.refresh_every == 0)


def steps_of_a_round(share: float, step_flops: int, corpus_flops: int) -> int:
    """Return R such that encoding an R-th of the corpus before a step is at most `share` of both together.

    Args:
      share: share above 0 and below 1.
      step_flops: operations of a training step, without the slice.
      corpus_flops: operations of encoding the whole corpus.
    """
    return max(1, math.ceil(corpus_flops * (1 - share) / (share * max(1, step_flops))))


def serves_evaluation(index: LiveIndex, train: Train) -> bool:
    """Whether the live index is fresh at every evaluation, so that evaluations need no separate index."""
    return index.rolling or train.eval_every % index.refresh_every == 0 or train.eval_every >= train.steps


# ---- product codes ---------------------------------------------------------------------------------------------------


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
