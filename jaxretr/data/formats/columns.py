"""Training formats of bare texts: FlagEmbedding's lines, sentence-transformers' columns, MS MARCO's text triples.

They have no titles and mostly no ids. In formats with several rows per question (columns and triples), the rows of one
text get the same id, the number of the first, so that they can be joined.
"""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxretr.data.csv_tables import TABLES, csv_rows, tsv_rows
from jaxretr.data.formats.examples import Candidate, Example, Row, finite_score
from jaxretr.data.text_rows import (
    RowError,
    bare_suffix,
    check_utf8,
    json_lines,
    missing_field,
    numbered_lines,
    parsed,
    string_field,
)
from jaxretr.runtime.notes import note

_log = logging.getLogger(__name__)

# The only columns that sentence-transformers knows by name; it takes the others in their order.
LABELS = ("label", "labels", "score", "scores")


# ---- FlagEmbedding ---------------------------------------------------------------------------------------------------


def read_flag(path: Path) -> Iterator[Row]:
    """Yield the examples of FlagEmbedding's lines {query, pos, neg, pos_scores, neg_scores, prompt, type}.

    The prompt of a row is ignored, with a warning, since prompts belong to the model here.
    """
    prompts = 0

    def parse(row: dict[str, Any], number: int, line: int) -> Example:
        nonlocal prompts
        question = string_field(row, ("query",))
        if question is None:
            raise missing_field(row, ("query",))
        prompts += bool(row.get("prompt"))
        return Example(str(number), question, (), _scored_texts(row, "pos"), _scored_texts(row, "neg"), line=line)

    yield from parsed(json_lines(path), parse)
    if prompts:
        note(_log.warning, "%s: %d rows have a prompt, which is not used; set it as the model's", path, prompts)


def _scored_texts(row: dict[str, Any], name: str) -> tuple[Candidate, ...]:
    texts, scores = row.get(name) or [], row.get(f"{name}_scores")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RowError(f'field "{name}" is not a list of texts; write ["text", ...]')
    if scores is None:
        return tuple(Candidate(None, "", text) for text in texts)
    if not isinstance(scores, list) or len(scores) != len(texts):
        found = f"{len(scores)} scores" if isinstance(scores, list) else "no list"
        raise RowError(f'field "{name}_scores" has {found} for {len(texts)} texts; give each a score')
    return tuple(
        Candidate(None, "", text, finite_score(score, f"{name}_scores"))
        for text, score in zip(texts, scores, strict=True)
    )


# ---- sentence-transformers -------------------------------------------------------------------------------------------


def read_columns(path: Path) -> Iterator[Row]:
    """Return the examples of sentence-transformers' columns: anchor, positive, negative_1 ... n in this ORDER.

    JSON lines, or .csv and .tsv with a header. Their names do not matter except for label, labels, score and scores:
      next to (anchor, positive): 0 or less makes the positive a negative; a score is kept;
      next to negatives: the scores of all passages, the positive's first, or how far the positive is above each
      negative, as for MarginMSELoss.
    A negative that is null, or empty in a .csv or .tsv, is ignored.
    """
    id_of_anchor: dict[str, str] = {}
    names: list[str] = []

    def parse(row: dict[str, Any], number: int, line: int) -> Example:
        names[:] = names or list(row)
        # Only now: another row's error must not hide that the columns make no sense.
        text_names = [name for name in names if name not in LABELS]
        if len(text_names) < 2:
            raise RowError(f"columns {', '.join(names)}: anchor and positive are needed; add the missing one")
        return _columns_example(row, text_names, number, line, id_of_anchor)

    return parsed(named_rows(path), parse)


def _columns_example(
    row: dict[str, Any], names: list[str], row_number: int, line: int, id_of_anchor: dict[str, str]
) -> Example:
    texts = [string_field(row, (name,)) for name in names]
    for name, text in zip(names[:2], texts[:2], strict=True):
        if text is None:
            raise missing_field(row, (name,))
    anchor, *passages = texts
    assert anchor is not None
    label_name = next((name for name in LABELS if row.get(name) is not None), None)
    label = None if label_name is None else _label(row[label_name], label_name)
    scores: list[float | None] = [None] * len(passages)
    if isinstance(label, list):
        if len(label) == len(passages):
            scores = list(label)
        elif len(label) == len(passages) - 1:
            scores = [0.0, *(None if margin is None else -margin for margin in label)]
        else:
            raise RowError(f"{len(label)} {label_name} for {len(passages)} passages; give each passage a score")
    elif label is not None:
        scores = _scores_of_one(label, len(passages))
    found = [Candidate(None, "", text, score) for text, score in zip(passages, scores, strict=True) if text is not None]
    first_negative = 0 if len(names) == 2 and label is not None and scores[0] is not None and scores[0] <= 0 else 1
    id = id_of_anchor.setdefault(anchor, str(row_number))
    return Example(id, anchor, (), tuple(found[:first_negative]), tuple(found[first_negative:]), line=line)


def _label(value: Any, name: str) -> float | list[float | None] | None:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            raise RowError(f'field "{name}" is a broken list; write [1.5, 0.5]') from None
    if isinstance(value, list):
        return [finite_score(each, name) for each in value]
    if value == "":
        return None
    return finite_score(value, name)


def _scores_of_one(label: float, passages: int) -> list[float | None]:
    if passages == 1:
        if label > 1 and label.is_integer():
            raise RowError(f"label {label:g} of a pair is a class; pairs have the labels 0 and 1, or a score like 2.5")
        return [label]
    if passages == 2:
        return [0.0, -label]
    raise RowError(f"one score for {passages} passages; write a list with a score for each")


def named_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | RowError]]:
    """Yield (line number, the columns by name, in the header's order) of JSON lines, or a .csv or .tsv with a header."""
    suffix = bare_suffix(path)
    if suffix not in TABLES:
        yield from json_lines(path)
        return
    names: list[str] = []
    for line, fields in csv_rows(path) if suffix == ".csv" else tsv_rows(path):
        if isinstance(fields, RowError):
            yield line, fields
        elif not names:
            names = [name.strip() for name in fields]
        elif len(fields) != len(names):
            yield line, RowError(f"{len(fields)} columns, the header has {len(names)}; check its separators and quotes")
        else:
            optional = [name for name in names if name not in LABELS][2:]
            try:
                check_utf8("".join(fields))
                row = dict(zip(names, fields, strict=True))
                yield line, {name: None if name in optional and not text else text for name, text in row.items()}
            except RowError as error:
                yield line, error


# ---- MS MARCO --------------------------------------------------------------------------------------------------------


def read_triples(path: Path) -> Iterator[Row]:
    """Return an example for every `query<TAB>positive<TAB>negative`; nothing is quoted."""
    id_of_query: dict[str, str] = {}

    def parse(text: str, number: int, line: int) -> Example:
        check_utf8(text)
        fields = text.split("\t")
        if len(fields) != 3:
            raise RowError(f"{len(fields)} columns instead of query<TAB>positive<TAB>negative; check its tabs")
        query, positive, negative = fields
        id = id_of_query.setdefault(query, str(number))
        return Example(id, query, (), (Candidate(None, "", positive),), (Candidate(None, "", negative),), line=line)

    # A line of tabs alone has three fields, all empty.
    return parsed(((number, line) for number, line in numbered_lines(path) if line.strip(" \r")), parse)
