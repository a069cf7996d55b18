"""`jaxretr.sweep`: a run for every combination of some settings' values, one after the other, and a table of them."""

import dataclasses
import functools
import gc
import hashlib
import itertools
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxretr.config import LOWER_IS_BETTER, Config, ContrastiveConfig, check_numbers, with_settings
from jaxretr.evaluate.results import QUESTION, Block, Results
from jaxretr.evaluate.searches import find_all
from jaxretr.evaluate.significance import Corrected, compare, corrected
from jaxretr.evaluate.tables import Cell, Grid, Row
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.compilation_cache import keep_programs, keep_short_programs
from jaxretr.runtime.parallel.hosts import together
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.runtime.storage.files import atomic_write, write_json
from jaxretr.runtime.storage.paths import as_path, is_remote
from jaxretr.runtime.storage.sealed_folder import read_object
from jaxretr.training import experiment
from jaxretr.training.loop import check_batch, claim, train
from jaxretr.training.loss_watch import DivergedError
from jaxretr.training.report.run_files import RunFiles
from jaxretr.training.report.run_report import write_page
from jaxretr.training.report.searches import of_run, test_set
from jaxretr.training.runs.run_inputs import read_inputs

log = logging.getLogger(__name__)

SEED = "train.seed"
# Metrics that are means over the dev questions. Those with other names have no values of single questions, or measure a
# suite, a set of a mixture or misspelt questions.
_OF_QUESTIONS = re.compile(r"(ndcg|mrr|recall|acc)@\d+")
_VALUES = "dev_values.json"


@dataclass(frozen=True)
class SweepRun:
    """The run of one combination.

    Attributes:
      name: name of the combination and of the run's folder, such as "learning-rate=2e-05,seed=1".
      group: the name without the seed; "all" if the grid has nothing but seeds.
      settings: its value of each setting of the grid.
      folder: the run's folder.
      best: `train.best_metric` at its best evaluation; None if the run is not evaluated.
      step: the step of that evaluation.
      loss: training loss in the last line of metrics.jsonl that has one.
      seconds: seconds that metrics.jsonl accounts for: up to the last step, without the evaluation after it.
      diverged: whether a NaN, infinite or much too large loss ended the run.
    """

    name: str
    group: str
    settings: Mapping[str, Any]
    folder: Path
    best: float | None
    step: int | None
    loss: float | None
    seconds: float
    diverged: bool


@dataclass(frozen=True, repr=False)
class Sweep(Results):
    """The runs of a sweep, compared.

    Attributes:
      metric: the config's `train.best_metric`.
      rows: the runs, in the order of the grid.
      values: {run: {question id: metric}} of the best models on the dev questions; empty without paired tests.
      untested: the reason why there are no paired tests; "" if there are some, or nothing to compare.
    """

    metric: str
    rows: Sequence[SweepRun]
    values: Mapping[str, Mapping[str, float]]
    untested: str

    @functools.cached_property
    def groups(self) -> dict[str, tuple[float, float, float]]:
        """The mean, lowest and highest metric of the runs that differ in the seed alone, the best mean first.

        NaN, and last, where a run was never evaluated, as one that diverged before.
        """
        found: dict[str, list[float]] = {}
        for row in self.rows:
            found.setdefault(row.group, []).append(math.nan if row.best is None else row.best)
        spreads = {
            name: (math.nan, math.nan, math.nan)
            if any(map(math.isnan, each))
            else (math.fsum(each) / len(each), min(each), max(each))
            for name, each in found.items()
        }
        sign = 1 if self.metric in LOWER_IS_BETTER else -1
        return dict(sorted(spreads.items(), key=lambda item: (math.isnan(item[1][0]), sign * item[1][0])))

    @functools.cached_property
    def tests(self) -> dict[str, Corrected]:
        """The best group against each other one, paired by dev question; a question's value is the mean over the seeds."""
        names = [name for name, (mean, *_) in self.groups.items() if not math.isnan(mean)]
        if not self.values or not names:
            return {}
        runs = ([self.values[row.name] for row in self.rows if row.group == name] for name in names)
        best, *others = ({id: math.fsum(run[id] for run in each) / len(each) for id in each[0]} for each in runs)
        found = corrected([compare(best, other) for other in others])
        return dict(zip(names[1:], found, strict=True))

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"Sweep({len(self.rows)} runs, {self.metric}: {self.groups})"

    def content(self) -> dict[str, Any]:
        """The runs, groups and tests for JSON."""
        return {
            "metric": self.metric,
            "runs": [{**vars(row), "folder": str(row.folder)} for row in self.rows],
            "groups": {
                name: dict(zip(("mean", "lowest", "highest"), spread, strict=True))
                for name, spread in self.groups.items()
            },
            "tests": {name: vars(test) for name, test in self.tests.items()},
            "untested": self.untested,
        }

    def grids(self) -> list[Grid]:
        """A row for each run, the spread over the seeds where there are several, and the paired tests."""
        choose = min if self.metric in LOWER_IS_BETTER else max
        best = choose((row.best for row in self.rows if row.best is not None), default=None)
        rows = [
            Row(
                row.name,
                [
                    Cell(_number(row.best), row.best is not None and row.best == best),
                    Cell("-" if row.step is None else str(row.step)),
                    Cell("diverged" if row.diverged else _number(row.loss)),
                    Cell(f"{row.seconds:.0f}"),
                ],
            )
            for row in self.rows
        ]
        notes = [f"No paired tests: {self.untested}."] * bool(self.untested)
        grids = [Grid(f"{len(rows)} runs", "run", (self.metric, "at step", "last loss", "seconds"), rows, notes)]
        counts = Counter(row.group for row in self.rows)
        if max(counts.values()) > 1:
            spreads = [
                Row(name, [Cell(str(counts[name])), *map(Cell, map(_number, spread))])
                for name, spread in self.groups.items()
            ]
            columns = ("seeds", f"mean {self.metric}", "lowest", "highest")
            grids.append(Grid("Over the seeds", "combination", columns, spreads))
        if self.tests:
            count = len(next(iter(self.values.values())))
            note = (
                f"Differences in {self.metric}, paired by question; interval: percentile bootstrap; p: randomisation test; "
                "Holm: corrected for all comparisons of this table."
            )
            compared = [Row(name, list(map(Cell, test.cells))) for name, test in self.tests.items()]
            title = f"{next(iter(self.groups))} against the others, on {count} dev questions"
            grids.append(Grid(title, "against", (*Corrected.HEADS, "higher/equal/lower"), compared, [note]))
        return grids

    def blocks(self) -> Iterator[Block]:
        """The metric of every dev question, run by run."""
        for name, of_questions in self.values.items():
            yield {"run": name, QUESTION: ""}, {self.metric: dict(of_questions)}


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"


def sweep(config: Config | str | Path, *, grid: Mapping[str, Iterable[Any]], workdir: str | Path) -> Sweep:
    """Train every combination of some settings' values, one after the other, and compare the runs.

    Each run is one of `jaxretr.train` in a folder of `workdir` that is named after its combination: called again, the sweep
    skips what is finished and resumes what is not, and a wider grid adds to the runs that exist. The runs share their token
    stores (`workdir`/tokens, unless the config names another folder) and the compiled programs: runs that differ in the
    learning rate and the seed alone compile one training step. A run whose loss diverges counts as it is, and the others go
    on.

    `workdir` gets sweep.json, the result, and sweep.html, the curves of all runs.

    Args:
      config: the settings that the runs have in common, or a config file or name as for `load_config`.
      grid: {"section.key": its values}; the combinations are all of them, the last setting varying fastest.
      workdir: local folder of the runs, created when missing.

    Returns:
      The runs, the spread over `train.seed`, and paired tests of the best combination against each other one on the dev
      questions, by `jaxretr.evaluate.significance`; `str` gives the tables.

    Raises:
      UsageError: a wrong name, value or combination anywhere in the grid, or a folder of a run with other settings; nothing
        is trained then.
      UserError: as of `jaxretr.train`.
      SystemExit: a signal asked a run to stop, as in `jaxretr.train`; the same call resumes.
    """
    base = config if isinstance(config, Config) else experiment.load(config)
    if is_remote(workdir):
        raise UsageError(f"workdir={workdir}: a sweep needs a local folder; give one, or train each run by itself")
    folder = as_path(workdir)
    planned = combinations(base, grid, folder)
    keep_programs()
    with together():
        if jax.process_count() > 1:
            raise UsageError("a sweep runs in one process; run it on one host, or train each run by itself")
        for each, name in planned:
            check_batch(each, make_mesh(model=each.mesh.model))
            claim(folder / name, each, writes=False)
    diverged = set[str]()
    with keep_short_programs():  # Each run would compile them again.
        for number, (each, name) in enumerate(planned, 1):
            log.info("%s (%d of %d)", name, number, len(planned))
            try:
                train(each, folder / name)
            except DivergedError as error:
                log.warning("%s", error)
                diverged.add(name)
            gc.collect()  # A run's arrays are in cycles, and would stay on the devices beside the next one's.
    runs = [RunFiles.read(folder / name) for _, name in planned]
    metric = base.train.best_metric
    rows = [_row(run, each, list(grid), run.name in diverged) for run, (each, _) in zip(runs, planned, strict=True)]
    values, untested = {}, ""
    if len({row.group for row in rows}) > 1:
        values, untested = _values(runs, metric)
    result = Sweep(metric, rows, values, untested)
    with atomic_write(folder / "sweep.json") as file:
        file.write(result.to_json())
    write_page(runs, None, None, folder / "sweep.html")
    return result


# ---- the combinations ------------------------------------------------------------------------------------------------


def combinations(base: Config, grid: Mapping[str, Iterable[Any]], folder: Path) -> list[tuple[Config, str]]:
    """Return the config and the name of every combination, all of them checked.

    Raises:
      UsageError: a setting or value is wrong or given twice, or a config refuses its combination.
    """
    settings = dict[str, list[Any]]()
    for name, values in grid.items():
        if name == "train.best_metric":
            raise UsageError("grid: runs are compared by train.best_metric; give all runs the same one")
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
            raise UsageError(f"grid: {name}={values!r:.80}: give a list of values")
        settings[name] = list(values)
        if not settings[name]:
            raise UsageError(f"grid: {name} has no values; give at least one")
    if not settings:
        raise UsageError("grid: names no setting; give at least one, with its values")
    if "data.token_cache" not in settings and _value(base, "data.token_cache") is None:
        base = with_settings(base, {"data.token_cache": str((folder / "tokens").absolute())})
    planned: dict[str, Config] = {}
    for values in itertools.product(*settings.values()):
        config = with_settings(base, dict(zip(settings, values, strict=True)))
        check_numbers(config)
        config.check()
        name = _name(config, list(settings))
        if name in planned:
            raise UsageError(f"grid: {name} is there twice; give each value once")
        planned[name] = config
    return [(config, name) for name, config in planned.items()]


def _value(config: Config, setting: str) -> Any:
    return functools.reduce(getattr, setting.split("."), config)


def _name(config: Config, settings: Sequence[str]) -> str:
    """Return the name of a combination: the settings' last words and their values, safe as the name of a folder.

    The order of the settings does not count, so that the same combination of another call has the same folder.
    """
    last = Counter(name.rpartition(".")[2] for name in settings)
    words = []
    for setting in sorted(settings):
        short = setting.rpartition(".")[2]
        key = (short if last[short] == 1 else setting).replace("_", "-")
        words.append(f"{key}={_as_text(_value(config, setting))}")
    return ",".join(words)


def _as_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=vars)
    safe = re.sub(r"[^\w.+-]+", "_", text, flags=re.ASCII).strip("_")[-40:]
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# ---- the results -----------------------------------------------------------------------------------------------------


def _row(run: RunFiles, config: Config, settings: Sequence[str], diverged: bool) -> SweepRun:
    others = [name for name in settings if name != SEED]
    losses = (line["loss"] for line in reversed(run.lines) if "examples_per_s" in line)
    return SweepRun(
        name=run.name,
        group=_name(config, others) or "all",
        settings={name: _value(config, name) for name in settings},
        folder=run.folder,
        best=None if run.best is None else run.best["figures"][config.train.best_metric],
        step=None if run.best is None else run.best["step"],
        loss=next(losses, None),
        seconds=sum(run.seconds.values()),
        diverged=diverged,
    )


def _values(runs: Sequence[RunFiles], metric: str) -> tuple[dict[str, dict[str, float]], str]:
    """Measure the best model of every run that was evaluated on each dev question, or say why that cannot be compared.

    A run's values are kept in its folder, where a later call finds them.
    """
    if any(isinstance(run.config, ContrastiveConfig) and run.config.data.mixture for run in runs):
        return {}, "a mixture has its own dev questions for each set"
    if not _OF_QUESTIONS.fullmatch(metric):
        return {}, f"{metric} is no mean over the dev questions"
    named = ("dev questions", "corpus", "passages")
    if len({tuple(map(read_inputs(run.folder).get, named)) for run in runs}) > 1:
        return {}, "the runs have other dev questions or passages"

    @functools.cache
    def questions():
        found = test_set(runs[0], None, "")
        # Accuracy is measured by the answers, also of questions that are judged.
        return found and (dataclasses.replace(found, qrels=None) if metric.startswith("acc@") else found)

    values: dict[str, dict[str, float]] = {}
    for run in runs:
        if run.best is None:
            continue
        path, made = run.folder / _VALUES, {"metric": metric, "step": run.best["step"]}
        kept = read_object(path, "remove it; it is made again") if path.exists() else {}
        if not kept.items() >= made.items():
            on = questions()
            if on is None:
                return {}, "the runs have no dev questions of their own that are searched for"
            log.info("%s: the best model on each dev question", run.name)
            ((_, hits),) = find_all([of_run(run)], on, [metric])
            kept = {**made, "values": on(hits, [metric], run.name)[metric]}
            write_json(path, kept)
        values[run.name] = kept["values"]
    return values, "" if values else "no run was evaluated"
