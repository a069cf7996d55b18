"""Command-line options of `search` and `bm25`."""

import argparse

from jaxretr.commands.parsing import Commands, add_model, add_processes, add_run


def add_commands(commands: Commands) -> None:
    """Adds the two commands."""
    _add_search(commands)
    _add_bm25(commands)


def _add_search(commands: Commands) -> None:
    parser = commands.command(
        "search",
        "Exact search of an embedding store or a saved exact index; approximate search of a ScaNN folder. With\n"
        "several processes, each searches its share of the store.",
        "jaxretr search runs/art --index runs/art/embeddings --queries queries.jsonl -k 100 --out run.trec\n"
        "  jaxretr search runs/art --index emb --queries q.jsonl --out run.trec --corpus c.jsonl --where language=en",
    )
    add_model(parser)
    add = parser.add_argument
    add(
        "--index",
        metavar="DIR",
        required=True,
        help="an embedding store (encode), an exact index (ExactIndex.save), or a ScaNN index (export --to scann)",
    )
    add(
        "--corpus",
        metavar="FILE",
        help="passages: titles and texts for --format dpr and jsonl, JSON lines with the fields for --where",
    )
    add = parser.add_argument_group("filters", "for exact search; a passage must pass every filter").add_argument
    add("--allow", metavar="FILE", help="ids of the only passages to search, one per line")
    add("--deny", metavar="FILE", help="ids of passages to exclude, one per line")
    add(
        "--where",
        metavar="FIELD=VALUE",
        action="append",
        type=_equality,
        default=[],
        help='a field of the index\'s metadata, or of the rows of --corpus or their "metadata" object, and its '
        "required value, as text; repeat with the same field to accept several values",
    )
    add_run(parser)
    add_processes(parser)


def _add_bm25(commands: Commands) -> None:
    parser = commands.command(
        "bm25",
        "Search a corpus with BM25, the lexical baseline.",
        "jaxretr bm25 --corpus corpus.jsonl --queries queries.jsonl -k 100 --out bm25.trec",
    )
    parser.add_argument("--corpus", metavar="FILE", required=True, help="passages, as for encode")
    add_run(parser)
    add = parser.add_argument
    add("--k1", type=float, default=0.9, help="saturation of repeated words (default: %(default)s)")
    add("--b", type=float, default=0.4, help="length normalisation (default: %(default)s)")
    add("--stemmer", choices=("english", "none"), default="english", help="(default: %(default)s)")


def _equality(text: str) -> tuple[str, str]:
    field, equals, value = text.partition("=")
    if not equals or not field:
        raise argparse.ArgumentTypeError(f"'{text}' is not FIELD=VALUE; give for instance language=en")
    return field, value
