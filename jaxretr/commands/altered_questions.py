"""Questions of a BEIR folder as they are and altered, over several draws of the alteration, searched and measured."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxretr.data.questions import Question
from jaxretr.data.readers import qrels_path, read_qrels, read_questions
from jaxretr.errors import UserError
from jaxretr.evaluate import metrics
from jaxretr.evaluate.measuring import Search, Values, depth, run_of, warn_of_missing
from jaxretr.evaluate.robustness import Robustness, robustness

log = logging.getLogger(__name__)

Draws = Sequence[Sequence[str]]
"""Of each draw the texts of all the questions."""


@dataclass(frozen=True)
class Split:
    """A split of a BEIR folder, without the corpus.

    Attributes:
      questions: those that it judges, in the order of the queries file.
      rows: the number of each in the queries file, from 0.
      qrels: their judgements; questions that are judged but not there count as 0, altered or not.
    """

    questions: list[Question]
    rows: list[int]
    qrels: metrics.Qrels

    @property
    def texts(self) -> list[str]:
        """Of the questions, as they are."""
        return [question.text for question in self.questions]


@dataclass(frozen=True)
class Measured:
    """What one system finds for the questions of a split.

    Attributes:
      original: the values of the questions as they are.
      draws: {alteration: the values of each draw}.
    """

    original: Values
    draws: dict[str, list[Values]]

    def of_draws(self, alteration: str, metric: str) -> list[dict[str, float]]:
        """{question id: value} of each draw."""
        return [values[metric] for values in self.draws[alteration]]

    def robustness(self, alteration: str, metric: str) -> Robustness:
        """The altered questions compared with the original ones."""
        return robustness(self.original[metric], self.of_draws(alteration, metric))


def read_splits(path: str, names: Sequence[str]) -> tuple[list[Question], dict[str, Split]]:
    """Reads the questions and judgements of a BEIR folder.

    Args:
      path: the folder.
      names: the splits.

    Returns:
      All questions, and those of each split.

    Raises:
      UserError: the folder or a file is missing or bad, or a split judges no question of the queries file.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give a BEIR folder with corpus.jsonl, queries.jsonl and qrels/")
    of_names = {name: read_qrels(qrels_path(folder, name)) for name in names}
    questions = read_questions(folder)
    splits = {}
    for name, qrels in of_names.items():
        rows = [row for row, question in enumerate(questions) if question.id in qrels]
        if not rows:
            raise UserError(
                f"{qrels_path(folder, name)}: judges no question of the queries file; check that the ids agree"
            )
        splits[name] = Split([questions[row] for row in rows], rows, qrels)
    return questions, splits


def check_metrics(names: Sequence[str]) -> None:
    """Raises UsageError for a misspelt metric, before any corpus is encoded."""
    metrics.evaluate({"": {}}, {}, names)


def measure(
    search: Search, split: Split, alterations: Mapping[str, Draws], names: Sequence[str], what: str
) -> Measured:
    """Searches with the questions as they are, and with those of every draw.

    Args:
      search: finds passages for questions.
      split: the questions and their judgements.
      alterations: {name: the texts of each draw}.
      names: the metrics.
      what: names the split in warnings.
    """
    k = depth(tuple(names))

    def values_of(questions: Sequence[Question]) -> Values:
        found = run_of(search, questions, k)
        return metrics.evaluate(split.qrels, found, names, per_query=True)[1]

    known = {question.id: {} for question in split.questions}
    warn_of_missing(dict.fromkeys(split.qrels, 0.0), known, what)
    original = values_of(split.questions)
    draws = {
        alteration: [
            values_of(
                [
                    dataclasses.replace(question, text=text)
                    for question, text in zip(split.questions, texts, strict=True)
                ]
            )
            for texts in drawn
        ]
        for alteration, drawn in alterations.items()
    }
    return Measured(original, draws)


def share_changed(originals: Sequence[str], draws: Draws, compared: Callable[[str], Any]) -> float:
    """The share of questions that an alteration changes, over all its draws.

    Args:
      originals: the questions as they are.
      draws: the altered ones.
      compared: what is looked at of a text, for instance its words.
    """
    changed = sum(
        compared(before) != compared(after) for texts in draws for before, after in zip(originals, texts, strict=True)
    )
    return changed / (len(originals) * len(draws))
