"""`jaxretr combine`: several models as one, or other weights for a combined one."""

import argparse

from jaxretr.cli import weights
from jaxretr.cli.parsing import Commands


def add_commands(commands: Commands) -> None:
    """Add the command."""
    add = commands.command(
        "combine",
        "Combine several models into one, as SPAR does: their vectors are concatenated (or added), with weights on the\n"
        "query side; or give a combined model new weights, for which the corpus need not be encoded again.",
        "jaxretr combine runs/dpr runs/lexical --weight 0.7 --out models/spar\n"
        "  jaxretr combine models/spar --weight 1.4 --out models/spar_1.4",
    ).add_argument
    add(
        "models",
        metavar="MODEL",
        nargs="+",
        help=f"the base and further models, each {weights.MODEL}; or one combined model",
    )
    add(
        "--weight",
        "-w",
        type=weights.weight,
        action="append",
        required=True,
        dest="weights",
        metavar="W",
        help="query-side weight of the second model; repeat for each further model (the first has weight 1)",
    )
    weights.add_how(add)
    add(
        "--truncate-dim",
        type=weights.sizes,
        metavar="N,N",
        help="keep the first N dimensions of each model, for models trained with Matryoshka losses; 'all' keeps all",
    )
    add("--out", metavar="DIR", required=True, help="a new or empty folder, or an older combined model")


def run(args: argparse.Namespace) -> None:
    """Combine, and print the formula."""
    from jaxretr.models.combining import combine

    encoder = combine(args.models, args.weights, out=args.out, how=args.how, truncate_dims=args.truncate_dim)
    parts = zip(encoder.config.weights, encoder.names, strict=True)
    formula = " + ".join(f"{weight:g} {name}" for weight, name in parts)
    print(f"{args.out}: {formula}, {encoder.config.how}, {encoder.config.embedding_size} dimensions")
