"""`jaxretr assemble`: a relevance module in the encoder of a domain."""

import argparse
from typing import get_args

from jaxretr.cli.parsing import Commands
from jaxretr.config import Pooling


def add_commands(commands: Commands) -> None:
    """Add the command."""
    add = commands.command(
        "assemble",
        "Insert a relevance module into the encoder of a domain (DDR); the result is an ordinary model.",
        "jaxretr assemble --rem runs/rem --dam runs/medical_dam --out models/medical\n"
        "  jaxretr assemble --rem peft_folder --dam bert-base-uncased --pooling mean --out models/m",
    ).add_argument
    add(
        "--rem",
        metavar="R",
        required=True,
        help="adapters: a run that trained them, a model that contains them, or a folder of adapters in our layout, "
        "PEFT's or that of adapter-transformers",
    )
    add(
        "--dam",
        metavar="D",
        required=True,
        help="the domain's encoder: a masked language modelling run, or a folder or hub name of a BERT",
    )
    add("--out", metavar="DIR", required=True, help="a new or empty folder, or an older model")
    add(
        "--pooling",
        choices=get_args(Pooling),
        help="for adapters in other layouts, which do not state it (default: mean, as in DDR)",
    )
    add(
        "--normalise",
        action="store_true",
        help="likewise: normalise embeddings to unit length, as DDR does for Chinese",
    )


def run(args: argparse.Namespace) -> None:
    """Assembles, and prints a description of the model."""
    from jaxretr.models.assembling import assemble

    model = assemble(args.rem, args.dam, out=args.out, pooling=args.pooling, normalise=args.normalise)
    config = model.config
    print(
        f"{args.out}: {model.adapter_size:,} parameters of adapters in the encoder of {args.dam}, {config.pooling} "
        f"pooling, {config.embedding_size} dimensions"
    )
