"""`jaxretr.report`: runs as one page for a browser, with nothing to download."""

import dataclasses
import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from jaxretr.config import to_json
from jaxretr.evaluate.measuring import TestSet
from jaxretr.evaluate.report import LEVEL, Report
from jaxretr.evaluate.significance import bootstrap_interval, printed_p
from jaxretr.evaluate.tables import Cell
from jaxretr.runtime.errors import UsageError, UserError, check_list
from jaxretr.runtime.storage.files import atomic_write
from jaxretr.training.report import curves, rendered, searches
from jaxretr.training.report.examples import Example, choose, common_stems, show
from jaxretr.training.report.run_files import RunFiles
from jaxretr.version import __version__

_TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True, repr=False)
class RunReport:
    """A page about runs.

    Attributes:
      runs: the runs, as read from their files.
      comparison: the first run against BM25, the encoder that it began with and the other runs; None without questions.
      examples: the searches side by side.
      out: the file of the page.
    """

    runs: Sequence[RunFiles]
    comparison: Report | None
    examples: Sequence[Example]
    out: Path

    def __repr__(self) -> str:
        return f"RunReport({str(self.out)!r}: {', '.join(run.name for run in self.runs)})"

    def __str__(self) -> str:
        return f"report: {self.out}"


def report(
    runs: Sequence[str | Path],
    *,
    out: str | Path,
    beir: str | Path | None = None,
    split: str = "test",
    examples: int = 6,
    search: bool = True,
) -> RunReport:
    """Write one self-contained HTML page about training runs.

    It shows each run's settings, curves of everything that was logged, a table of the metrics with 95% bootstrap
    intervals and paired tests, searches side by side with the matching words marked, and the machines of the runs.

    Args:
      runs: folders of training runs; tests and searches compare the first with the others, with BM25, and with the
        encoder that it began with.
      out: the page, an .html; an older one is replaced.
      beir: BEIR folder to measure on; by default the first run's own dev questions.
      split: split of the BEIR folder's qrels.
      examples: searches to show.
      search: whether to search; False: the page shows only what the runs logged.

    Raises:
      UserError: a folder is no run, or the data of the first run is gone.
      UsageError: no run, or the same one twice.
    """
    check_list("runs", runs)
    if not runs:
        raise UsageError("a report is about at least one run; give the folder of one")
    read = [RunFiles.read(folder) for folder in runs]
    if len({run.folder.absolute() for run in read}) < len(read):
        raise UsageError("a run is named twice; name each once")
    read = _with_different_names(read)
    path = Path(out).expanduser()
    if path.is_dir():
        raise UsageError(f"{out}: is a folder; give a file, such as {path / 'report.html'}")
    comparison, on = None, None
    if search:
        if read[0].model is None:
            raise UserError(f"{runs[0]}: has no model yet; wait for its first evaluation, or leave the searches out")
        on = searches.test_set(read[0], beir, split)
    if on is not None:
        comparison = searches.compare(read, on)
    return write_page(read, comparison, on, path, examples=examples)


def write_page(
    runs: Sequence[RunFiles],
    comparison: Report | None,
    on: TestSet | None,
    out: Path,
    *,
    examples: int = 6,
    shown: Sequence[str] = (),
) -> RunReport:
    """Write the page about runs whose searches were measured already.

    Args:
      comparison: the systems that were measured; the first is the one that the others are compared with.
      on: the corpus and questions that they were measured on; None where `comparison` is None.
      examples: questions whose searches are shown.
      shown: names of the systems whose searches are shown, from the baseline to the model; by default BM25, the encoder
        that the first run began with, and the runs.
    """
    found = [] if comparison is None or on is None else _examples(comparison, on, examples, shown)
    with atomic_write(out) as file:
        file.write(_page(runs, comparison, found, on))
    return RunReport(runs, comparison, found, out)


def _with_different_names(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """Return the runs with different names: where any are equal, each gets the name of its parent folder before it."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return list(runs)
    return [dataclasses.replace(run, name=f"{run.folder.absolute().parent.name}/{run.name}") for run in runs]


def _examples(comparison: Report, on: TestSet, count: int, shown: Sequence[str]) -> list[Example]:
    systems = dict(zip(comparison.names, comparison.systems, strict=True))
    first, *others = systems
    # In the order of reading: the baseline, the encoder that the run began with, then the runs.
    order = list(shown) or [name for name in others if name in (searches.BM25, searches.BEFORE)]
    order += [] if shown else [first, *(name for name in others if name not in order)]
    qrels = on.qrels or {}
    relevant = {question: {id for id, grade in of_one.items() if grade > 0} for question, of_one in qrels.items()}
    common = common_stems(on.corpus)
    chosen = choose(on.questions, [systems[order[0]].run, systems[first].run], relevant, count)
    found = []
    for number in chosen:
        question = on.questions[number]
        judged = relevant.get(question.id, set()) if on.qrels is not None else None
        found.append(show(question, [(name, systems[name].run) for name in order], on.corpus, judged, common))
    return found


# ---- the page --------------------------------------------------------------------------------------------------------


def _page(runs: Sequence[RunFiles], comparison: Report | None, examples: Sequence[Example], on: TestSet | None) -> str:
    return rendered(
        _TEMPLATE,
        runs=runs,
        curves=curves.draw(runs),
        comparison=comparison,
        rows=[] if comparison is None else _rows(comparison),
        printed_p=printed_p,
        level=LEVEL,
        on=on,
        examples=examples,
        changed=[_changed(run) for run in runs],
        settings=[json.dumps(to_json(run.config), indent=2) for run in runs],
        today=datetime.date.today().isoformat(),
        version=__version__,
    )


def _rows(comparison: Report) -> list[tuple[str, list[tuple[Cell, str]]]]:
    """The rows of the table: each system's means in percent, each with its bootstrap interval."""
    rows = []
    for place, name in enumerate(comparison.names):
        cells = []
        for metric in comparison.metrics:
            values = np.array(list(comparison.systems[place].values[metric].values()), np.float64)
            low, high = bootstrap_interval(values, resamples=2000)
            best = max(comparison.mean(other, metric) for other in range(len(comparison.names)))
            mean = comparison.mean(place, metric)
            interval = f"{100 * low:.1f} – {100 * high:.1f}"  # noqa: RUF001
            cells.append((Cell(f"{100 * mean:.1f}", mean == best, comparison.differs(place, metric)), interval))
        rows.append((name, cells))
    return rows


def _changed(run: RunFiles) -> list[tuple[str, Any]]:
    """The settings that differ from the defaults of this kind of run."""
    # Names as on the command line: {"train.steps": 100}.
    usual, found = (
        flatten_dict(values, sep=".") for values in (_defaults(type(run.config), run.config), to_json(run.config))
    )
    return [(name, value) for name, value in found.items() if name not in usual or usual[name] != value]


def _defaults(kind: Any, values: Any) -> dict[str, Any]:
    """The defaults of a section as JSON values; for a section without a default, those of its settings."""
    found: dict[str, Any] = {}
    for each in dataclasses.fields(kind):
        value = getattr(values, each.name)
        if each.default is not dataclasses.MISSING:
            found[each.name] = each.default
        elif each.default_factory is not dataclasses.MISSING:
            made: Any = each.default_factory()
            found[each.name] = dataclasses.asdict(made) if dataclasses.is_dataclass(made) else made  # pyright: ignore[reportArgumentType]
        elif dataclasses.is_dataclass(value):
            found[each.name] = _defaults(type(value), value)
    return json.loads(json.dumps(found))
