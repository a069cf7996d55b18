"""`jaxretr.validate_data`: every problem of a data file, with its line."""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxretr.data.corpus import Corpus, read_corpus
from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.data.formats.format import Format
from jaxretr.data.formats.kinds import KINDS, file_kind, named_split
from jaxretr.data.formats.other_kinds import CORPUS, QUESTIONS, RunFile, TextFile
from jaxretr.data.formats.reading import examples_file, lookup
from jaxretr.data.problems import Problem, Problems
from jaxretr.data.source import Source, source_of
from jaxretr.data.text_rows import RowError
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.progress import counted

log = logging.getLogger(__name__)

Path_ = str | Path

_SHOWN_CHARACTERS = 50


@dataclass(frozen=True)
class Validation:
    """The problems of a data file.

    Attributes:
      path: the file or BEIR folder.
      kind: its format, a key of `jaxretr.data.formats.kinds.KINDS`.
      rows: number of rows that were checked.
      count: number of problems.
      problems: the first of them.
      repeated_questions: questions whose text occurs on an earlier line as well, which is not a problem.
      repeated_passages: passages of a corpus with the title and text of an earlier one, and passages that a row of a
        training set names twice, which are none either: they count as one.
      unchecked: a line for each check that could not be made, with its requirement.
    """

    path: str
    kind: str
    rows: int
    count: int
    problems: Sequence[Problem]
    repeated_questions: int
    repeated_passages: int
    unchecked: Sequence[str]

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.count

    def __str__(self) -> str:
        if self.ok:
            unchecked = "".join(f"; {what}" for what in self.unchecked)
            return f"{self.path}: no problem in {self.rows} rows ({KINDS[self.kind].title}){unchecked}"
        hidden = self.count - len(self.problems)
        more = f" ({hidden} more than shown; see them with max_problems=)" if hidden else ""
        return (
            f"{self.path}: {self.count} problems in {self.rows} rows{more}; correct them, or use --skip-bad with the "
            "commands that have it"
        )

    def table(self) -> str:
        """The problems and a summary for people."""
        return "\n".join([*map(str, self.problems), str(self)])

    def to_json(self) -> str:
        """The validation as JSON."""
        return json.dumps(asdict(self), indent=2)


def validate_data(
    path: Path_,
    *,
    format: str | None = None,
    corpus: Path_ | None = None,
    queries: Path_ | None = None,
    split: str | None = None,
    max_problems: int = 100,
    on_problem: Callable[[Problem], object] | None = None,
) -> Validation:
    """Find every problem in a training set, corpus, question file, run or BEIR folder.

    Problems are bad rows, ids that occur twice, missing positives, ids that the corpus lacks, empty texts, and negatives
    that are positives. Repeated questions and passages are ordinary data, to training as well: they are counted, with a
    warning.

    Args:
      path: the file or BEIR folder.
      format: its format; by default detected from its content. A key of `jaxretr.data.formats.kinds.KINDS`.
      corpus: the passages, to look up ids; by default a BEIR folder's own.
      queries: the questions of triples-ids, qrels and distillation, to look up ids.
      split: split of a BEIR folder to check; by default train.
      max_problems: problems to show. All are counted.
      on_problem: called with each of these as soon as it is found.

    Raises:
      UserError: the file cannot be read to its end, or has no rows.
      UsageError: an argument that has no effect for this format.
    """
    place = source_of(path)
    place.verify()  # Includes splits that are not read.
    kind = KINDS[format or file_kind(place)]
    if not isinstance(kind, Format) and (corpus is not None or queries is not None):
        raise UsageError(f"corpus= and queries= are for training sets; {place} looks like {kind.title}")
    split = named_split(split, kind.name)
    problems = Problems(place, max_problems, on_problem)
    unchecked: list[str] = []
    if isinstance(kind, Format):
        rows = _check_training_set(problems, kind, corpus, queries, split, unchecked)
    else:
        rows = _check_file(problems, kind, place)
    for what, (count, first) in problems.repeated.items():
        log.warning("%s that occur more than once: %d; the first: %s", what, count, first)
    questions, passages = (problems.repeated.get(what, (0, ""))[0] for what in ("questions", "passages"))
    return Validation(str(place), kind.name, rows, problems.count, problems.found, questions, passages, unchecked)


def _check_file(problems: Problems, kind: TextFile | RunFile, path: Source) -> int:
    problems.path = path.file(kind.stem)
    return kind.check(problems)


# ---- training sets ---------------------------------------------------------------------------------------------------


def _check_training_set(
    problems: Problems, kind: Format, passages: Path_ | None, queries: Path_ | None, split: str, unchecked: list[str]
) -> int:
    """Look for everything that training would stop at, leave out or suffer from; return the number of rows."""
    path = problems.path
    rows = 0
    corpus = None if passages is None else read_corpus(passages)
    if kind.name == "beir":
        rows += _check_file(problems, CORPUS, path) if corpus is None else 0
        rows += _check_file(problems, QUESTIONS, path)
        if corpus is None:
            corpus = read_corpus(path, skip_bad=True)
    if kind.needs_queries and queries is None:
        unchecked.append("ids of questions were not looked up; give the questions to check them")
    problems.path = examples_file(path, split)
    known = not kind.needs_queries or queries is not None
    # A BEIR folder's texts have been checked in its queries file.
    checker = _ExampleChecker(problems, corpus, spread=kind.spreads, check_texts=known and kind.name != "beir")
    found = kind.read(problems.path, lookup(path, kind, corpus=corpus, queries=queries))
    for line, row in counted(found, "row"):
        rows += 1
        if isinstance(row, RowError):
            problems.add(line, row)
        else:
            checker.check(row)
    if checker.ids_alone:
        unchecked.append("ids of passages were not looked up; give the corpus to check them")
    if not rows:
        raise UserError(f"{problems.path}: no rows; give a file with at least one")
    return rows


class _ExampleChecker:
    """Checks examples one after the other.

    Args:
      corpus: the corpus in which ids are looked up, if given.
      spread: whether the format spreads a question over several rows.

    Attributes:
      ids_alone: whether a passage has only an id, which could not be looked up.
    """

    def __init__(self, problems: Problems, corpus: Corpus | None, spread: bool, check_texts: bool):
        self.problems = problems
        self.corpus = corpus
        self.spread = spread
        self.check_texts = check_texts
        self.first_of_id: dict[str, tuple[int, str]] = {}
        self.line_of_text: dict[str, int] = {}
        self.ids_alone = False

    def check(self, example: Example) -> None:
        """Check one example."""
        line, add = example.line, self.problems.add
        first, text = self.first_of_id.setdefault(example.id, (line, example.question))
        if text != example.question:  # Rows with the same id are joined.
            add(line, f"question '{example.id}' has another text on line {first}; give every question an id of its own")
        if self.check_texts and (first == line or not self.spread):
            self._check_question(example.question, line)
        if not example.positives and not self.spread:
            add(line, f"question '{example.id}' has no positive passage; give it one or leave it out")
        for candidate in example.candidates:
            self._check_passage(candidate, line)
        right = self._check_repeats(example.positives, "positive", line)
        for wrong in (example.negatives, example.other_negatives):
            contradicted = self._check_repeats(wrong, "negative", line).items()
            for name in (name for content, name in contradicted if content in right):
                add(line, f"passage {name} is a positive and a negative; leave out the negative")

    def _check_question(self, text: str, line: int) -> None:
        if not text.strip():
            self.problems.add(line, "the question is empty; give it a text or leave it out")
        elif (first := self.line_of_text.setdefault(text, line)) != line:
            self.problems.repeat("questions", line, f"the same question as on line {first}")

    def _check_passage(self, candidate: Candidate, line: int) -> None:
        in_corpus = self.corpus is not None and candidate.id is not None and candidate.id in self.corpus
        if candidate.text is None:
            self.ids_alone |= self.corpus is None
            if self.corpus is not None and not in_corpus:
                self.problems.add(line, f"passage '{candidate.id}' is not in the corpus; give the one it is from")
            return
        if not candidate.text.strip():
            self.problems.add(line, f"passage {_name(candidate)} has no text; give it one or leave it out")
        if in_corpus and self.corpus is not None and candidate.id is not None:
            row = self.corpus.row(candidate.id)
            if candidate.text != self.corpus.texts[row] or candidate.title not in ("", self.corpus.titles[row]):
                self.problems.add(line, f"passage '{candidate.id}' has another text in the corpus; check the corpus")

    def _check_repeats(self, candidates: Iterable[Candidate], what: str, line: int) -> dict[object, str]:
        """Return each passage's name for messages, by its content (by its id if the content is unknown)."""
        names: dict[object, str] = {}
        for candidate in candidates:
            content: object = candidate.title, candidate.text
            if candidate.id is not None and self.corpus is not None and candidate.id in self.corpus:
                row = self.corpus.row(candidate.id)
                content = self.corpus.titles[row], self.corpus.texts[row]
            elif candidate.text is None:
                content = candidate.id
            if content in names:
                self.problems.repeat("passages", line, f"passage {_name(candidate)} is twice a {what}")
            names.setdefault(content, _name(candidate))
        return names


def _name(candidate: Candidate) -> str:
    """The name of a passage in messages: its id, or the beginning of its text."""
    if candidate.id is not None:
        return f"'{candidate.id}'"
    begin = " ".join(f"{candidate.title} {candidate.text}".split())
    return f"'{begin}'" if len(begin) <= _SHOWN_CHARACTERS else f"'{begin[: _SHOWN_CHARACTERS - 3]}...'"
