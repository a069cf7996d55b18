"""The training program: any objective, on one device or a pod, from a config file to a model folder.

Read it from top to bottom. What differs from one objective to the other (data, model, compiled step, evaluation) is
in jaxretr/training/runs/; what one step does is in jaxretr/training/steps/.
"""

import contextlib
import dataclasses
import inspect
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
import optax
from jax.sharding import Mesh

from jaxretr.config import (
    LOWER_IS_BETTER,
    ArtConfig,
    Config,
    ContrastiveConfig,
    EmbeddingDistillationConfig,
    MlmConfig,
    PassageLmConfig,
    RerankerConfig,
    check_numbers,
    from_json,
    to_json,
    with_settings,
)
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.notes import HeldNotes
from jaxretr.runtime.own_parts import name_of, refuse_while_looking_for_parts
from jaxretr.runtime.parallel.compilation_cache import keep_programs
from jaxretr.runtime.parallel.hosts import EXIT_AGAIN, AskedToStop, agree, program_facts, together
from jaxretr.runtime.parallel.machine import cpu_name, cpu_threads
from jaxretr.runtime.parallel.mesh import DATA, make_mesh
from jaxretr.runtime.parallel.programs import programs
from jaxretr.runtime.storage.files import write_json
from jaxretr.runtime.storage.paths import as_path
from jaxretr.runtime.storage.run_folder import RunFolder
from jaxretr.runtime.storage.sealed_folder import read_object
from jaxretr.training.checkpoint import Checkpoints
from jaxretr.training.interruption import Interruption
from jaxretr.training.loss_watch import LossWatch, stop
from jaxretr.training.metrics_log import MetricsLog, read_best, read_metrics, read_starts
from jaxretr.training.optim import with_averages
from jaxretr.training.profiling import StepTrace, Stopwatch
from jaxretr.training.runs.corpus_sizes import CorpusSize
from jaxretr.training.runs.outline import Outline
from jaxretr.training.runs.run_inputs import Inputs, at_new_paths, check_inputs, with_own_parts, write_inputs
from jaxretr.training.trackers.background import check_installed, open_trackers

log = logging.getLogger(__name__)


class Run(Protocol):
    """One objective with its data and model, as this program drives it. A state is a tree of sharded arrays."""

    @property
    def config(self) -> Config:
        """The settings."""
        ...

    def inputs(self) -> Inputs:
        """Fingerprints of what the run reads, data and models, and of what it makes of them."""
        ...

    def init(self) -> Any:
        """The state before the first step."""
        ...

    def abstract_state(self) -> Any:
        """ShapeDtypeStructs with shardings, for reading a checkpoint."""
        ...

    def batch(self, number: int) -> Any:
        """The batch of step `number` (from 0) on the devices, a function of (seed, number) alone."""
        ...

    def step(self, state: Any, number: int, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        """Step `number` with its batch -> (state, metrics). A function of its arguments alone; `state` is used up."""
        ...

    def refreshed(self, state: Any, number: int) -> Any:
        """The state with what is due before step `number`, such as a refreshed live index; the same state if nothing is.

        `step` begins with it. What was done already, as the state tells, is not done again; `state` is used up.
        """
        ...

    def evaluate(self, state: Any) -> dict[str, float]:
        """Metrics on the dev set; empty if there is none. The state stays usable, also where a signal breaks it off."""
        ...

    def evaluated(self) -> str:
        """Return a text for the log that says which data an evaluation reads; empty if there is no dev set."""
        ...

    def save_model(self, state: Any, folder: Path) -> None:
        """Write the model in the form that users load."""
        ...


def build(config: Config, mesh: Mesh, workdir: Path) -> Run:
    """Read a run's data and models and compile nothing yet."""
    return _recipe(config)(config, mesh, workdir)


def outline(config: Config, mesh: Mesh, size: CorpusSize) -> Outline:
    """Give a run's programs and the shapes of their arguments; read no weights and allocate nothing.

    Args:
      mesh: the devices, which need not be here.

    Raises:
      UserError: a model whose shape is not known, or settings that contradict each other.
    """
    config.check()
    return _recipe(config).outline(config, mesh, size)


def check_batch(config: Config, mesh: Mesh) -> None:
    """Raise UsageError for a batch that does not divide over the devices."""
    if config.train.batch_size % mesh.shape[DATA]:
        raise UsageError(
            f"train.batch_size={config.train.batch_size} does not divide over {mesh.shape[DATA]} devices; "
            f"set train.batch_size to a multiple of {mesh.shape[DATA]}"
        )


def _recipe(config: Config) -> Any:
    # Imported here: each run pulls in its own models.
    if isinstance(config, ArtConfig):
        from jaxretr.training.runs.art import ArtRun as run
    elif isinstance(config, ContrastiveConfig):
        from jaxretr.training.runs.contrastive import ContrastiveRun as run
    elif isinstance(config, RerankerConfig):
        from jaxretr.training.runs.cross_encoder import CrossEncoderRun as run
    elif isinstance(config, MlmConfig):
        from jaxretr.training.runs.mlm import MlmRun as run
    elif isinstance(config, PassageLmConfig):
        from jaxretr.training.runs.passage_lm import PassageLmRun as run
    elif isinstance(config, EmbeddingDistillationConfig):
        from jaxretr.training.runs.embedding_distillation import EmbeddingDistillationRun as run
    else:
        raise UsageError(f"{type(config).__name__}: no run for this kind of config")
    return run


@dataclass(frozen=True, eq=False)
class TrainResult(Mapping[str, float]):
    """Result of a finished run: a mapping of its metrics, and its model.

    Attributes:
      metrics: of the best evaluation; of the last step where there is no dev set.
      best: the step of the best evaluation; None where there is no dev set.
      model: the folder of the best model, as `load_encoder` takes it; of the last one where there is no dev set.
    """

    metrics: dict[str, float]
    best: int | None
    model: Path

    def __getitem__(self, name: str) -> float:
        return self.metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)


def train(
    config: Config,
    workdir: str | os.PathLike[str],
    *,
    loss: Callable[..., jax.Array] | None = None,
    optimizer: Callable[..., optax.GradientTransformation] | None = None,
    schedule: Callable[[Any, int], Any] | None = None,
    on_step: Callable[[int, dict[str, jax.Array]], object] | None = None,
    profile_steps: tuple[int, int] | None = None,
) -> TrainResult:
    """Train by a config to the last step; resume automatically if `workdir` contains a checkpoint.

    The folder holds config.json, checkpoints/, metrics.jsonl, tensorboard/, and at the end model/: the best model by
    `train.best_metric`, or the last one where there is no dev set.

    Args:
      config: the settings; a folder that was started with others, or with other contents of the files, is refused.
      workdir: the run's folder, created when missing; on a disk or in a bucket (`jaxretr.runtime.storage.paths.as_path`).
      loss: a loss in place of the softmax cross-entropy of a contrastive run, with the arguments of
        `jaxretr.losses.contrastive.contrastive_losses`: (scores, positive, negative) -> float32 [...]; the config's
        `contrastive.loss`. Like the next two, it is part of the run: the folder resumes only with the same source.
      optimizer: a function that is called as optax's optimizers are, with `learning_rate=1.0` and `optimizer.arguments`, and
        returns a transformation; the config's `optimizer.name`.
      schedule: a function of (step from 1, steps) whose values multiply the learning rate, in addition to the warm-up; the
        config's `optimizer.schedule`.
      on_step: is called after every step, on every host, with its number from 1 and its metrics, which are on the devices:
        reading one waits for the step.
      profile_steps: first and last step, counted from 1, of a trace in the folder's profile/.

    Returns:
      The metrics and the model; equal to a dict of the metrics.

    Raises:
      UserError: bad input, a folder that cannot be written, a checkpoint of another shape, or a folder that was started
        with other data or models.
      SystemExit: a signal asked the run to stop; everything is saved. The code is `EXIT_AGAIN`.
    """
    refuse_while_looking_for_parts()
    if not isinstance(config, Config):
        raise UsageError(f"a Config is expected, not a {type(config).__name__}; load it with load_config")
    try:
        if on_step is not None:
            inspect.signature(on_step).bind(1, {})
    except TypeError as error:
        raise UsageError(f"on_step={on_step!r}: is called with a step's number and its metrics ({error})") from None
    config = _with_own_parts(
        config, {"contrastive.loss": loss, "optimizer.name": optimizer, "optimizer.schedule": schedule}
    )
    check_numbers(config)
    keep_programs()
    path = as_path(workdir)
    with together(), open_folder(path) as folder:
        best, values = _train(config, folder, profile_steps, on_step or (lambda *_: None))
    model = path / "model"
    if best is None:
        return TrainResult(values, None, model)
    if jax.process_index() == 0 and not model.is_dir():  # The process that writes it.
        raise UserError(
            f"{model}: is gone, and the run is finished: this was its best model, of step {best['step']}. Restore it, or "
            "remove best.json and run again for the last step's"
        )
    return TrainResult(best["figures"], best["step"], model)


def _with_own_parts(config: Config, parts: Mapping[str, Callable[..., Any] | None]) -> Config:
    """Return the config with the names of functions that were given in Python, by setting."""
    given = {setting: name_of(part, setting) for setting, part in parts.items() if part is not None}
    for setting, name in given.items():
        section, _, key = setting.partition(".")
        stated = getattr(config, section, None)
        if stated is not None and getattr(stated, key) not in (name, getattr(type(stated), key)):
            raise UsageError(
                f"{setting}={getattr(stated, key)}: the config says so, and a function was given to jaxretr.train as well; "
                "leave one of them out"
            )
    if "contrastive.loss" in given:
        if not isinstance(config, ContrastiveConfig):
            raise UsageError(
                f"loss: only contrastive runs take one, and {config.name} is another kind of run; leave it out"
            )
        own = next((each.name for each in config.data.mixture if each.contrastive is not None), None)
        if own is not None:
            raise UsageError(
                f"loss: set {own} has a contrastive section of its own, with a loss; leave one of them out, or name the loss "
                "there as FILE.py:FUNCTION"
            )
    return with_settings(config, given) if given else config


def open_folder(workdir: Path) -> RunFolder:
    """The run's folder, which the first process puts in order before the others of its machine read it."""
    if jax.process_index() == 0:
        folder = RunFolder(workdir, writes=True)
        agree("the run's folder", {})
        return folder
    agree("the run's folder", {})
    return RunFolder(workdir, writes=False)


def _train(
    config: Config,
    folder: RunFolder,
    profile_steps: tuple[int, int] | None,
    on_step: Callable[[int, dict[str, jax.Array]], object],
) -> tuple[dict[str, Any] | None, dict[str, float]]:
    """Return the best evaluation, as in best.json, and the metrics of the last step."""
    # ---- devices, data, model ------------------------------------------------------------------------------------
    needed_before = programs()
    sections = {f"config.{name}": json.dumps(value) for name, value in to_json(config).items()}
    agree("the beginning", {**program_facts(), **sections, "workdir": str(folder)})
    mesh = make_mesh(model=config.mesh.model)
    check_batch(config, mesh)
    writes, workdir = jax.process_index() == 0, folder.local
    claim(workdir, config, writes)
    if writes:
        folder.lock()
        check_installed(config)
    notes = HeldNotes()
    with notes:
        run = build(config, mesh, workdir)
        inputs = with_own_parts(run.inputs(), config)
    agree("the first step", {**inputs.read, **inputs.made})
    check_inputs(workdir, inputs, config)

    with Checkpoints(folder.checkpoints, config) as checkpoints, Interruption() as interruption:
        # ---- begin or resume -------------------------------------------------------------------------------------
        start, new = checkpoints.latest or 0, checkpoints.latest is None
        with notes, interruption.ends_at_once() if new else contextlib.nullcontext():
            state = run.init() if new else checkpoints.restore(run.abstract_state())
        if writes:
            # Only now: bad input, or a checkpoint that does not fit, must not bind the folder to this config.
            write_config(workdir, config)
            write_inputs(workdir, inputs)
            if start < config.train.steps:
                note_start(workdir, start, mesh)
        if start == config.train.steps:
            log.info("%s: all %d steps are done; nothing is left to train", folder, start)
        else:
            notes.say()
            if start:
                log.info("resuming from step %d", start)
        best = read_best(workdir, config.train.best_metric)

        # ---- steps -----------------------------------------------------------------------------------------------
        watch = LossWatch(config.train.stop_factor)
        clock, trace = Stopwatch(), StepTrace(profile_steps, workdir, start, config.train.steps)
        going = writes and start < config.train.steps
        trackers = open_trackers(workdir, config, str(folder)) if going else []
        with (
            MetricsLog(workdir, start=start, total=config.train.steps, writes=writes, trackers=trackers) as metrics_log,
            contextlib.closing(trace),
        ):
            lines = read_metrics(workdir) if start else []
            values = {name: value for name, value in lines[-1].items() if name != "step"} if lines else {}
            if new:
                # An index that is still being encoded: nobody else is to wait for it, and have its time.
                with interruption.ends_at_once(), clock.part("start"):
                    jax.block_until_ready(state)
                if what := run.evaluated():
                    log.info("evaluating before the first step: %s", what)
                with interruption.ends_at_once(), clock.part("evaluation"):
                    best = evaluate(run, state, 0, best, workdir, metrics_log, writes)
                with clock.part("checkpoints"):
                    folder.push()
                    checkpoints.save(0, state, best["figures"] if best else None)
            elif config.train.is_evaluated(start) and not checkpoints.has_metrics(start) and (what := run.evaluated()):
                log.info("evaluating step %d, which was interrupted before: %s", start, what)
                with interruption.ends_at_once(), clock.part("evaluation"):
                    best = evaluate(run, state, start, best, workdir, metrics_log, writes)
            if start < config.train.steps:
                log.info("%d steps to go; compiling the first takes a while", config.train.steps - start)
            for number in range(start, config.train.steps):
                step = number + 1
                with trace.step(step):
                    with clock.part("input"):
                        batch = run.batch(number)
                    with clock.part("steps" if number > start else "first step"):
                        state, metrics = run.step(state, number, batch)
                if number == start:
                    log.info("%s before and in the first step", programs() - needed_before)
                trace.end(step, metrics)
                on_step(step, metrics)
                watch.note(step, metrics["loss"])
                last = step == config.train.steps
                stopping = interruption.reached(step)
                logs = step % config.train.log_every == 0 or last
                evaluates = config.train.is_evaluated(step)
                saves = step % config.train.save_every == 0 or last or stopping
                # Before anything is saved: a run can resume from every checkpoint.
                with clock.part("steps"):
                    bad = watch.check() if logs or evaluates or saves else None
                if bad:
                    checkpoints.wait()
                    older = [saved for saved in checkpoints.steps if saved < bad.step]
                    raise stop(workdir, bad, run.batch(bad.step - 1), max(older, default=None), writes)
                if logs:
                    values = {name: float(value) for name, value in metrics.items()}
                    metrics_log.write(step, values, examples=config.train.batch_size, seconds=clock.news())
                measured = None
                if evaluates:
                    with clock.part("evaluation"):
                        # Due before the next step, and so encoded once for both.
                        state = run.refreshed(state, step)
                        try:
                            best = evaluate(run, state, step, best, workdir, metrics_log, writes, interruption)
                            measured = best and best["latest"]
                        except AskedToStop:  # The step is saved without metrics, and evaluated when the run resumes.
                            saves = stopping = True
                if measured or saves:
                    with clock.part("checkpoints"):
                        folder.push()
                        checkpoints.save(step, state, measured)
                if stopping:
                    checkpoints.wait()
                    log.warning("interrupted: saved step %d; run the same command again to resume", step)
                    raise SystemExit(EXIT_AGAIN)
            with clock.part("checkpoints"):
                checkpoints.wait()
        if start < config.train.steps:
            log.info("%s", clock.summary())
            if best is not None and best["step"] == 0:
                note_no_gain(best, config.train.best_metric, workdir, writes)

    # ---- the model -----------------------------------------------------------------------------------------------
    if best is None:
        # By all processes: arrays that are split over their devices come together first. One of them writes.
        run.save_model(with_averages(state), workdir / "model")
    return best, values


def evaluate(
    run: Run,
    state: Any,
    step: int,
    best: dict[str, Any] | None,
    workdir: Path,
    metrics_log: MetricsLog,
    writes: bool,
    interruption: Interruption | None = None,
) -> dict[str, Any] | None:
    """Evaluate; save the model if it is the best so far. Returns the best so far, None without a dev set.

    Raises:
      AskedToStop: a signal came during the measurement, or before it, and `interruption` was given.
    """
    state = with_averages(state)
    with interruption.breaks_off() if interruption else contextlib.nullcontext():
        metrics = run.evaluate(state)
    if not metrics:
        return None
    metrics_log.write(step, metrics)
    metric = run.config.train.best_metric
    if metric not in metrics:
        raise UsageError(f"train.best_metric={metric}: the evaluation gives {', '.join(metrics)}; choose one of these")
    sign = -1 if metric in LOWER_IS_BETTER else 1
    if best is None or sign * metrics[metric] > sign * best["figures"][metric]:
        best = {"step": step, "figures": metrics}
        run.save_model(state, workdir / "model")
        metrics_log.best(step, metrics)
        if writes:
            write_json(workdir / "best.json", best)
    return {**best, "latest": metrics}


def note_no_gain(best: dict[str, Any], metric: str, workdir: Path, writes: bool) -> None:
    """Report, in the log and in best.json, that the best model is the one that the run started from."""
    before, after = (best[name][metric] for name in ("figures", "latest"))
    note = (
        f"the best checkpoint is the start: training did not improve validation {metric} ({before:.4f} -> {after:.4f})"
    )
    remedy = ""
    if before == after or (before >= 1 and metric not in LOWER_IS_BETTER):
        # A metric that stays the same, or cannot rise, chooses nothing: one that training improved, else one that has room.
        gains = {
            name: (best["latest"][name] - value) * (-1 if name in LOWER_IS_BETTER else 1)
            for name, value in best["figures"].items()
            if name != metric and (value < 1 or name in LOWER_IS_BETTER)
        }
        others = [name for name, gain in gains.items() if gain > 0] or list(gains)
        if others:
            other = next((name for name in ("ndcg@10", "mrr@10") if name in others), others[0])
            remedy = f"; an equal {metric} is no gain: choose by another metric, such as train.best_metric={other}"
    log.warning("%s; %s is the model as it was before training%s", note, workdir / "model", remedy)
    if writes:
        write_json(workdir / "best.json", {"step": best["step"], "figures": best["figures"], "note": note})


def claim(workdir: Path, config: Config, writes: bool) -> None:
    """Create the run's folder; refuse one that another config was begun in."""
    path = workdir / "config.json"
    try:
        if path.exists():
            # No part of what a run computes: where the arrays lie, and who is told of it.
            begun = from_json(read_object(path, "restore the file or use another workdir="), str(path))
            begun = dataclasses.replace(begun, mesh=config.mesh, tracking=config.tracking)
            begun = at_new_paths(begun, config, workdir)
            if begun != config:
                raise UsageError(
                    f"{path}: this folder was started with other settings "
                    f"({', '.join(_differing(to_json(begun), to_json(config)))}); "
                    "use the same ones to resume, or another workdir="
                )
        elif writes:
            workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{workdir}: {error.strerror}; pass another workdir=") from error


def _differing(begun: dict[str, Any], config: dict[str, Any]) -> Iterator[str]:
    """Names of the settings with other values, as `train.steps`; a section that only one of both has is named itself."""
    for name, value in config.items():
        before = begun.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            yield from (f"{name}.{each}" for each in _differing(before, value))
        elif before != value:
            yield name


def write_config(workdir: Path, config: Config) -> None:
    """Note the config that the folder was begun with."""
    write_json(workdir / "config.json", to_json(config), indent=2)


def note_start(workdir: Path, step: int, mesh: Mesh) -> None:
    """Add to environment.json on what the run goes on from a step: devices, machine, versions."""
    device = mesh.devices.flat[0]
    facts = {
        "from_step": step,
        "devices": f"{mesh.devices.size} x {device.device_kind}",
        "platform": device.platform,
        "processes": jax.process_count(),
        "processor": f"{cpu_name()}, {cpu_threads()} threads",
        **{name.removeprefix("version of "): value for name, value in program_facts().items()},
    }
    write_json(workdir / "environment.json", [*read_starts(workdir), facts], indent=1)
