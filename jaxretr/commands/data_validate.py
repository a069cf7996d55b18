"""`jaxretr data validate`: every problem of a data file, with its line."""

import argparse
import logging
from collections.abc import Iterable
from pathlib import Path

from jaxretr.commands.data import split_of
from jaxretr.data.corpus import Corpus, numbered_passages, read_corpus
from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.data.formats.file_kinds import KINDS, file_kind
from jaxretr.data.formats.training_formats import FORMATS, NEED_QUERIES, ROW_FORMATS, examples_file, numbered_examples
from jaxretr.data.questions import question_rows
from jaxretr.data.text_rows import BadRows, RowError, find_input
from jaxretr.errors import UsageError, UserError
from jaxretr.evaluate.runs import read_run
from jaxretr.progress import counted

log = logging.getLogger(__name__)

_SHOWN_CHARACTERS = 50


def run(args: argparse.Namespace) -> None:
    """Prints the problems.

    Raises:
      UserError: there are some.
    """
    path = Path(args.input).expanduser()
    kind = args.source or file_kind(path)
    if kind not in FORMATS and (args.corpus is not None or args.queries is not None):
        raise UsageError(f"--corpus and --queries are for training sets; {path} looks like {KINDS[kind]}")
    split = split_of(args, kind)
    problems = Problems(path, args.max_problems)
    unchecked: list[str] = []
    if kind == "corpus":
        rows = check_corpus(problems)
    elif kind == "questions":
        rows = check_questions(problems)
    elif kind == "run":
        rows = len(read_run(path))
    else:
        rows = check_training_set(problems, kind, args, split, unchecked)
    problems.report_repeats()
    if problems.count:
        hidden = problems.count - problems.shown
        more = f" ({hidden} more than shown; see them with --max-problems)" if hidden else ""
        raise UserError(
            f"{path}: {problems.count} problems in {rows} rows{more}; correct them or use --skip-bad where it is offered"
        )
    print(f"{path}: no problem in {rows} rows ({KINDS[kind]}){''.join(f'; {what}' for what in unchecked)}")


class Problems(BadRows):
    """Prints problems up to a number, and counts them all; beside them counts what training reads as it is."""

    def __init__(self, path: Path, most: int):
        super().__init__(path, skip=True)
        self.most = most
        self.shown = 0
        self.repeated: list[str] = []

    def repeat(self, line: int, first: int) -> None:
        """Counts a question that stands on an earlier line, too: ordinary data, where other passages answer it."""
        self.repeated.append(f"{self.path}:{line}: the same question as on line {first}")

    def report_repeats(self) -> None:
        """Prints how many questions stand more than once, and the first."""
        if self.repeated:
            log.warning("questions that stand more than once: %d; the first: %s", len(self.repeated), self.repeated[0])

    def add(self, line: int, problem: str | RowError) -> None:
        self.count += 1
        if self.shown < self.most:
            self.shown += 1
            print(f"{self.path}:{line}: {problem}")


# ---- corpora and questions -------------------------------------------------------------------------------------------


def check_corpus(problems: Problems) -> int:
    """Looks for bad rows, ids that occur twice, texts that are empty or occur twice; returns the number of rows."""
    problems.path = find_input(problems.path, "corpus.jsonl")
    line_of_id: dict[str, int] = {}
    line_of_content: dict[tuple[str, str], int] = {}
    rows = 0
    before = problems.count
    for line, passage in counted(numbered_passages(problems), "passage"):
        rows += 1
        if (first := line_of_id.setdefault(passage.id, line)) != line:
            problems.add(line, f"duplicate id '{passage.id}' (first on line {first}); give each passage its own")
        if not passage.text.strip():
            problems.add(line, f"passage '{passage.id}' has no text; give it one or leave it out")
        elif (first := line_of_content.setdefault((passage.title, passage.text), line)) != line:
            problems.add(line, f"the same title and text as on line {first}; leave one out")
    return _rows(problems, rows, problems.count - before)


def check_questions(problems: Problems) -> int:
    """Looks for bad rows, ids that occur twice, and empty texts; counts repeated texts; returns the number of rows."""
    problems.path = find_input(problems.path, "queries.jsonl")
    line_of_id: dict[str, int] = {}
    line_of_text: dict[str, int] = {}
    rows = 0
    for row_number, (line, row) in enumerate(question_rows(problems.path)):
        rows += 1
        if isinstance(row, RowError):
            problems.add(line, row)
            continue
        id, text, _ = row
        id = str(row_number) if id is None else id
        if (first := line_of_id.setdefault(id, line)) != line:
            problems.add(line, f"duplicate id '{id}' (first on line {first}); give every question an id of its own")
        _check_text(problems, line, text, line_of_text)
    return _rows(problems, rows, 0)


def _rows(problems: Problems, rows: int, bad: int) -> int:
    if not rows and not bad:
        raise UserError(f"{problems.path}: no rows; give a file with at least one")
    return rows


def _check_text(problems: Problems, line: int, text: str, line_of_text: dict[str, int]) -> None:
    if not text.strip():
        problems.add(line, "the question is empty; give it a text or leave it out")
    elif (first := line_of_text.setdefault(text, line)) != line:
        problems.repeat(line, first)


# ---- training sets ---------------------------------------------------------------------------------------------------


def check_training_set(
    problems: Problems, kind: str, args: argparse.Namespace, split: str, unchecked: list[str]
) -> int:
    """Looks for all that training would stop at, leave out or suffer from; returns the number of rows.

    Args:
      problems: takes them; its path is that of the training set.
      kind: its format.
      args: --corpus and --queries.
      split: of a BEIR folder.
      unchecked: takes what could not be looked at.
    """
    path = problems.path
    rows = 0
    corpus = None if args.corpus is None else read_corpus(args.corpus)
    if kind == "beir":
        rows += check_corpus(problems) if args.corpus is None else 0
        problems.path = path
        rows += check_questions(problems)
        if corpus is None:
            corpus = read_corpus(path, skip_bad=True)
    if kind in NEED_QUERIES and args.queries is None:
        unchecked.append("ids of questions were not looked up, for that give --queries FILE")
    problems.path = examples_file(path, split)
    known = kind not in NEED_QUERIES or args.queries is not None
    # Those of a BEIR folder have been looked at in its queries file.
    looked_at = known and kind != "beir"
    checker = ExampleChecker(problems, corpus, spread=kind in ROW_FORMATS, check_texts=looked_at)
    found = numbered_examples(path, format=kind, corpus=corpus, queries=args.queries, split=split)
    for line, row in counted(found, "row"):
        rows += 1
        if isinstance(row, RowError):
            problems.add(line, row)
        else:
            checker.check(row)
    if checker.ids_alone:
        unchecked.append("ids of passages were not looked up, for that give --corpus FILE")
    if not rows:
        raise UserError(f"{problems.path}: no rows; give a file with at least one")
    return rows


class ExampleChecker:
    """Looks at examples one after the other.

    Args:
      problems: takes what is wrong.
      corpus: where ids are looked up, if it is there.
      spread: whether several rows of one question are as it should be.
      check_texts: whether to look at the questions' texts.

    Attributes:
      ids_alone: whether a passage was known by an id that could not be looked up.
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
        """Looks at one."""
        line, add = example.line, self.problems.add
        first, text = self.first_of_id.setdefault(example.id, (line, example.question))
        if text != example.question:  # Rows with the same one are joined.
            add(line, f"question '{example.id}' has another text on line {first}; give every question an id of its own")
        if self.check_texts and (first == line or not self.spread):
            _check_text(self.problems, line, example.question, self.line_of_text)
        if not example.positives and not self.spread:
            add(line, f"question '{example.id}' has no positive passage; give it one or leave it out")
        for candidate in (*example.positives, *example.negatives, *example.other_negatives):
            self._check_passage(candidate, line)
        right = self._check_repeats(example.positives, "positive", line)
        for wrong in (example.negatives, example.other_negatives):
            contradicted = self._check_repeats(wrong, "negative", line).items()
            for name in (name for content, name in contradicted if content in right):
                add(line, f"passage {name} is a positive and a negative; leave out the negative")

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
        """Returns what to call each passage, by its content (its id, where that is all that is known)."""
        names: dict[object, str] = {}
        for candidate in candidates:
            content: object = candidate.title, candidate.text
            if candidate.id is not None and self.corpus is not None and candidate.id in self.corpus:
                row = self.corpus.row(candidate.id)
                content = self.corpus.titles[row], self.corpus.texts[row]
            elif candidate.text is None:
                content = candidate.id
            if content in names:
                self.problems.add(line, f"passage {_name(candidate)} is twice a {what}; leave one out")
            names.setdefault(content, _name(candidate))
        return names


def _name(candidate: Candidate) -> str:
    """What to call a passage: its id, or how it begins."""
    if candidate.id is not None:
        return f"'{candidate.id}'"
    begin = " ".join(f"{candidate.title} {candidate.text}".split())
    return f"'{begin}'" if len(begin) <= _SHOWN_CHARACTERS else f"'{begin[: _SHOWN_CHARACTERS - 3]}...'"
