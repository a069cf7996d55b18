"""`jaxretr update`: adds and deletes passages of a certified or a live index."""

import argparse
from pathlib import Path

from jaxretr.cli.parsing import Commands, given

UPDATE = "jaxretr.exports.exporting:update"


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "update",
        "Add and delete passages of a certified or a live index by id, and measure its recall certificate again; without\n"
        "options, only measure. A certified index's folder is replaced once the new one is complete; a live one is updated\n"
        "while no service has it open (otherwise: over HTTP).",
        "jaxretr update indexes/wiki --add runs/new_passages --delete gone.txt\n"
        "  jaxretr update indexes/wiki --rebalance\n"
        "  jaxretr update indexes/live --add new.jsonl --delete gone.txt",
    )
    options = parser.options_of(UPDATE)
    options.argument("folder", "DIR")
    options.add("add", metavar="STORE", action="store")
    options.add("delete", metavar="FILE", action="store", type=Path)
    options.add("rebalance")
    options = parser.options_of(UPDATE, to=parser.add_argument_group("of a live index"))
    options.add("model", metavar="MODEL")
    options.add("dtype", option="--compute")
    options.add("batch_size")


def run(args: argparse.Namespace) -> None:
    """Update, and print a summary of the changes."""
    from jaxretr.exports.exporting import update

    print(update(**given(args)))
