"""Training sets written in any of the formats; `jaxretr.data.formats.reading` reads them."""

from collections.abc import Iterable
from pathlib import Path

from jaxretr.data.corpus import Corpus
from jaxretr.data.formats.example_rows import ExampleRows
from jaxretr.data.formats.examples import Example
from jaxretr.data.formats.kinds import FORMATS
from jaxretr.data.source import Input
from jaxretr.runtime.errors import UsageError


def write_examples(
    path: str | Path,
    examples: Iterable[Example],
    format: str,
    corpus: Corpus | None = None,
    *,
    negatives: int | None = None,
    split: str = "train",
    source: Input = "example",
) -> int:
    """Write a training set, whole or not at all; log what the format cannot represent.

    Formats with one list of negatives get the hard ones, or the others if a question has no hard ones. Formats of
    bare texts get "title text". sentence-transformers' columns (by the name .csv, .tsv or JSON lines) get a row for
    every positive, all with the same number of negatives; triples name every positive and negative at least once.

    Args:
      path: the file; for "beir" a folder, whose corpus.jsonl holds all of `corpus` and the texts that are not in it.
      examples: one for each question, as `read_examples` yields them; a question's rows of a format that spreads it
        over several joined first.
      format: one of `jaxretr.data.formats.kinds.FORMATS`.
      corpus: the passages of candidates that are ids. dpr-scale's passages are written as its rows (docidx).
      negatives: for sentence-transformers: take this many per question and leave out questions with fewer.
        None: as many as the first question has; another number is then an error.
      split: for "beir": the name of the judgements.
      source: the file that the examples are from, for messages.

    Returns:
      The number of examples that were written.

    Raises:
      UserError: a passage has only an id where its text is needed or the reverse, or the file cannot be written.
    """
    path = Path(path).expanduser()
    if negatives is not None and format != "sentence-transformers":
        raise UsageError(f"the number of negatives is for sentence-transformers' columns; {format} takes any number")
    rows = ExampleRows(corpus, source, split=split, per_row=negatives)
    if not FORMATS[format].has_grades:
        examples = map(rows.without_grades, examples)
    FORMATS[format].write(path, examples, rows)
    rows.report(path, format)
    return rows.written
