"""`jaxretr data`: training sets and other data files converted, inspected and validated."""

import argparse
import importlib
from pathlib import Path

from jaxretr.commands.outputs import say_written
from jaxretr.data.formats.examples import joined
from jaxretr.data.formats.training_formats import (
    ROW_FORMATS,
    examples_file,
    read_examples,
    training_format,
    write_examples,
)
from jaxretr.data.readers import read_corpus
from jaxretr.errors import UsageError, UserError
from jaxretr.progress import counted
from jaxretr.storage.files import check_output


def run(args: argparse.Namespace) -> None:
    """Does what `args.action` says."""
    if args.action == "convert":
        convert(args)
    else:
        importlib.import_module(f"jaxretr.commands.data_{args.action}").run(args)


def convert(args: argparse.Namespace) -> None:
    """Reads a training set in one format and writes it in another."""
    path = Path(args.input).expanduser()
    source = training_format(path, args.source)
    split = split_of(args, source, args.to)
    if args.to != "beir":
        check_output(args.out)
    elif Path(args.out).expanduser().is_file():
        raise UserError(f"{args.out}: is a file, and a BEIR folder is to be written; name a folder")
    place = args.corpus if args.corpus is not None or source != "beir" else path
    corpus = None if place is None else read_corpus(place, skip_bad=args.skip_bad)
    examples = read_examples(
        path, format=source, skip_bad=args.skip_bad, corpus=corpus, queries=args.queries, split=split
    )
    examples = counted(examples, "row")
    if source in ROW_FORMATS and args.to not in ROW_FORMATS:
        examples = joined(examples)
    written = write_examples(
        args.out,
        examples,
        args.to,
        corpus,
        negatives=args.negatives,
        split=split,
        source=examples_file(path, split),
    )
    say_written(args.out, f"{written} questions as {args.to}, from {source}")


def split_of(args: argparse.Namespace, *formats: str) -> str:
    """Returns the name of the judgements; UsageError when one is named and none of `formats` is a BEIR folder."""
    if args.split is not None and "beir" not in formats:
        raise UsageError(f"--split {args.split} is for BEIR folders, not for {' and '.join(formats)}; leave it out")
    return args.split or "train"
