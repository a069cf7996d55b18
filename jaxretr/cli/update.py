"""`jaxretr update`: adds and deletes passages of a certified or a live index."""

import argparse
from pathlib import Path

from jaxretr.cli.parsing import Commands, add_precision, at_least_one


def add_commands(commands: Commands) -> None:
    """Add the command."""
    parser = commands.command(
        "update",
        "Add and delete passages of a certified or a live index by id, and measure its recall certificate again; without\n"
        "options, only measure. A certified index's folder is replaced once the new one is complete; a live one is updated\n"
        "while no service has it open (otherwise: over HTTP).",
        "jaxretr update indexes/wiki --add runs/new_passages --delete gone.txt\n"
        "  jaxretr update indexes/wiki --rebalance\n"
        "  jaxretr update indexes/live --add new.jsonl --delete gone.txt",
    )
    add = parser.add_argument
    add("folder", metavar="DIR", help="a certified or live index, made by jaxretr export --to scann or --to live")
    add(
        "--add",
        metavar="STORE",
        help="embedding store of the passages to add; of a live index their file, as for encode. A passage whose id exists "
        "replaces the old one",
    )
    add(
        "--delete",
        metavar="FILE",
        help="ids of passages to delete, one per line; one that is added as well is replaced",
    )
    add(
        "--rebalance",
        action="store_true",
        help="retrain tree and codes, and tune again; automatic once many of the passages have changed",
    )
    add = parser.add_argument_group("of a live index").add_argument
    add("--model", metavar="MODEL", help="its encoder, if the name that the index has for it leads nowhere")
    add_precision(add, default=None)
    add("--batch-size", type=at_least_one, metavar="N", help="passages per batch (default: chosen for the device)")


def run(args: argparse.Namespace) -> None:
    """Update, and print a summary of the changes."""
    from jaxretr.exports.exporting import update

    delete = None if args.delete is None else Path(args.delete)
    names = ("add", "rebalance", "model", "batch_size")
    print(update(args.folder, delete=delete, dtype=args.compute, **{name: vars(args)[name] for name in names}))
