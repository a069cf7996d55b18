"""`jaxretr combine`: several models as one, or other weights for a combined one."""

import argparse

from jaxretr.cli import weights
from jaxretr.cli.parsing import Commands, given


def add_commands(commands: Commands) -> None:
    options = commands.command(
        "combine",
        "Combine several models into one, as SPAR does: their vectors are concatenated (or added), with weights on the\n"
        "query side; or give a combined model new weights, for which the corpus need not be encoded again.",
        "jaxretr combine runs/dpr runs/lexical --weight 0.7 --out models/spar\n"
        "  jaxretr combine models/spar --weight 1.4 --out models/spar_1.4",
    ).options_of("jaxretr.models.combining:combine")
    options.argument("models", "MODEL")
    options.add("weights", option=("--weight", "-w"), type=weights.weight, metavar="W")
    options.add("how")
    options.add("truncate_dims", option="--truncate-dim", type=weights.sizes, action="store", metavar="N,N")
    options.add("out", metavar="DIR", required=True)


def run(args: argparse.Namespace) -> None:
    """Combine, and print the formula."""
    from jaxretr.models.combining import combine

    encoder = combine(**given(args))
    parts = zip(encoder.config.weights, encoder.names, strict=True)
    formula = " + ".join(f"{weight:g} {name}" for weight, name in parts)
    print(f"{args.out}: {formula}, {encoder.config.how}, {encoder.config.embedding_size} dimensions")
