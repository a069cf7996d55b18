"""`jaxretr verify`: checks that an export, an index or an embedding store is intact."""

import argparse

from jaxretr.cli.parsing import Commands, given


def add_commands(commands: Commands) -> None:
    options = commands.command(
        "verify",
        "Check an exported folder: recompute its golden vectors from its files, and compare hashes and settings.",
        "jaxretr verify exports/dpr\n  jaxretr verify exports/dpr --with sentence-transformers",
    ).options_of("jaxretr.exports.exporting:verify")
    options.argument("folder", "DIR")
    options.add("library", option="--with")


def run(args: argparse.Namespace) -> None:
    """Verify, and print a summary of what agrees."""
    from jaxretr.exports.exporting import verify

    print(verify(**given(args)))
