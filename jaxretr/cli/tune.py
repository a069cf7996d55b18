"""`jaxretr tune`: the weight of two models' combination."""

import argparse
from pathlib import Path

from jaxretr.cli import weights
from jaxretr.cli.parsing import Commands, add_compute
from jaxretr.runtime.errors import UsageError


def add_commands(commands: Commands) -> None:
    """Add the command."""
    add = commands.command(
        "tune",
        "Choose the weight of two combined models on dev questions: exact search with a grid of weights in one pass\n"
        "over the corpus. The gain is tested by cross-fitting: each half of the questions with the weight that the\n"
        "other half chose.",
        "jaxretr tune runs/dpr runs/lexical --beir scifact --split dev --metric ndcg@10 --out models/spar\n"
        "  jaxretr tune models/spar --corpus corpus.tsv --queries dev.tsv --answers --grid paper --curve mu.png",
    ).add_argument
    add(
        "models",
        metavar="MODEL",
        nargs="+",
        help=f"the base and the other model, each {weights.MODEL}; or a combined one",
    )
    add("--corpus", metavar="FILE", help="passages, as for encode")
    add("--queries", metavar="FILE", help="the dev questions, as for search")
    add("--qrels", metavar="FILE", help="judgements in BEIR's or TREC's format")
    add("--answers", action="store_true", help="use the answers in --queries instead, with DPR's matching")
    add("--match", choices=("string", "regex"), default="string", help="how answers are matched (default: %(default)s)")
    add("--beir", metavar="DIR", help="a folder with corpus, queries and qrels, instead of those three")
    add("--split", default="dev", help="of the BEIR folder's qrels (default: %(default)s)")
    add("--metric", metavar="NAME", help="such as recall@100, mrr@10 or acc@20 (default: recall@100, or acc@100)")
    weights.add_grid(add)
    weights.add_how(add)
    add(
        "--index-a", metavar="PLACE", help="index of the corpus by the first model, of any kind; it is not encoded then"
    )
    add("--index-b", metavar="PLACE", help="index of the corpus by the second model")
    add("--out", metavar="DIR", help="write the combined model with the best weight and the curve")
    add("--curve", metavar="PNG", help="draw the curve, and write its values to a .json file of the same name")
    add("--json", action="store_true", help="print JSON instead of a table")
    add_compute(add)


def run(args: argparse.Namespace) -> None:
    """Tunes, prints the curve, and draws it."""
    from jaxretr.evaluate.weight_tuning import tune
    from jaxretr.runtime.storage.files import check_output

    if args.curve is not None:
        if Path(args.curve).suffix.lower() != ".png":
            raise UsageError(f"--curve {args.curve}: the picture is a PNG; give a name that ends in .png")
        check_output(args.curve)
    names = ("beir", "split", "corpus", "queries", "qrels", "answers", "match", "metric", "grid", "how")
    given = {name: vars(args)[name] for name in (*names, "index_a", "index_b", "out", "batch_size")}
    curve = tune(args.models, **given, dtype=args.compute).curve
    print(curve.as_json() if args.json else curve.as_table())
    if args.curve is not None:
        curve.draw(Path(args.curve).expanduser())
        curve.write(Path(args.curve).expanduser().with_suffix(".json"))
