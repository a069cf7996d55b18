"""`jaxretr merge`: several models of one start as one."""

import argparse

from jaxretr.cli import weights
from jaxretr.cli.parsing import Commands, given


def add_commands(commands: Commands) -> None:
    options = commands.command(
        "merge",
        "Merge models of one start, such as several trainings, into one: the weighted mean of their parameters, or SLERP.\n"
        "With --beir, dev questions choose the weight of the second one.",
        "jaxretr merge runs/seed0 runs/seed1 runs/seed2 --out models/mean\n"
        "  jaxretr merge sentence-transformers/all-MiniLM-L6-v2 runs/dpr --beir scifact --split dev --out models/merged",
    ).options_of("jaxretr.evaluate.merging:merge")
    options.argument("models", "MODEL")
    options.add("weights", option=("--weight", "-w"), type=weights.weight, metavar="W")
    options.add("how")
    options.add("beir", metavar="DIR")
    options.add("split", "metric")
    options.add("grid", type=weights.grid, action="store", metavar="GRID")
    options.add("out", metavar="DIR", required=True)
    options.add("dtype", option="--compute")
    options.add("batch_size")


def run(args: argparse.Namespace) -> None:
    """Merges, and prints the weights or the curve."""
    from jaxretr.evaluate.merging import merge

    print(merge(**given(args)).table())
    print(f"model: {args.out}")
