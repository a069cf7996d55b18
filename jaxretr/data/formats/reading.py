"""Training files: one example after the other, in any of the formats of `jaxretr.data.formats.kinds.FORMATS`."""

from collections.abc import Iterator

from jaxretr.data.collection import QUERIES
from jaxretr.data.corpus import Corpus
from jaxretr.data.formats.examples import Example, Row
from jaxretr.data.formats.format import Format, Lookup
from jaxretr.data.formats.kinds import training_format
from jaxretr.data.questions import read_questions
from jaxretr.data.readers import qrels_path
from jaxretr.data.source import Input, Source, source_of
from jaxretr.data.text_rows import BadRows
from jaxretr.runtime.errors import UsageError


def examples_file(path: Input, split: str = "train") -> Source:
    """Return the file that line numbers refer to: `path`, or the judgements of `split` in a BEIR folder."""
    source = source_of(path)
    return qrels_path(source, split) if source.is_dir() else source.file()


def lookup(path: Source, format: Format, *, corpus: Corpus | None = None, queries: Input | None = None) -> Lookup:
    """Return the texts that a training set's ids refer to.

    Args:
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
    elif format.needs_queries and queries is None:
        queries = path.sibling(QUERIES)
    if queries is None:
        return Lookup(None, corpus)
    return Lookup({question.id: question for question in read_questions(queries)}, corpus)


def read_examples(
    path: Input,
    *,
    format: str | None = None,
    skip_bad: bool = False,
    corpus: Corpus | None = None,
    queries: Input | None = None,
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
    path = source_of(path)
    kind = training_format(path, format)
    bad = BadRows(examples_file(path, split), skip_bad)
    found = lookup(path, kind, corpus=corpus, queries=queries)
    if kind.needs_queries and found.questions is None:
        raise UsageError(f"{path}: has only the ids of its questions ({kind.name}); give the queries file as well")
    kept = 0
    for _, example in bad.good(kind.read(bad.path, found)):
        kept += 1
        yield example
    bad.report(kept)


def numbered_examples(path: Input) -> Iterator[Row]:
    """Yield (line number, example or the row's fault) for every row of a file; see `read_examples` for the rest.

    If its questions are needed and not known, their texts are empty.
    """
    path = source_of(path)
    kind = training_format(path)
    return kind.read(examples_file(path), lookup(path, kind))
