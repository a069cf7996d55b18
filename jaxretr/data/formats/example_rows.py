"""The parts of an example as a format writes them, and the count of what it cannot represent."""

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

from jaxretr.data.corpus import Corpus
from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.data.source import Input
from jaxretr.runtime.errors import UserError

_log = logging.getLogger(__name__)


class ExampleRows:
    """Gives the writers the parts of examples, and counts what their format cannot represent.

    Attributes:
      written: the number of examples that were written.
      lost: {what was lost: the number of examples}.
    """

    def __init__(self, corpus: Corpus | None, source: Input, *, split: str = "train", per_row: int | None = None):
        """
        Args:
          corpus: the passages of candidates that are ids.
          source: the file that the examples are from, for messages.
          split: the name of the judgements in a BEIR folder.
          per_row: negatives in a row of sentence-transformers' columns; None: as many as the first question has.
        """
        self.corpus = corpus
        self.source = source
        self.split = split
        self.per_row = per_row
        self.written = 0
        self.lost: Counter[str] = Counter()

    def report(self, path: Path, format: str) -> None:
        """Log what the format could not represent."""
        for what, count in self.lost.items():
            _log.warning("%s: %s cannot represent everything: %s in %d examples", path, format, what, count)

    def check_any(self, path: Path) -> None:
        """Raise UserError if nothing was written: an empty file is not a training set."""
        if not self.written:
            lost = "".join(f"; {what} in {count} examples" for what, count in self.lost.items())
            raise UserError(f"{path}: no example of {self.source} can be written{lost}; give others or another format")

    def where(self, example: Example) -> str:
        """Return the place of an example, for messages."""
        return f"{self.source}:{example.line}"

    # ---- passages --------------------------------------------------------------------------------------------------

    def content(self, candidate: Candidate, example: Example) -> tuple[str, str]:
        """Return a passage's title and text."""
        if candidate.text is not None:
            return candidate.title, candidate.text
        assert candidate.id is not None
        if self.corpus is None or candidate.id not in self.corpus:
            where = "no corpus is given" if self.corpus is None else "it is not in the corpus"
            raise UserError(
                f"{self.where(example)}: passage '{candidate.id}' has no text, and {where}; give the corpus that has it"
            )
        row = self.corpus.row(candidate.id)
        return self.corpus.titles[row], self.corpus.texts[row]

    def bare_text(self, candidate: Candidate, example: Example) -> str:
        """Return title and text as one, as BEIR joins them."""
        title, text = self.content(candidate, example)
        return f"{title} {text}" if title else text

    def id(self, candidate: Candidate, example: Example) -> str:
        """Return a passage's id."""
        if candidate.id is None:
            raise UserError(
                f"{self.where(example)}: a passage has no id, which is all that this format stores; "
                "convert to a format with texts, or to beir, which gives ids"
            )
        return candidate.id

    def column(self, id: str, example: Example) -> str:
        """Return an id as it stands in a table."""
        if not id or id != id.strip() or set(id) & set("\t\r\n") or id[0] == "\ufeff":
            raise UserError(f"{self.where(example)}: the id {id!r} cannot be written in a table; rename it")
        return id

    def negatives(self, example: Example) -> tuple[Candidate, ...]:
        """Return the negatives for a format with one list of them."""
        if example.negatives and example.other_negatives:
            self.lost["other negatives than the hard ones were left out"] += 1
        return example.negatives or example.other_negatives

    def without_scores(self, example: Example) -> None:
        """Count an example whose scores are left out."""
        if any(each.score is not None for each in example.positives + example.negatives):
            self.lost["scores were left out"] += 1

    def without_grades(self, example: Example) -> Example:
        """Count an example whose judgements are more than right and wrong; return it."""
        judged = {each.grade for each in example.positives + example.negatives}
        if not judged <= {None, 0, 1}:
            self.lost["grades were left out"] += 1
        return example

    def without_answers(self, example: Example) -> None:
        """Count an example whose answers are left out."""
        if example.answers:
            self.lost["answers were left out"] += 1

    def trainable(self, example: Example, negatives: bool = False) -> bool:
        """Whether the example has what each row of its format needs."""
        if not example.positives:
            self.lost["without a positive, left out,"] += 1
            return False
        if negatives and not self.negatives(example):
            self.lost["without a negative, left out,"] += 1
            return False
        return True

    def passage(self, candidate: Candidate, example: Example, id_name: str) -> dict[str, Any]:
        """Return a passage as an object, with its id under `id_name`."""
        title, text = self.content(candidate, example)
        row: dict[str, Any] = {} if candidate.id is None else {id_name: candidate.id}
        row |= {"title": title, "text": text}
        return row if candidate.score is None else row | {"score": candidate.score}


def json_bytes(row: dict[str, Any]) -> bytes:
    """Return a row as one line of JSON."""
    return json.dumps(row, ensure_ascii=False).encode()
