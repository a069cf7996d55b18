"""What can be typed behind `jaxretr data`."""

import argparse
from collections.abc import Callable

from jaxretr.data.formats.file_kinds import KINDS
from jaxretr.data.formats.training_formats import FORMATS


def add_actions(parser: argparse.ArgumentParser, number: Callable[[str], int]) -> dict[str, argparse.ArgumentParser]:
    """Adds convert, inspect and validate.

    Args:
      parser: of `jaxretr data`.
      number: reads a whole number from 1.

    Returns:
      The parser of each.
    """
    subparsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    actions: dict[str, argparse.ArgumentParser] = {}

    def action(name: str, what: str, example: str) -> Callable[..., argparse.Action]:
        actions[name] = subparsers.add_parser(
            name, help=what.split(";")[0], description=what, epilog=f"example:\n  {example}"
        )
        return actions[name].add_argument

    add = action(
        "convert",
        "Write a training set in another format; what that cannot hold is counted.",
        "jaxretr data convert biencoder-nq-train.json train.jsonl --to tevatron\n"
        "  jaxretr data convert scifact train.jsonl --to sentence-transformers --negatives 0\n"
        "  jaxretr data convert triples.tsv msmarco --to beir --queries queries.tsv --corpus collection.tsv",
    )
    add("input", metavar="IN", help="a training set, gzipped or not, or a BEIR folder")
    add("out", metavar="OUT", help="the file to write; a folder for beir")
    add("--to", choices=FORMATS, required=True, help="the format to write")
    add("--from", dest="source", choices=FORMATS, help="the format of IN (default: told from its content)")
    add("--corpus", metavar="FILE", help="the passages of formats with ids (default: a BEIR folder's own)")
    add("--queries", metavar="FILE", help="the questions of triples-ids, qrels and distillation")
    add("--split", metavar="NAME", help="the judgements to read or write in a BEIR folder (default: train)")
    add(
        "--negatives",
        type=_from_zero,
        metavar="N",
        help="for sentence-transformers: so many a row, without the questions that have fewer (default: as many as "
        "all have)",
    )
    add("--skip-bad", action="store_true", help="leave out bad rows, and count them (default: stop at the first)")

    add = action(
        "inspect",
        "Say what a file or folder is, how much is in it, and show its first row; also corpora, questions, judgements,\n"
        "runs, token stores, embedding stores and indexes.",
        "jaxretr data inspect train.jsonl",
    )
    add("input", metavar="FILE", help="any data file or folder")
    add("--as", dest="source", choices=tuple(KINDS), help="what it is (default: told from its content)")
    add("--queries", metavar="FILE", help="the questions of triples-ids and distillation")

    add = action(
        "validate",
        "Find every problem of a training set, corpus, file of questions or BEIR folder: bad rows, duplicates, missing\n"
        "positives, ids that the corpus lacks, empty texts, negatives that are positives. Fails if there is one.",
        "jaxretr data validate train.jsonl --corpus corpus.jsonl",
    )
    add("input", metavar="FILE", help="the file or BEIR folder")
    add("--as", dest="source", choices=tuple(KINDS), help="what it is (default: told from its content)")
    add("--corpus", metavar="FILE", help="the passages, to look up ids (default: a BEIR folder's own)")
    add("--queries", metavar="FILE", help="the questions of triples-ids, qrels and distillation, to look up ids")
    add("--split", metavar="NAME", help="the judgements to check in a BEIR folder (default: train)")
    add("--max-problems", type=number, default=100, metavar="N", help="show so many (default: %(default)s)")
    return actions


def _from_zero(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 0")
    return int(text)
