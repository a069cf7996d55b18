"""The figures of systems without and with typos: computed, as JSON, as a table and as lines of questions."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxretr.commands.altered_questions import Measured
from jaxretr.evaluate.robustness import Robustness, mean_over_draws
from jaxretr.evaluate.significance import Comparison, compare, holm
from jaxretr.storage.files import atomic_write

# The questions as they are, where kinds of typos stand otherwise.
CLEAN = "clean"


@dataclass(frozen=True)
class Kind:
    """A kind of typos in the questions of a split.

    Attributes:
      draws: how many there are of every question.
      changed: the share of the questions that have one, over all draws; upper and lower case and white space apart.
    """

    draws: int
    changed: float


@dataclass(frozen=True)
class Difference:
    """A model ("a") compared with the first one ("b") on the same questions.

    Attributes:
      system: the model.
      first: the one that it is compared with.
      kind: of typos, or `CLEAN`.
      comparison: of the questions' means over the draws.
      p_value_holm: its p-value of the randomisation test, corrected for all differences of the same split and metric.
      t_test_p_value_holm: the same of the t-test; nan with a single question.
    """

    system: str
    first: str
    kind: str
    comparison: Comparison
    p_value_holm: float
    t_test_p_value_holm: float


@dataclass(frozen=True)
class MetricFigures:
    """One metric on one split.

    Attributes:
      clean: {system: mean over the questions as they are}.
      losses: {system: {kind of typos: what it costs}}.
      differences: between the models; empty where there is one.
    """

    clean: dict[str, float]
    losses: dict[str, dict[str, Robustness]]
    differences: list[Difference]


@dataclass(frozen=True)
class Figures:
    """One split.

    Attributes:
      questions: how many it judges.
      kinds: the kinds of typos, by name.
      metrics: the figures of each metric.
    """

    questions: int
    kinds: dict[str, Kind]
    metrics: dict[str, MetricFigures]


def figures_of(measured: Mapping[str, Measured], kinds: Iterable[str], metric: str, models: int) -> MetricFigures:
    """Compares typos with clean questions for every system, and the models with the first of them.

    Args:
      measured: {system: its values}, models first.
      kinds: of typos.
      metric: its name.
      models: how many of the systems are models.
    """
    kinds = list(kinds)
    losses = {system: {kind: found.robustness(kind, metric) for kind in kinds} for system, found in measured.items()}
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
    return MetricFigures(clean, losses, differences)


@dataclass(frozen=True)
class Report:
    """All figures.

    Attributes:
      settings: how typos were made; None where all are from elsewhere.
      splits: the figures of each split.
    """

    settings: Mapping[str, object] | None
    splits: dict[str, Figures]

    def as_json(self) -> str:
        """All figures as one JSON object."""
        splits = {
            split: {
                "questions": figures.questions,
                "typos": {name: {"draws": kind.draws, "changed": kind.changed} for name, kind in figures.kinds.items()},
                "metrics": {name: _metric_json(of_metric) for name, of_metric in figures.metrics.items()},
            }
            for split, figures in self.splits.items()
        }
        return json.dumps({"made": self.settings, "splits": splits}, indent=1, allow_nan=False)

    def as_table(self) -> str:
        """All figures for people, a block for each split and metric."""
        lines = []
        if self.settings is not None:
            lines += [
                "typos: " + ", ".join(_setting(*item) for item in self.settings.items() if item[1] is not None),
                "",
            ]
        for split, figures in self.splits.items():
            for metric, of_metric in figures.metrics.items():
                lines += [f"{split}, {metric}: {figures.questions} questions", *_losses(figures.kinds, of_metric)]
                lines += [*_differences(of_metric), ""]
        lines += [
            "typoed, ±: mean and standard deviation over the draws; loss: of clean, in percent; difference, interval and",
            "p: the questions' means over the draws, paired with clean.",
        ]
        if any(of_metric.differences for figures in self.splits.values() for of_metric in figures.metrics.values()):
            lines.append("Holm: p corrected for all comparisons of models in the block.")
        return "\n".join(lines)

    def write_per_query(self, path: Path, measured: Mapping[str, Mapping[str, Measured]]) -> None:
        """Writes the values of every question, system, kind and draw, by tabs under a header.

        Args:
          path: the file.
          measured: {split: {system: the values}}.
        """
        with atomic_write(path) as file:
            metrics = list(next(iter(self.splits.values())).metrics)
            file.write("\t".join(["split", "question-id", "system", "typos", "draw", *metrics]) + "\n")
            for split, of_systems in measured.items():
                for system, found in of_systems.items():
                    for kind, draws in {CLEAN: [found.original], **found.draws}.items():
                        for draw, values in enumerate(draws):
                            for id in values[metrics[0]]:
                                of_question = (f"{values[metric][id]:.6g}" for metric in metrics)
                                file.write("\t".join([split, id, system, kind, str(draw), *of_question]) + "\n")


# ---- JSON ------------------------------------------------------------------------------------------------------------


def _metric_json(figures: MetricFigures) -> dict[str, object]:
    systems = []
    for system, losses in figures.losses.items():
        typos = {}
        for kind, found in losses.items():
            compared = found.comparison.as_json()
            del compared["mean_b"]
            typos[kind] = {
                "mean": compared.pop("mean_a"),
                "deviation": _number(found.deviation),
                "of_draws": found.of_draws,
                "relative_loss_percent": _number(found.relative_loss),
                **compared,
            }
        systems.append({"system": system, "clean": figures.clean[system], "typos": typos})
    differences = []
    for found in figures.differences:
        compared = found.comparison.as_json()
        differences.append(
            {
                "system": found.system,
                "first": found.first,
                "typos": found.kind,
                "mean": compared.pop("mean_a"),
                "mean_of_first": compared.pop("mean_b"),
                **compared,
                "p_value_holm": _number(found.p_value_holm),
                "t_test_p_value_holm": _number(found.t_test_p_value_holm),
            }
        )
    return {"systems": systems, "differences": differences}


def _number(value: float) -> float | None:
    # JSON has no NaN.
    return None if math.isnan(value) else value


# ---- table -----------------------------------------------------------------------------------------------------------


def _losses(kinds: Mapping[str, Kind], figures: MetricFigures) -> list[str]:
    names = _column("system", figures.losses)
    of_kinds = _column("typos", kinds)
    lines = [
        f"{'system':<{names}}{'typos':<{of_kinds}}{'draws':>6}{'changed':>9}{'clean':>9}{'typoed':>9}{'±':>8}{'loss %':>8}"
        f"{'difference':>12}{'95% interval':>20}{'p':>9}{'p (t-test)':>12}{'better/equal/worse':>20}"
    ]
    for system, losses in figures.losses.items():
        for kind, found in losses.items():
            c, of_kind = found.comparison, kinds[kind]
            lines.append(
                f"{system:<{names}}{kind:<{of_kinds}}{of_kind.draws:>6}{100 * of_kind.changed:>7.1f} %{c.mean_b:>9.4f}"
                f"{c.mean_a:>9.4f}{_or_dash(found.deviation, '.4f'):>8}{_or_dash(found.relative_loss, '.1f'):>8}"
                f"{_difference(c)}{c.p_value:>9.4f}{_or_dash(c.t_test_p_value, '.4f'):>12}{_counts(c)}"
            )
    return lines


def _differences(figures: MetricFigures) -> list[str]:
    if not figures.differences:
        return []
    head = f"against {figures.differences[0].first}"
    names = _column(head, (found.system for found in figures.differences))
    of_kinds = _column("typos", (found.kind for found in figures.differences))
    lines = [
        f"{head:<{names}}{'typos':<{of_kinds}}{'difference':>12}{'95% interval':>20}{'p':>9}{'Holm':>9}{'p (t-test)':>12}"
        f"{'Holm':>9}{'better/equal/worse':>20}"
    ]
    for found in figures.differences:
        c = found.comparison
        lines.append(
            f"{found.system:<{names}}{found.kind:<{of_kinds}}{_difference(c)}{c.p_value:>9.4f}"
            f"{found.p_value_holm:>9.4f}{_or_dash(c.t_test_p_value, '.4f'):>12}"
            f"{_or_dash(found.t_test_p_value_holm, '.4f'):>9}{_counts(c)}"
        )
    return lines


def _column(head: str, names: Iterable[str]) -> int:
    return max(map(len, (head, *names))) + 2


def _difference(c: Comparison) -> str:
    interval = f"[{c.low:+.4f}, {c.high:+.4f}]"
    return f"{c.difference:>+12.4f}{interval:>20}"


def _counts(c: Comparison) -> str:
    counts = f"{c.wins}/{c.ties}/{c.losses}"
    return f"{counts:>20}"


def _or_dash(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _setting(name: str, value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{name} {value}"
