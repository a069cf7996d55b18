"""`jaxretr mine lexical`: the training set of ids for a dense model that imitates a ranking (SPAR)."""

import argparse
import time

from jaxretr.cli.mine import add_bm25, bm25_settings
from jaxretr.cli.parsing import Commands, from_zero, given

LEXICAL = "jaxretr.mining.lexical:mine_lexical"


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "mine lexical",
        "A training set for a dense model that imitates BM25 (or a run, or another model): sentences of the corpus or\n"
        "given queries, with the first ranks as positives and some later ones as negatives, as ids.",
        "jaxretr mine lexical --corpus psgs_w100.tsv --out wiki_lexical --dev 5000\n"
        "  jaxretr mine lexical --corpus psgs_w100.tsv --queries paq.tsv --teacher bm25 --teacher model:runs/dpr --out paq",
    )
    options = parser.options_of(LEXICAL)
    options.add("corpus")
    options.add("out", metavar="DIR")
    options.add("teachers", option="--teacher", metavar="TEACHER")
    options.add("positives", "negative_ranks", "limit", "dev")
    options.add("seed", type=from_zero)
    options.add("skip_bad")
    options = parser.options_of(LEXICAL, to=parser.add_argument_group("of the queries"))
    options.add("queries", "sampling", "base", "per_passage")
    options.add("documents", metavar="RULE")
    add_bm25(parser, "quantise_lengths")
    parser.options_of(LEXICAL).add("threads", "shard_passages")


def run(args: argparse.Namespace) -> None:
    """Make the set, or continue an interrupted run, and print its size."""
    from jaxretr.data.lexical_set import DEV
    from jaxretr.mining.lexical import mine_lexical

    began = time.monotonic()
    found = mine_lexical(**given(args), bm25=bm25_settings(args))
    dropped = found.counts["dropped"]
    held_out = "" if args.dev is None else f", {args.dev} more in {DEV}"
    print(
        f"{args.out}: {len(found)} queries{held_out}, {100 * dropped / (dropped + len(found)):.2f} % dropped for lack of "
        f"positives or negatives, {time.monotonic() - began:.0f} s"
    )
