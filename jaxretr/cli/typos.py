"""`jaxretr typos`: versions of a file of queries with typos."""

import argparse
from collections.abc import Callable
from typing import Any, get_args

from jaxretr.cli.parsing import Commands, at_least_one
from jaxretr.config import Keyboard, TypoProfile


def add_commands(commands: Commands) -> None:
    """Add the command."""
    add = commands.command(
        "typos",
        "Write query variants with typos; each draw is a file that every command reads.",
        "jaxretr typos wiki_qa/queries.jsonl --out wiki_qa_typos\n"
        "  jaxretr typos queries.tsv --profile single_word --keyboard azerty --draws 3 --out typos",
    ).add_argument
    add("queries", metavar="QUERIES", help="BEIR jsonl or folder, DPR tsv, id<TAB>text, or .txt lines; also .gz")
    add("--out", metavar="DIR", required=True, help="folder for PROFILE-00.jsonl, PROFILE-01.jsonl, ... and typos.json")
    add(
        "--profile",
        choices=get_args(TypoProfile),
        default="dictionary",
        help="dictionary: a fifth of the words, by a list of misspellings, neighbouring keys and swaps; single_word: "
        "one character of one word, the query lower-cased; spacing: words joined or split, letters swapped (default: "
        "%(default)s)",
    )
    add_sources(add)
    add("--draws", type=at_least_one, default=10, metavar="N", help="variants of each query (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of the typos (default: %(default)s)")


def add_sources(add: Callable[..., Any]) -> None:
    """Add the options for what typos are made from."""
    add(
        "--keyboard",
        choices=get_args(Keyboard),
        help="for dictionary and single_word: keyboard layout (default: qwerty)",
    )
    add(
        "--misspellings",
        metavar="FILE",
        help="for dictionary: JSON {word: [misspellings]} or lines misspelling->word, also .gz (default: English)",
    )


def run(args: argparse.Namespace) -> None:
    """Write the draws, and print a table of their changes."""
    from jaxretr.data.typos.writing import write_typos

    names = ("out", "profile", "draws", "seed", "keyboard", "misspellings")
    written = write_typos(args.queries, **{name: vars(args)[name] for name in names})
    print(written.table())
    first, *others = written.paths
    print(f"{first}" + (f" to {len(others):02d}" if others else ""))
