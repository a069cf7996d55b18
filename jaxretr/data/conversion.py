"""`jaxretr.convert_data`: a training set in another format."""

from dataclasses import dataclass
from pathlib import Path

from jaxretr.data.formats.examples import joined
from jaxretr.data.formats.kinds import FORMATS, named_split, training_format
from jaxretr.data.formats.reading import examples_file, read_examples
from jaxretr.data.formats.writing import write_examples
from jaxretr.data.readers import read_corpus
from jaxretr.data.source import source_of
from jaxretr.runtime.errors import UserError, at_least
from jaxretr.runtime.progress import counted
from jaxretr.runtime.storage.files import check_output, refuse_input

Path_ = str | Path


@dataclass(frozen=True)
class Converted:
    """A training set that was written.

    Attributes:
      path: the file or BEIR folder.
      format: its format.
      source: the format that was read.
      questions: number of questions written.
    """

    path: Path
    format: str
    source: str
    questions: int


def convert_data(
    path: Path_,
    out: Path_,
    *,
    to: str,
    format: str | None = None,
    corpus: Path_ | None = None,
    queries: Path_ | None = None,
    split: str | None = None,
    negatives: int | None = None,
    skip_bad: bool = False,
) -> Converted:
    """Read a training set in one format and write it in another; log what that format cannot represent.

    Args:
      path: a training set, gzipped or not, or a BEIR folder.
      out: the file to write; a folder for beir.
      to: the format to write. One of `jaxretr.data.formats.kinds.FORMATS`.
      format: format of `path`; by default detected from its content.
      corpus: the passages of formats with ids; by default a BEIR folder's own.
      queries: the questions of triples-ids, qrels and distillation.
      split: split of a BEIR folder to read or write; by default train.
      negatives: for sentence-transformers: negatives per row; questions with fewer are left out; by default as many as the
        first question has, and a question with another number is an error.
      skip_bad: skip and count bad rows.

    Raises:
      UsageError: arguments that contradict each other.
      UserError: a file cannot be read or written, or a bad row (as `path:line: what; remedy`).
    """
    at_least(0, negatives=negatives)
    place, target = source_of(path), Path(out).expanduser()
    source = training_format(place, format)
    split = named_split(split, source.name, to)
    inputs = (str(place), corpus, queries)
    if to != "beir":
        check_output(target, *inputs)
    elif target.is_file():
        raise UserError(f"{target}: is a file, but a BEIR folder is to be written; name a folder")
    else:
        refuse_input(target, *inputs)
    passages = place if corpus is None and source.name == "beir" else corpus
    content = None if passages is None else read_corpus(passages, skip_bad=skip_bad)
    examples = read_examples(place, format=source.name, skip_bad=skip_bad, corpus=content, queries=queries, split=split)
    examples = counted(examples, "row")
    if source.spreads and not FORMATS[to].spreads:
        examples = joined(examples)
    written = write_examples(
        target, examples, to, content, negatives=negatives, split=split, source=examples_file(place, split)
    )
    return Converted(target, to, source.name, written)
