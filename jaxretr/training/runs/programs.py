"""The optimizer of a run, its first state, and its batches on the devices."""

from collections.abc import Collection
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr.config import Config
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.partition import partition
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.mesh import put_rows
from jaxretr.training import optim
from jaxretr.training.state import StepNumbers, TrainState


class Programs:
    """The optimizer and the first state of a run, whichever programs it compiles.

    Attributes:
      optimizer: optimizer of the trained parameters.
    """

    def __init__(
        self, config: Config, mesh: Mesh, frozen: tuple[str, ...], *, split: bool = False, keeps_start: bool = False
    ):
        """Build the optimizer.

        Args:
          frozen: names of branches of the parameters that are not trained.
          split: whether large matrices and their moments are split over the "data" axis, as in `sharding.shardings`.
          keeps_start: whether the state keeps its first parameters.
        """
        self.config: Any = config
        self.mesh, self.frozen, self.split, self.keeps_start = mesh, frozen, split, keeps_start
        self.optimizer = optim.build(config.optimizer, config.train.steps)

    def first_state(self, params: Params) -> TrainState:
        """Return the state before the first step, on the devices, with these parameters."""
        # A copy: the first step donates these buffers, and the model keeps its own.
        placed = sharding.put(jax.tree.map(np.array, params), self.mesh, split=self.split)
        trained, kept = partition(placed, self.frozen)
        numbers = StepNumbers.of(self.config)
        state = TrainState.create(trained, self.optimizer, kept, numbers, keeps_start=self.keeps_start)
        return sharding.put(state, self.mesh, split=self.split)


def abstract_train_state(
    params: Params,
    optimizer,
    mesh: Mesh,
    frozen: Collection[str] = (),
    *,
    split: bool = False,
    keeps_start: bool = False,
) -> TrainState:
    """Return the shapes and shardings of `Programs.first_state`; only the shapes of `params` are read."""
    state = jax.eval_shape(
        lambda trained, kept: TrainState.create(trained, optimizer, kept, keeps_start=keeps_start),
        *partition(params, frozen),
    )
    return sharding.abstract(state, mesh, split=split)


def put_batch(mesh: Mesh, batch: Any) -> Any:
    """Put the arrays of a batch on the devices, split by row."""
    return jax.tree.map(lambda array: put_rows(mesh, array, array.shape, array.dtype), batch)
