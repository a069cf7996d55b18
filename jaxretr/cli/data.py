"""`jaxretr data`: training sets and other data files converted, inspected, validated, and built into data sets."""

import argparse

from jaxretr.cli.parsing import Commands, from_zero, given
from jaxretr.data.formats.kinds import FORMATS, KINDS
from jaxretr.runtime.errors import UserError


def add_commands(commands: Commands) -> None:
    commands.command(
        "data",
        "Training sets and other data files: convert, inspect, validate, build.",
        "jaxretr data validate train.jsonl --corpus corpus.jsonl",
    )
    options = commands.command(
        "data convert",
        "Convert a training set to another format; reports what that format cannot represent.",
        "jaxretr data convert biencoder-nq-train.json train.jsonl --to tevatron\n"
        "  jaxretr data convert scifact train.jsonl --to sentence-transformers --negatives 0\n"
        "  jaxretr data convert triples.tsv msmarco --to beir --queries queries.tsv --corpus collection.tsv",
        module="data",
    ).options_of("jaxretr.data.conversion:convert_data")
    options.argument("path", "IN")
    options.argument("out", "OUT")
    options.add("to", choices=FORMATS)
    options.add("format", option="--from", choices=FORMATS)
    options.add("corpus", "queries", "split")
    options.add("negatives", type=from_zero)
    options.add("skip_bad")

    options = commands.command(
        "data inspect",
        "Show what a file or folder contains: its format, size and first row; for training sets, corpora, questions,\n"
        "judgements, runs, token stores, embedding stores and indexes.",
        "jaxretr data inspect train.jsonl",
        module="data",
    ).options_of("jaxretr.embeddings.inspection:inspect_data")
    options.argument("path", "FILE")
    options.add("format", option="--as", choices=tuple(KINDS))
    options.add("queries")

    options = commands.command(
        "data validate",
        "Find every problem in a training set, corpus, question file or BEIR folder: bad rows, ids that occur twice,\n"
        "missing positives, ids that the corpus lacks, empty texts, negatives that are positives. Exits with 1 if there\n"
        "are any, else with 0: questions and passages that repeat are a warning, as they are to train.",
        "jaxretr data validate train.jsonl --corpus corpus.jsonl",
        module="data",
    ).options_of("jaxretr.data.validation:validate_data")
    options.argument("path", "FILE")
    options.add("format", option="--as", choices=tuple(KINDS))
    options.add("corpus", "queries", "split", "max_problems")

    parser = commands.command(
        "data build",
        "Write a corpus, BEIR folder or training set as a TFDS data set of array_record files, with checksums; any program\n"
        "reads it without jaxretr and without TensorFlow. Needs: pip install 'jaxretr[data]'",
        "jaxretr data build scifact --out ~/tensorflow_datasets --licence CC-BY-4.0\n"
        "  jaxretr data build train.jsonl --out data --name nq_train --corpus corpus.jsonl\n"
        "  jaxretr train CONFIG --data tfds:scifact",
        module="data",
    )
    options = parser.options_of("jaxretr.data.tfds_builder:build_data")
    options.argument("path", "IN")
    options.add("out", metavar="DIR")
    parser.add_argument("--format", choices=("tfds",), default="tfds", help="of the data set (default: %(default)s)")
    options.add("name", "version")
    options.add("description", metavar="TEXT")
    options.add("homepage", metavar="URL")
    options.add("citation", metavar="BIBTEX")
    options.add("licence", metavar="TEXT")
    options.add("corpus", "queries", "split", "skip_bad")


def run(args: argparse.Namespace) -> None:
    """Run the action that `args.action` names."""
    {"convert": _convert, "inspect": _inspect, "validate": _validate, "build": _build}[args.action](args)


def _convert(args: argparse.Namespace) -> None:
    from jaxretr.cli.outputs import say_written
    from jaxretr.data.conversion import convert_data

    written = convert_data(**given(args))
    say_written(args.out, f"{written.questions} questions as {written.format}, from {written.source}")


def _inspect(args: argparse.Namespace) -> None:
    from jaxretr.embeddings.inspection import inspect_data

    print(inspect_data(**given(args)).table())


def _validate(args: argparse.Namespace) -> None:
    from jaxretr.data.validation import validate_data

    found = validate_data(**given(args), on_problem=print)
    if not found.ok:
        raise UserError(str(found))
    print(found)


def _build(args: argparse.Namespace) -> None:
    from jaxretr.data.tfds_builder import build_data

    built = build_data(**given(args))
    for config, splits in built.rows.items():
        print(
            f"{built.path}/{config}/{built.version}: {', '.join(f'{rows} rows in {name}' for name, rows in splits.items())}"
        )
    print(f"read it as tfds:{built.path.absolute()}")
