"""`jaxretr typos`: versions of a file of queries with typos."""

import argparse

from jaxretr.cli.parsing import Commands, given


def add_commands(commands: Commands) -> None:
    options = commands.command(
        "typos",
        "Write query variants with typos; each draw is a file that every command reads.",
        "jaxretr typos wiki_qa/queries.jsonl --out wiki_qa_typos\n"
        "  jaxretr typos queries.tsv --profile single_word --keyboard azerty --draws 3 --out typos",
    ).options_of("jaxretr.data.typos.writing:write_typos")
    options.argument("queries", "QUERIES")
    options.add("out", metavar="DIR")
    options.add("profile", "draws")
    options.add("seed")
    options.add("keyboard", "misspellings")


def run(args: argparse.Namespace) -> None:
    """Write the draws, and print a table of their changes."""
    from jaxretr.data.typos.writing import write_typos

    written = write_typos(**given(args))
    print(written.table())
    first, *others = written.paths
    print(f"{first}" + (f" to {len(others):02d}" if others else ""))
