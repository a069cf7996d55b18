"""Judgements as training sets: a file of qrels, and a BEIR folder, which has questions and passages as well."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from jaxretr.data.corpus import Corpus
from jaxretr.data.csv_tables import csv_line
from jaxretr.data.description import Description, Spread
from jaxretr.data.formats.example_rows import ExampleRows, json_bytes
from jaxretr.data.formats.examples import Candidate, Example, Row
from jaxretr.data.formats.format import Format, Lookup
from jaxretr.data.formats.head import Head
from jaxretr.data.formats.other_kinds import CORPUS, QUESTIONS
from jaxretr.data.readers import beir_splits, qrels_path, qrels_rows
from jaxretr.data.source import Source
from jaxretr.data.text_rows import BadRows, RowError, find_input
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.files import atomic_write

_HEADER = b"query-id\tcorpus-id\tscore\n"


class Qrels(Format):
    """BEIR's or TREC's judgements: grades above 0 are positives, the rest negatives."""

    name = "qrels"
    title = "judgements (qrels)"
    needs_queries = bare_ids = has_grades = True
    begin = _HEADER

    def detect(self, head: Head) -> bool:
        has_header = bool(head.table) and head.names[0] in ("query-id", "query_id", "qid")
        has_header = has_header and head.names[-1] in ("score", "grade", "relevance", "rel")
        is_json = {"query-id", "corpus-id"} <= head.row.keys()
        return has_header or is_json or head.number_in(3, columns=4) or head.three_columns == self.name

    def read(self, file: Source, lookup: Lookup) -> Iterator[Row]:
        return _judged(file, lookup)

    def lines(self, example: Example, rows: ExampleRows) -> list[bytes]:
        return _lines(example, rows, lambda each: rows.id(each, example))

    def describe(self, file: Source, lookup: Lookup) -> Description:
        """Describe the judgements themselves."""
        bad = BadRows(file, skip=True)
        questions: Counter[str] = Counter()
        grades: Counter[int] = Counter()
        passages: set[str] = set()
        for _, (question, passage, grade) in bad.good(qrels_rows(file)):
            questions[question] += 1
            passages.add(passage)
            grades[grade] += 1
        facts = {
            "judgements": grades.total(),
            **{f"of grade {grade}": grades[grade] for grade in sorted(grades)},
            "questions": len(questions),
            "passages": len(passages),
            "judgements a question": Spread.of(list(questions.values())),
        }
        return Description(str(file), self.title, facts, bad.count, bad.first)


class Beir(Format):
    """A BEIR folder: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv."""

    name = "beir"
    title = "BEIR folder"
    has_grades = True

    def detect(self, head: Head) -> bool:
        return False  # A folder has no first rows.

    def read(self, file: Source, lookup: Lookup) -> Iterator[Row]:
        """Read the judgements of a split, one of the folder's files."""
        return _judged(file, lookup)

    def describe(self, file: Source, lookup: Lookup) -> Description:
        """Describe the files of a folder."""
        judgements = [qrels_path(file, split) for split in beir_splits(file)]
        parts = [
            CORPUS.describe(find_input(file, "corpus.jsonl"), lookup),
            QUESTIONS.describe(find_input(file, "queries.jsonl"), lookup),
            *(Qrels().describe(each, lookup) for each in judgements),
        ]
        names = ["corpus.jsonl", "queries.jsonl", *(f"qrels/{each.name}" for each in judgements)]
        parts = [replace(part, path=name) for part, name in zip(parts, names, strict=True)]
        return Description(str(file), self.title, {}, parts=parts)

    def write(self, path: Path, examples: Iterable[Example], rows: ExampleRows) -> None:
        """Write a folder, whose corpus.jsonl holds all of `rows.corpus` and the texts that are not in it."""
        with ExitStack() as stack:
            passages, queries, qrels = (
                stack.enter_context(atomic_write(path / name, "wb"))
                for name in ("corpus.jsonl", "queries.jsonl", f"qrels/{rows.split}.tsv")
            )
            ids = _PassageIds(passages, rows.corpus)
            seen: set[str] = set()
            qrels.write(_HEADER)
            for example in examples:
                if example.id in seen:
                    raise UserError(
                        f"{rows.where(example)}: question '{example.id}' occurs twice; give each its own id"
                    )
                seen.add(example.id)
                lines = _lines(example, rows, lambda each, of=example: ids.of(each, *rows.content(each, of)))
                if not lines:
                    continue
                qrels.write(b"".join(line + b"\n" for line in lines))
                row: dict[str, Any] = {"_id": example.id, "text": example.question}
                row |= {"metadata": {"answers": example.answers}} if example.answers else {}
                queries.write(json_bytes(row) + b"\n")
                rows.written += 1
            rows.check_any(path)


def _judged(file: Source, lookup: Lookup) -> Iterator[Row]:
    """Yield one example for every judged question; a passage that a given corpus lacks is an error of its row."""
    judged: dict[str, dict[str, int]] = {}
    lines: dict[str, int] = {}
    for line, row in qrels_rows(file):
        try:
            if isinstance(row, RowError):
                raise row
            query, passage, grade = row
            lookup.question(query)
            if lookup.corpus is not None and passage not in lookup.corpus:
                raise RowError(f"passage '{passage}' is not in the corpus; give the corpus that was judged")
            if judged.setdefault(query, {}).setdefault(passage, grade) != grade:
                raise RowError(f"'{query}' and '{passage}' have another grade on an earlier line; keep one")
            lines.setdefault(query, line)
        except RowError as error:
            yield line, error
    for query, grades in judged.items():
        found = [Candidate(id, "", None, grade=grade) for id, grade in grades.items()]
        right, wrong = ([each for each in found if ((each.grade or 0) > 0) is wanted] for wanted in (True, False))
        yield lines[query], lookup.example(query, right, wrong, lines[query])


def _lines(example: Example, rows: ExampleRows, id: Callable[[Candidate], str]) -> list[bytes]:
    """Return lines of judgements: the grades; 1 for a positive without one, 0 for a negative without one."""
    if all(each.grade is None for each in example.negatives) and not rows.trainable(example):
        return []
    rows.without_scores(example)
    grades: dict[str, int] = {}
    for grade, found in ((1, example.positives), (0, rows.negatives(example))):
        for each in found:
            grades.setdefault(rows.column(id(each), example), grade if each.grade is None else each.grade)
    question = rows.column(example.id, example)
    return [csv_line((question, passage, grade)).rstrip("\n").encode() for passage, grade in grades.items()]


class _PassageIds:
    """Writes each passage once, and remembers its id."""

    def __init__(self, file: IO[bytes], corpus: Corpus | None):
        self.file = file
        self.corpus = corpus
        self.id_of_content: dict[tuple[str, str], str] = {}
        self.used: set[str] = set()
        self.knows_corpus = corpus is None
        for passage in corpus or ():
            self._write(passage.id, passage.title, passage.text)

    def of(self, candidate: Candidate, title: str, text: str) -> str:
        """Return the id of a passage, which is written if it is new."""
        if candidate.id is not None and self.corpus is not None and candidate.id in self.corpus:
            return candidate.id
        if not self.knows_corpus:
            # Only if needed: for a large corpus it takes gigabytes.
            self.knows_corpus = True
            for passage in self.corpus or ():
                self.id_of_content.setdefault((passage.title, passage.text), passage.id)
        id = self.id_of_content.get((title, text))
        if id is None:
            id = f"text-{len(self.used)}" if candidate.id is None else candidate.id
            while id in self.used or (self.corpus is not None and id in self.corpus):
                id += "+"
            self.used.add(id)
            self.id_of_content[title, text] = id
            self._write(id, title, text)
        return id

    def _write(self, id: str, title: str, text: str) -> None:
        self.file.write(json_bytes({"_id": id, "title": title, "text": text}) + b"\n")
