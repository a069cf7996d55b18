"""Command-line options of `data`."""

from jaxretr.commands.parsing import Commands, at_least_one, from_zero
from jaxretr.data.formats.file_kinds import KINDS
from jaxretr.data.formats.training_formats import FORMATS


def add_commands(commands: Commands) -> None:
    """Adds `data convert`, `data inspect` and `data validate`."""
    commands.command(
        "data",
        "Training sets and other data files: convert, inspect, validate.",
        "jaxretr data validate train.jsonl --corpus corpus.jsonl",
    )
    add = commands.command(
        "data convert",
        "Write a training set in another format; what that cannot hold is counted.",
        "jaxretr data convert biencoder-nq-train.json train.jsonl --to tevatron\n"
        "  jaxretr data convert scifact train.jsonl --to sentence-transformers --negatives 0\n"
        "  jaxretr data convert triples.tsv msmarco --to beir --queries queries.tsv --corpus collection.tsv",
        module="data",
    ).add_argument
    add("input", metavar="IN", help="a training set, gzipped or not, or a BEIR folder")
    add("out", metavar="OUT", help="the file to write; a folder for beir")
    add("--to", choices=FORMATS, required=True, help="the format to write")
    add("--from", dest="source", choices=FORMATS, help="the format of IN (default: told from its content)")
    add("--corpus", metavar="FILE", help="the passages of formats with ids (default: a BEIR folder's own)")
    add("--queries", metavar="FILE", help="the questions of triples-ids, qrels and distillation")
    add("--split", metavar="NAME", help="the judgements to read or write in a BEIR folder (default: train)")
    add(
        "--negatives",
        type=from_zero,
        metavar="N",
        help="for sentence-transformers: so many a row, without the questions that have fewer (default: as many as "
        "all have)",
    )
    add("--skip-bad", action="store_true", help="leave out bad rows, and count them (default: stop at the first)")

    add = commands.command(
        "data inspect",
        "Say what a file or folder is, how much is in it, and show its first row; also corpora, questions, judgements,\n"
        "runs, token stores, embedding stores and indexes.",
        "jaxretr data inspect train.jsonl",
    ).add_argument
    add("input", metavar="FILE", help="any data file or folder")
    add("--as", dest="source", choices=tuple(KINDS), help="what it is (default: told from its content)")
    add("--queries", metavar="FILE", help="the questions of triples-ids and distillation")

    add = commands.command(
        "data validate",
        "Find every problem of a training set, corpus, file of questions or BEIR folder: bad rows, duplicates, missing\n"
        "positives, ids that the corpus lacks, empty texts, negatives that are positives. Fails if there is one.",
        "jaxretr data validate train.jsonl --corpus corpus.jsonl",
    ).add_argument
    add("input", metavar="FILE", help="the file or BEIR folder")
    add("--as", dest="source", choices=tuple(KINDS), help="what it is (default: told from its content)")
    add("--corpus", metavar="FILE", help="the passages, to look up ids (default: a BEIR folder's own)")
    add("--queries", metavar="FILE", help="the questions of triples-ids, qrels and distillation, to look up ids")
    add("--split", metavar="NAME", help="the judgements to check in a BEIR folder (default: train)")
    add("--max-problems", type=at_least_one, default=100, metavar="N", help="show so many (default: %(default)s)")
