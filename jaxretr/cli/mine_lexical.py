"""`jaxretr mine lexical`: the training set of ids for a dense model that imitates a ranking (SPAR)."""

import argparse
import time

from jaxretr.cli.mine import add_bm25, bm25_settings, ranks
from jaxretr.cli.parsing import Commands, at_least_one, from_zero


def add_commands(commands: Commands) -> None:
    """Add the command."""
    parser = commands.command(
        "mine lexical",
        "A training set for a dense model that imitates BM25 (or a run, or another model): sentences of the corpus or\n"
        "given queries, with the first ranks as positives and some later ones as negatives, as ids.",
        "jaxretr mine lexical --corpus psgs_w100.tsv --out wiki_lexical --dev 5000\n"
        "  jaxretr mine lexical --corpus psgs_w100.tsv --queries paq.tsv --teacher bm25 --teacher model:runs/dpr --out paq",
    )
    add = parser.add_argument
    add(
        "--corpus",
        metavar="FILE",
        required=True,
        action="append",
        help="passages, as for encode; repeat for further files of the corpus",
    )
    add("--out", metavar="DIR", required=True, help="a new or empty folder, or that of an interrupted run")
    add(
        "--teacher",
        metavar="TEACHER",
        action="append",
        help="ranks the passages: bm25, run:FILE (a run of the --queries) or model:MODEL (a dense model, by exact "
        "search); repeat for several, of which training draws one for each query (default: bm25)",
    )
    add("--positives", type=at_least_one, default=10, metavar="N", help="ranks 1 to N (default: %(default)s)")
    add(
        "--negative-ranks",
        type=ranks,
        default="46:50",
        metavar="A:B",
        help="the ranks of the negatives (default: %(default)s)",
    )
    add("--limit", type=at_least_one, metavar="N", help="draw at most this many queries, evenly")
    add("--dev", type=at_least_one, metavar="N", help="hold out this many queries, drawn evenly, as a set in DIR/dev")
    add("--seed", type=from_zero, default=0, metavar="N", help="of all draws (default: %(default)s)")
    add("--skip-bad", action="store_true", help="skip and count bad rows (default: stop at the first)")

    add = parser.add_argument_group("of the queries").add_argument
    add("--queries", metavar="FILE", help="these questions instead of sentences of the corpus")
    add(
        "--sampling",
        choices=("position", "uniform", "all"),
        help="sentences per passage; position: max(1, round(sentences / (base (i + 1)))) of the passage at position i of "
        "its document, from 0; uniform: the same number of each; all (default: position)",
    )
    add("--base", type=float, metavar="X", help="base for --sampling position (default: 1.2)")
    add("--per-passage", type=at_least_one, metavar="N", help="number for --sampling uniform (default: 1)")
    add(
        "--documents",
        metavar="RULE",
        help="which passages are a document: title: neighbours with the same title; field:NAME: those with the same "
        "value of a field of the corpus's JSON; id:REGEX: those whose ids agree in group 1, as in id:(.+)-\\d+ "
        "(default: title)",
    )
    add = add_bm25(parser).add_argument
    add("--quantise-lengths", action="store_true", help="round passage lengths to one byte, like Lucene")
    add(
        "--threads",
        type=at_least_one,
        metavar="N",
        help="queries ranked in parallel (default: the number of processors)",
    )
    add(
        "--shard-passages",
        type=at_least_one,
        default=1_000_000,
        metavar="N",
        help="passages in memory at a time, about 1 GB per million; does not change the result (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    """Make the set, or continue an interrupted run, and print its size."""
    from jaxretr.data.lexical_set import DEV
    from jaxretr.mining.lexical import mine_lexical

    began = time.monotonic()
    names = ("corpus", "out", "queries", "positives", "negative_ranks", "sampling", "base", "per_passage", "documents")
    names = (*names, "limit", "dev", "seed", "skip_bad", "threads", "shard_passages")
    found = mine_lexical(
        **{name: vars(args)[name] for name in names}, teachers=args.teacher or ["bm25"], bm25=bm25_settings(args)
    )
    dropped = found.counts["dropped"]
    held_out = "" if args.dev is None else f", {args.dev} more in {DEV}"
    print(
        f"{args.out}: {len(found)} queries{held_out}, {100 * dropped / (dropped + len(found)):.2f} % dropped for lack of "
        f"positives or negatives, {time.monotonic() - began:.0f} s"
    )
