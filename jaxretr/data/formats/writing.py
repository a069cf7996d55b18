"""Writers of the formats of supervised training data; `jaxretr.data.formats.reading` reads them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from jaxretr.data.corpus import Corpus
from jaxretr.data.csv_tables import TABLES, csv_line
from jaxretr.data.formats.example_rows import ExampleRows, json_bytes
from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.data.text_rows import bare_suffix
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.storage.files import atomic_write

SCORED_FORMATS = ("dpr", "dpr-scale", "tevatron", "tevatron2", "sentence-transformers", "distillation", "flag")
"""Formats with a score for every passage."""

GRADED_FORMATS = ("qrels", "beir")
"""Formats with a grade for every judged passage."""


def write_examples(
    path: str | Path,
    examples: Iterable[Example],
    format: str,
    corpus: Corpus | None = None,
    *,
    negatives: int | None = None,
    split: str = "train",
    source: str | Path = "example",
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
    rows = ExampleRows(corpus, str(source))
    if format not in GRADED_FORMATS:
        examples = map(rows.without_grades, examples)
    if format == "beir":
        _write_beir(rows, path, examples, split)
    elif format == "sentence-transformers":
        _write_columns(rows, path, examples, negatives)
    elif format == "dpr":
        with atomic_write(path, "wb") as file:
            file.write(b"[")
            for example in examples:
                file.write(b"\n" if rows.written == 0 else b",\n")
                file.write(json_bytes(rows.dpr(example)))
                rows.written += 1
            rows.check_any(path)
            file.write(b"\n]\n")
    else:
        lines: dict[str, Callable[[Example], list[bytes]]] = {
            "dpr-scale": rows.dpr_scale,
            "tevatron": rows.tevatron,
            "tevatron2": rows.tevatron2,
            "flag": rows.flag,
            "distillation": rows.distillation,
            "triples": rows.triples,
            "triples-ids": rows.triples_ids,
            "qrels": rows.judgements,
        }
        with atomic_write(path, "wb") as file:
            if format == "qrels":
                file.write(b"query-id\tcorpus-id\tscore\n")
            for example in examples:
                found = lines[format](example)
                file.write(b"".join(line + b"\n" for line in found))
                rows.written += bool(found)
            rows.check_any(path)
    rows.report(path, format)
    return rows.written


def _write_columns(rows: ExampleRows, path: Path, examples: Iterable[Example], negatives: int | None) -> None:
    """Write sentence-transformers' columns."""
    delimiter = TABLES.get(bare_suffix(path))
    with atomic_write(path, "w") as file:
        header: list[str] = []
        for row in _column_rows(rows, examples, negatives):
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


def _column_rows(rows: ExampleRows, examples: Iterable[Example], negatives: int | None) -> Iterator[dict[str, Any]]:
    cut, scored = negatives is not None, None
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


def _write_beir(rows: ExampleRows, folder: Path, examples: Iterable[Example], split: str) -> None:
    """Write a BEIR folder."""
    with ExitStack() as stack:
        passages, queries, qrels = (
            stack.enter_context(atomic_write(folder / name, "wb"))
            for name in ("corpus.jsonl", "queries.jsonl", f"qrels/{split}.tsv")
        )
        ids = _PassageIds(passages, rows.corpus)
        seen: set[str] = set()
        qrels.write(b"query-id\tcorpus-id\tscore\n")
        for example in examples:
            if example.id in seen:
                raise UserError(f"{rows.where(example)}: question '{example.id}' occurs twice; give each its own id")
            seen.add(example.id)
            lines = rows.judgements(example, lambda each, of=example: ids.of(each, *rows.content(each, of)))
            if not lines:
                continue
            qrels.write(b"".join(line + b"\n" for line in lines))
            row: dict[str, Any] = {"_id": example.id, "text": example.question}
            queries.write(json_bytes(row | ({"metadata": {"answers": example.answers}} if example.answers else {})))
            queries.write(b"\n")
            rows.written += 1
        rows.check_any(folder)


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
