"""What can be typed behind `jaxretr search`, but MODEL's options and those of every run."""

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the index, the corpus and the filters."""
    add = parser.add_argument
    add(
        "--index",
        metavar="DIR",
        required=True,
        help="the folder of encode, of ExactIndex.save, or of export --to scann (which is searched approximately)",
    )
    add(
        "--corpus",
        metavar="FILE",
        help="for --format dpr and jsonl: the passages' titles and texts; for --where: the JSON lines with the fields",
    )
    add = parser.add_argument_group("filters", "of exact search; a passage must pass all that are given").add_argument
    add("--allow", metavar="FILE", help="ids of the passages that may be found, one a line")
    add("--deny", metavar="FILE", help="ids of passages that may not be found, one a line")
    add(
        "--where",
        metavar="FIELD=VALUE",
        action="append",
        type=_equality,
        default=[],
        help="a field of the index's metadata, or of the rows of --corpus or of their object metadata, and the value "
        "that it must have, as text; again with the same field for another value that will do",
    )


def _equality(text: str) -> tuple[str, str]:
    field, equals, value = text.partition("=")
    if not equals or not field:
        raise argparse.ArgumentTypeError(f"'{text}' is no FIELD=VALUE; give for instance language=en")
    return field, value
