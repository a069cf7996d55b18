"""`jaxretr analyse shuffle`: what the order of a question's words is worth to a model."""

import argparse
import dataclasses
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxretr.commands.evaluate import Search, dense_search, depth, mean, run_of, warn_of_missing
from jaxretr.commands.progress import Progress
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import qrels_path, read_corpus, read_qrels, read_questions
from jaxretr.data.word_shuffle import shuffle_words
from jaxretr.errors import UsageError, UserError
from jaxretr.evaluate import metrics
from jaxretr.evaluate.significance import Comparison, compare

log = logging.getLogger(__name__)

# Questions that BM25 searches between two signs of life.
_BLOCK = 256


@dataclass(frozen=True)
class Shuffled:
    """What shuffling does to the questions of one split.

    Attributes:
      questions: how many the split judges.
      reordered: the share of them whose words are in another order after shuffling, over all the shufflings.
      comparisons: {metric: the mean over the shufflings compared with the original; difference < 0 is a loss}.
      means: {metric: the mean over questions of each shuffling}.
    """

    questions: int
    reordered: float
    comparisons: dict[str, Comparison]
    means: dict[str, list[float]]


def run(args: argparse.Namespace) -> None:
    """Prints the figures with the original and with shuffled questions, and their difference."""
    check_arguments(args)
    folder = Path(args.beir).expanduser()
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give a BEIR folder with corpus.jsonl, queries.jsonl and qrels/")
    qrels = {split: read_qrels(qrels_path(folder, split)) for split in args.split}
    questions = read_questions(folder)
    of_split = {split: [question for question in questions if question.id in judged] for split, judged in qrels.items()}
    for split, found in of_split.items():
        if not found:
            raise UserError(
                f"{qrels_path(folder, split)}: judges no question of the queries file; check that the ids agree"
            )
    metrics.evaluate({"": {}}, {}, args.metrics)  # A misspelt metric is known before the corpus is encoded.
    corpus = read_corpus(folder)
    search = bm25_search(corpus) if args.bm25 else dense_search(args, corpus)
    seeds = range(args.seed, args.seed + args.seeds)
    results = {
        split: shuffled_figures(search, found, qrels[split], args.metrics, seeds, f"{folder.name}, {split}")
        for split, found in of_split.items()
    }
    print(as_json(results, seeds) if args.json else as_table(results, seeds))


def check_arguments(args: argparse.Namespace) -> None:
    """Raises UsageError unless there is exactly one thing to search with."""
    if args.bm25 == (args.model is not None):
        raise UsageError("give either MODEL or --bm25")
    if args.bm25:
        of_model = ("passage_model", "tokenizer", "pooling", "truncate_dim", "batch_size")
        given = [name for name in of_model if getattr(args, name) is not None]
        if args.compute != "float32":
            given.append("compute")
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')} is MODEL's, but --bm25 stands in its place; leave it out")


def bm25_search(corpus: Corpus) -> Search:
    """Indexes the corpus for BM25."""
    from jaxretr.search.bm25 import Bm25Index

    log.info("indexing %d passages", len(corpus))
    index = Bm25Index.build(corpus)

    def search(questions: Sequence[Question], k: int) -> tuple[np.ndarray, list[list[str]]]:
        scores, ids = [], []
        with Progress(len(questions), "question", "searched") as progress:
            for start in range(0, len(questions), _BLOCK):
                texts = [question.text for question in questions[start : start + _BLOCK]]
                of_block, rows = index.search(texts, k, threads=os.cpu_count() or 1)
                scores.append(of_block)
                ids += [[corpus.ids[row] for row in found] for found in rows.tolist()]
                progress.advance(len(texts))
        return np.concatenate(scores), ids

    return search


def shuffled_figures(
    search: Search,
    questions: Sequence[Question],
    qrels: metrics.Qrels,
    names: Sequence[str],
    seeds: Sequence[int],
    what: str,
) -> Shuffled:
    """Searches with the questions as they are and with each shuffling of them.

    Args:
      search: finds passages for questions.
      questions: those of the split.
      qrels: their judgements; questions that are judged but not there count as 0 on both sides.
      names: the metrics.
      seeds: of the shufflings.
      what: names the split in warnings.
    """
    k = depth(tuple(names))
    found = run_of(search, questions, k)
    warn_of_missing(dict.fromkeys(qrels, 0.0), found, what)
    original = metrics.evaluate(qrels, found, names, per_query=True)[1]
    of_seeds, reordered = [], 0
    for seed in seeds:
        others = [dataclasses.replace(question, text=shuffle_words(question.text, seed)) for question in questions]
        reordered += sum(a.text.split() != b.text.split() for a, b in zip(questions, others, strict=True))
        of_seeds.append(metrics.evaluate(qrels, run_of(search, others, k), names, per_query=True)[1])
    share = reordered / (len(questions) * len(seeds))
    if share < 0.5:
        log.warning(
            "%s: shuffling changes only %.0f %% of the questions: the others have one word between spaces, or few",
            *(what, 100 * share),
        )
    # The mean change is added, not the mean taken: where nothing changes, no rounding may look like a change.
    averaged = {
        name: {
            id: before + math.fsum(one[name][id] - before for one in of_seeds) / len(seeds)
            for id, before in original[name].items()
        }
        for name in names
    }
    comparisons = {name: compare(averaged[name], original[name]) for name in names}
    return Shuffled(len(qrels), share, comparisons, {name: [mean(one[name]) for one in of_seeds] for name in names})


def as_json(results: Mapping[str, Shuffled], seeds: Sequence[int]) -> str:
    """All figures as one JSON object."""
    splits = {}
    for split, result in results.items():
        of_metrics = {}
        for name, c in result.comparisons.items():
            of_metrics[name] = {
                "original": c.mean_b,
                "shuffled": c.mean_a,
                # JSON has no NaN.
                **{
                    key: None if math.isnan(value) else value
                    for key, value in dataclasses.asdict(c).items()
                    if not key.startswith("mean_")
                },
                "of_seeds": result.means[name],
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
        for name, c in result.comparisons.items():
            interval = f"[{c.low:+.4f}, {c.high:+.4f}]"
            counts = f"{c.wins}/{c.ties}/{c.losses}"
            of_seeds = f"{min(result.means[name]):.4f}, {max(result.means[name]):.4f}"
            lines.append(
                f"{name:<16}{c.mean_b:>10.4f}{c.mean_a:>10.4f}{c.difference:>+12.4f}{interval:>20}{c.p_value:>10.4f}"
                f"{c.t_test_p_value:>12.4f}{counts:>20}" + (f"{of_seeds:>24}" if many else "")
            )
    return "\n".join(lines)
