"""The choice of the weight mu in s1 + mu s2 on dev questions: grids, and which of their weights is best.

SPAR (https://arxiv.org/abs/2110.06918, section 4.2) tries 19 values around 1. The scores of two models may differ in
scale by any factor, so here there is also a grid that begins where both weigh the same and moves to where the metric rises.
"""

import itertools
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxretr.runtime.errors import UserError

PAPER = (*(tenth / 10 for tenth in range(1, 11)), *(10 / tenth for tenth in range(9, 0, -1)))
"""The 19 weights of the paper: .1, .2, ... 1 and the reciprocals 1/.9, 1/.8, ... 10."""

_STEPS = 6
_EXTENSIONS = 3
_FINE_STEPS = 4

# Means of the same values that were summed in another order.
_EQUAL = 1e-12


@dataclass(frozen=True)
class Choice:
    """The best weight of a grid.

    Attributes:
      weight: the best one; of several that are equally good, the one nearest the middle of their longest unbroken row.
      value: the metric at this weight, the highest of the grid.
      tied: the longest unbroken row of equally good weights, ascending; the weight is among them.
      at_edge: whether that row reaches the lowest or highest weight of the grid: a better one may lie outside.
    """

    weight: float
    value: float
    tied: tuple[float, ...]
    at_edge: bool


def choose(values: Mapping[float, float]) -> Choice:
    """Pick the weight with the highest value of the metric.

    Args:
      values: {weight: value of the metric, higher is better}; weights of 0 and infinity (one model alone) are not chosen.

    Returns:
      See `Choice`. The middle is that of the logarithms, and of two weights equally near to it the lower one wins.

    Raises:
      UserError: there is no other weight than 0 and infinity.
    """
    weights = sorted(weight for weight in values if 0 < weight < math.inf)
    if not weights:
        raise UserError("there is no weight between 0 and infinity to choose from; give at least one")
    highest = max(values[weight] for weight in weights)
    rows = [
        list(row)
        for equal, row in itertools.groupby(weights, lambda weight: values[weight] >= highest - _EQUAL)
        if equal
    ]
    row = max(rows, key=len)
    middle = (math.log(row[0]) + math.log(row[-1])) / 2
    best = min(row, key=lambda weight: (round(abs(math.log(weight) - middle), 9), weight))
    return Choice(best, values[best], tuple(row), row[0] == weights[0] or row[-1] == weights[-1])


def balancing_weight(scores: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """The weight at which both models' scores differ equally much between a question's passages.

    Args:
      scores: for each question both models' scores of the same passages, [n] and [n]. What a model adds to all passages
        of a question changes no ranking, and is left out.

    Returns:
      std(s1) / std(s2), the deviations being from each question's mean.

    Raises:
      UserError: the passages' scores do not differ.
    """
    squares = np.zeros(2)
    for pair in scores:
        squares += [np.square(np.asarray(one, np.float64) - np.mean(one, dtype=np.float64)).sum() for one in pair]
    if not (squares > 0).all():
        which = "first" if squares[0] == 0 else "second"
        raise UserError(f"the {which} model gives all passages of a question the same score; there is nothing to weigh")
    return float(np.sqrt(squares[0] / squares[1]))


def adaptive_grid(evaluate: Callable[[Sequence[float]], Mapping[float, float]], around: float) -> dict[float, float]:
    """Evaluate a logarithmic grid that moves to where the metric is highest; see `adaptive_rounds`.

    Args:
      evaluate: {weight: value} of any weights; called once for each round, at most 5 times.
      around: the middle of the first round.

    Returns:
      {weight: value} of all rounds, ascending. `choose` picks the best.
    """
    rounds = adaptive_rounds(around)
    weights = next(rounds)
    while True:
        try:
            weights = rounds.send(evaluate(weights))
        except StopIteration as end:
            return end.value


def adaptive_rounds(around: float) -> Generator[list[float], Mapping[float, float], dict[float, float]]:
    """Yield the weights of each round of the adaptive grid, and take {weight: value} of them.

    13 weights, each twice the one before, around a middle. While the best are at an edge, 6 more are added there, at
    most 3 times. Then those between the best weight and its neighbours, in steps of 2^(1/4).

    Args:
      around: the middle of the first round.

    Returns:
      {weight: value} of all rounds, ascending.
    """
    values = dict((yield [around * 2.0**step for step in range(-_STEPS, _STEPS + 1)]))
    for _ in range(_EXTENSIONS):
        tied = choose(values).tied
        if len(tied) == len(values):  # All the same: nowhere to go.
            break
        extension = [tied[0] / 2.0**step for step in range(1, _STEPS + 1) if tied[0] == min(values)]
        extension += [tied[-1] * 2.0**step for step in range(1, _STEPS + 1) if tied[-1] == max(values)]
        if not extension:
            break
        values |= yield extension
    best = choose(values).weight
    fine = [best * 2.0 ** (step / _FINE_STEPS) for step in range(1 - _FINE_STEPS, _FINE_STEPS) if step]
    values |= yield fine
    return dict(sorted(values.items()))
