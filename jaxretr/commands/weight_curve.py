"""The figure of a combination over its weight: traced over a grid, chosen from, printed, written and drawn."""

import dataclasses
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxretr.evaluate.metrics import mean
from jaxretr.evaluate.significance import Comparison, compare
from jaxretr.files import atomic_write
from jaxretr.search.weight_choice import PAPER, Choice, adaptive_grid, choose

log = logging.getLogger(__name__)

Evaluate = Callable[[Sequence[float]], Mapping[float, Mapping[str, float]]]
"""Weights -> {weight: {question id: value}}; 0 is the first system alone, infinity the second one."""


@dataclass(frozen=True)
class Curve:
    """What `trace` found.

    Attributes:
      metric: its name.
      systems: the names of the two that are combined.
      questions: how many.
      values: {weight: mean over the questions}, ascending, without 0 and infinity.
      alone: the means of each system alone.
      choice: the best weight.
      comparison: of the best weight ("a") with the first system alone ("b").
    """

    metric: str
    systems: tuple[str, str]
    questions: int
    values: dict[float, float]
    alone: tuple[float, float]
    choice: Choice
    comparison: Comparison

    def as_json(self) -> str:
        """All of it as one JSON object."""
        content = {
            "metric": self.metric,
            "systems": self.systems,
            "questions": self.questions,
            "alone": self.alone,
            "curve": [{"weight": weight, "value": value} for weight, value in self.values.items()],
            "best": dataclasses.asdict(self.choice),
            "best_against_first": self.comparison.as_json(),
        }
        return json.dumps(content, indent=1)

    def as_table(self) -> str:
        """A table for people."""
        first, second = (f"({name} alone)" for name in self.systems)
        rows: list[tuple[str, float, str]] = [("0", self.alone[0], first)]
        for weight, value in self.values.items():
            tied = "equally good" if weight in self.choice.tied else ""
            rows.append((f"{weight:.4g}", value, "<- best" if weight == self.choice.weight else tied))
        rows.append(("inf", self.alone[1], second))
        lines = [
            f"{'weight':>10}{self.metric:>14}",
            *(f"{w:>10}{value:>14.4f}  {note}".rstrip() for w, value, note in rows),
        ]
        c = self.comparison
        lines.append(
            f"best weight {self.choice.weight:.6g}: {self.metric} {c.mean_a:.4f}, {self.systems[0]} alone "
            f"{c.mean_b:.4f}, difference {c.difference:+.4f} [{c.low:+.4f}, {c.high:+.4f}], p = {c.p_value:.4f} "
            f"({c.wins} better, {c.ties} equal, {c.losses} worse of {self.questions} questions)"
        )
        if len(self.choice.tied) > 1:
            lines.append(
                f"{len(self.choice.tied)} weights from {self.choice.tied[0]:.4g} to {self.choice.tied[-1]:.4g} are "
                "equally good; the one nearest their middle was taken"
            )
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Writes the JSON object."""
        with atomic_write(path) as file:
            file.write(self.as_json() + "\n")

    def draw(self, path: Path) -> None:
        """Draws the figure over the weight, a PNG."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(6, 4))
        axes.plot(list(self.values), list(self.values.values()), marker="o", label="combined")
        for value, name, style in zip(self.alone, self.systems, ("--", ":"), strict=True):
            axes.axhline(value, color="gray", linestyle=style, label=f"{name} alone")
        axes.plot([self.choice.weight], [self.choice.value], "*", markersize=14, label=f"{self.choice.weight:.4g}")
        axes.set_xscale("log")
        axes.set(
            xlabel=f"weight of {self.systems[1]}",
            ylabel=self.metric,
            title=f"{self.metric}, {self.questions} questions",
        )
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        figure.tight_layout()
        with atomic_write(path, "wb") as file:
            figure.savefig(file, dpi=120, format="png")
        plt.close(figure)


def trace(
    evaluate: Evaluate,
    grid: str | Sequence[float],
    around: Callable[[], float],
    *,
    metric: str,
    systems: tuple[str, str],
) -> Curve:
    """Evaluates a grid of weights, and each system alone.

    Args:
      evaluate: called once for a given grid, and for each round of the adaptive one.
      grid: "paper", "log" (adaptive), or the weights.
      around: gives the middle of the adaptive grid; called for that alone.
      metric, systems: names, for the output.
    """
    of_questions: dict[float, Mapping[str, float]] = {}

    def means(weights: Sequence[float]) -> dict[float, float]:
        # With the first grid, so that both systems alone cost no pass of their own.
        alone = () if of_questions else (0.0, math.inf)
        found = evaluate([*weights, *alone])
        of_questions.update(found)
        return {weight: mean(found[weight]) for weight in weights}

    values = adaptive_grid(means, around()) if grid == "log" else means(PAPER if grid == "paper" else grid)  # pyright: ignore[reportArgumentType]
    choice = choose(values)
    if len(choice.tied) == len(values) > 1:
        log.warning("all weights of the grid are equally good: %s does not tell them apart", metric)
    elif choice.at_edge:
        log.warning(
            "the best weight lies at the edge of the grid (%.4g to %.4g)%s",
            *(min(values), max(values), "" if grid == "log" else ": a better one may lie beyond; try --grid log"),
        )
    first, second = (of_questions[weight] for weight in (0.0, math.inf))
    comparison = compare(of_questions[choice.weight], first)
    return Curve(
        metric, systems, len(first), dict(sorted(values.items())), (mean(first), mean(second)), choice, comparison
    )
