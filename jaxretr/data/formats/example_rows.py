"""Examples as rows of the formats of supervised training data; writing.py writes the files."""

import itertools
import json
import logging
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxretr.data.corpus import Corpus
from jaxretr.data.csv_tables import csv_line
from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.runtime.errors import UserError

_log = logging.getLogger(__name__)

# Tabs and line ends, and the mark that is no text at the beginning of a file.
_NOT_IN_A_LINE = re.compile("[\t\r\n]|^\ufeff")


class ExampleRows:
    """Turns examples into rows, and counts what a format cannot represent."""

    def __init__(self, corpus: Corpus | None, source: str):
        self.corpus = corpus
        self.source = source
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

    def _column(self, id: str, example: Example) -> str:
        if not id or id != id.strip() or set(id) & set("\t\r\n") or id[0] == "\ufeff":
            raise UserError(f"{self.where(example)}: the id {id!r} cannot be written in a table; rename it")
        return id

    def negatives(self, example: Example) -> tuple[Candidate, ...]:
        """Return the negatives for a format with one list of them."""
        if example.negatives and example.other_negatives:
            self.lost["other negatives than the hard ones were left out"] += 1
        return example.negatives or example.other_negatives

    def without_scores(self, example: Example) -> None:
        if any(each.score is not None for each in example.positives + example.negatives):
            self.lost["scores were left out"] += 1

    def without_grades(self, example: Example) -> Example:
        """Count an example whose judgements are more than right and wrong; return it."""
        judged = {each.grade for each in example.positives + example.negatives}
        if not judged <= {None, 0, 1}:
            self.lost["grades were left out"] += 1
        return example

    def without_answers(self, example: Example) -> None:
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

    # ---- passages as objects ---------------------------------------------------------------------------------------

    def _passage(self, candidate: Candidate, example: Example, id_name: str) -> dict[str, Any]:
        title, text = self.content(candidate, example)
        row: dict[str, Any] = {} if candidate.id is None else {id_name: candidate.id}
        row |= {"title": title, "text": text}
        return row if candidate.score is None else row | {"score": candidate.score}

    def dpr(self, example: Example) -> dict[str, Any]:
        """Return DPR's object."""
        return self._dpr_object(example, lambda candidate: self._passage(candidate, example, "passage_id"))

    def dpr_scale(self, example: Example) -> list[bytes]:
        """Return dpr-scale's line: DPR's object, with rows of the corpus for the passages in it."""

        def passage(candidate: Candidate) -> dict[str, Any]:
            if self.corpus is None or candidate.id is None or candidate.id not in self.corpus:
                return self._passage(candidate, example, "id")
            row: dict[str, Any] = {"docidx": self.corpus.row(candidate.id)}
            return row if candidate.score is None else row | {"score": candidate.score}

        return [json_bytes(self._dpr_object(example, passage))]

    def _dpr_object(self, example: Example, passage: Callable[[Candidate], dict[str, Any]]) -> dict[str, Any]:
        # The id of a row without one is its number: writing it would only make the file differ from the one read.
        row: dict[str, Any] = {} if example.id == str(self.written) else {"id": example.id}
        return row | {
            "question": example.question,
            "answers": list(example.answers),
            "positive_ctxs": [passage(each) for each in example.positives],
            "negative_ctxs": [passage(each) for each in example.other_negatives],
            "hard_negative_ctxs": [passage(each) for each in example.negatives],
        }

    def tevatron(self, example: Example) -> list[bytes]:
        """Return Tevatron's line with the passages."""
        row: dict[str, Any] = {"query_id": example.id, "query": example.question}
        if example.answers:
            row["answers"] = list(example.answers)
        kinds = {"positive_passages": example.positives, "negative_passages": self.negatives(example)}
        return [
            json_bytes(
                row | {name: [self._passage(c, example, "docid") for c in found] for name, found in kinds.items()}
            )
        ]

    def tevatron2(self, example: Example) -> list[bytes]:
        """Return Tevatron's line with the passages' ids, and scores where a passage has one (as `jaxretr.mine`)."""
        self.without_answers(example)
        kinds = {"positive": example.positives, "negative": self.negatives(example)}
        row: dict[str, Any] = {"query_id": example.id, "query_text": example.question, "query_image": None}
        row |= {f"{kind}_document_ids": [self.id(each, example) for each in found] for kind, found in kinds.items()}
        if any(each.score is not None for found in kinds.values() for each in found):
            row |= {f"{kind}_scores": [each.score for each in found] for kind, found in kinds.items()}
        return [json_bytes(row)]

    # ---- bare texts ------------------------------------------------------------------------------------------------

    def flag(self, example: Example) -> list[bytes]:
        """Return FlagEmbedding's line, with scores where every passage has one."""
        self.without_answers(example)
        row: dict[str, Any] = {"query": example.question}
        kinds = {"pos": example.positives, "neg": self.negatives(example)}
        scores = {name: [each.score for each in found] for name, found in kinds.items()}
        known = [score is not None for found in scores.values() for score in found]
        for name, found in kinds.items():
            row[name] = [self.bare_text(each, example) for each in found]
        if any(known):
            if all(known):
                row |= {f"{name}_scores": found for name, found in scores.items()}
            else:
                self.without_scores(example)
        return [json_bytes(row)]

    def triples(self, example: Example) -> list[bytes]:
        """Return lines of question, positive and negative, as texts."""
        self.without_scores(example)
        changed = False

        def one_line(text: str) -> str:
            nonlocal changed
            line = _NOT_IN_A_LINE.sub(" ", text)
            changed |= line != text
            return line

        lines = self._triples(example, one_line(example.question), lambda each: one_line(self.bare_text(each, example)))
        if lines and changed:
            self.lost["tabs and line breaks became spaces"] += 1
        return lines

    def triples_ids(self, example: Example) -> list[bytes]:
        """Return lines of question, positive and negative, as ids."""
        self.without_scores(example)
        question = self._column(example.id, example)
        return self._triples(example, question, lambda each: self._column(self.id(each, example), example))

    def _triples(self, example: Example, question: str, field: Callable[[Candidate], str]) -> list[bytes]:
        if not self.trainable(example, negatives=True):
            return []
        self.without_answers(example)
        positives = [field(each) for each in example.positives]
        negatives = [field(each) for each in self.negatives(example)]
        rows = zip(
            itertools.cycle(positives),
            itertools.cycle(negatives),
            range(max(len(positives), len(negatives))),
            strict=False,
        )
        return [f"{question}\t{positive}\t{negative}".encode() for positive, negative, _ in rows]

    # ---- bare ids --------------------------------------------------------------------------------------------------

    def distillation(self, example: Example) -> list[bytes]:
        """Return a line of passage ids and the teacher's scores."""
        found = (*example.positives, *self.negatives(example))
        if any(each.score is None for each in found):
            raise UserError(f"{self.where(example)}: a passage has no score; this format is for teachers' scores")
        self.without_answers(example)
        return [
            json_bytes(
                {
                    "query_id": example.id,
                    "document_ids": [self.id(each, example) for each in found],
                    "scores": [each.score for each in found],
                }
            )
        ]

    def judgements(self, example: Example, id: Callable[[Candidate], str] | None = None) -> list[bytes]:
        """Return lines of judgements: the grades; 1 for a positive without one, 0 for a negative without one."""
        if all(each.grade is None for each in example.negatives) and not self.trainable(example):
            return []
        self.without_scores(example)
        grades: dict[str, int] = {}
        for grade, found in ((1, example.positives), (0, self.negatives(example))):
            for each in found:
                passage = self.id(each, example) if id is None else id(each)
                grades.setdefault(self._column(passage, example), grade if each.grade is None else each.grade)
        question = self._column(example.id, example)
        return [csv_line((question, passage, grade)).rstrip("\n").encode() for passage, grade in grades.items()]


def json_bytes(row: dict[str, Any]) -> bytes:
    """Return a row as one line of JSON."""
    return json.dumps(row, ensure_ascii=False).encode()
