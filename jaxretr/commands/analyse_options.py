"""Command-line options of `analyse`."""

import argparse

from jaxretr.commands.parsing import Commands, add_model, at_least_one, metric_names, splits


def add_commands(commands: Commands) -> None:
    """Adds `analyse overlap` and `analyse shuffle`."""
    commands.command(
        "analyse",
        "What a model has learnt: the overlap of its ranking with BM25's, and what word order is worth to it.",
        "jaxretr analyse overlap bm25.trec lexical.trec",
    )
    add = commands.command(
        "analyse overlap",
        "How alike the rankings of runs are; rank-biased overlap of each run with the first, its 95 percent interval,\n"
        "and the share of passages in common among the best 1, 10 and 100. Say, how far a dense model imitates BM25.",
        "jaxretr analyse overlap bm25.trec dpr.trec lexical.trec\n"
        "  jaxretr analyse overlap bm25.trec lexical.trec --p 0.98 --depth 1000 --per-query overlap.tsv",
    ).add_argument
    add("reference", metavar="RUN", help="the run to compare with; its questions are the ones that count")
    add("others", metavar="RUN2", nargs="+", help="the runs that are compared with it")
    add(
        "--p",
        type=_probability,
        default=0.9,
        metavar="P",
        help="of going on to the next rank: the higher, the deeper ranks count (default: %(default)s)",
    )
    add("--depth", type=at_least_one, default=100, metavar="N", help="ranks to look at (default: %(default)s)")
    add("--per-query", metavar="FILE", help="write the values of every question and run there, separated by tabs")
    add("--json", action="store_true", help="print JSON instead of a table")

    parser = commands.command(
        "analyse shuffle",
        "What the order of a question's words is worth to a model; figures with the words as they are and shuffled,\n"
        "side by side, with a paired test. A model that matches words alone loses nothing, as BM25 does.",
        "jaxretr analyse shuffle runs/dpr --beir nq --split dev,test\n"
        "  jaxretr analyse shuffle runs/lexical --beir nq --split dev --seeds 5 --metrics recall@20,recall@100\n"
        "  jaxretr analyse shuffle --bm25 --beir nq --split dev",
    )
    add_model(parser, optional=True)
    add = parser.add_argument
    add("--bm25", action="store_true", help="BM25 in place of MODEL: the differences must be exactly 0")
    add("--beir", metavar="DIR", required=True, help="a folder with corpus, queries and qrels")
    add(
        "--split",
        type=splits,
        default=("test",),
        metavar="NAMES",
        help="of the BEIR folder's qrels, by commas (default: test)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the first shuffling (default: %(default)s)")
    add(
        "--seeds",
        type=at_least_one,
        default=1,
        metavar="N",
        help="shufflings, each with a seed of its own, whose values are averaged (default: %(default)s)",
    )
    add(
        "--metrics",
        type=metric_names,
        default=("recall@20", "recall@100", "ndcg@10"),
        metavar="NAMES",
        help="by commas (default: recall@20,recall@100,ndcg@10)",
    )
    add("--json", action="store_true", help="print JSON instead of a table")


def _probability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number above 0 and below 1")
    return value
