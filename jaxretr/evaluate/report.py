"""The metrics of a run and of the baselines that it is compared with: computed, and as JSON, tables, files and plots."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.data.csv_tables import csv_line
from jaxretr.errors import UserError
from jaxretr.evaluate import metrics
from jaxretr.evaluate.measuring import Measure, Run, Values
from jaxretr.evaluate.rank_overlap import find_shared, rank_biased_overlap, ranked_ids
from jaxretr.evaluate.significance import Comparison, compare, holm, or_none, printed_p
from jaxretr.storage.files import atomic_write
from jaxretr.tables import Cell, Grid, Row, render, shortened

# Differences with a smaller p-value are marked.
LEVEL = 0.05

# p of rank-biased overlap: the ranks below 100 have .9^100, less than 3e-5, of the weight.
_PERSISTENCE, _DEPTH = 0.9, 100


@dataclass(frozen=True)
class Measured:
    """A system that was measured.

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
      comparisons: the comparison of each metric.
      p_values_holm: {metric: p-value of the randomisation test}, corrected for all comparisons of the report.
      t_test_p_values_holm: {metric: p-value of the t-test}, corrected likewise; NaN with a single question.
      rbo: the mean rank-biased overlap of the two rankings of a question, extrapolated; 0 where one is missing.
    """

    comparisons: dict[str, Comparison]
    p_values_holm: dict[str, float]
    t_test_p_values_holm: dict[str, float]
    rbo: float


@dataclass(frozen=True, repr=False)
class Report:
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
    def of(cls, run: Measured, baselines: Sequence[Measured], measure: Measure) -> "Report":
        """Compare a run with every baseline; all must have values for the same questions and metrics.

        Holm's correction is for all comparisons of the report, each metric with each baseline.
        """
        found = [
            {name: compare(run.values[name], baseline.values[name]) for name in run.values} for baseline in baselines
        ]
        every = [comparison for of_one in found for comparison in of_one.values()]
        corrected = iter(holm([each.p_value for each in every]))
        t_corrected = iter(holm([each.t_test_p_value for each in every]))
        ids = list(next(iter(run.values.values())))
        against = [
            Against(
                comparisons,
                {name: next(corrected) for name in comparisons},
                {name: next(t_corrected) for name in comparisons},
                overlap(run.run, baseline.run, ids),
            )
            for baseline, comparisons in zip(baselines, found, strict=True)
        ]
        systems = [run, *baselines]
        return cls(systems, shortened([system.path for system in systems]), against, measure)

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

    def to_json(self) -> str:
        """The metrics and comparisons as one JSON object."""
        content: dict[str, Any] = {
            "questions": self.questions,
            "metrics": {name: self.mean(0, name) for name in self.metrics},
        }
        if self.against:
            content["baselines"] = [
                {
                    "run": system.path,
                    "rbo": found.rbo,
                    "metrics": {
                        name: {
                            **comparison.as_json(),
                            "p_value_holm": or_none(found.p_values_holm[name]),
                            "t_test_p_value_holm": or_none(found.t_test_p_values_holm[name]),
                        }
                        for name, comparison in found.comparisons.items()
                    },
                }
                for system, found in zip(self.systems[1:], self.against, strict=True)
            ]
        if len(self.against) == 1:  # A shorter path for scripts with one baseline.
            content["baseline"] = content["baselines"][0]["metrics"]
        return json.dumps(content, indent=1, allow_nan=False)

    def write_per_query(self, path: str | Path) -> None:
        """Write question-id and the metrics, the run's and then each baseline's, separated by tabs under a header."""
        columns = [
            (name if not place else f"{name} [{' '.join(self.names[place].split())}]", system.values[name])
            for place, system in enumerate(self.systems)
            for name in self.metrics
        ]
        with atomic_write(Path(path).expanduser()) as file:
            file.write(csv_line(["question-id", *(name for name, _ in columns)]))
            for question_id in columns[0][1]:
                file.write(csv_line([question_id, *(f"{values[question_id]:.6g}" for _, values in columns)]))

    def plot(self, path: str | Path) -> None:
        """Draws a panel for each metric with a cut, with the 95% bootstrap band of the mean around each line.

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
        handles, drawn = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, drawn, loc="outside lower center", ncols=min(4, len(labels)), fontsize="small")
        plots.save(figure, path)

    # ---- tables ------------------------------------------------------------------------------------------------------

    def table(self, form: str = "table") -> str:
        """The metrics and comparisons as text ("table"), or as a "latex" or "markdown" table."""
        if form == "table" and not self.against:
            lines = [f"{name:<16}{self.mean(0, name):>10.4f}" for name in self.metrics]
            return "\n".join([f"{'questions':<16}{self.questions:>10}", *lines])
        questions = f"{self.questions} question{'s' * (self.questions != 1)}"
        rows = [Row(name, self._cells(place)) for place, name in enumerate(self.names)]
        if not self.against:
            return render([Grid(questions, "run", self.metrics, rows)], form)
        family = len(self.against) * len(self.metrics)
        notes = [f"RBO: rank-biased overlap with the rankings of {self.names[0]} (p = {_PERSISTENCE}, extrapolated)."]
        if any(cell.marked for row in rows for cell in row.cells):
            notes.append(
                f"†: differs from {self.names[0]} (paired randomisation test, two-sided, p < {LEVEL} after Holm's "
                f"correction for all {family} comparisons of this table, each metric with each baseline)."
            )
        compared = [
            Row(name if not number else "", self._compared(place, metric))
            for place, name in enumerate(self.names[1:])
            for number, metric in enumerate(self.metrics)
        ]
        columns = ("metric", "difference", "95% interval", "p", "Holm", "p (t-test)", "Holm", "higher/equal/lower")
        explained = [
            f"Differences: {self.names[0]} minus the baseline, paired by question; interval: percentile bootstrap; "
            f"p: randomisation test; Holm: corrected for all {family} comparisons of this table.",
        ]
        grids = [
            Grid(questions, "run", [*self.metrics, "RBO"], rows, notes),
            Grid(f"{self.names[0]} against the baselines", "against", columns, compared, explained),
        ]
        return render(grids, form)

    def _cells(self, place: int) -> list[Cell]:
        cells = []
        for name in self.metrics:
            printed = [f"{self.mean(other, name):.4f}" for other in range(len(self.systems))]
            # Compare the printed numbers: if the table shows two systems as equal, both are the best.
            best = min(printed) if metrics.lower_is_better(name) else max(printed)
            marked = bool(place) and self.against[place - 1].p_values_holm[name] < LEVEL
            cells.append(Cell(printed[place], bool(self.against) and printed[place] == best, marked))
        if self.against:
            cells.append(Cell(f"{self.against[place - 1].rbo:.4f}" if place else ""))
        return cells

    def _compared(self, place: int, metric: str) -> list[Cell]:
        found = self.against[place]
        comparison = found.comparisons[metric]
        p_values = (
            comparison.p_value,
            found.p_values_holm[metric],
            comparison.t_test_p_value,
            found.t_test_p_values_holm[metric],
        )
        texts = (metric, *comparison.columns, *map(printed_p, p_values), comparison.counts)
        return [Cell(text) for text in texts]


def overlap(run: Run, baseline: Run, question_ids: Sequence[str]) -> float:
    """The mean rank-biased overlap, extrapolated, of two runs over questions."""
    a, b = ([ranked_ids(each.get(id, {}), _DEPTH) for id in question_ids] for each in (run, baseline))
    return float(np.mean(rank_biased_overlap(find_shared(a, b, _DEPTH), _PERSISTENCE).extrapolated))
