"""`jaxretr fuse`: one run made of several."""

import argparse

from jaxretr.cli import weights
from jaxretr.cli.parsing import Commands, at_least_one
from jaxretr.runtime.errors import UsageError


def add_commands(commands: Commands) -> None:
    """Add the command."""
    add = commands.command(
        "fuse",
        "Fuse runs by a weighted sum of scores or by reciprocal ranks; tune the weight on a dev run.",
        "jaxretr fuse dense.trec bm25.trec --weight 0.3 --out hybrid.trec\n"
        "  jaxretr fuse dense.trec bm25.trec splade.trec --method rrf --out hybrid.trec\n"
        "  jaxretr fuse dev_dense.trec dev_bm25.trec --tune qrels/dev.tsv --metric recall@100",
    ).add_argument
    add("runs", metavar="RUN", nargs="+", help="two or more runs, in any format that evaluate reads")
    add(
        "--method",
        choices=("interpolation", "rrf"),
        default="interpolation",
        help="s1 + w s2, or the sum of 1/(60 + rank) (default: %(default)s)",
    )
    add(
        "--weight",
        "-w",
        type=weights.weight,
        action="append",
        dest="weights",
        metavar="W",
        help="weight of the second run's scores; repeat for each further run (the first has weight 1)",
    )
    add(
        "--normalise",
        choices=("none", "minmax"),
        help="how each run's scores of a question are normalised before they are added (default: none)",
    )
    add(
        "--missing",
        choices=("lowest", "zero"),
        action="append",
        help="score of a passage that a run lacks; lowest: the run's lowest score for the question; zero: 0 if the "
        "run's list for the question is shorter than its other lists, as BM25's is if few passages share a word with "
        "it. Give it once for each run (default: lowest for all)",
    )
    add("-k", type=at_least_one, default=100, help="passages a question (default: %(default)s)")
    add("--out", metavar="FUSED", help="the TREC run to write")
    add("--tune", metavar="QRELS", help="judgements used to choose the weight of two runs")
    add("--metric", metavar="NAME", help="the metric to maximise (default: recall@100)")
    weights.add_grid(add, default=None)
    add(
        "--corpus",
        metavar="FILE",
        help="the passages of the runs, for --tune; with --queries, a passage that is the question itself does not count as "
        "found",
    )
    add(
        "--queries",
        metavar="FILE",
        help="the questions of the runs, for --tune with --corpus, or runs without their ids (DPR's)",
    )


def run(args: argparse.Namespace) -> None:
    """Fuses, prints the curve of a tuned weight, and writes the run."""
    from jaxretr.cli.outputs import say_written
    from jaxretr.evaluate.run_fusion import fuse
    from jaxretr.runtime.storage.files import check_output

    if args.out is not None:
        check_output(args.out)
    names = ("method", "weights", "normalise", "missing", "k", "tune", "metric", "grid", "corpus", "queries")
    if len(args.runs) > 1 and args.tune is None and args.out is None:
        raise UsageError("give --out FUSED, the run to write")
    fused = fuse(args.runs, **{name: vars(args)[name] for name in names}, trec_ids=args.out is not None)
    if fused.curve is not None:
        print(fused.curve.as_table())
    if args.out is not None:
        fused.save(args.out)
        say_written(args.out, f"{fused.hits} hits of {len(fused.run)} questions")
