"""The public formats of supervised training data: told from the content, and read as examples.

`write_examples` is in jaxretr/data/formats/training_writers.py.
"""

from collections.abc import Iterator
from pathlib import Path

from jaxretr.data.corpus import Corpus
from jaxretr.data.formats.examples import Example, Row
from jaxretr.data.formats.file_kinds import KINDS, file_kind
from jaxretr.data.formats.id_examples import read_distillation, read_id_triples, read_judged
from jaxretr.data.formats.passage_list_examples import read_dpr, read_dpr_scale, read_tevatron, read_tevatron2
from jaxretr.data.formats.text_examples import read_columns, read_flag, read_triples
from jaxretr.data.formats.training_writers import write_examples
from jaxretr.data.questions import Question, read_questions
from jaxretr.data.readers import qrels_path
from jaxretr.data.text_rows import BadRows, RowError, find_input
from jaxretr.errors import UsageError, UserError, did_you_mean

__all__ = ["FORMATS", "examples_file", "numbered_examples", "read_examples", "training_format", "write_examples"]

FORMATS = tuple(kind for kind in KINDS if kind not in ("corpus", "questions", "run"))
"""The names of the formats."""

NEED_QUERIES = ("distillation", "triples-ids", "qrels")
"""Formats that hold the ids of their questions alone."""

ROW_FORMATS = ("sentence-transformers", "triples", "triples-ids")
"""Formats in which a question may stand on several rows; those of one question have one id."""

_OTHERWISE = {
    "corpus": "give it as the corpus, beside a training set",
    "questions": "give it as the queries, beside a training set",
    "run": "mine hard negatives from it, or evaluate it",
}


def training_format(path: str | Path, format: str | None = None) -> str:
    """Returns the name of a training set's format.

    Args:
      path: the file or BEIR folder.
      format: what the user says that it is; None: told from the content.

    Raises:
      UserError: it is something else, or it cannot be told.
      UsageError: there is no such format.
    """
    path = Path(path).expanduser()
    if format is not None and format not in FORMATS:
        raise UsageError(f"no format '{format}'{did_you_mean(format, FORMATS) or ''}; there are {', '.join(FORMATS)}")
    if format is None:
        format = file_kind(path)
        if format not in FORMATS:
            raise UserError(f"{path}: looks like {KINDS[format]}, no training set; {_OTHERWISE[format]}")
    elif format != "beir":
        find_input(path)
    elif not path.is_dir():
        raise UserError(f"{path}: is no folder; give a BEIR folder (corpus.jsonl, queries.jsonl, qrels/)")
    return format


def examples_file(path: str | Path, split: str = "train") -> Path:
    """Returns the file that line numbers refer to: `path`, or the judgements of `split` in a BEIR folder."""
    path = Path(path).expanduser()
    return qrels_path(path, split) if path.is_dir() else find_input(path)


def read_examples(
    path: str | Path,
    *,
    format: str | None = None,
    skip_bad: bool = False,
    corpus: Corpus | None = None,
    queries: str | Path | None = None,
    split: str = "train",
) -> Iterator[Example]:
    """Yields the examples of a training set one after the other, as the file has them.

    A question without an id gets its row number, counted from 0. Candidates that are ids stay ids (text None).

    Args:
      path: a file (gzipped or not) in one of FORMATS, or a BEIR folder.
      format: its format; None: told from the content.
      skip_bad: whether bad rows are skipped, with one warning that counts them.
      corpus: where dpr-scale's docidx are rows; judged passages that it lacks are bad rows.
      queries: the questions' texts, for "triples-ids", "qrels" and "distillation".
      split: the judgements of a BEIR folder.

    Raises:
      UserError: a bad row (as `path:line: what; remedy`), an unknown format, or no such file.
      UsageError: the questions' texts are missing, or given where the file has them.
    """
    format = training_format(path, format)
    bad = BadRows(examples_file(path, split), skip_bad)
    if format in NEED_QUERIES and queries is None:
        raise UsageError(f"{path}: holds the ids of its questions alone ({format}); give the queries file as well")
    kept = 0
    for line, row in numbered_examples(path, format=format, corpus=corpus, queries=queries, split=split):
        if isinstance(row, RowError):
            bad.add(line, row)
        else:
            kept += 1
            yield row
    bad.report(kept)


def numbered_examples(
    path: str | Path,
    *,
    format: str | None = None,
    corpus: Corpus | None = None,
    queries: str | Path | None = None,
    split: str = "train",
) -> Iterator[Row]:
    """Yields (line number, example or what is wrong with it) for every row; otherwise as `read_examples`.

    Without `queries` where they are needed, the questions' texts are empty.
    """
    path = Path(path).expanduser()
    format = training_format(path, format)
    file = examples_file(path, split)
    if format not in NEED_QUERIES and queries is not None:
        raise UsageError(f"{path}: has its questions in itself ({format}); leave the queries file out")
    questions: dict[str, Question] | None = None
    if format == "beir" or queries is not None:
        questions = {question.id: question for question in read_questions(path if queries is None else queries)}
    match format:
        case "dpr":
            return read_dpr(file, corpus)
        case "dpr-scale":
            return read_dpr_scale(file, corpus)
        case "tevatron":
            return read_tevatron(file)
        case "tevatron2":
            return read_tevatron2(file)
        case "sentence-transformers":
            return read_columns(file)
        case "distillation":
            return read_distillation(file, questions)
        case "flag":
            return read_flag(file)
        case "triples":
            return read_triples(file)
        case "triples-ids":
            return read_id_triples(file, questions)
        case _:
            return read_judged(file, questions, corpus)
