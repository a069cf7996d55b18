"""Stops a run whose loss is NaN or infinite, or has jumped, and keeps what is needed to find the cause."""

import json
import math
import statistics
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxretr.errors import UserError
from jaxretr.parallel.mesh import to_host
from jaxretr.storage.files import atomic_write

# Steps of which the median is the usual loss, and after how many of them a jump is one.
_WINDOW, _LEAST = 100, 20

FOLDER = "failed"


class BadLoss(NamedTuple):
    """A step after which a run stops."""

    step: int
    """The number of finished steps, this one included."""
    loss: float
    usual: float | None
    """The median of the losses before; None before the first."""


class LossWatch:
    """Looks at every step's loss, but fetches them together: a step is not waited for to look at it."""

    def __init__(self, factor: float | None):
        """
        Args:
          factor: of the median of the last losses, above which a loss is a jump; None: only NaN and infinity are bad.
        """
        self._factor = factor
        self._new: list[tuple[int, jax.Array]] = []
        self._seen: deque[float] = deque(maxlen=_WINDOW)

    def note(self, step: int, loss: jax.Array) -> None:
        """Takes the loss of a step."""
        self._new.append((step, loss))

    def check(self) -> BadLoss | None:
        """Looks at the losses since the last check; the first that is bad, if any is."""
        losses = [float(loss) for _, loss in self._new]
        steps, self._new = [step for step, _ in self._new], []
        for step, loss in zip(steps, losses, strict=True):
            usual = statistics.median(self._seen) if self._seen else None
            jumped = self._factor is not None and usual is not None and len(self._seen) >= _LEAST
            if not math.isfinite(loss) or (jumped and loss > self._factor * usual):  # pyright: ignore
                return BadLoss(step, loss, usual)
            self._seen.append(loss)
        return None


def stop(workdir: Path, bad: BadLoss, batch: Any, checkpoint: int | None, writes: bool) -> UserError:
    """Keeps the batch and what is known; returns the error that ends the run.

    Args:
      workdir: the run's folder.
      bad: the step.
      batch: of that step, on the devices.
      checkpoint: the step of the newest checkpoint before it.
      writes: whether this host is the one that writes.
    """
    arrays = batch_arrays(batch)
    folder = workdir / FOLDER
    if writes:
        folder.mkdir(exist_ok=True)
        with atomic_write(folder / f"step-{bad.step}.npz", "wb") as file:
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
        report = {"step": bad.step, "loss": str(bad.loss), "usual_loss": bad.usual, "checkpoint": checkpoint}
        with atomic_write(folder / f"step-{bad.step}.json") as file:
            json.dump(report, file, indent=1)
    before = "" if bad.usual is None else f" (usually {bad.usual:.4g})"
    return UserError(
        f"{workdir}: the loss of step {bad.step} is {bad.loss:.4g}{before}; its batch is kept in {folder}: look at it with "
        f"'jaxretr debug replay {workdir}', and train with a lower --optimizer.learning-rate in another --workdir"
    )


def batch_arrays(batch: Any) -> dict[str, np.ndarray]:
    """The arrays of a batch by their place in it; every host must call this."""
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    return {jax.tree_util.keystr(path).strip("."): to_host(x) for path, x in leaves}
