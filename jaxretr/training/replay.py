"""A training step that went wrong, repeated from the checkpoint before it."""

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.config import from_json
from jaxretr.runtime.errors import UsageError, UserError, at_least
from jaxretr.runtime.notes import HeldNotes
from jaxretr.runtime.parallel.hosts import together
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.runtime.parallel.sharding import dotted
from jaxretr.runtime.storage.paths import as_path
from jaxretr.runtime.storage.run_folder import RunFolder
from jaxretr.runtime.storage.sealed_folder import read_object
from jaxretr.training.checkpoint import Checkpoints
from jaxretr.training.loop import build
from jaxretr.training.loss_watch import FOLDER, batch_arrays
from jaxretr.training.runs.run_inputs import changed_inputs, with_own_parts

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Replay:
    """Results of repeated steps of a run.

    Attributes:
      checkpoint: the step whose checkpoint they began from.
      metrics: metrics of each step after it, by the step's number from 1; the last is the step in question.
      changed: names of the run's data, models and functions that are others now than it began with.
      same_batch: whether its batch is the one that was kept when it failed; None if none was kept.
      broken_before: names of the parameters that were NaN or infinite before the step in question.
      broken_after: names of the parameters that were NaN or infinite after it.
    """

    checkpoint: int
    metrics: dict[int, dict[str, float]]
    changed: tuple[str, ...]
    same_batch: bool | None
    broken_before: tuple[str, ...]
    broken_after: tuple[str, ...]

    @property
    def step(self) -> int:
        """Number of the step in question, from 1."""
        return max(self.metrics)

    def table(self) -> str:
        """Return the steps as text, one per line."""
        lines = [
            f"step {step}  " + "  ".join(f"{name} {value:.6g}" for name, value in values.items())
            for step, values in self.metrics.items()
        ]
        about = [_finite("before", self.broken_before)]
        if self.same_batch is not None:
            which = "the one that failed" if self.same_batch else "ANOTHER than the one that failed"
            about.insert(0, f"the batch of step {self.step} is {which}")
        if self.changed:
            about.insert(0, f"NOT the run's own steps: it began with another {', another '.join(self.changed)}")
        start = f"from the checkpoint of step {self.checkpoint}"
        return "\n".join([start, *lines[:-1], *about, lines[-1], _finite("after", self.broken_after)])


def replay(workdir: str | os.PathLike[str], step: int | None = None) -> Replay:
    """Repeat a step of a run from the newest checkpoint before it; the run's folder stays unchanged.

    Args:
      workdir: the run's folder.
      step: counted from 1; None: the last one that failed.

    Raises:
      UserError: no run, no step that failed, or no checkpoint before the step.
      UsageError: the run has no such step.
    """
    at_least(1, step=step)
    with RunFolder(as_path(workdir), writes=False, reads=(FOLDER,)) as folder:
        path = folder.local / "config.json"
        values = read_object(path, "give the folder of a training run as workdir=")
        config = from_json(values, str(folder.local))
        last = _last_failed(folder.local) if step is None else step
        if last > config.train.steps:
            raise UsageError(f"step={last}: the run has {config.train.steps} steps; name one of them")
        with together():
            with HeldNotes():  # The run has said them.
                run = build(config, make_mesh(model=config.mesh.model), folder.local)
                changed = changed_inputs(folder.local, with_own_parts(run.inputs(), config))
            with Checkpoints(folder.checkpoints, config) as checkpoints:
                before = [saved for saved in checkpoints.steps if saved < last]
                if not before:
                    raise UserError(f"{folder.checkpoints}: none is older than step {last}; nothing can be replayed")
                state = checkpoints.restore(run.abstract_state(), before[-1])
            same, broken, metrics = None, (), {}
            for number in range(before[-1], last):
                batch = run.batch(number)
                if number + 1 == last:
                    same, broken = _is_kept_batch(folder.local, last, batch_arrays(batch)), _broken(state)
                state, reported = run.step(state, number, batch)
                metrics[number + 1] = {name: float(value) for name, value in reported.items()}
                log.info("replayed step %d of %d: loss %.6g", number + 1, last, metrics[number + 1]["loss"])
            return Replay(before[-1], metrics, tuple(changed), same, broken, _broken(state))


def _last_failed(workdir: Path) -> int:
    steps = [int(path.stem.split("-")[1]) for path in (workdir / FOLDER).glob("step-*.json")]
    if not steps:
        raise UserError(f"{workdir / FOLDER}: no step has failed in this run; name one with step=")
    return max(steps)


def _is_kept_batch(workdir: Path, step: int, batch: dict[str, np.ndarray]) -> bool | None:
    """Whether the batch is the one that was kept; None if none was."""
    path = workdir / FOLDER / f"step-{step}.npz"
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as kept:
        return set(kept.files) == set(batch) and all(np.array_equal(kept[name], batch[name]) for name in batch)


def _broken(state: Any) -> tuple[str, ...]:
    """Return the names of the arrays with a NaN or an infinity."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    numbers = [(path, x) for path, x in leaves if jnp.issubdtype(x.dtype, jnp.floating)]
    names = [dotted(path) for path, x in numbers if not bool(jnp.isfinite(x).all())]
    return tuple(re.sub(r"^train\.", "", name) for name in names)


def _finite(when: str, broken: tuple[str, ...]) -> str:
    more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
    found = f"NaN or infinity in {', '.join(broken[:5])}{more}" if broken else "all parameters are finite"
    return f"{when} the step: {found}"
