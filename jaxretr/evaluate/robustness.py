"""What altering the questions costs: values of the questions as they are against their values over several draws."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxretr.evaluate.metrics import mean
from jaxretr.evaluate.significance import Comparison, compare


@dataclass(frozen=True)
class Robustness:
    """What `robustness` found of one metric.

    Attributes:
      comparison: the questions' means over the draws ("a") with their values as they are ("b"); a negative difference
        is a loss.
      of_draws: the mean over questions of each draw.
      deviation: the standard deviation of these over the draws (with n - 1); nan with a single draw.
      relative_loss: how much of the mean is lost, in percent of it; nan where there is nothing to lose.
    """

    comparison: Comparison
    of_draws: list[float]
    deviation: float
    relative_loss: float


def robustness(original: Mapping[str, float], draws: Sequence[Mapping[str, float]]) -> Robustness:
    """Compares one metric of altered questions with that of the same questions as they are.

    Args:
      original: {question id: value} of the questions as they are.
      draws: the same questions' values in each draw of the alteration, at least one draw.

    Raises:
      UserError: no question, or not the same questions everywhere.
    """
    comparison = compare(mean_over_draws(original, draws), original)
    of_draws = [mean(values) for values in draws]
    deviation = float(np.std(of_draws, ddof=1)) if len(draws) > 1 else math.nan
    return Robustness(comparison, of_draws, deviation, relative_loss(comparison.mean_b, comparison.mean_a))


def mean_over_draws(original: Mapping[str, float], draws: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over the draws of each question's value; arguments as for `robustness`."""
    # The mean change is added, not the mean taken: where nothing changes, no rounding may look like a change.
    return {
        id: before + math.fsum(values[id] - before for values in draws) / len(draws) for id, before in original.items()
    }


def relative_loss(original: float, altered: float) -> float:
    """How far `altered` lies below `original`, in percent of it; negative for a gain, nan where `original` is 0."""
    return 100 * (original - altered) / original if original else math.nan
