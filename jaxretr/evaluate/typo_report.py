"""The metrics of systems with and without typos in the questions: computed, and as JSON, tables, files and plots."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxretr.evaluate.results import QUESTION, Block, Results
from jaxretr.evaluate.robustness import CLEAN, AlteredValues, Robustness
from jaxretr.evaluate.significance import Comparison, Corrected, compare, corrected
from jaxretr.evaluate.tables import Cell, Grid, Row, shortened

_COUNTS = "better/equal/worse"
_NOTE = (
    "typoed, ±: mean and standard deviation over the draws; loss: of clean, in percent; difference, interval and p: "
    "the questions' means over the draws, paired with clean."
)


@dataclass(frozen=True, repr=False)
class TypoReport(Results):
    """The cost of typos in the questions for systems, and the differences between the models among them.

    Attributes:
      made: the settings of the generated typos; None if all were read from files.
      questions: {split: number of judged questions}.
      changed: {split: {kind of typos: share of questions with a typo, over all draws; case and white space do not count}}.
      values: {split: {system: the metrics of every question}}, models first.
      models: the number of systems that are models.
    """

    made: Mapping[str, object] | None
    questions: Mapping[str, int]
    changed: Mapping[str, Mapping[str, float]]
    values: Mapping[str, Mapping[str, AlteredValues]]
    models: int

    @functools.cached_property
    def losses(self) -> dict[tuple[str, str], dict[tuple[str, str], Robustness]]:
        """{(split, metric): {(system, kind of typos): the cost}}."""
        return {
            (split, metric): {
                (system, kind): of_system.robustness(kind, metric)
                for system, of_system in of_systems.items()
                for kind in self.changed[split]
            }
            for split, of_systems in self.values.items()
            for metric in next(iter(of_systems.values())).original
        }

    @functools.cached_property
    def differences(self) -> dict[tuple[str, str], dict[tuple[str, str], Corrected]]:
        """The models compared with the first: {(split, metric): {(model, kind of typos or `CLEAN`): the comparison}}.

        The questions' means over the draws are compared, and the p-values corrected for all models and kinds of the split and
        metric; there is none with one model.
        """
        differences = {}
        for split, metric in self.losses:
            models = dict(list(self.values[split].items())[: self.models])
            compared = {
                (name, kind): compare(of_system.means(kind, metric), next(iter(models.values())).means(kind, metric))
                for name, of_system in list(models.items())[1:]
                for kind in (CLEAN, *self.changed[split])
            }
            differences[split, metric] = dict(zip(compared, corrected(list(compared.values())), strict=True))
        return differences

    def __repr__(self) -> str:
        losses: dict[str, Any] = {split: {} for split in self.questions}
        for (split, metric), costs in self.losses.items():
            of_systems = losses[split].setdefault(metric, {})
            for (system, kind), robust in costs.items():
                of_systems.setdefault(system, {})[kind] = f"{robust.relative_loss:.1f} %"
        return f"TypoReport(losses: {losses})"

    def content(self) -> dict[str, Any]:
        """All results for JSON."""
        splits: dict[str, Any] = {
            split: {
                "questions": questions,
                "typos": {
                    kind: {"draws": self._draws(split, kind), "changed": share}
                    for kind, share in self.changed[split].items()
                },
                "metrics": {},
            }
            for split, questions in self.questions.items()
        }
        for (split, metric), losses in self.losses.items():
            systems: dict[str, Any] = {}
            for (system, kind), cost in losses.items():
                of_system = {"system": system, "clean": cost.comparison.mean_b, "typos": {}}
                systems.setdefault(system, of_system)["typos"][kind] = _loss(cost)
            first = next(iter(systems))
            differences = [
                {"system": system, "first": first, "typos": kind, **cost.named("mean", "mean_of_first")}
                for (system, kind), cost in self.differences[split, metric].items()
            ]
            splits[split]["metrics"][metric] = {"systems": list(systems.values()), "differences": differences}
        return {"made": self.made, "splits": splits}

    def _draws(self, split: str, kind: str) -> int:
        """The number of variants of every question."""
        return len(next(iter(self.values[split].values())).draws[kind])

    def blocks(self) -> Iterator[Block]:
        """The values of every question, with each kind of typos and each draw."""
        for split, of_systems in self.values.items():
            for system, of_system in of_systems.items():
                for kind, draws in {CLEAN: [of_system.original], **of_system.draws}.items():
                    for draw, values in enumerate(draws):
                        yield {"split": split, QUESTION: "", "system": system, "typos": kind, "draw": str(draw)}, values

    def grids(self) -> list[Grid]:
        """The losses, and with several models their differences, of each split and metric."""
        grids = []
        for (split, metric), losses in self.losses.items():
            rows = [Row(system, self._loss_cells(split, kind, result)) for (system, kind), result in losses.items()]
            title = f"{split}, {metric}: {self.questions[split]} questions"
            columns = ("typos", "draws", "changed", "clean", "typoed", "±", "loss %", *Comparison.HEADS, _COUNTS)
            grids.append(Grid(title, "system", columns, rows))
            if differences := self.differences[split, metric]:
                rows = [
                    Row(system, [Cell(kind), *map(Cell, result.cells)])
                    for (system, kind), result in differences.items()
                ]
                against, title = next(iter(self.values[split])), f"{split}, {metric}: differences between the models"
                grids.append(Grid(title, f"against {against}", ("typos", *Corrected.HEADS, _COUNTS), rows))
        settings = ", ".join(_setting(*item) for item in (self.made or {}).items() if item[1] is not None)
        notes = [f"typos: {settings}."] * (self.made is not None) + [_NOTE]
        if any(self.differences.values()):
            notes.append("Holm: p corrected for all comparisons of models in the block.")
        return [*grids[:-1], dataclasses.replace(grids[-1], notes=notes)]

    def _loss_cells(self, split: str, kind: str, cost: Robustness) -> list[Cell]:
        compared = cost.comparison
        draws, changed = str(self._draws(split, kind)), f"{100 * self.changed[split][kind]:.1f} %"
        means = f"{compared.mean_b:.4f}", f"{compared.mean_a:.4f}"
        loss = _or_dash(cost.deviation, ".4f"), _or_dash(cost.relative_loss, ".1f")
        return list(map(Cell, (kind, draws, changed, *means, *loss, *compared.cells)))

    def plot(self, path: str | Path) -> None:
        """Draw a panel for each split and metric, with bars for each system.

        A system has a bar for clean questions and one for each kind of typos. Error bars show the standard deviation
        over the draws.

        Args:
          path: a .png, .pdf or .svg.

        Raises:
          UsageError: another ending.
        """
        from jaxretr.evaluate import plots

        path = Path(path).expanduser()
        plots.check_ending(path)
        plt = plots.pyplot()
        kinds, systems = (list(next(iter(of_split.values()))) for of_split in (self.changed, self.values))
        metrics = len(self.losses) // len(self.questions)
        bars = 1 + len(kinds)
        size = (max(4.0, 1.2 + 0.3 * len(systems) * (bars + 1)) * metrics, 3.6 * len(self.questions) + 0.4)
        figure, grid = plt.subplots(len(self.questions), metrics, figsize=size, squeeze=False, layout="constrained")
        for axes, ((split, metric), costs) in zip(grid.flat, self.losses.items(), strict=True):
            # NaN: without draws there is no error bar.
            heights = {CLEAN: [(costs[system, kinds[0]].comparison.mean_b, math.nan) for system in systems]}
            for kind in kinds:
                of_systems = [costs[system, kind] for system in systems]
                heights[kind] = [(each.comparison.mean_a, each.deviation) for each in of_systems]
            for place, (kind, of_systems) in enumerate(heights.items()):
                means, deviations = zip(*of_systems, strict=True)
                at = [group + (place - (bars - 1) / 2) * 0.8 / bars for group in range(len(systems))]
                colour = f"C{place - 1}" if place else "0.35"
                axes.bar(at, means, 0.8 / bars, yerr=deviations, capsize=2, color=colour, label=plots.plain(kind))
            axes.set_xticks(range(len(systems)), [plots.plain(name) for name in shortened(systems)], fontsize="small")
            axes.set(ylabel=metric, title=plots.plain(f"{split}, {self.questions[split]} questions"), ylim=(0, None))
            axes.grid(axis="y", alpha=0.3)
            axes.set_axisbelow(True)
        plots.legend(figure, grid, bars)
        plots.save(figure, path)


def _loss(cost: Robustness) -> dict[str, Any]:
    compared = cost.comparison.named("mean", "clean")
    del compared["clean"]
    return {
        "mean": compared.pop("mean"),
        "deviation": cost.deviation,
        "of_draws": cost.of_draws,
        "relative_loss_percent": cost.relative_loss,
        **compared,
    }


def _or_dash(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _setting(name: str, value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{name} {value}"
