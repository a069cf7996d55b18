"""The cost of changing the questions: metrics of the original questions against several draws of altered ones."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import beir_folder, qrels_path, read_qrels, read_questions
from jaxretr.evaluate import metrics
from jaxretr.evaluate.measuring import Search, TestSet, Values, depth, warn_of_missing
from jaxretr.evaluate.significance import Comparison, compare
from jaxretr.runtime.errors import UserError

CLEAN = "clean"
"""The name of the original questions among the alterations."""
Draws = Sequence[Sequence[str]]
"""The texts of all questions, for each draw."""


@dataclass(frozen=True)
class Robustness:
    """One metric of altered questions compared with the original ones.

    Attributes:
      comparison: the questions' means over the draws ("a") with their original values ("b"); a negative difference is
        a loss.
      of_draws: the mean of each draw over the questions.
      deviation: the standard deviation of these means over the draws (with n - 1); NaN with a single draw.
      relative_loss: the loss in percent of the original mean; NaN if that is 0.
    """

    comparison: Comparison
    of_draws: list[float]
    deviation: float
    relative_loss: float


def robustness(original: Mapping[str, float], draws: Sequence[Mapping[str, float]]) -> Robustness:
    """Compare one metric of altered questions with that of the original ones.

    Args:
      original: {question id: value} of the original questions.
      draws: the same questions' values in each draw of the alteration, at least one draw.

    Raises:
      UserError: no question, or the draws do not have the same questions.
    """
    comparison = compare(mean_over_draws(original, draws), original)
    of_draws = [metrics.mean(values) for values in draws]
    deviation = float(np.std(of_draws, ddof=1)) if len(draws) > 1 else math.nan
    return Robustness(comparison, of_draws, deviation, relative_loss(comparison.mean_b, comparison.mean_a))


def mean_over_draws(original: Mapping[str, float], draws: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over the draws of each question's value; arguments as for `robustness`."""
    # Adds the mean change instead of taking the mean: where nothing changes, no rounding may look like a change.
    return {
        id: before + math.fsum(values[id] - before for values in draws) / len(draws) for id, before in original.items()
    }


def relative_loss(original: float, altered: float) -> float:
    """The loss from `original` to `altered`, in percent of `original`; negative for a gain, NaN if `original` is 0."""
    return 100 * (original - altered) / original if original else math.nan


# ---- searching with altered questions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class AlteredValues:
    """The metrics of one system on the questions of a split.

    Attributes:
      original: the values of the original questions.
      draws: {alteration: the values of each draw}.
    """

    original: Values
    draws: dict[str, list[Values]]

    def of_draws(self, alteration: str, metric: str) -> list[dict[str, float]]:
        """The values of each draw, {question id: value}."""
        return [values[metric] for values in self.draws[alteration]]

    def means(self, alteration: str, metric: str) -> Mapping[str, float]:
        """Each question's mean over the draws, {question id: value}; the original values for `CLEAN`."""
        original = self.original[metric]
        return original if alteration == CLEAN else mean_over_draws(original, self.of_draws(alteration, metric))

    def robustness(self, alteration: str, metric: str) -> Robustness:
        """The altered questions compared with the original ones."""
        return robustness(self.original[metric], self.of_draws(alteration, metric))


def read_splits(beir: str | Path, names: Sequence[str]) -> tuple[list[Question], dict[str, TestSet]]:
    """Read the questions and judgements of a BEIR folder.

    Returns:
      All questions, and those that each split judges, without a corpus; a judged question that is not in the queries file
      counts as 0, altered or not.

    Raises:
      UserError: the folder or a file is missing or bad, or a split judges no question of the queries file.
    """
    folder = beir_folder(beir)
    of_names = {name: read_qrels(qrels_path(folder, name)) for name in names}
    questions = read_questions(folder)
    splits = {}
    for name, qrels in of_names.items():
        judged = [question for question in questions if question.id in qrels]
        if not judged:
            raise UserError(
                f"{qrels_path(folder, name)}: judges no question of the queries file; check that the ids agree"
            )
        splits[name] = TestSet(judged, Corpus([], [], []), qrels)
    return questions, splits


def measure_altered(
    search: Search, on: TestSet, alterations: Mapping[str, Draws], names: Sequence[str], what: str
) -> AlteredValues:
    """Search with the original questions and with those of every draw.

    Args:
      on: the original questions; a passage that is one of them does not count as found, altered or not.
      alterations: {name: the texts of each draw}.
      what: the split's name in warnings.
    """

    def values_of(texts: Sequence[str] | None = None) -> Values:
        return on(on.search(search, depth(names), texts), names)

    warn_of_missing(on.qrels or (), {question.id for question in on.questions}, what)
    return AlteredValues(values_of(), {name: list(map(values_of, draws)) for name, draws in alterations.items()})


def share_changed(originals: Sequence[str], draws: Draws, compared: Callable[[str], Any]) -> float:
    """The share of questions that an alteration changes, over all its draws.

    Args:
      originals: the original questions.
      draws: the altered ones.
      compared: the aspect of a text that is compared, for instance its words.
    """
    changed = sum(
        compared(before) != compared(after) for texts in draws for before, after in zip(originals, texts, strict=True)
    )
    return changed / (len(originals) * len(draws))
