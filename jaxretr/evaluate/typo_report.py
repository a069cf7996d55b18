"""The metrics of systems with and without typos in the questions: computed, and as JSON, tables, files and plots."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxretr.data.csv_tables import csv_line
from jaxretr.evaluate.robustness import AlteredValues, Robustness, mean_over_draws
from jaxretr.evaluate.significance import Comparison, compare, holm, or_none, printed_p
from jaxretr.storage.files import atomic_write
from jaxretr.tables import Cell, Grid, Row, render, shortened

# The name of the original questions among the kinds of typos.
CLEAN = "clean"

_NOTES = (
    "typoed, ±: mean and standard deviation over the draws; loss: of clean, in percent; difference, interval and p: "
    "the questions' means over the draws, paired with clean.",
)


@dataclass(frozen=True)
class Kind:
    """A kind of typos in the questions of a split.

    Attributes:
      draws: the number of variants of every question.
      changed: the share of questions with a typo, over all draws; case and white space do not count.
    """

    draws: int
    changed: float


@dataclass(frozen=True)
class Difference:
    """A model ("a") compared with the first one ("b") on the same questions.

    Attributes:
      system: the model.
      first: the model it is compared with.
      kind: the kind of typos, or `CLEAN`.
      comparison: the comparison of the questions' means over the draws.
      p_value_holm: its p-value of the randomisation test, corrected for all differences of the same split and metric.
      t_test_p_value_holm: its p-value of the t-test, corrected likewise; NaN with a single question.
    """

    system: str
    first: str
    kind: str
    comparison: Comparison
    p_value_holm: float
    t_test_p_value_holm: float

    def as_json(self) -> dict[str, object]:
        """The attributes by name, None for NaN."""
        compared = self.comparison.as_json()
        return {
            "system": self.system,
            "first": self.first,
            "typos": self.kind,
            "mean": compared.pop("mean_a"),
            "mean_of_first": compared.pop("mean_b"),
            **compared,
            "p_value_holm": or_none(self.p_value_holm),
            "t_test_p_value_holm": or_none(self.t_test_p_value_holm),
        }


@dataclass(frozen=True)
class TypoMetric:
    """One metric on one split.

    Attributes:
      clean: {system: mean over the original questions}.
      losses: {system: {kind of typos: its cost}}.
      differences: the differences between the models; empty if there is one model.
    """

    clean: dict[str, float]
    losses: dict[str, dict[str, Robustness]]
    differences: list[Difference]

    @classmethod
    def of(cls, measured: Mapping[str, AlteredValues], kinds: Sequence[str], metric: str, models: int) -> "TypoMetric":
        """Compare typos with clean questions for every system, and the models with the first of them.

        Args:
          measured: {system: its values}, models first.
          kinds: the kinds of typos.
          metric: the metric's name.
          models: the number of systems that are models.
        """
        losses = {name: {kind: found.robustness(kind, metric) for kind in kinds} for name, found in measured.items()}
        clean = {system: of_system[kinds[0]].comparison.mean_b for system, of_system in losses.items()}

        def values(system: str, kind: str) -> Mapping[str, float]:
            original = measured[system].original[metric]
            return original if kind == CLEAN else mean_over_draws(original, measured[system].of_draws(kind, metric))

        first, *others = list(measured)[:models]
        compared = [
            (system, kind, compare(values(system, kind), values(first, kind)))
            for system in others
            for kind in (CLEAN, *kinds)
        ]
        corrected = holm([comparison.p_value for *_, comparison in compared])
        t_corrected = holm([comparison.t_test_p_value for *_, comparison in compared])
        differences = [
            Difference(system, first, kind, comparison, p, t)
            for (system, kind, comparison), p, t in zip(compared, corrected, t_corrected, strict=True)
        ]
        return cls(clean, losses, differences)

    def as_json(self) -> dict[str, object]:
        """The systems with their losses, and the differences."""
        systems = [
            {
                "system": system,
                "clean": self.clean[system],
                "typos": {kind: _loss_json(found) for kind, found in losses.items()},
            }
            for system, losses in self.losses.items()
        ]
        return {"systems": systems, "differences": [found.as_json() for found in self.differences]}


@dataclass(frozen=True)
class TypoSplit:
    """One split.

    Attributes:
      questions: the number of judged questions.
      kinds: the kinds of typos, by name.
      metrics: the results of each metric.
    """

    questions: int
    kinds: dict[str, Kind]
    metrics: dict[str, TypoMetric]


@dataclass(frozen=True, repr=False)
class TypoReport:
    """The cost of typos in the questions for systems, and the differences between the models among them.

    Attributes:
      made: the settings of the generated typos; None if all were read from files.
      splits: the results of each split.
      values: {split: {system: the metrics of every question}}.
    """

    made: Mapping[str, object] | None
    splits: dict[str, TypoSplit]
    values: Mapping[str, Mapping[str, AlteredValues]] = field(compare=False)

    def __repr__(self) -> str:
        losses = {
            name: {
                metric: {
                    system: {kind: f"{robust.relative_loss:.1f} %" for kind, robust in of_system.items()}
                    for system, of_system in found.losses.items()
                }
                for metric, found in split.metrics.items()
            }
            for name, split in self.splits.items()
        }
        return f"TypoReport(losses: {losses})"

    def to_json(self) -> str:
        """All results as one JSON object."""
        splits = {
            name: {
                "questions": split.questions,
                "typos": {kind: {"draws": of.draws, "changed": of.changed} for kind, of in split.kinds.items()},
                "metrics": {metric: found.as_json() for metric, found in split.metrics.items()},
            }
            for name, split in self.splits.items()
        }
        return json.dumps({"made": self.made, "splits": splits}, indent=1, allow_nan=False)

    def table(self, form: str = "table") -> str:
        """The losses, and with several models their differences, of each split and metric.

        Args:
          form: "table" for text, "latex" or "markdown".
        """
        grids = []
        for name, split in self.splits.items():
            for metric, found in split.metrics.items():
                title = f"{name}, {metric}: {split.questions} questions"
                grids.append(_losses(title, split.kinds, found))
                if found.differences:
                    grids.append(_differences(f"{name}, {metric}: differences between the models", found.differences))
        settings = [
            f"typos: {', '.join(_setting(*item) for item in (self.made or {}).items() if item[1] is not None)}."
        ]
        notes = [*settings * (self.made is not None), *_NOTES]
        if any(found.differences for split in self.splits.values() for found in split.metrics.values()):
            notes.append("Holm: p corrected for all comparisons of models in the block.")
        last = grids.pop()
        grids.append(Grid(last.title, last.head, last.columns, last.rows, notes))
        return render(grids, form)

    def write_per_query(self, path: str | Path) -> None:
        """Write the values of every question, system, kind and draw, separated by tabs under a header."""
        with atomic_write(Path(path).expanduser()) as file:
            metrics = list(next(iter(self.splits.values())).metrics)
            file.write(csv_line(["split", "question-id", "system", "typos", "draw", *metrics]))
            for split, of_systems in self.values.items():
                for system, found in of_systems.items():
                    for kind, draws in {CLEAN: [found.original], **found.draws}.items():
                        for draw, values in enumerate(draws):
                            for id in values[metrics[0]]:
                                of_question = (f"{values[metric][id]:.6g}" for metric in metrics)
                                file.write(csv_line([split, id, system, kind, str(draw), *of_question]))

    def plot(self, path: str | Path) -> None:
        """Draws a panel for each split and metric, with bars for each system.

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
        splits = self.splits
        first = next(iter(splits.values()))
        systems = list(next(iter(first.metrics.values())).clean)
        bars = 1 + len(first.kinds)
        size = (max(4.0, 1.2 + 0.3 * len(systems) * (bars + 1)) * len(first.metrics), 3.6 * len(splits) + 0.4)
        figure, grid = plt.subplots(len(splits), len(first.metrics), figsize=size, squeeze=False, layout="constrained")
        for row, (name, split) in zip(grid, splits.items(), strict=True):
            for axes, (metric, of_metric) in zip(row, split.metrics.items(), strict=True):
                # NaN: without draws there is no error bar.
                heights = {"clean": [(of_metric.clean[system], math.nan) for system in systems]}
                for kind in split.kinds:
                    found = [of_metric.losses[system][kind] for system in systems]
                    heights[kind] = [(each.comparison.mean_a, each.deviation) for each in found]
                for place, (kind, of_systems) in enumerate(heights.items()):
                    means, deviations = zip(*of_systems, strict=True)
                    at = [group + (place - (bars - 1) / 2) * 0.8 / bars for group in range(len(systems))]
                    colour = f"C{place - 1}" if place else "0.35"
                    axes.bar(at, means, 0.8 / bars, yerr=deviations, capsize=2, color=colour, label=plots.plain(kind))
                axes.set_xticks(
                    range(len(systems)), [plots.plain(name) for name in shortened(systems)], fontsize="small"
                )
                axes.set(ylabel=metric, title=plots.plain(f"{name}, {split.questions} questions"), ylim=(0, None))
                axes.grid(axis="y", alpha=0.3)
                axes.set_axisbelow(True)
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=bars, fontsize="small")
        plots.save(figure, path)


def _loss_json(found: Robustness) -> dict[str, object]:
    compared = found.comparison.as_json()
    del compared["mean_b"]
    return {
        "mean": compared.pop("mean_a"),
        "deviation": or_none(found.deviation),
        "of_draws": found.of_draws,
        "relative_loss_percent": or_none(found.relative_loss),
        **compared,
    }


# ---- tables ----------------------------------------------------------------------------------------------------------


def _losses(title: str, kinds: Mapping[str, Kind], found: TypoMetric) -> Grid:
    columns = (
        "typos",
        "draws",
        "changed",
        "clean",
        "typoed",
        "±",
        "loss %",
        "difference",
        "95% interval",
        "p",
        "p (t-test)",
        "better/equal/worse",
    )
    rows = []
    for system, losses in found.losses.items():
        for kind, robust in losses.items():
            compared = robust.comparison
            cells = (
                kind,
                str(kinds[kind].draws),
                f"{100 * kinds[kind].changed:.1f} %",
                f"{compared.mean_b:.4f}",
                f"{compared.mean_a:.4f}",
                _or_dash(robust.deviation, ".4f"),
                _or_dash(robust.relative_loss, ".1f"),
                *compared.columns,
                printed_p(compared.p_value),
                printed_p(compared.t_test_p_value),
                compared.counts,
            )
            rows.append(Row(system, list(map(Cell, cells))))
    return Grid(title, "system", columns, rows)


def _differences(title: str, differences: Sequence[Difference]) -> Grid:
    columns = ("typos", "difference", "95% interval", "p", "Holm", "p (t-test)", "Holm", "better/equal/worse")
    rows = []
    for found in differences:
        compared = found.comparison
        p_values = (compared.p_value, found.p_value_holm, compared.t_test_p_value, found.t_test_p_value_holm)
        cells = (found.kind, *compared.columns, *map(printed_p, p_values), compared.counts)
        rows.append(Row(found.system, list(map(Cell, cells))))
    return Grid(title, f"against {differences[0].first}", columns, rows)


def _or_dash(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _setting(name: str, value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{name} {value}"
