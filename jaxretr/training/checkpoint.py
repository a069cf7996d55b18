"""Checkpoints of a run; the only file that knows Orbax."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from jaxretr.config import LOWER_IS_BETTER, Config, to_json
from jaxretr.runtime.errors import UserError, reason
from jaxretr.runtime.parallel.hosts import is_of_collective, wait_for_all
from jaxretr.runtime.parallel.mesh import put_tree
from jaxretr.runtime.parallel.sharding import dotted
from jaxretr.runtime.storage.orbax_buckets import teach_orbax
from jaxretr.runtime.storage.paths import is_remote
from jaxretr.training.checkpoint_seals import CheckpointSeals
from jaxretr.training.state import StepNumbers, TrainState


class Checkpoints:
    """The checkpoints of one run, written in the background; the last `keep` and the best one are kept.

    A checkpoint appears under its final name only when it is complete, so a run that is killed at any moment resumes
    from the one before. So does one whose newest checkpoint was damaged afterwards: its files' hashes are stored next
    to the folder, and it is moved to `FOLDER.damaged`.

    Args:
      folder: folder of the checkpoints, on a disk that all hosts see or in a bucket (`jaxretr.runtime.storage.paths.as_path`).
      config: config, stored with each checkpoint; `train.keep` and `train.best_metric` decide which are kept.
    """

    def __init__(self, folder: Path, config: Config):
        policies: Any = ocp.training.preservation_policies
        metric = config.train.best_metric
        best = policies.BestN(
            get_metric_fn=lambda metrics: metrics[metric],
            reverse=metric in LOWER_IS_BETTER,
            n=1,
            keep_checkpoints_without_metrics=False,
        )
        self.config = config
        self._seals = CheckpointSeals(folder) if jax.process_index() == 0 else None
        if self._seals is not None:
            self._seals.set_damaged_aside()
        wait_for_all("the look at the checkpoints")
        self._remote = is_remote(folder)
        if self._remote:
            teach_orbax()
        self._checkpointer = ocp.training.Checkpointer(
            str(folder if self._remote else folder.absolute()),
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(config.train.keep), best]),
            cleanup_tmp_directories=True,
        )
        self._saving: Any = None

    @property
    def latest(self) -> int | None:
        """Return the newest complete checkpoint's step; None if there is none."""
        latest = self._checkpointer.latest
        return None if latest is None else latest.step

    @property
    def steps(self) -> list[int]:
        """Return the steps of all complete checkpoints, in order."""
        return sorted(checkpoint.step for checkpoint in self._checkpointer.checkpoints)

    def has_metrics(self, step: int) -> bool:
        """Whether a complete checkpoint was saved with an evaluation's metrics."""
        return bool(next(each for each in self._checkpointer.checkpoints if each.step == step).metrics)

    def save(self, step: int, state: Any, metrics: dict[str, float] | None = None) -> None:
        """Start writing a checkpoint; return as soon as the arrays are copied off the devices."""
        if step == self.latest:
            return
        with self._writing():
            # Orbax waits for the previous checkpoint, too, which is complete now.
            self._finish()
            self._seal()
            self._saving = self._checkpointer.save_async(
                step,
                _with_numbers(state, None),
                force=True,
                metrics=None if metrics is None else {**metrics},
                custom_metadata={"config": to_json(self.config)},
            )
            if self._seals is not None and self._saving is not None:
                # Not together with the next one: a run that is killed in between resumes from this one.
                self._saving.on_complete(lambda _: self._seals and self._seals.begin(step))

    def restore(self, like: Any, step: int | None = None) -> Any:
        """Read a checkpoint onto the devices.

        Args:
          like: the state's tree with ShapeDtypeStructs that carry shardings; any number of devices will do. Fields of a
            NamedTuple that have a default get it where the checkpoint is older than they are.
          step: step of the checkpoint; None: the newest.

        Raises:
          UserError: the checkpoint holds other arrays than `like` (another model, corpus or optimizer).
        """
        step = self.latest if step is None else step
        with self._reading(step):
            saved = self._checkpointer.metadata(step).metadata
            if not jax.tree.leaves(saved):
                raise ValueError("its list of arrays is damaged")
        like = _with_numbers(_without_newer_fields(saved, like), None)
        differences = _differences(saved, like)
        if differences:
            raise UserError(
                f"{self._checkpointer.directory}/{step}: the checkpoint does not fit this config: {differences[0]}"
                f"{f' and {len(differences) - 1} more' if len(differences) > 1 else ''}; "
                "use the config it was made with, or another workdir="
            )
        with self._reading(step):
            return _with_numbers(self._load(step, saved, like), self.config)

    def _load(self, step: int | None, saved: Any, like: Any) -> Any:
        """Read the arrays in the form that they were saved in; `like` may have places for None that older ones lack."""
        wanted = {dotted(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(like)}
        form = jax.tree_util.tree_map_with_path(lambda path, _: wanted[dotted(path)], saved)
        loaded = self._checkpointer.load(step, form)
        arrays = {dotted(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(loaded)}
        return jax.tree_util.tree_map_with_path(lambda path, _: arrays[dotted(path)], like)

    def field(self, name: str, step: int) -> Any:
        """Read one field of a state into this process's memory, and nothing else.

        Args:
          name: name of a field of the state's NamedTuple.
          step: step of the checkpoint.

        Returns:
          Dicts of arrays; None where the checkpoint has no such field.

        Raises:
          UserError: the checkpoint cannot be read.
        """
        place = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        with self._reading(step):
            saved = self._checkpointer.metadata(step).metadata.get(name)
            if not jax.tree.leaves(saved):
                return None
            like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), saved)
            loading = ocp.options.PyTreeOptions.Loading(partial_load=True)
            with ocp.Context(pytree_options=ocp.options.PyTreeOptions(loading=loading)):
                return self._checkpointer.load(step, {name: like})[name]

    def wait(self) -> None:
        """Wait until everything is on disk."""
        with self._writing():
            self._finish()
            self._seal()
            if self._seals is not None:
                self._seals.wait()

    def _finish(self) -> None:
        """Wait for the checkpoint that is being written, and end Orbax's thread, which otherwise stays until exit."""
        saving, self._saving = self._saving, None
        try:
            self._checkpointer.wait()
        finally:
            if saving is not None:
                saving.result()

    def _seal(self) -> None:
        if self._seals is not None:
            self._seals.seal(self.steps)

    @contextlib.contextmanager
    def _reading(self, step: int | None) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Orbax's and tensorstore's own, several kinds.
            if is_of_collective(error) or isinstance(error, MemoryError):
                raise
            remedy = (
                "see that the bucket can be reached, and run the same command again"
                if self._remote
                else "move that folder away to resume from the checkpoint before it"
            )
            raise UserError(
                f"{self._checkpointer.directory}/{step}: cannot be read ({reason(error)}); {remedy}"
            ) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # Orbax reports a full disk as a ValueError of many lines.
            if is_of_collective(error):
                raise
            remedy = "see that the bucket can be written" if self._remote else "free disk space"
            raise UserError(
                f"{self._checkpointer.directory}: the checkpoint cannot be written ({reason(error)}); "
                f"{remedy} and run again, or pass another workdir="
            ) from error

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._checkpointer.close()
        finally:
            if self._seals is not None:
                self._seals.close()


def _with_numbers(state: Any, config: Config | None) -> Any:
    """Return a state with the numbers of its config, or with none, as it is saved."""

    def one(part: Any) -> Any:
        if not isinstance(part, TrainState):
            return part
        place: Any = part.step.sharding
        numbers = None if config is None else put_tree(StepNumbers.of(config), StepNumbers(place, place))
        return dataclasses.replace(part, numbers=numbers)

    return jax.tree.map(one, state, is_leaf=lambda part: isinstance(part, TrainState))


def _without_newer_fields(saved: Any, like: Any) -> Any:
    """Return `like` with the defaults of those fields that have one and of which nothing was saved."""
    have = {dotted(path).split(".")[0] for path, _ in jax.tree_util.tree_leaves_with_path(saved)}
    defaults: dict[str, Any] = getattr(like, "_field_defaults", {})
    newer = {name: default for name, default in defaults.items() if name not in have}
    return like._replace(**newer) if newer else like


def _differences(saved: Any, like: Any) -> list[str]:
    """List the arrays that are missing, superfluous or of another shape in a saved tree, one line each."""
    have, want = (
        {dotted(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)} for tree in (saved, like)
    )
    lines = [f"{name} is not in it" for name in want if name not in have]
    lines += [f"{name} is not in the config's model" for name in have if name not in want]
    lines += [
        f"{name} has shape {list(have[name].shape)}, the config needs {list(want[name].shape)}"
        for name in want
        if name in have and tuple(have[name].shape) != tuple(want[name].shape)
    ]
    return lines
