"""`jaxretr update`: adds and deletes passages of a certified index."""

import argparse
from pathlib import Path

from jaxretr.commands.parsing import Commands


def add_commands(commands: Commands) -> None:
    """Adds the command."""
    add = commands.command(
        "update",
        "Add and delete passages of a certified index by id, and measure its recall certificate again; without options,\n"
        "only measure. The folder is replaced once the new one is complete.",
        "jaxretr update indexes/wiki --add runs/new_passages --delete gone.txt\n"
        "  jaxretr update indexes/wiki --rebalance",
    ).add_argument
    add("folder", metavar="DIR", help="a certified index, made by jaxretr export --to scann")
    add(
        "--add",
        metavar="STORE",
        help="embedding store of the passages to add; a passage whose id exists replaces the old one",
    )
    add("--delete", metavar="FILE", help="ids of passages to delete, one per line; deleted before others are added")
    add(
        "--rebalance",
        action="store_true",
        help="retrain tree and codes, and tune again; automatic once 30%% of the passages have changed",
    )


def run(args: argparse.Namespace) -> None:
    """Updates, and prints what changed."""
    from jaxretr.search.scann.upkeep import update

    delete = None if args.delete is None else Path(args.delete)
    print(update(args.folder, add=args.add, delete=delete, rebalance=args.rebalance))
