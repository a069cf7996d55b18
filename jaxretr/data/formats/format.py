"""The interface of the formats of training data, and what all of them have in common."""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jaxretr.data.corpus import Corpus
from jaxretr.data.description import Description, Spread, shortened_line
from jaxretr.data.formats.example_rows import ExampleRows
from jaxretr.data.formats.examples import Candidate, Example, Row
from jaxretr.data.formats.head import Head
from jaxretr.data.questions import Question
from jaxretr.data.source import Source
from jaxretr.data.text_rows import BadRows, RowError
from jaxretr.runtime.progress import counted
from jaxretr.runtime.storage.files import atomic_write

_SHOWN_PASSAGES = 3


@dataclass(frozen=True)
class Lookup:
    """The texts that the ids of a training set refer to.

    Attributes:
      questions: the questions by id; None: not given, and every text is empty.
      corpus: the passages; None: not given, and ids stay ids.
    """

    questions: dict[str, Question] | None = None
    corpus: Corpus | None = None

    def question(self, id: str) -> Question:
        """Return a question; RowError if there is none."""
        if self.questions is None:
            return Question(id, "")
        if id not in self.questions:
            raise RowError(f"question '{id}' is not in the queries file; give the one that these ids are from")
        return self.questions[id]

    def example(self, id: str, positives: Iterable[Candidate], negatives: Iterable[Candidate], line: int) -> Example:
        """Return the example of a question; RowError if there is no such question."""
        question = self.question(id)
        return Example(id, question.text, question.answers, tuple(positives), tuple(negatives), line=line)


class Format:
    """A format of training data; kinds.py has one object of each subclass.

    Attributes:
      name: its name in commands.
      title: its name in sentences.
      needs_queries: whether it has only the ids of its questions.
      bare_ids: whether it has only the ids of its passages.
      has_passages: whether it has texts of passages in named fields, so that a file can stand for a corpus. (A table
        without a header may be a corpus.)
      has_scores: whether it has a score for every passage.
      has_grades: whether it has a grade for every judged passage.
      spreads: whether it may spread a question over several rows, which have one id.
      begin, between, end: what is written before the first line, between two and behind the last one.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    needs_queries = bare_ids = has_passages = has_scores = has_grades = spreads = False
    begin, between, end = b"", b"\n", b"\n"

    def detect(self, head: Head) -> bool:
        """Whether a file with this beginning is in this format."""
        raise NotImplementedError

    def read(self, file: Source, lookup: Lookup) -> Iterator[Row]:
        """Return (line number, example or the row's fault) for every row of a file."""
        raise NotImplementedError

    def lines(self, example: Example, rows: ExampleRows) -> list[bytes]:
        """Return the lines of an example without their ends; none if the format cannot represent it."""
        raise NotImplementedError

    def write(self, path: Path, examples: Iterable[Example], rows: ExampleRows) -> None:
        """Write a file, whole or not at all; `rows` counts the examples and what is lost.

        Raises:
          UserError: an example lacks what the format needs, there is none to write, or the file cannot be written.
        """
        with atomic_write(path, "wb") as file:
            mark = self.begin
            for example in examples:
                lines = self.lines(example, rows)
                for line in lines:
                    file.write(mark + line)
                    mark = self.between
                rows.written += bool(lines)
            rows.check_any(path)
            file.write(self.end)

    def describe(self, file: Source, lookup: Lookup) -> Description:
        """Describe a file by one pass over its examples."""
        first: Example | None = None
        bad = BadRows(file, skip=True)
        ids: set[str] = set()
        counts: Counter[str] = Counter()
        lengths = {name: array("l") for name in ("positives", "hard negatives", "other negatives")}
        words, passage_words = array("l"), array("l")
        for _, example in bad.good(counted(self.read(file, lookup), "row")):
            first = first or example
            ids.add(example.id)
            words.append(len(example.question.split()))
            counts["answers"] += bool(example.answers)
            counts["no positive"] += not example.positives
            for found, candidates in zip(lengths.values(), example.lists, strict=True):
                found.append(len(candidates))
            for candidate in example.candidates:
                counts["id"] += candidate.id is not None
                counts["score"] += candidate.score is not None
                if candidate.text is not None:
                    passage_words.append(len(candidate.text.split()))
        facts = {
            "rows": len(words),
            "questions": len(ids),
            "with answers": counts["answers"],
            "rows without a positive": counts["no positive"],
            "words a question": Spread.of(words),
            **{f"{name} a row": Spread.of(found) for name, found in lengths.items()},
            "passages": sum(map(sum, lengths.values())),
            "with an id": counts["id"],
            "with a text": len(passage_words),
            "with a score": counts["score"],
            "words a passage": Spread.of(passage_words),
        }
        return Description(str(file), self.title, facts, bad.count, bad.first, () if first is None else _shown(first))


def _shown(example: Example) -> list[str]:
    lines = [f"first row (line {example.line})", f"  question '{example.id}': {shortened_line(example.question)}"]
    if example.answers:
        lines.append(f"  answers: {shortened_line(' | '.join(example.answers))}")
    for sign, found in zip(("+", "-", "(-)"), example.lists, strict=True):
        lines += [f"  {sign} {_shown_passage(candidate)}" for candidate in found[:_SHOWN_PASSAGES]]
        if len(found) > _SHOWN_PASSAGES:
            lines.append(f"  {sign} and {len(found) - _SHOWN_PASSAGES} more")
    return lines


def _shown_passage(candidate: Candidate) -> str:
    parts = [] if candidate.id is None else [f"[{candidate.id}]"]
    if candidate.score is not None:
        parts.append(f"score {candidate.score:g}")
    if candidate.title:
        parts.append(f"{candidate.title}:")
    return shortened_line(" ".join([*parts, candidate.text or ""]))
