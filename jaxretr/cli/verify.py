"""`jaxretr verify`: checks that an export, an index or an embedding store is intact."""

import argparse

from jaxretr.cli.parsing import Commands


def add_commands(commands: Commands) -> None:
    """Add the command."""
    add = commands.command(
        "verify",
        "Check an exported folder: recompute its golden vectors from its files, and compare hashes and settings.",
        "jaxretr verify exports/dpr\n  jaxretr verify exports/dpr --with sentence-transformers",
    ).add_argument
    add(
        "folder",
        metavar="DIR",
        help="an export, an index, a live index, an embedding store, or pgvector:ADDRESS of a database",
    )
    add(
        "--with",
        dest="library",
        choices=("sentence-transformers", "transformers"),
        help="also compute the vectors with that library",
    )


def run(args: argparse.Namespace) -> None:
    """Verify, and print a summary of what agrees."""
    from jaxretr.exports.exporting import verify

    print(verify(args.folder, args.library))
