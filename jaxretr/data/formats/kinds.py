"""The formats of data files, and how a file's format is detected from its first rows."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from jaxretr.data.csv_tables import csv_rows
from jaxretr.data.formats.columns import LABELS
from jaxretr.data.named.names import DataName, data_path
from jaxretr.data.text_rows import (
    RowError,
    bare_suffix,
    find_input,
    first_character,
    first_line,
    json_array,
    json_lines,
    numbered_lines,
)
from jaxretr.runtime.errors import UsageError, UserError, did_you_mean

KINDS = {
    "dpr": "DPR training set (a JSON array with positive_ctxs)",
    "dpr-scale": "dpr-scale training set (JSON lines with positive_ctxs)",
    "tevatron": "Tevatron training set, version 1 (positive_passages)",
    "tevatron2": "Tevatron training set, version 2 (positive_document_ids)",
    "sentence-transformers": "sentence-transformers training set (columns anchor, positive, negative_1 ...)",
    "distillation": "sentence-transformers distillation set (query_id, document_ids, scores)",
    "flag": "FlagEmbedding training set (query, pos, neg)",
    "triples": "MS MARCO triples of texts",
    "triples-ids": "MS MARCO triples of ids",
    "qrels": "judgements (qrels)",
    "beir": "BEIR folder",
    "corpus": "corpus",
    "questions": "questions",
    "run": "run (ranked passages)",
}

FORMATS = tuple(kind for kind in KINDS if kind not in ("corpus", "questions", "run"))
"""The names of the formats."""

NEED_QUERIES = ("distillation", "triples-ids", "qrels")
"""Formats with only the ids of their questions."""

ROW_FORMATS = ("sentence-transformers", "triples", "triples-ids")
"""Formats that may spread a question over several rows, which have one id."""

WITH_PASSAGES = ("dpr", "dpr-scale", "tevatron", "sentence-transformers", "flag")
"""Training formats with the passages' texts in named fields. A table without a header may be a corpus."""

_OTHERWISE = {
    "corpus": "give it as the corpus of a training set",
    "questions": "give it as the queries of a training set",
    "run": "mine hard negatives from it, or evaluate it",
}

# The kinds of the parts of named collections.
_KIND_OF_ROLE = {"corpus": "corpus", "queries": "questions", "qrels": "qrels"}

_ROWS_LOOKED_AT = 200
# Questions are shorter, passages longer: for files of ids and texts whose name tells nothing.
_WORDS_OF_A_QUESTION = 20

_ANCHORS = ("anchor", "query", "question", "sentence", "sentence1", "sentence_a", "premise", "text1", "input")
# Lines without texts: TREC's run, whose tag does not end as a line of JSON does, its judgements, and three columns.
_NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
_IDS_AND_NUMBERS = re.compile(
    rf'\s*(\S+\s+){{3}}-?\d+\s+{_NUMBER}\s+\S*[^][{{}}:,"\s]\s*'
    rf"|\s*\S+\s+Q?0\s+\S+\s+-?\d+\s*|[^\t]+\t[^\t]+\t *{_NUMBER} *",
    re.ASCII,
)
_IDS = ("_id", "id", "docid", "pid", "passage_id", "qid", "query_id")


def file_kind(path: str | Path) -> str:
    """Return the kind of a file or folder, a key of KINDS.

    Raises:
      UserError: it is not recognised.
    """
    path = data_path(path)
    if path.is_dir():
        if (
            isinstance(path, DataName)
            or (path / "qrels").is_dir()
            or any((path / name).is_file() for name in ("corpus.jsonl", "corpus.jsonl.gz"))
        ):
            return "beir"
        raise UserError(
            f"{path}: is not a BEIR folder (corpus.jsonl, queries.jsonl, qrels/); give a file or such a folder"
        )
    path = find_input(path)
    if isinstance(path, DataName) and path.role is not None:
        return _KIND_OF_ROLE[path.role]
    if not first_character(path):
        raise UserError(f"{path}: is empty; give a file with at least one row")
    if (bracket := json_bracket(path)) or bare_suffix(path) in (".jsonl", ".ndjson", ".json"):
        kind = _json_kind(path, is_array=bracket == "[")
    else:
        kind = _table_kind(path, first_line(path))
    if kind is None:
        raise UserError(f"{path}: not recognised; state its format, one of {', '.join(KINDS)}")
    return kind


def training_format(path: str | Path, format: str | None = None) -> str:
    """Return the name of a training set's format.

    Args:
      path: the file or BEIR folder.
      format: the format that the user states; None: detected from the content.

    Raises:
      UserError: it is something else, or not recognised.
      UsageError: there is no such format.
    """
    path = data_path(path)
    if format is not None and format not in FORMATS:
        raise UsageError(f"no format '{format}'{did_you_mean(format, FORMATS) or ''}; there are {', '.join(FORMATS)}")
    if format is None:
        format = file_kind(path)
        if format not in FORMATS:
            raise UserError(f"{path}: looks like {KINDS[format]}, not a training set; {_OTHERWISE[format]}")
    elif format != "beir":
        find_input(path)
    elif not path.is_dir():
        raise UserError(f"{path}: is not a folder; give a BEIR folder (corpus.jsonl, queries.jsonl, qrels/)")
    return format


def is_training_file(path: str | Path) -> bool:
    """Whether a file (not a folder) is in one of the formats `WITH_PASSAGES`."""
    path = data_path(path)
    if path.is_dir():
        return False
    try:
        return file_kind(path) in WITH_PASSAGES
    except UserError:  # Not a known format: the reader's own error is more helpful.
        return False


def named_split(split: str | None, *formats: str) -> str:
    """Return the name of a BEIR folder's judgements, "train" by default.

    Raises:
      UsageError: a split is named, and none of `formats` is a BEIR folder.
    """
    if split is not None and "beir" not in formats:
        raise UsageError(f"--split {split} is for BEIR folders, not for {' and '.join(formats)}; leave it out")
    return split or "train"


def json_bracket(path: Path) -> str:
    """Return the bracket that a file of JSON begins with; "" for another, a run whose first id begins with one included."""
    first = first_character(path)
    return first if first in ("[", "{") and not _IDS_AND_NUMBERS.fullmatch(first_line(path)) else ""


# ---- JSON ------------------------------------------------------------------------------------------------------------


def _json_kind(path: Path, is_array: bool) -> str | None:
    numbered = list(islice(json_array(path) if is_array else json_lines(path), _ROWS_LOOKED_AT))
    rows = [row for _, row in numbered if isinstance(row, dict)]
    if not rows:
        if not numbered:
            raise UserError(f"{path}: an empty array; give a file with at least one row")
        raise UserError(f"{path}:{numbered[0][0]}: {numbered[0][1]}")
    row = rows[0]
    if row.keys() & {"positive_ctxs", "hard_negative_ctxs", "negative_ctxs"}:
        return "dpr" if is_array else "dpr-scale"
    if row.keys() & {"ctxs", "hits"}:
        return "run"
    if is_array:
        return "questions" if row.keys() & {"question", "query", "qText", "text"} else None
    if row.keys() & {"positive_passages", "negative_passages"}:
        return "tevatron"
    if row.keys() & {"positive_document_ids", "negative_document_ids"}:
        return "tevatron2"
    if {"query-id", "corpus-id"} <= row.keys():
        return "qrels"
    if {"query-id", "positive-id", "negative-id"} <= row.keys():
        return "triples-ids"
    if {"query_id", "document_ids"} <= row.keys():
        return "distillation"
    if "query" in row and isinstance(row.get("pos"), list):
        return "flag"
    if _are_columns(row):
        return "sentence-transformers"
    return _corpus_or_questions(path, rows)


def _are_columns(row: dict[str, Any]) -> bool:
    names = [name.strip().lower() for name in row if name not in LABELS]
    if len(names) < 2 or not all(isinstance(row[name], str | None) for name in row if name not in LABELS):
        return False
    # The name "answer" is ambiguous: a short answer makes a question, a passage makes a pair to train on.
    return names[0] == "anchor" or (names[0] in _ANCHORS and any(_is_passage_name(name) for name in names[1:]))


def _is_passage_name(name: str) -> bool:
    stems = ("positive", "negative", "pos", "neg", "passage", "document", "hypothesis", "sentence", "text2", "context")
    return name.startswith(stems)


def _corpus_or_questions(path: Path, rows: list[dict[str, Any]]) -> str | None:
    row = rows[0]
    if row.keys() & {"question", "qText"} or ("query" in row and row.keys() & {*_IDS}):
        return "questions"
    if not row.keys() & {*_IDS} or not row.keys() & {"text", "contents"}:
        return None
    if row.keys() & {"title", "contents"}:
        return "corpus"
    if "answers" in row or "answer" in row or "answers" in (row.get("metadata") or {}):
        return "questions"
    return _by_name_or_length(path, (str(each.get("text")) for each in rows))


def _by_name_or_length(path: Path, texts: Iterator[str]) -> str:
    name = path.name.lower()
    if name.startswith(("corpus", "collection", "passages", "psgs", "documents", "docs")):
        return "corpus"
    if name.startswith(("queries", "questions", "topics")):
        return "questions"
    lengths = [len(text.split()) for text in texts]
    return "questions" if sum(lengths) < _WORDS_OF_A_QUESTION * len(lengths) else "corpus"


# ---- tables ----------------------------------------------------------------------------------------------------------


def _table_kind(path: Path, head: str) -> str | None:
    if bare_suffix(path) == ".csv":
        _, names = next(csv_rows(path))
        recognised = not isinstance(names, RowError) and _are_columns(dict.fromkeys(names, ""))
        return "sentence-transformers" if recognised else None
    if "\t" not in head:
        fields = head.split()
        if len(fields) == 6 and _is_number(fields[4]):
            return "run"
        if len(fields) == 4 and _is_number(fields[3]):
            return "qrels"
        return "questions" if bare_suffix(path) == ".txt" else None
    rows = [line.split("\t") for _, line in islice(numbered_lines(path), _ROWS_LOOKED_AT) if line.strip()]
    names = [name.strip().strip('"').lower() for name in rows[0]]
    if _are_columns(dict.fromkeys(names, "")):
        return "sentence-transformers"
    if names[0] in ("query-id", "query_id", "qid") and names[-1] in ("score", "grade", "relevance", "rel"):
        return "qrels"
    if set(names) & {*_IDS} and set(names) & {"title", "passage", "contents"}:
        return "corpus"
    if len(names) == 4 and _is_number(names[3]):
        return "qrels"
    if len(names) == 6 and _is_number(names[4]):
        return "run"
    if len(names) == 3:
        return _of_three([row for row in rows if len(row) == 3])
    if len(names) != 2:
        return None
    if names[1].startswith(("[", "('", '("')):
        return "questions"
    return _by_name_or_length(path, (row[-1] for row in rows))


def _of_three(rows: list[list[str]]) -> str:
    """Return the kind of rows of three columns without a header."""
    if any(" " in field.strip() for row in rows for field in row):
        return "triples"
    if not all(_is_number(row[2]) for row in rows):
        return "triples-ids"
    last = [float(row[2]) for row in rows]
    if all(0 <= value <= 4 for value in last) and all(value.is_integer() for value in last) and not _are_ranks(rows):
        return "qrels"
    return "run" if _are_ranks(rows) or not all(value.is_integer() for value in last) else "triples-ids"


def _are_ranks(rows: list[list[str]]) -> bool:
    """Whether the last column counts from 1 for every question, and for some question further."""
    following: dict[str, int] = {}
    for query, _, rank in rows:
        if rank.strip() != str(following.setdefault(query, 1)):
            return False
        following[query] += 1
    return any(count > 2 for count in following.values())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
