"""`jaxretr data`: training sets and other data files converted, inspected, validated, and built into data sets."""

import argparse

from jaxretr.cli.parsing import Commands, at_least_one, from_zero
from jaxretr.data.formats.kinds import FORMATS, KINDS
from jaxretr.runtime.errors import UserError


def add_commands(commands: Commands) -> None:
    """Add `data convert`, `data inspect`, `data validate` and `data build`."""
    commands.command(
        "data",
        "Training sets and other data files: convert, inspect, validate, build.",
        "jaxretr data validate train.jsonl --corpus corpus.jsonl",
    )
    add = commands.command(
        "data convert",
        "Convert a training set to another format; reports what that format cannot represent.",
        "jaxretr data convert biencoder-nq-train.json train.jsonl --to tevatron\n"
        "  jaxretr data convert scifact train.jsonl --to sentence-transformers --negatives 0\n"
        "  jaxretr data convert triples.tsv msmarco --to beir --queries queries.tsv --corpus collection.tsv",
        module="data",
    ).add_argument
    add("input", metavar="IN", help="a training set, gzipped or not, or a BEIR folder")
    add("out", metavar="OUT", help="the file to write; a folder for beir")
    add("--to", choices=FORMATS, required=True, help="the format to write")
    add("--from", dest="source", choices=FORMATS, help="the format of IN (default: detected from its content)")
    add("--corpus", metavar="FILE", help="the passages of formats with ids (default: a BEIR folder's own)")
    add("--queries", metavar="FILE", help="the questions of triples-ids, qrels and distillation")
    add("--split", metavar="NAME", help="split of a BEIR folder to read or write (default: train)")
    add(
        "--negatives",
        type=from_zero,
        metavar="N",
        help="for sentence-transformers: negatives per row; questions with fewer are left out (default: the most that "
        "every question has)",
    )
    add("--skip-bad", action="store_true", help="skip and count bad rows (default: stop at the first)")

    add = commands.command(
        "data inspect",
        "Show what a file or folder contains: its format, size and first row; for training sets, corpora, questions,\n"
        "judgements, runs, token stores, embedding stores and indexes.",
        "jaxretr data inspect train.jsonl",
        module="data",
    ).add_argument
    add("input", metavar="FILE", help="any data file or folder")
    add("--as", dest="source", choices=tuple(KINDS), help="its format (default: detected from its content)")
    add("--queries", metavar="FILE", help="the questions of triples-ids and distillation")

    add = commands.command(
        "data validate",
        "Find every problem in a training set, corpus, question file or BEIR folder: bad rows, ids that occur twice,\n"
        "missing positives, ids that the corpus lacks, empty texts, negatives that are positives. Exits with 1 if there\n"
        "are any, else with 0: questions and passages that repeat are a warning, as they are to train.",
        "jaxretr data validate train.jsonl --corpus corpus.jsonl",
        module="data",
    ).add_argument
    add("input", metavar="FILE", help="the file or BEIR folder")
    add("--as", dest="source", choices=tuple(KINDS), help="its format (default: detected from its content)")
    add("--corpus", metavar="FILE", help="the passages, to look up ids (default: a BEIR folder's own)")
    add("--queries", metavar="FILE", help="the questions of triples-ids, qrels and distillation, to look up ids")
    add("--split", metavar="NAME", help="split of a BEIR folder to check (default: train)")
    add("--max-problems", type=at_least_one, default=100, metavar="N", help="problems to show (default: %(default)s)")

    add = commands.command(
        "data build",
        "Write a corpus, BEIR folder or training set as a TFDS data set of array_record files, with checksums; any program\n"
        "reads it without jaxretr and without TensorFlow. Needs: pip install 'jaxretr[data]'",
        "jaxretr data build scifact --out ~/tensorflow_datasets --licence CC-BY-4.0\n"
        "  jaxretr data build train.jsonl --out data --name nq_train --corpus corpus.jsonl\n"
        "  jaxretr train CONFIG --data tfds:scifact",
        module="data",
    ).add_argument
    add("input", metavar="IN", help="a corpus, questions, judgements, a BEIR folder or a training set; also by name")
    add("--out", metavar="DIR", required=True, help="the data folder; writes DIR/NAME/CONFIG/VERSION")
    add("--format", choices=("tfds",), default="tfds", help="of the data set (default: %(default)s)")
    add("--name", help="of the data set: lower-case letters, digits, underscores (default: that of IN)")
    add("--version", default="1.0.0", help="three numbers (default: %(default)s)")
    add("--description", metavar="TEXT", help="what it contains (default: the format and name of IN)")
    add("--homepage", metavar="URL", default="", help="its address")
    add("--citation", metavar="BIBTEX", default="", help="how to cite it")
    add("--licence", metavar="TEXT", default="", help="its licence")
    add("--corpus", metavar="FILE", help="the passages of a training set that has their ids")
    add("--queries", metavar="FILE", help="the questions of triples-ids and distillation")
    add("--split", metavar="NAME", help="what the judgements in a file are called (default: test)")
    add("--skip-bad", action="store_true", help="skip and count bad rows (default: stop at the first)")


def run(args: argparse.Namespace) -> None:
    """Run the action that `args.action` names."""
    {"convert": _convert, "inspect": _inspect, "validate": _validate, "build": _build}[args.action](args)


def _convert(args: argparse.Namespace) -> None:
    from jaxretr.cli.outputs import say_written
    from jaxretr.data.conversion import convert_data

    names = ("to", "corpus", "queries", "split", "negatives", "skip_bad")
    written = convert_data(args.input, args.out, format=args.source, **{name: vars(args)[name] for name in names})
    say_written(args.out, f"{written.questions} questions as {written.format}, from {written.source}")


def _inspect(args: argparse.Namespace) -> None:
    from jaxretr.embeddings.inspection import inspect_data

    print(inspect_data(args.input, format=args.source, queries=args.queries).table())


def _validate(args: argparse.Namespace) -> None:
    from jaxretr.data.validation import validate_data

    names = ("corpus", "queries", "split", "max_problems")
    found = validate_data(
        args.input, format=args.source, **{name: vars(args)[name] for name in names}, on_problem=print
    )
    if not found.ok:
        raise UserError(str(found))
    print(found)


def _build(args: argparse.Namespace) -> None:
    from jaxretr.data.tfds_builder import build_data

    names = (
        "name",
        "version",
        "description",
        "homepage",
        "citation",
        "licence",
        "corpus",
        "queries",
        "split",
        "skip_bad",
    )
    built = build_data(args.input, args.out, **{name: vars(args)[name] for name in names})
    for config, splits in built.rows.items():
        print(
            f"{built.path}/{config}/{built.version}: {', '.join(f'{rows} rows in {name}' for name, rows in splits.items())}"
        )
    print(f"read it as tfds:{built.path.absolute()}")
