"""`jaxretr adapt`: a model for the user's own corpus."""

import argparse

from jaxretr.cli.parsing import Commands, add_precision, at_least_one


def add_commands(commands: Commands) -> None:
    """Add the command."""
    parser = commands.command(
        "adapt",
        "Adapt a model to a corpus without judgements (DDR): masked language modelling continues on the corpus, the\n"
        "relevance module is kept, and the corpus is encoded; with a report of before and after. Resumes automatically\n"
        "if interrupted.",
        "jaxretr adapt runs/rem --corpus medquad --out models/medical --steps 2000",
    )
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="a model whose adapters were trained separately (encoder.adapter); other models with a warning",
    )
    add(
        "--corpus",
        metavar="FILE",
        required=True,
        help="passages, as for encode; a BEIR folder also gives the questions",
    )
    add(
        "--out", metavar="DIR", required=True, help="folder for dam/ (the encoder), model/, embeddings/ and report.json"
    )
    add(
        "--steps",
        type=at_least_one,
        default=2000,
        metavar="N",
        help="training steps; 20000 in the paper (default: %(default)s)",
    )
    add(
        "--batch-size",
        type=at_least_one,
        default=64,
        metavar="N",
        help="windows per step; 512 in the paper (default: %(default)s)",
    )
    add("--max-length", type=at_least_one, default=190, metavar="N", help="tokens per window (default: %(default)s)")
    add("--learning-rate", type=float, default=2e-5, metavar="R", help="(default: %(default)s)")
    add("--dropout", type=float, default=0.1, metavar="P", help="(default: %(default)s)")
    add(
        "--chunk",
        type=at_least_one,
        default=16,
        metavar="N",
        help="rows per device and pass (default: %(default)s)",
    )
    add(
        "--head-steps",
        type=at_least_one,
        default=1000,
        metavar="N",
        help="steps to train a masked language modelling head, if the model has none (default: %(default)s)",
    )
    add(
        "--held-out",
        type=at_least_one,
        metavar="N",
        help="passages held out for the perplexity (default: 1000, at most a tenth)",
    )
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--queries", metavar="FILE", help="questions for the report (default: the BEIR folder's)")
    add("--qrels", metavar="FILE", help="their judgements (default: those of the BEIR folder's --split)")
    add("--split", default="test", help="of the BEIR folder's qrels (default: %(default)s)")
    add_precision(add, default="float32")


def run(args: argparse.Namespace) -> None:
    """Adapts, and prints the report, which is also in report.json."""
    from jaxretr.adaptation import adapt

    names = ("corpus", "out", "steps", "batch_size", "max_length", "learning_rate", "dropout", "chunk", "head_steps")
    given = {name: vars(args)[name] for name in (*names, "held_out", "seed", "queries", "qrels", "split")}
    print(adapt(args.model, **given, dtype=args.compute).table())
