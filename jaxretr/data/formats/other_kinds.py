"""Data files that are no training sets: corpora, questions and runs."""

from array import array
from collections.abc import Callable, Iterator

from jaxretr.data.collection import ID_FIELDS
from jaxretr.data.corpus import Passage, passage_rows
from jaxretr.data.description import Description, Spread, shortened_line
from jaxretr.data.formats.format import Lookup
from jaxretr.data.formats.head import Head
from jaxretr.data.problems import Problems
from jaxretr.data.questions import Question, question_rows
from jaxretr.data.source import Source
from jaxretr.data.text_rows import BadRows, RowError
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.progress import counted

_Row = tuple[int, Passage | RowError] | tuple[int, Question | RowError]

_IDS = (*ID_FIELDS, "pid", "passage_id", "qid", "query_id")
_CORPUS_NAMES = ("corpus", "collection", "passages", "psgs", "documents", "docs")
_QUESTION_NAMES = ("queries", "questions", "topics")
# Questions are shorter, passages longer: for files of ids and texts whose name tells nothing.
_WORDS_OF_A_QUESTION = 20


class TextFile:
    """A corpus or questions, in any of the formats of `iter_passages` and `read_questions`."""

    def __init__(self, name: str, unit: str, stem: str, remedy: str, rows: Callable[[Source], Iterator[_Row]]):
        """
        Args:
          name: "corpus" or "questions".
          unit: "passage" or "question".
          stem: its name inside a BEIR folder.
          remedy: what to do with it instead of training on it.
          rows: returns (line number, row or its fault) for the rows of a file.
        """
        self.name = self.title = name
        self.unit, self.stem, self.remedy, self.rows = unit, stem, remedy, rows

    def detect(self, head: Head) -> bool:
        """Whether a file with this beginning is of this kind."""
        return _texts_of(head) == self.name

    def check(self, problems: Problems) -> int:
        """Look for bad rows, ids that occur twice and empty texts, and count repeated ones; return the number of rows."""
        line_of_id: dict[str, int] = {}
        line_of_text: dict[tuple[str, str], int] = {}
        count = 0
        for count, (line, row) in enumerate(counted(self.rows(problems.path), self.unit), start=1):  # noqa: B007
            if isinstance(row, RowError):
                problems.add(line, row)
                continue
            if (first := line_of_id.setdefault(row.id, line)) != line:
                duplicate = f"duplicate id '{row.id}' (first on {problems.unit} {first})"
                problems.add(line, f"{duplicate}; give every {self.unit} an id of its own")
            if not row.text.strip():
                problems.add(line, f"{self.unit} '{row.id}' has no text; give it one or leave it out")
            elif (first := line_of_text.setdefault((getattr(row, "title", ""), row.text), line)) != line:
                problems.repeat(f"{self.unit}s", line, f"the same {self.unit} as on {problems.unit} {first}")
        if not count:
            raise UserError(f"{problems.path}: no rows; give a file with at least one")
        return count

    def describe(self, file: Source, lookup: Lookup) -> Description:
        """Describe a file by one pass over it."""
        bad = BadRows(file, skip=True)
        words = array("l")
        details, first = 0, ""
        for _, row in bad.good(counted(self.rows(file), self.unit)):
            if isinstance(row, Passage):
                shown = f"{row.title}: {row.text}"
                details += not row.title
            else:
                shown = f"{row.text} {' | '.join(row.answers)}"
                details += bool(row.answers)
            first = first or shortened_line(f"first {self.unit}: [{row.id}] {shown}")
            words.append(len(row.text.split()))
        facts = {
            f"{self.unit}s": len(words),
            "without a title" if self.unit == "passage" else "with answers": details,
            "without a text": words.count(0),
            f"words a {self.unit}": Spread.of(words),
        }
        return Description(str(file), self.title, facts, bad.count, bad.first, [first] if first else ())


CORPUS = TextFile("corpus", "passage", "corpus.jsonl", "give it as the corpus of a training set", passage_rows)
QUESTIONS = TextFile(
    "questions", "question", "queries.jsonl", "give it as the queries of a training set", question_rows
)


class RunFile:
    """A run, in any of the formats of `jaxretr.data.run_reading.read_run`."""

    name = "run"
    title = "run (ranked passages)"
    remedy = "mine hard negatives from it, or evaluate it"
    stem = ""

    def detect(self, head: Head) -> bool:
        is_json = not {"ctxs", "hits"}.isdisjoint((*head.row, *head.element))
        return is_json or head.number_in(4, columns=6) or head.three_columns == self.name

    def check(self, problems: Problems) -> int:
        """Read it; the first problem ends it."""
        return len(_read_run(problems.path))

    def describe(self, file: Source, lookup: Lookup) -> Description:
        found = _read_run(file)
        lengths = [len(hits) for hits in found.values()]
        facts = {"questions": len(found), "passages a question": Spread.of(lengths)}
        return Description(str(file), self.title, facts)


def _read_run(file: Source) -> dict[str, dict[str, float]]:
    from jaxretr.data.run_reading import read_run  # It imports numpy, which would delay the command line's help.

    return read_run(str(file), count=True)


# ---- ids and texts ---------------------------------------------------------------------------------------------------


def _texts_of(head: Head) -> str:
    """Return "corpus" or "questions" for rows with ids and texts, an empty string for others."""
    keys = {*head.row}
    if head.element:
        return "" if {"question", "query", "qText", "text"}.isdisjoint(head.element) else "questions"
    if head.row:
        has_id = not keys.isdisjoint(_IDS)
        if keys & {"question", "qText"} or ("query" in keys and has_id):
            return "questions"
        if not has_id or not keys & {"text", "contents"}:
            return ""
        if keys & {"title", "contents"}:
            return "corpus"
        if keys & {"answers", "answer"} or "answers" in (head.row.get("metadata") or {}):
            return "questions"
        return _by_name_or_length(head, [str(row.get("text")) for row in head.objects])
    if not {"title", "passage", "contents"}.isdisjoint(head.names) and not {*_IDS}.isdisjoint(head.names):
        return "corpus"
    if len(head.names) == 2:
        is_answer = head.names[1].startswith(("[", "('", '("'))
        return "questions" if is_answer else _by_name_or_length(head, [row[-1] for row in head.table])
    is_text = head.suffix == ".txt" and not head.table
    return "questions" if is_text else ""


def _by_name_or_length(head: Head, texts: list[str]) -> str:
    name = head.path.name.lower()
    if name.startswith((*_CORPUS_NAMES, *_QUESTION_NAMES)):
        return "corpus" if name.startswith(_CORPUS_NAMES) else "questions"
    words = sum(len(text.split()) for text in texts)
    return "questions" if words < _WORDS_OF_A_QUESTION * len(texts) else "corpus"
