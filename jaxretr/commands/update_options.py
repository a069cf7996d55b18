"""Command-line options of `update` and `verify`."""

from jaxretr.commands.parsing import Commands


def add_commands(commands: Commands) -> None:
    """Adds the two commands."""
    _add_update(commands)
    _add_verify(commands)


def _add_update(commands: Commands) -> None:
    add = commands.command(
        "update",
        "Add and delete passages of a ScaNN index by id, and measure its recall certificate again; without options,\n"
        "only measure. The folder is replaced once the new one is complete.",
        "jaxretr update indexes/wiki --add runs/new_passages --delete gone.txt\n"
        "  jaxretr update indexes/wiki --rebalance",
    ).add_argument
    add("folder", metavar="DIR", help="a ScaNN index, made by jaxretr export --to scann")
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


def _add_verify(commands: Commands) -> None:
    add = commands.command(
        "verify",
        "Check an exported folder: recompute its golden vectors from its files, and compare hashes and settings.",
        "jaxretr verify exports/dpr\n  jaxretr verify exports/dpr --with sentence-transformers",
    ).add_argument
    add("folder", metavar="DIR", help="an export, an index or an embedding store")
    add(
        "--with",
        dest="library",
        choices=("sentence-transformers", "transformers"),
        help="also compute the vectors with that library",
    )
