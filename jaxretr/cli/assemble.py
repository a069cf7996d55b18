"""`jaxretr assemble`: a relevance module in the encoder of a domain."""

import argparse

from jaxretr.cli.parsing import Commands, given


def add_commands(commands: Commands) -> None:
    options = commands.command(
        "assemble",
        "Insert a relevance module into the encoder of a domain (DDR); the result is an ordinary model.",
        "jaxretr assemble --rem runs/rem --dam runs/medical_dam --out models/medical\n"
        "  jaxretr assemble --rem peft_folder --dam bert-base-uncased --pooling mean --out models/m",
    ).options_of("jaxretr.models.assembling:assemble")
    options.add("rem", metavar="R")
    options.add("dam", metavar="D")
    options.add("out", metavar="DIR", required=True)
    options.add("pooling", "normalise")


def run(args: argparse.Namespace) -> None:
    """Assembles, and prints a description of the model."""
    from jaxretr.models.assembling import assemble

    model = assemble(**given(args))
    config = model.config
    print(
        f"{args.out}: {model.adapter_size:,} parameters of adapters in the encoder of {args.dam}, {config.pooling} "
        f"pooling, {config.embedding_size} dimensions"
    )
