"""`jaxretr tune`: the weight of two models' combination."""

import argparse
from pathlib import Path

from jaxretr.cli import weights
from jaxretr.cli.parsing import Commands, given
from jaxretr.runtime.errors import UsageError


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "tune",
        "Choose the weight of two combined models on dev questions: exact search with a grid of weights in one pass\n"
        "over the corpus. The gain is tested by cross-fitting: each half of the questions with the weight that the\n"
        "other half chose.",
        "jaxretr tune runs/dpr runs/lexical --beir scifact --split dev --metric ndcg@10 --out models/spar\n"
        "  jaxretr tune models/spar --corpus corpus.tsv --queries dev.tsv --answers --grid paper --curve mu.png",
    )
    options = parser.options_of("jaxretr.evaluate.weight_tuning:tune")
    options.argument("models", "MODEL")
    options.add("corpus", "queries", "qrels")
    options.add("answers", "match")
    options.add("beir", metavar="DIR")
    options.add("split", "metric")
    options.add("grid", type=weights.grid, action="store", metavar="GRID")
    options.add("how")
    options.add("index_a", "index_b", metavar="PLACE")
    options.add("out", metavar="DIR")
    parser.add_argument(
        "--curve", metavar="PNG", help="draw the curve, and write its values to a .json file of the same name"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options.add("dtype", option="--compute")
    options.add("batch_size")


def run(args: argparse.Namespace) -> None:
    """Tunes, prints the curve, and draws it."""
    from jaxretr.evaluate.weight_tuning import tune
    from jaxretr.runtime.storage.files import check_output

    if args.curve is not None:
        if Path(args.curve).suffix.lower() != ".png":
            raise UsageError(f"--curve {args.curve}: the picture is a PNG; give a name that ends in .png")
        for path in (args.curve, str(Path(args.curve).with_suffix(".json"))):
            check_output(path, args.corpus, args.queries, args.qrels)
    curve = tune(**given(args)).curve
    print(curve.as_json() if args.json else curve.as_table())
    if args.curve is not None:
        curve.draw(Path(args.curve).expanduser())
        curve.write(Path(args.curve).expanduser().with_suffix(".json"))
