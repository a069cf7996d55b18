"""The metrics of a run and of the baselines that it is compared with: computed, and as JSON, tables, files and plots."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.data.runs import ranked_ids
from jaxretr.evaluate import metrics
from jaxretr.evaluate.measuring import Measure, Run, TestSet, Values, warn_of_missing
from jaxretr.evaluate.rank_overlap import find_shared, rank_biased_overlap
from jaxretr.evaluate.results import QUESTION, Block, Results
from jaxretr.evaluate.significance import Corrected, compare, corrected
from jaxretr.evaluate.tables import Cell, Grid, Row, shortened
from jaxretr.runtime.errors import UserError

# Differences with a smaller p-value are marked.
LEVEL = 0.05

# p of rank-biased overlap: the ranks below 100 have .9^100, less than 3e-5, of the weight.
_PERSISTENCE, _DEPTH = 0.9, 100


@dataclass(frozen=True)
class Measured:
    """The run of a system, and its metrics question by question.

    Attributes:
      path: the path of its run or model, as the user gave it.
      run: the passages it found.
      values: the metrics of every question.
    """

    path: str
    run: Run
    values: Values


@dataclass(frozen=True)
class Against:
    """The run ("a") compared with one baseline ("b").

    Attributes:
      comparisons: the comparison of each metric; its p-values are corrected for all comparisons of the report.
      rbo: the mean rank-biased overlap of the two rankings of a question, extrapolated; 0 where one is missing.
    """

    comparisons: dict[str, Corrected]
    rbo: float


@dataclass(frozen=True, repr=False)
class Report(Results):
    """The metrics of a run, compared with those of baselines.

    Attributes:
      systems: the run, then the baselines.
      names: short names of the systems.
      against: the comparison with each baseline.
      measure: a function that computes the metrics of a run, for plots.
    """

    systems: Sequence[Measured]
    names: Sequence[str]
    against: Sequence[Against]
    measure: Measure = field(compare=False)

    @classmethod
    def of(cls, runs: Sequence[tuple[str, Run]], on: TestSet, names: Sequence[str]) -> "Report":
        """Measure runs, and compare the first with every other one.

        Holm's correction is for all comparisons of the report, each metric with each baseline.

        Args:
          runs: paths or names, and runs.
          on: the questions to measure them on.
          names: the metrics.
        """
        run, *baselines = systems = [Measured(name, hits, on(hits, names, name)) for name, hits in runs]
        for system in systems:
            warn_of_missing(next(iter(system.values.values())), system.run, system.path)
        each = iter(corrected([compare(run.values[name], of.values[name]) for of in baselines for name in run.values]))
        ids = list(next(iter(run.values.values())))
        against = [
            Against({name: next(each) for name in run.values}, overlap(run.run, baseline.run, ids))
            for baseline in baselines
        ]
        return cls(systems, shortened([system.path for system in systems]), against, on.measure)

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics."""
        return list(self.systems[0].values)

    @property
    def questions(self) -> int:
        """The number of questions."""
        return len(next(iter(self.systems[0].values.values())))

    @property
    def means(self) -> dict[str, dict[str, float]]:
        """The means over all questions, {system: {metric: mean}}; the first is the run, the others are baselines."""
        return {
            name: {metric: self.mean(place, metric) for metric in self.metrics} for place, name in enumerate(self.names)
        }

    def mean(self, system: int, metric: str) -> float:
        """The mean of a metric over all questions; system 0 is the run."""
        return metrics.mean(self.systems[system].values[metric])

    def __repr__(self) -> str:
        return f"Report({self.questions} questions, {self.means})"

    def content(self) -> dict[str, Any]:
        """The metrics and comparisons for JSON."""
        content: dict[str, Any] = {
            "questions": self.questions,
            "metrics": {name: self.mean(0, name) for name in self.metrics},
        }
        if self.against:
            content["baselines"] = [
                {
                    "run": system.path,
                    "rbo": against.rbo,
                    "metrics": {name: vars(comparison) for name, comparison in against.comparisons.items()},
                }
                for system, against in zip(self.systems[1:], self.against, strict=True)
            ]
        if len(self.against) == 1:  # A shorter path for scripts with one baseline.
            content["baseline"] = content["baselines"][0]["metrics"]
        return content

    def blocks(self) -> list[Block]:
        """The values of every question: the run's metrics and then each baseline's."""
        columns = {
            name if not place else f"{name} [{' '.join(self.names[place].split())}]": system.values[name]
            for place, system in enumerate(self.systems)
            for name in self.metrics
        }
        return [({QUESTION: ""}, columns)]

    def plot(self, path: str | Path) -> None:
        """Draw a panel for each metric with a cut, with the 95% bootstrap band of the mean around each line.

        Each metric is drawn from 1 to its largest cut, and at least to 100.

        Args:
          path: a .png, .pdf or .svg.

        Raises:
          UsageError: no metric has a cut, or another ending.
          UserError: no run has two passages for a question.
        """
        from jaxretr.evaluate import plots

        path = Path(path).expanduser()
        plots.check_ending(path)
        # Past the longest ranking every line is flat.
        longest = max(len(hits) for system in self.systems for hits in system.run.values())
        cuts = {
            base: plots.cuts_to(min(longest, max(100, cut))) for base, cut in plots.deepest_cuts(self.metrics).items()
        }
        if longest < 2:
            raise UserError(f"{self.systems[0].path}: one passage per question makes no curve; search with a larger -k")
        plt = plots.pyplot()
        figure, grid = plt.subplots(1, len(cuts), figsize=(4.2 * len(cuts), 3.6), squeeze=False, layout="constrained")
        labels = [plots.plain(name) for name in self.names]
        for axes, (base, ks) in zip(grid[0], cuts.items(), strict=True):
            for number, (system, label) in enumerate(zip(self.systems, labels, strict=True)):
                mean, low, high = plots.band(self.measure(system.run, [f"{base}@{k}" for k in ks], "the run"))
                axes.plot(ks, mean, color=f"C{number}", label=label, linewidth=1.8 if number == 0 else 1.2)
                axes.fill_between(ks, low, high, color=f"C{number}", alpha=0.18, linewidth=0)
            axes.set_xscale("log")
            ticks = [k for k in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if k <= ks[-1]]
            axes.set_xticks(ticks, [str(k) for k in ticks])
            axes.minorticks_off()
            axes.set(xlabel="k", ylabel=f"{base}@k", xlim=(1, ks[-1]))
            axes.grid(alpha=0.3)
        plots.legend(figure, grid, min(4, len(labels)))
        plots.save(figure, path)

    # ---- tables ------------------------------------------------------------------------------------------------------

    def table(self, form: str = "table") -> str:
        """The metrics and comparisons as text ("table"), or as a "latex" or "markdown" table."""
        if form == "table" and not self.against:
            lines = [f"{name:<16}{self.mean(0, name):>10.4f}" for name in self.metrics]
            return "\n".join([f"{'questions':<16}{self.questions:>10}", *lines])
        return super().table(form)

    def grids(self) -> list[Grid]:
        """The means of all systems, and the comparisons if there are baselines."""
        questions = f"{self.questions} question{'s' * (self.questions != 1)}"
        rows = [Row(name, self._cells(place)) for place, name in enumerate(self.names)]
        if not self.against:
            return [Grid(questions, "run", self.metrics, rows)]
        family = len(self.against) * len(self.metrics)
        notes = [f"RBO: rank-biased overlap with the rankings of {self.names[0]} (p = {_PERSISTENCE}, extrapolated)."]
        if any(cell.marked for row in rows for cell in row.cells):
            notes.append(
                f"†: differs from {self.names[0]} (paired randomisation test, two-sided, p < {LEVEL} after Holm's "
                f"correction for all {family} comparisons of this table, each metric with each baseline)."
            )
        compared = [
            Row(name if not number else "", list(map(Cell, (metric, *comparison.cells))))
            for name, against in zip(self.names[1:], self.against, strict=True)
            for number, (metric, comparison) in enumerate(against.comparisons.items())
        ]
        columns = ("metric", *Corrected.HEADS, "higher/equal/lower")
        explained = [
            f"Differences: {self.names[0]} minus the baseline, paired by question; interval: percentile bootstrap; "
            f"p: randomisation test; Holm: corrected for all {family} comparisons of this table.",
        ]
        return [
            Grid(questions, "run", [*self.metrics, "RBO"], rows, notes),
            Grid(f"{self.names[0]} against the baselines", "against", columns, compared, explained),
        ]

    def _cells(self, place: int) -> list[Cell]:
        cells = []
        for name in self.metrics:
            printed = [f"{self.mean(other, name):.4f}" for other in range(len(self.systems))]
            # Compare the printed numbers: if the table shows two systems as equal, both are the best.
            best = min(printed) if metrics.lower_is_better(name) else max(printed)
            cells.append(Cell(printed[place], bool(self.against) and printed[place] == best, self.differs(place, name)))
        if self.against:
            cells.append(Cell(f"{self.against[place - 1].rbo:.4f}" if place else ""))
        return cells

    def differs(self, system: int, metric: str) -> bool:
        """Whether a baseline differs significantly from the run; of system 0, the run itself, False."""
        return bool(system) and self.against[system - 1].comparisons[metric].p_value_holm < LEVEL


def overlap(run: Run, baseline: Run, question_ids: Sequence[str]) -> float:
    """The mean rank-biased overlap, extrapolated, of two runs over questions."""
    a, b = ([ranked_ids(each.get(id, {}), _DEPTH) for id in question_ids] for each in (run, baseline))
    return float(np.mean(rank_biased_overlap(find_shared(a, b, _DEPTH), _PERSISTENCE).extrapolated))
