"""`jaxretr analyse shuffle`: what the order of a question's words is worth to a model."""

import argparse
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxretr.commands.altered_questions import (
    Split,
    check_metrics,
    measure,
    read_splits,
    share_changed,
)
from jaxretr.commands.model import load_model
from jaxretr.data.readers import read_corpus
from jaxretr.data.word_shuffle import shuffle_words
from jaxretr.errors import UsageError
from jaxretr.evaluate.measuring import Search
from jaxretr.evaluate.robustness import Robustness
from jaxretr.evaluate.searches import bm25_search, encoder_search

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shuffled:
    """What shuffling does to the questions of one split.

    Attributes:
      questions: how many the split judges.
      reordered: the share of them whose words are in another order after shuffling, over all the shufflings.
      figures: {metric: the shufflings compared with the original}.
    """

    questions: int
    reordered: float
    figures: dict[str, Robustness]


def run(args: argparse.Namespace) -> None:
    """Prints the figures with the original and with shuffled questions, and their difference."""
    check_arguments(args)
    splits = read_splits(args.beir, args.split)[1]
    check_metrics(args.metrics)
    folder = Path(args.beir).expanduser()
    corpus = read_corpus(folder)
    search = bm25_search(corpus) if args.bm25 else encoder_search(load_model(args), corpus, args.batch_size)
    seeds = range(args.seed, args.seed + args.seeds)
    results = {
        name: shuffled_figures(search, split, args.metrics, seeds, f"{folder.name}, {name}")
        for name, split in splits.items()
    }
    print(as_json(results, seeds) if args.json else as_table(results, seeds))


def check_arguments(args: argparse.Namespace) -> None:
    """Raises UsageError unless there is exactly one thing to search with."""
    if args.bm25 == (args.model is not None):
        raise UsageError("give either MODEL or --bm25")
    if args.bm25:
        of_model = ("passage_model", "tokenizer", "pooling", "truncate_dim", "batch_size")
        given = [name for name in of_model if getattr(args, name) is not None]
        if args.compute != "auto":
            given.append("compute")
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')} is MODEL's, but --bm25 stands in its place; leave it out")


def shuffled_figures(search: Search, split: Split, names: Sequence[str], seeds: Sequence[int], what: str) -> Shuffled:
    """Searches with the questions as they are and with each shuffling of them.

    Args:
      search: finds passages for questions.
      split: the questions and their judgements.
      names: the metrics.
      seeds: of the shufflings.
      what: names the split in warnings.
    """
    draws = [[shuffle_words(text, seed) for text in split.texts] for seed in seeds]
    measured = measure(search, split, {"shuffled": draws}, names, what)
    share = share_changed(split.texts, draws, str.split)
    if share < 0.5:
        log.warning(
            "%s: shuffling changes only %.0f %% of the questions: the others have one word between spaces, or few",
            *(what, 100 * share),
        )
    return Shuffled(len(split.qrels), share, {name: measured.robustness("shuffled", name) for name in names})


def as_json(results: Mapping[str, Shuffled], seeds: Sequence[int]) -> str:
    """All figures as one JSON object."""
    splits = {}
    for split, result in results.items():
        of_metrics = {}
        for name, figures in result.figures.items():
            compared = figures.comparison.as_json()
            of_metrics[name] = {
                "original": compared.pop("mean_b"),
                "shuffled": compared.pop("mean_a"),
                **compared,
                "of_seeds": figures.of_draws,
            }
        splits[split] = {"questions": result.questions, "reordered": result.reordered, "metrics": of_metrics}
    return json.dumps({"seeds": list(seeds), "splits": splits}, indent=1)


def as_table(results: Mapping[str, Shuffled], seeds: Sequence[int]) -> str:
    """All figures as a table for people."""
    many = len(seeds) > 1
    lines = []
    for split, result in results.items():
        lines.append(
            f"{split}: {result.questions} questions, {100 * result.reordered:.1f} % in another order, "
            + (f"mean of seeds {seeds[0]} to {seeds[-1]}" if many else f"seed {seeds[0]}")
        )
        lines.append(
            f"{'':<16}{'original':>10}{'shuffled':>10}{'difference':>12}{'95% interval':>20}{'p':>10}{'p (t-test)':>12}"
            f"{'better/equal/worse':>20}" + (f"{'lowest, highest seed':>24}" if many else "")
        )
        for name, figures in result.figures.items():
            c = figures.comparison
            interval = f"[{c.low:+.4f}, {c.high:+.4f}]"
            counts = f"{c.wins}/{c.ties}/{c.losses}"
            of_seeds = f"{min(figures.of_draws):.4f}, {max(figures.of_draws):.4f}"
            lines.append(
                f"{name:<16}{c.mean_b:>10.4f}{c.mean_a:>10.4f}{c.difference:>+12.4f}{interval:>20}{c.p_value:>10.4f}"
                f"{c.t_test_p_value:>12.4f}{counts:>20}" + (f"{of_seeds:>24}" if many else "")
            )
    return "\n".join(lines)
