"""Readers of the public formats: corpora, questions, judgements, and BEIR folders with all three."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxretr.data.corpus import Corpus, Passage, iter_passages, read_corpus
from jaxretr.data.csv_tables import tsv_rows
from jaxretr.data.questions import Question, read_questions
from jaxretr.data.source import Input, NamedSource, Source, source_of
from jaxretr.data.text_rows import (
    RowError,
    check_utf8,
    find_input,
    first_line,
    json_lines,
    missing_field,
    numbered_lines,
    parsed,
    string_field,
)
from jaxretr.runtime.errors import UserError, did_you_mean
from jaxretr.runtime.notes import note

__all__ = [
    "BeirSet",
    "Corpus",
    "Passage",
    "Question",
    "beir_splits",
    "iter_passages",
    "qrels_path",
    "read_beir",
    "read_corpus",
    "read_qrels",
    "read_questions",
]

_log = logging.getLogger(__name__)

# Fields of judgements as JSON: BEIR's names first, which the error for a row without them names.
_QUERY_FIELDS = ("query-id", "query_id", "qid")
_PASSAGE_FIELDS = ("corpus-id", "corpus_id", "doc_id", "docid", "pid")
_GRADE_FIELDS = ("score", "relevance", "grade", "label")


@dataclass(frozen=True, slots=True)
class BeirSet:
    """A BEIR folder in memory.

    Attributes:
      corpus: all passages.
      questions: the questions that the split judges, in the order of the queries file.
      qrels: question id -> passage id -> grade; including judgements whose ids are not in corpus or questions.
    """

    corpus: Corpus
    questions: list[Question]
    qrels: dict[str, dict[str, int]]


def read_qrels(path: Input) -> dict[str, dict[str, int]]:
    """Read judgements: BEIR's `query-id corpus-id score` by tabs (csv), TREC's `query 0 passage grade`, or JSON lines.

    Args:
      path: a file, gzipped or not; a BEIR header is recognised by its names, and one without is read too. JSON lines have
        the fields "query-id", "corpus-id" and "score", as those of named data sets do.

    Returns:
      question id -> passage id -> grade, in the file's order. A line repeated word for word counts once.

    Raises:
      UserError: a bad row or two grades for one pair (as `path:line: what; remedy`), no judgements, no such file.
    """
    path = find_input(path)
    qrels: dict[str, dict[str, int]] = {}
    line_of_pair: dict[tuple[str, str], int] = {}
    for number, row in qrels_rows(path):
        if isinstance(row, RowError):
            raise UserError(f"{path}:{number}: {row}")
        query, passage, grade = row
        judged = qrels.setdefault(query, {})
        if judged.setdefault(passage, grade) != grade:
            first = line_of_pair[query, passage]
            raise UserError(f"{path}:{number}: '{query}' and '{passage}' have another grade on line {first}; keep one")
        line_of_pair.setdefault((query, passage), number)
    if not qrels:
        raise UserError(f"{path}: no judgements; give a file with at least one row")
    return qrels


def qrels_rows(path: Source) -> Iterator[tuple[int, tuple[str, str, int] | RowError]]:
    """Return (line number, (question id, passage id, grade) or the row's fault) of a file of judgements."""
    if path.suffix in (".jsonl", ".ndjson"):
        return parsed(json_lines(path), _json_judgement)
    return _table_judgements(path)


def _json_judgement(row: dict[str, Any], *_: int) -> tuple[str, str, int]:
    ids = []
    for names in (_QUERY_FIELDS, _PASSAGE_FIELDS):
        id = string_field(row, names, allow_int=True)
        if id is None:
            raise missing_field(row, names)
        if not id.strip():
            raise RowError("an id is empty; name the question and the passage")
        ids.append(id)
    grade = next((row[name] for name in _GRADE_FIELDS if row.get(name) is not None), None)
    if grade is None:
        raise missing_field(row, _GRADE_FIELDS)
    if not _is_grade(grade):
        raise RowError(f"the grade {grade!r} is not a whole number; write 0, 1, 2, ...")
    return ids[0], ids[1], int(float(grade))


def _table_judgements(path: Source) -> Iterator[tuple[int, tuple[str, str, int] | RowError]]:
    columns = 0
    head = first_line(path)
    # BEIR writes and reads its three columns as csv; in TREC's and MS MARCO's four nothing is quoted.
    if head.count("\t") == 2:
        rows = tsv_rows(path, 3)
    else:
        rows = ((number, _columns(line)) for number, line in numbered_lines(path) if line.strip())
    for number, fields in rows:
        fields = [field.strip(" ") for field in fields]
        try:
            check_utf8("".join(fields))
            if not columns:
                columns = len(fields)
                if columns not in (3, 4):
                    columns = 0
                    raise RowError(
                        f"{len(fields)} columns; judgements are query-id, corpus-id, score or query 0 id grade, "
                        "separated by tabs if an id has spaces"
                    )
                if columns == 3 and not _is_grade(fields[2]) and "id" in fields[0].lower():
                    continue
            if len(fields) != columns:
                raise RowError(f"{len(fields)} columns, the first row has {columns}; check its tabs")
            query, passage, grade = fields[0], fields[-2], fields[-1]
            if not query or not passage:
                raise RowError("an id is empty; name the question and the passage")
            if not _is_grade(grade):
                raise RowError(f"the grade '{grade}' is not a whole number; write 0, 1, 2, ...")
        except RowError as error:
            yield number, error
            continue
        yield number, (query, passage, int(float(grade)))


def _columns(line: str) -> list[str]:
    """Split at tabs, or else at spaces, of which TREC files have several in a row; an id may have a no-break space."""
    return line.split("\t") if "\t" in line else [field for field in line.split(" ") if field]


def _is_grade(value: Any) -> bool:
    try:
        return float(value).is_integer()
    except (ValueError, TypeError):
        return False


def read_beir(folder: Input, split: str | None) -> BeirSet:
    """Read a BEIR folder: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, each also as .gz.

    Args:
      split: the judgements to read, for instance "test"; None for all questions and no judgements.

    Raises:
      UserError: the folder or a file is missing or bad (a missing split names those that exist), or the split
        judges no question of the queries file.
    """
    folder = beir_folder(folder)
    qrels: dict[str, dict[str, int]] = {}
    if split is not None:
        # Before the corpus: a misspelt split should not cost the minutes of reading a large corpus.
        judgements = qrels_path(folder, split)
        qrels = read_qrels(judgements)
    questions = read_questions(folder)
    corpus = read_corpus(folder)
    if split is not None:
        known = {question.id for question in questions}
        questions = [question for question in questions if question.id in qrels]
        if not questions:
            raise UserError(f"{judgements}: judges no question of the queries file; check that the ids match")
        unknown = [query for query in qrels if query not in known]
        _warn_unknown(judgements, "questions", unknown, len(qrels))
        passages = [passage for judged in qrels.values() for passage in judged]
        _warn_unknown(judgements, "passages", [passage for passage in passages if passage not in corpus], len(passages))
    return BeirSet(corpus, questions, qrels)


def beir_folder(path: Input) -> Source:
    """Return a BEIR folder, or the collection that stands for one.

    Raises:
      UserError: there is no such folder, or the name stands for something else.
    """
    folder = source_of(path)
    if folder.is_dir():
        return folder
    if isinstance(folder, NamedSource):
        there = ", ".join(folder.collection().parts)
        raise UserError(f"{folder}: is not a collection with corpus, queries and judgements (it has {there}); name one")
    raise UserError(f"{folder}: no such folder; give a BEIR folder with corpus.jsonl, queries.jsonl and qrels/")


def beir_splits(folder: Input) -> list[str]:
    """Return the names of a BEIR folder's judgements, sorted; none if it has no qrels/."""
    return source_of(folder).splits()


def qrels_path(folder: Input, split: str, setting: str | None = None) -> Source:
    """Return the file with a BEIR folder's judgements of `split`.

    Args:
      split: for instance "test".
      setting: the setting of a config that names the split, for instance "data.dev_split".

    Raises:
      UserError: there is none; the message names the splits that exist, and the setting with its option.
    """
    folder = source_of(folder)
    if (found := folder.judgements(split)) is not None:
        return found
    splits = folder.splits()
    if not splits:
        raise UserError(f"{folder}: it has no judgements (qrels/SPLIT.tsv); add them, or name no split")
    hint, where, how = did_you_mean(split, splits), "", ""
    if setting is not None:
        where = f"{setting}: "
        how = f" with {setting}, or set all data at once with data={folder}"
        how = f" Name it{how}" if hint else how
    raise UserError(f"{where}{folder}: no split '{split}', it has {', '.join(splits)}{hint or '; name one'}{how}")


def _warn_unknown(path: Source, what: str, unknown: list[str], total: int) -> None:
    if unknown:
        note(
            _log.warning,
            "%s: %d of %d judged %s are unknown (the first: '%s'); they are kept, so metrics count them as missed",
            path,
            len(unknown),
            total,
            what,
            unknown[0],
        )
