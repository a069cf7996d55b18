"""`jaxretr fuse`: one run made of several."""

import argparse

from jaxretr.cli import weights
from jaxretr.cli.parsing import Commands, given
from jaxretr.runtime.errors import UsageError


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "fuse",
        "Fuse runs by a weighted sum of scores or by reciprocal ranks; tune the weight on a dev run.",
        "jaxretr fuse dense.trec bm25.trec --weight 0.3 --out hybrid.trec\n"
        "  jaxretr fuse dense.trec bm25.trec splade.trec --method rrf --out hybrid.trec\n"
        "  jaxretr fuse dev_dense.trec dev_bm25.trec --tune qrels/dev.tsv --metric recall@100",
    )
    options = parser.options_of("jaxretr.evaluate.run_fusion:fuse")
    options.argument("runs", "RUN")
    options.add("method")
    options.add("weights", option=("--weight", "-w"), type=weights.weight, metavar="W")
    options.add("normalise", "missing")
    options.add("k", option="-k")
    parser.add_argument("--out", metavar="FUSED", help="the TREC run to write")
    options.add("tune", metavar="QRELS")
    options.add("metric")
    options.add("grid", type=weights.grid, action="store", metavar="GRID")
    options.add("corpus")
    options.add("queries", action="store")


def run(args: argparse.Namespace) -> None:
    """Fuses, prints the curve of a tuned weight, and writes the run."""
    from jaxretr.cli.outputs import say_written
    from jaxretr.evaluate.run_fusion import fuse
    from jaxretr.runtime.storage.files import check_output

    if args.out is not None:
        check_output(args.out, args.runs, args.tune, args.corpus, args.queries)
    if len(args.runs) > 1 and args.tune is None and args.out is None:
        raise UsageError("give --out FUSED, the run to write")
    fused = fuse(**given(args), trec_ids=args.out is not None)
    if fused.curve is not None:
        print(fused.curve.as_table())
    if args.out is not None:
        fused.save(args.out)
        say_written(args.out, f"{fused.hits} hits of {len(fused.run)} questions")
