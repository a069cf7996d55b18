"""`jaxretr analyse`: the similarity of runs' rankings, and the effect of word order on a model."""

import argparse
from typing import TYPE_CHECKING

from jaxretr.cli.parsing import MODEL_READER, Commands, add_model, at_least_one, given, metric_names, splits
from jaxretr.runtime.errors import UsageError

if TYPE_CHECKING:
    from jaxretr.evaluate.run_overlap import RunOverlap
    from jaxretr.evaluate.word_order import WordOrder


def add_commands(commands: Commands) -> None:
    commands.command(
        "analyse",
        "What a model has learnt: the overlap of its ranking with BM25's, and what word order is worth to it.",
        "jaxretr analyse overlap bm25.trec lexical.trec",
        module="analyse",
    )
    parser = commands.command(
        "analyse overlap",
        "How similar the rankings of runs are; rank-biased overlap of each run with the first, its 95 percent interval,\n"
        "and the share of passages in common among the best 1, 10 and 100: for instance how well a dense model imitates BM25.",
        "jaxretr analyse overlap bm25.trec dpr.trec lexical.trec\n"
        "  jaxretr analyse overlap bm25.trec lexical.trec --p 0.98 --depth 1000 --per-query overlap.tsv",
        module="analyse",
    )
    options = parser.options_of("jaxretr.evaluate.run_overlap:run_overlap")
    options.argument("reference", "RUN")
    options.argument("others", "RUN2")
    options.add("p", "depth")
    parser.add_argument(
        "--per-query", metavar="FILE", help="write the values of every question and run to this tab-separated file"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")

    parser = commands.command(
        "analyse shuffle",
        "What the order of a question's words is worth to a model; metrics with the words in order and shuffled, with a\n"
        "paired test. A model that only matches words loses nothing, like BM25.",
        "jaxretr analyse shuffle runs/dpr --beir nq --split dev,test\n"
        "  jaxretr analyse shuffle runs/lexical --beir nq --split dev --seeds 5 --metrics recall@20,recall@100\n"
        "  jaxretr analyse shuffle --bm25 --beir nq --split dev",
        module="analyse",
    )
    add_model(parser, optional=True)
    add = parser.add_argument
    add("--bm25", action="store_true", help="BM25 instead of MODEL; its differences are exactly 0")
    options = parser.options_of("jaxretr.evaluate.word_order:word_order")
    options.add("beir", metavar="DIR")
    options.add("splits", option="--split", type=splits, action="store", metavar="NAMES")
    add("--seed", type=int, default=0, metavar="N", help="of the first shuffle (default: %(default)s)")
    add(
        "--seeds",
        type=at_least_one,
        default=1,
        metavar="N",
        help="shuffles to average, each with its own seed (default: %(default)s)",
    )
    options.add("metrics", type=metric_names, action="store", metavar="NAMES")
    options.add("batch_size")
    add("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> None:
    """Compare, and print the result."""
    result = _overlap(args) if args.action == "overlap" else _shuffle(args)
    print(result.to_json() if args.json else result.table())


def _overlap(args: argparse.Namespace) -> "RunOverlap":
    from jaxretr.evaluate.run_overlap import run_overlap
    from jaxretr.runtime.storage.files import check_output

    if args.per_query is not None:
        check_output(args.per_query, args.reference, args.others)
    found = run_overlap(**given(args))
    if args.per_query is not None:
        found.write_per_query(args.per_query)
    return found


def _shuffle(args: argparse.Namespace) -> "WordOrder":
    if args.bm25 == (args.model is not None):
        raise UsageError("give either MODEL or --bm25")
    if args.bm25:
        of_model = (*args.taken[MODEL_READER].values(), "batch_size")
        for name in of_model:
            if getattr(args, name) not in (None, "auto"):
                raise UsageError(f"--{name.replace('_', '-')} is MODEL's, but --bm25 replaces MODEL; leave it out")
    from jaxretr.cli.model import load_model
    from jaxretr.evaluate.word_order import word_order

    return word_order(
        None if args.bm25 else lambda: load_model(args),
        **given(args, "word_order"),
        seeds=range(args.seed, args.seed + args.seeds),
    )
