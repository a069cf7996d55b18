"""The figures of a run and of the baselines that it is compared with: computed, as JSON, as tables, question by question."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.evaluate import metrics
from jaxretr.evaluate.measuring import Run, Values
from jaxretr.evaluate.rank_overlap import find_shared, rank_biased_overlap, ranked_ids
from jaxretr.evaluate.significance import Comparison, compare, holm
from jaxretr.storage.files import atomic_write
from jaxretr.tables import Cell, Grid, Row, render, shortened

# Below this a difference is marked.
LEVEL = 0.05

# Of rank-biased overlap: what lies below rank 100 has .9^100, less than 3e-5, of its weight.
_PERSISTENCE, _DEPTH = 0.9, 100


@dataclass(frozen=True)
class Measured:
    """A system that was measured.

    Attributes:
      path: of its run or model, as the user gave it.
      run: what it found.
      values: of every question.
    """

    path: str
    run: Run
    values: Values


@dataclass(frozen=True)
class Against:
    """The run ("a") compared with one baseline ("b").

    Attributes:
      comparisons: of each metric.
      p_values_holm: {metric: p-value of the randomisation test}, corrected for all comparisons of the report.
      t_test_p_values_holm: the same of the t-test; nan with a single question.
      rbo: the mean rank-biased overlap of the two rankings of a question, extrapolated; 0 where one is missing.
    """

    comparisons: dict[str, Comparison]
    p_values_holm: dict[str, float]
    t_test_p_values_holm: dict[str, float]
    rbo: float


@dataclass(frozen=True, repr=False)
class Report:
    """All figures.

    Attributes:
      systems: the run, then the baselines.
      names: of these, short.
      against: of each baseline.
    """

    systems: Sequence[Measured]
    names: Sequence[str]
    against: Sequence[Against]

    @classmethod
    def of(cls, run: Measured, baselines: Sequence[Measured]) -> "Report":
        """Compares a run with every baseline; all of them have the values of the same questions and metrics.

        The family of Holm's correction is all comparisons of one report, each metric with each baseline.
        """
        found = [
            {name: compare(run.values[name], baseline.values[name]) for name in run.values} for baseline in baselines
        ]
        every = [(place, name) for place, of_one in enumerate(found) for name in of_one]
        corrected = _holm({key: found[key[0]][key[1]].p_value for key in every})
        t_corrected = _holm({key: found[key[0]][key[1]].t_test_p_value for key in every})
        ids = list(next(iter(run.values.values())))
        against = [
            Against(
                comparisons,
                {name: corrected[place, name] for name in comparisons},
                {name: t_corrected[place, name] for name in comparisons},
                overlap(run.run, baselines[place].run, ids),
            )
            for place, comparisons in enumerate(found)
        ]
        systems = [run, *baselines]
        return cls(systems, shortened([system.path for system in systems]), against)

    @property
    def metrics(self) -> list[str]:
        """Their names."""
        return list(self.systems[0].values)

    @property
    def questions(self) -> int:
        """How many were measured."""
        return len(next(iter(self.systems[0].values.values())))

    @property
    def means(self) -> dict[str, dict[str, float]]:
        """{system: {metric: mean over all questions}}; the first is the run, the others are the baselines."""
        return {
            name: {metric: self.mean(place, metric) for metric in self.metrics} for place, name in enumerate(self.names)
        }

    def mean(self, system: int, metric: str) -> float:
        """Over all questions."""
        return metrics.mean(self.systems[system].values[metric])

    def __repr__(self) -> str:
        return f"Report({self.questions} questions, {self.means})"

    def table(self) -> str:
        """All figures for people."""
        return self.as_string("table")

    def to_json(self) -> str:
        """All figures as a JSON object."""
        return self.as_string("json")

    def as_string(self, form: str) -> str:
        """All figures as "table", "json", "latex" or "markdown"."""
        if form == "json":
            return json.dumps(self.as_json(), indent=1, allow_nan=False)
        if form == "table" and not self.against:
            lines = [f"{name:<16}{self.mean(0, name):>10.4f}" for name in self.metrics]
            return "\n".join([f"{'questions':<16}{self.questions:>10}", *lines])
        return render(self.grids(), form)

    def as_json(self) -> dict[str, object]:
        """All figures, as JSON can hold them."""
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
                            "p_value_holm": _number(found.p_values_holm[name]),
                            "t_test_p_value_holm": _number(found.t_test_p_values_holm[name]),
                        }
                        for name, comparison in found.comparisons.items()
                    },
                }
                for system, found in zip(self.systems[1:], self.against, strict=True)
            ]
        if len(self.against) == 1:  # The short way to the figures of the only one.
            content["baseline"] = content["baselines"][0]["metrics"]
        return content

    def write_per_query(self, path: Path) -> None:
        """Writes question-id and the metrics, the run's and then each baseline's, by tabs under a header."""
        columns = [
            (name if not place else f"{name} [{' '.join(self.names[place].split())}]", system.values[name])
            for place, system in enumerate(self.systems)
            for name in self.metrics
        ]
        with atomic_write(path) as file:
            file.write("\t".join(["question-id", *(name for name, _ in columns)]) + "\n")
            for question_id in columns[0][1]:
                file.write("\t".join([question_id, *(f"{values[question_id]:.6g}" for _, values in columns)]) + "\n")

    # ---- tables ------------------------------------------------------------------------------------------------------

    def grids(self) -> list[Grid]:
        """The systems with their metrics; and, with baselines, the comparisons."""
        questions = f"{self.questions} question{'s' * (self.questions != 1)}"
        rows = [Row(name, self._cells(place)) for place, name in enumerate(self.names)]
        if not self.against:
            return [Grid(questions, "run", self.metrics, rows)]
        family = len(self.against) * len(self.metrics)
        marked = any(cell.marked for row in rows for cell in row.cells)
        notes = [
            f"RBO: rank-biased overlap with the rankings of {self.names[0]} (p = {_PERSISTENCE}, extrapolated).",
            *[
                f"†: differs from {self.names[0]} (paired randomisation test, two-sided, p < {LEVEL} after Holm's "
                f"correction for all {family} comparisons of this table, each metric with each baseline)."
            ]
            * marked,
        ]
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
        return [
            Grid(questions, "run", [*self.metrics, "RBO"], rows, notes),
            Grid(f"{self.names[0]} against the baselines", "against", columns, compared, explained),
        ]

    def _cells(self, place: int) -> list[Cell]:
        cells = []
        for name in self.metrics:
            printed = [f"{self.mean(other, name):.4f}" for other in range(len(self.systems))]
            # As printed: two systems that the table does not tell apart are both the best.
            best = min(printed) if metrics.lower_is_better(name) else max(printed)
            marked = bool(place) and self.against[place - 1].p_values_holm[name] < LEVEL
            cells.append(Cell(printed[place], bool(self.against) and printed[place] == best, marked))
        if self.against:
            cells.append(Cell(f"{self.against[place - 1].rbo:.4f}" if place else ""))
        return cells

    def _compared(self, place: int, metric: str) -> list[Cell]:
        found = self.against[place]
        c = found.comparisons[metric]
        figures = (
            metric,
            f"{c.difference:+.4f}",
            f"[{c.low:+.4f}, {c.high:+.4f}]",
            _p_value(c.p_value),
            _p_value(found.p_values_holm[metric]),
            _p_value(c.t_test_p_value),
            _p_value(found.t_test_p_values_holm[metric]),
            f"{c.wins}/{c.ties}/{c.losses}",
        )
        return [Cell(text) for text in figures]


def overlap(run: Run, baseline: Run, question_ids: Sequence[str]) -> float:
    """The mean rank-biased overlap, extrapolated, of two runs over questions."""
    a, b = ([ranked_ids(each.get(id, {}), _DEPTH) for id in question_ids] for each in (run, baseline))
    return float(np.mean(rank_biased_overlap(find_shared(a, b, _DEPTH), _PERSISTENCE).extrapolated))


def _holm(p_values: Mapping[tuple[int, str], float]) -> dict[tuple[int, str], float]:
    return dict(zip(p_values, holm(list(p_values.values())), strict=True))


def _number(value: float) -> float | None:
    # JSON has no NaN.
    return None if math.isnan(value) else value


def _p_value(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.4f}" if value >= 1e-4 else "<0.0001"
