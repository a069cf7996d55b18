"""sentence-transformers' columns: anchor, positive, negative_1 ... n, in JSON lines, .csv or .tsv."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jaxretr.data.csv_tables import TABLES, csv_line, csv_rows, tsv_rows
from jaxretr.data.formats.example_rows import ExampleRows, json_bytes
from jaxretr.data.formats.examples import Candidate, Example, Row, finite_score
from jaxretr.data.formats.format import Format, Lookup
from jaxretr.data.formats.head import Head
from jaxretr.data.source import Input, Source, source_of
from jaxretr.data.text_rows import (
    RowError,
    check_utf8,
    json_lines,
    missing_field,
    parsed,
    string_field,
)
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.files import atomic_write

# The only columns that sentence-transformers knows by name; it takes the others in their order.
_LABELS = ("label", "labels", "score", "scores")

_ANCHORS = ("anchor", "query", "question", "sentence", "sentence1", "sentence_a", "premise", "text1", "input")
_PASSAGES = ("positive", "negative", "pos", "neg", "passage", "document", "hypothesis", "sentence", "text2", "context")


class Columns(Format):
    """The columns anchor, positive, negative_1 ... n, in this ORDER: JSON lines, or .csv and .tsv with a header.

    Their names do not matter except for label, labels, score and scores:
      next to (anchor, positive): 0 or less makes the positive a negative; a score is kept;
      next to negatives: the scores of all passages, the positive's first, or how far the positive is above each
      negative, as for MarginMSELoss.
    A negative that is null, or empty in a .csv or .tsv, is ignored. The rows of one anchor get the number of the first as
    their id, so that they can be joined.
    """

    name = "sentence-transformers"
    title = "sentence-transformers training set (columns anchor, positive, negative_1 ...)"
    has_passages = has_scores = spreads = True

    def detect(self, head: Head) -> bool:
        row = head.columns
        names = [name.strip().lower() for name in row if name not in _LABELS]
        if len(names) < 2 or not all(isinstance(row[name], str | None) for name in row if name not in _LABELS):
            return False
        # The name "answer" is ambiguous: a short answer makes a question, a passage makes a pair to train on.
        return names[0] == "anchor" or (names[0] in _ANCHORS and any(name.startswith(_PASSAGES) for name in names[1:]))

    def read(self, file: Source, lookup: Lookup) -> Iterator[Row]:
        id_of_anchor: dict[str, str] = {}
        names: list[str] = []

        def parse(row: dict[str, Any], number: int, line: int) -> Example:
            names[:] = names or list(row)
            # Only now: another row's error must not hide that the columns make no sense.
            text_names = [name for name in names if name not in _LABELS]
            if len(text_names) < 2:
                raise RowError(f"columns {', '.join(names)}: anchor and positive are needed; add the missing one")
            return _example(row, text_names, number, line, id_of_anchor)

        return parsed(named_rows(file), parse)

    def write(self, path: Path, examples: Iterable[Example], rows: ExampleRows) -> None:
        """Write a row for every positive, all with the same number of negatives; a table by the name .csv or .tsv."""
        delimiter = TABLES.get(source_of(path).suffix)
        with atomic_write(path, "w") as file:
            header: list[str] = []
            for row in _rows(rows, examples):
                if delimiter is None:
                    file.write(json_bytes(row).decode() + "\n")
                    continue
                if not header:
                    header = list(row)
                    file.write(csv_line(header, delimiter))
                if "" in list(row.values())[2:]:  # An empty field reads as if it were missing.
                    rows.lost["empty negatives were left out"] += 1
                file.write(csv_line(row.values(), delimiter))
            rows.check_any(path)


def _example(
    row: dict[str, Any], names: list[str], row_number: int, line: int, id_of_anchor: dict[str, str]
) -> Example:
    texts = [string_field(row, (name,)) for name in names]
    for name, text in zip(names[:2], texts[:2], strict=True):
        if text is None:
            raise missing_field(row, (name,))
    anchor, *passages = texts
    assert anchor is not None
    label_name = next((name for name in _LABELS if row.get(name) is not None), None)
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


def named_rows(path: Input) -> Iterator[tuple[int, dict[str, Any] | RowError]]:
    """Yield (line number, the columns by name, in the header's order) of JSON lines, or a .csv or .tsv with a header."""
    suffix = source_of(path).suffix
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
            optional = [name for name in names if name not in _LABELS][2:]
            try:
                check_utf8("".join(fields))
                row = dict(zip(names, fields, strict=True))
                yield line, {name: None if name in optional and not text else text for name, text in row.items()}
            except RowError as error:
                yield line, error


def _rows(rows: ExampleRows, examples: Iterable[Example]) -> Iterator[dict[str, Any]]:
    negatives, scored = rows.per_row, None
    cut = negatives is not None
    for example in examples:
        if not rows.trainable(example):
            continue
        wrong = rows.negatives(example)
        if negatives is None:
            negatives = len(wrong)
        if cut and len(wrong) < negatives:
            rows.lost[f"with fewer than {negatives} negatives, left out,"] += 1
            continue
        if len(wrong) != negatives and not cut:
            raise UserError(
                f"{rows.where(example)}: {len(wrong)} negatives where the first question has {negatives}, but all "
                "rows have the same columns; state the number of negatives to take"
            )
        if len(wrong) > negatives:
            rows.lost[f"more than {negatives} negatives were left out"] += 1
        wrong = wrong[:negatives]
        rows.without_answers(example)
        known = all(each.score is not None for each in (*example.positives, *wrong))
        scored = known if scored is None else scored
        if scored and not known:
            raise UserError(
                f"{rows.where(example)}: a passage has no score where earlier questions have; give every one a score"
            )
        if not scored:
            rows.without_scores(example)
        for positive in example.positives:
            row: dict[str, Any] = {"anchor": example.question, "positive": rows.bare_text(positive, example)}
            row |= {f"negative_{n}": rows.bare_text(each, example) for n, each in enumerate(wrong, start=1)}
            if scored:
                row["scores"] = [each.score for each in (positive, *wrong)]
            yield row
        rows.written += 1
