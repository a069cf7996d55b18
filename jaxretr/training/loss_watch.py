"""Stops a run whose loss is NaN or infinite, or has jumped, and keeps what is needed to find the cause."""

import math
import statistics
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.mesh import to_host
from jaxretr.runtime.storage.files import atomic_write, write_json

# Number of steps whose median loss is the usual one, and of steps before a loss can be a jump.
_WINDOW, _LEAST = 100, 20

FOLDER = "failed"


class BadLoss(NamedTuple):
    """A step whose loss ends the run."""

    step: int
    """The number of finished steps, this one included."""
    loss: float
    usual: float | None
    """The median loss of the last steps before; None before the first."""


class LossWatch:
    """Checks every step's loss, but fetches several at once, so that no step is waited for."""

    def __init__(self, factor: float | None):
        """
        Args:
          factor: a loss above this many times the median of the last losses is a jump; None: only NaN and infinity are
            bad.
        """
        self._factor = factor
        self._new: list[tuple[int, jax.Array]] = []
        self._seen: deque[float] = deque(maxlen=_WINDOW)

    def note(self, step: int, loss: jax.Array) -> None:
        """Take the loss of a step, float32 scalar, without waiting for it."""
        self._new.append((step, loss))

    def check(self) -> BadLoss | None:
        """Check the losses since the last call; return the first bad one, or None."""
        losses = [float(loss) for _, loss in self._new]
        steps, self._new = [step for step, _ in self._new], []
        for step, loss in zip(steps, losses, strict=True):
            usual = statistics.median(self._seen) if self._seen else None
            # A median of 0 or less, as a margin loss has, is no scale.
            jumped = self._factor is not None and usual is not None and usual > 0 and len(self._seen) >= _LEAST
            if not math.isfinite(loss) or (jumped and loss > self._factor * usual):  # pyright: ignore
                return BadLoss(step, loss, usual)
            self._seen.append(loss)
        return None


class DivergedError(UserError):
    """The loss of a run is NaN, infinite or much too large."""


def stop(workdir: Path, bad: BadLoss, batch: Any, checkpoint: int | None, writes: bool) -> DivergedError:
    """Save the batch and the known facts; return the error that ends the run.

    Args:
      batch: batch of that step, on the devices.
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
        write_json(folder / f"step-{bad.step}.json", report, indent=1)
    before = "" if bad.usual is None else f" (usually {bad.usual:.4g})"
    return DivergedError(
        f"{workdir}: the loss of step {bad.step} is {bad.loss:.4g}{before}; its batch is kept in {folder}: look at it with "
        f"'jaxretr debug replay {workdir}', and train with a lower optimizer.learning_rate in another workdir"
    )


def batch_arrays(batch: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a batch by their place in it; every host must call this."""
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    return {jax.tree_util.keystr(path).strip("."): to_host(x) for path, x in leaves}
