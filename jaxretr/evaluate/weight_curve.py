"""The metric of a combination over its weight: traced over a grid, tested, printed, written and drawn.

The difference that the best weight makes on the questions that chose it is too favourable, and a test there rejects too
often. So the test is cross-fitted: each half of the questions is measured with the weight that the other half chose,
from a grid that the other half alone moved.
"""

import dataclasses
import hashlib
import logging
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from jaxretr.evaluate.metrics import lower_is_better, mean
from jaxretr.evaluate.results import as_json
from jaxretr.evaluate.significance import Comparison, compare
from jaxretr.indexes.hybrid.weight_choice import PAPER, Choice, adaptive_rounds, choose
from jaxretr.runtime.errors import UsageError, is_number
from jaxretr.runtime.storage.files import atomic_write

log = logging.getLogger(__name__)

Evaluate = Callable[[Sequence[float]], Mapping[float, Mapping[str, float]]]
"""A function from weights to {weight: {question id: value}}; 0 is the first system alone, infinity the second."""
Rounds = Generator[list[float], Mapping[float, float], dict[float, float]]
"""A generator that yields weights, takes {weight: mean} of them, and returns all of these."""


@dataclass(frozen=True)
class HeldOut:
    """Each half of the questions with the weight that the other half chose.

    Attributes:
      weights: the weights that the first and the second half chose (see `halves`).
      comparison: all questions with the weight of the half that they are not in ("a") against the first system alone
        ("b").
    """

    weights: tuple[float, float]
    comparison: Comparison


@dataclass(frozen=True)
class Curve:
    """The metric of a combination for each weight that was tried, and the best weight.

    Attributes:
      metric: the metric's name.
      systems: the names of the two systems that are combined.
      questions: the number of questions.
      values: {weight: mean over the questions}, ascending, without 0 and infinity.
      alone: the means of each system alone.
      choice: the best weight.
      held_out: the combination compared with the first system alone on questions that did not choose the weight; None
        with a single question.
    """

    metric: str
    systems: tuple[str, str]
    questions: int
    values: dict[float, float]
    alone: tuple[float, float]
    choice: Choice
    held_out: HeldOut | None

    def as_json(self) -> str:
        """The curve and the choice as one JSON object."""
        content = {
            "metric": self.metric,
            "systems": self.systems,
            "questions": self.questions,
            "alone": self.alone,
            "curve": [{"weight": weight, "value": value} for weight, value in self.values.items()],
            "best": dataclasses.asdict(self.choice),
            "held_out": self.held_out
            and {
                "weights": self.held_out.weights,
                "combined_against_first": vars(self.held_out.comparison),
            },
        }
        return as_json(content)

    def as_table(self) -> str:
        """The curve as a table for people."""
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
        best, first_alone = self.choice.value, self.alone[0]
        lines.append(
            f"best weight {self.choice.weight:.6g}: {self.metric} {best:.4f}, {self.systems[0]} alone {first_alone:.4f}, "
            f"difference {best - first_alone:+.4f} on the {self.questions} questions that chose it, so rather too high"
        )
        if self.held_out is None:
            lines.append("one question cannot both choose a weight and test it; give more for a p-value")
        else:
            c = self.held_out.comparison
            lines.append(
                "held out (each half of the questions with the weight that the other half chose, "
                f"{self.held_out.weights[1]:.4g} and {self.held_out.weights[0]:.4g}): {self.metric} {c.mean_a:.4f}, "
                f"difference {c.difference:+.4f} [{c.low:+.4f}, {c.high:+.4f}], p = {c.p_value:.4f} "
                f"({c.wins} better, {c.ties} equal, {c.losses} worse of {self.questions} questions)"
            )
        if len(self.choice.tied) > 1:
            lines.append(
                f"{len(self.choice.tied)} weights from {self.choice.tied[0]:.4g} to {self.choice.tied[-1]:.4g} are "
                "equally good; the one nearest their middle was taken"
            )
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Write the curve and the choice into a JSON file."""
        with atomic_write(path) as file:
            file.write(self.as_json() + "\n")

    def draw(self, path: Path) -> None:
        """Draw the metric over the weight into a PNG file."""
        from jaxretr.evaluate import plots

        figure, axes = plots.pyplot().subplots(figsize=(6, 4))
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
        plots.save(figure, path)


def check_grid(grid: str | Sequence[float]) -> None:
    """Raise UsageError for a grid that `trace` cannot take."""
    if isinstance(grid, str):
        is_grid = grid in ("log", "paper")
    else:
        is_grid = isinstance(grid, Sized) and len(grid) > 0
        is_grid = is_grid and all(is_number(each) and each > 0 for each in grid)
    if not is_grid:
        raise UsageError(f"grid={grid!r}: give log, paper, or weights above 0")


def check_metric(metric: str | None) -> None:
    """Raise UsageError for a metric whose highest value is not the best one, which `trace` would choose; None is the default."""
    if metric is not None and lower_is_better(metric):
        raise UsageError(f"metric={metric}: is better the lower it is, and the highest is chosen; give another metric")


def trace(
    evaluate: Evaluate,
    grid: str | Sequence[float],
    around: Callable[[], float],
    *,
    metric: str,
    systems: tuple[str, str],
) -> Curve:
    """Evaluate a grid of weights, and each system alone.

    Args:
      evaluate: called once for a given grid, and for each round of the adaptive one with the weights that all questions
        and each half ask for.
      grid: "paper", "log" (adaptive), or the weights.
      around: a function that gives the middle of the adaptive grid; called for that alone.
    """
    middle = around() if grid == "log" else math.nan

    def rounds() -> Rounds:
        return adaptive_rounds(middle) if grid == "log" else _one_round(PAPER if grid == "paper" else grid)  # pyright: ignore[reportArgumentType]

    of_questions, [values, *of_halves] = _trace_all_and_halves(evaluate, rounds)
    choice = choose(values)
    if len(choice.tied) == len(values) > 1:
        log.warning("all weights of the grid are equally good: %s does not tell them apart", metric)
    elif choice.at_edge:
        log.warning(
            "the best weight lies at the edge of the grid (%.4g to %.4g)%s",
            min(values),
            max(values),
            "" if grid == "log" else ": a better one may lie beyond; try the grid log",
        )
    first, second = (of_questions[weight] for weight in (0.0, math.inf))
    held_out = _held_out(of_questions, *of_halves) if of_halves else None
    return Curve(
        metric, systems, len(first), dict(sorted(values.items())), (mean(first), mean(second)), choice, held_out
    )


def halves(question_ids: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split questions at random, the same way whatever their order; of an odd number the second half has one more."""
    mixed = sorted(question_ids, key=lambda id: hashlib.blake2b(id.encode("utf-8", "surrogatepass")).digest())
    return mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]


def _one_round(weights: Sequence[float]) -> Rounds:
    return dict((yield list(weights)))


def _trace_all_and_halves(
    evaluate: Evaluate, rounds: Callable[[], Rounds]
) -> tuple[dict[float, Mapping[str, float]], list[dict[float, float]]]:
    """Let all questions, and each half alone, move a grid; a pass evaluates the weights of all three.

    Returns:
      {weight: {question id: value}} of all weights, and {weight: mean} of the grids of all questions and of each half;
      a single question has no halves.
    """
    searches = [rounds() for _ in range(3)]
    pending = {number: next(search) for number, search in enumerate(searches)}  # All three begin with the same weights.
    # Evaluate both systems alone together with the first grid, so that they cost no pass of their own.
    of_questions = dict(evaluate([*pending[0], 0.0, math.inf]))
    groups = [list(of_questions[0.0]), *halves(of_questions[0.0])]
    if not groups[1]:
        pending = {0: pending[0]}
    values: dict[int, dict[float, float]] = {}
    while pending:
        missing = [weight for weight in dict.fromkeys(chain(*pending.values())) if weight not in of_questions]
        if missing:
            of_questions |= evaluate(missing)
        for number, weights in list(pending.items()):
            means = {weight: mean({id: of_questions[weight][id] for id in groups[number]}) for weight in weights}
            try:
                pending[number] = searches[number].send(means)
            except StopIteration as end:
                values[number] = end.value
                del pending[number]
    return of_questions, [values[number] for number in sorted(values)]


def _held_out(
    of_questions: Mapping[float, Mapping[str, float]], of_first: Mapping[float, float], of_second: Mapping[float, float]
) -> HeldOut:
    first_half, second_half = halves(of_questions[0.0])
    weights = choose(of_first).weight, choose(of_second).weight
    combined = {id: of_questions[weights[1]][id] for id in first_half}
    combined |= {id: of_questions[weights[0]][id] for id in second_half}
    return HeldOut(weights, compare(combined, of_questions[0.0]))
