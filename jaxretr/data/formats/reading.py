"""Training files: one example after the other, in any of the formats of `jaxretr.data.formats.kinds.FORMATS`."""

from collections.abc import Iterator
from pathlib import Path

from jaxretr.data.corpus import Corpus
from jaxretr.data.formats.examples import Example, Row
from jaxretr.data.formats.format import Format, Lookup
from jaxretr.data.formats.kinds import training_format
from jaxretr.data.named.names import DataName, data_path
from jaxretr.data.named.tables import QUERIES
from jaxretr.data.questions import read_questions
from jaxretr.data.readers import qrels_path
from jaxretr.data.text_rows import BadRows, find_input
from jaxretr.runtime.errors import UsageError


def examples_file(path: str | Path, split: str = "train") -> Path:
    """Return the file that line numbers refer to: `path`, or the judgements of `split` in a BEIR folder."""
    path = data_path(path)
    return qrels_path(path, split) if path.is_dir() else find_input(path)


def lookup(path: Path, format: Format, *, corpus: Corpus | None = None, queries: str | Path | None = None) -> Lookup:
    """Return the texts that a training set's ids refer to.

    Args:
      path: the training set.
      format: its format.
      corpus: the passages, if known.
      queries: the questions' file; None: that of the folder or named collection, if the training set is in one. Without
        any, the texts of questions that the training set knows only by id are empty.

    Raises:
      UsageError: `queries` for a file with its own questions.
      UserError: the questions cannot be read.
    """
    if not format.needs_queries and queries is not None:
        raise UsageError(f"{path}: contains its questions ({format.name}); leave the queries file out")
    if format.name == "beir":
        queries = path
    elif format.needs_queries and queries is None and isinstance(path, DataName):
        queries = path.sibling(QUERIES)
    if queries is None:
        return Lookup(None, corpus)
    return Lookup({question.id: question for question in read_questions(queries)}, corpus)


def read_examples(
    path: str | Path,
    *,
    format: str | None = None,
    skip_bad: bool = False,
    corpus: Corpus | None = None,
    queries: str | Path | None = None,
    split: str = "train",
) -> Iterator[Example]:
    """Yield the examples of a training set one after the other, in the order of the file.

    A question without an id gets its row number, counted from 0. Candidates that are ids stay ids (text None).

    Args:
      path: a file (gzipped or not) in one of FORMATS, or a BEIR folder.
      format: its format; None: detected from the content.
      skip_bad: whether bad rows are skipped, with one warning that counts them.
      corpus: the passages to which dpr-scale's docidx refer; judged passages that it lacks are bad rows.
      queries: the questions' texts, for "triples-ids", "qrels" and "distillation".
      split: the judgements of a BEIR folder.

    Raises:
      UserError: a bad row (as `path:line: what; remedy`), an unknown format, or no such file.
      UsageError: the questions' texts are missing, or given although the file has them.
    """
    kind = training_format(path, format)
    bad = BadRows(examples_file(path, split), skip_bad)
    found = lookup(data_path(path), kind, corpus=corpus, queries=queries)
    if kind.needs_queries and found.questions is None:
        raise UsageError(f"{path}: has only the ids of its questions ({kind.name}); give the queries file as well")
    kept = 0
    for _, example in bad.good(kind.read(bad.path, found)):
        kept += 1
        yield example
    bad.report(kept)


def numbered_examples(path: str | Path, *, format: str | None = None) -> Iterator[Row]:
    """Yield (line number, example or the row's fault) for every row of a file; see `read_examples` for the rest.

    If its questions are needed and not known, their texts are empty.
    """
    kind = training_format(path, format)
    return kind.read(examples_file(path), lookup(data_path(path), kind))
