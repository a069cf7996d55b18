"""MS MARCO's triples of question, positive and negative: as texts, and as ids."""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxretr.data.formats.example_rows import ExampleRows
from jaxretr.data.formats.examples import Candidate, Example, Row
from jaxretr.data.formats.format import Format, Lookup
from jaxretr.data.formats.head import Head
from jaxretr.data.source import Source
from jaxretr.data.text_rows import (
    RowError,
    check_utf8,
    filled_lines,
    json_lines,
    missing_field,
    numbered_lines,
    parsed,
    string_field,
)

# Tabs and line ends, and the mark that is no text at the beginning of a file.
_NOT_IN_A_LINE = re.compile("[\t\r\n]|^\ufeff")

_JSON_NAMES = ("query-id", "positive-id", "negative-id")


class Triples(Format):
    """Lines of `query<TAB>positive<TAB>negative`, in which nothing is quoted.

    The rows of one question get the number of the first as their id, so that they can be joined.
    """

    name = "triples"
    title = "MS MARCO triples of texts"
    spreads = True

    def detect(self, head: Head) -> bool:
        return head.three_columns == self.name

    def read(self, file: Source, lookup: Lookup) -> Iterator[Row]:
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
        return parsed(((number, line) for number, line in numbered_lines(file) if line.strip(" \r")), parse)

    def lines(self, example: Example, rows: ExampleRows) -> list[bytes]:
        changed = False

        def one_line(text: str) -> str:
            nonlocal changed
            line = _NOT_IN_A_LINE.sub(" ", text)
            changed |= line != text
            return line

        question = one_line(example.question)
        lines = _lines(example, rows, question, lambda each: one_line(rows.bare_text(each, example)))
        if lines and changed:
            rows.lost["tabs and line breaks became spaces"] += 1
        return lines


class TriplesIds(Format):
    """Lines of `question-id<TAB>positive-id<TAB>negative-id`, or JSON lines of these."""

    name = "triples-ids"
    title = "MS MARCO triples of ids"
    needs_queries = bare_ids = spreads = True

    def detect(self, head: Head) -> bool:
        return head.three_columns == self.name or head.row.keys() >= {*_JSON_NAMES}

    def read(self, file: Source, lookup: Lookup) -> Iterator[Row]:
        def example(ids: Sequence[str], line: int) -> Example:
            id, positive, negative = ids
            return lookup.example(id, [Candidate(positive, "", None)], [Candidate(negative, "", None)], line)

        if file.suffix == ".jsonl":
            return parsed(json_lines(file), lambda row, _, line: example(_json_ids(row), line))
        return parsed(filled_lines(file), lambda text, _, line: example(_ids(text), line))

    def lines(self, example: Example, rows: ExampleRows) -> list[bytes]:
        question = rows.column(example.id, example)
        return _lines(example, rows, question, lambda each: rows.column(rows.id(each, example), example))


def _ids(text: str) -> list[str]:
    check_utf8(text)
    fields = [field.strip(" ") for field in text.split("\t")]
    if len(fields) != 3 or not all(fields):
        raise RowError("not question-id<TAB>positive-id<TAB>negative-id; check its tabs")
    return fields


def _json_ids(row: dict[str, Any]) -> list[str]:
    ids = []
    for name in _JSON_NAMES:
        id = string_field(row, (name,), allow_int=True)
        if not id:
            raise missing_field(row, (name,))
        ids.append(id)
    return ids


def _lines(example: Example, rows: ExampleRows, question: str, field: Callable[[Candidate], str]) -> list[bytes]:
    """Return lines that name every positive and every negative at least once."""
    rows.without_scores(example)
    if not rows.trainable(example, negatives=True):
        return []
    rows.without_answers(example)
    positives = [field(each) for each in example.positives]
    negatives = [field(each) for each in rows.negatives(example)]
    count = max(len(positives), len(negatives))
    pairs = itertools.islice(zip(itertools.cycle(positives), itertools.cycle(negatives), strict=False), count)
    return [f"{question}\t{positive}\t{negative}".encode() for positive, negative in pairs]
