"""The training set in memory: questions, and for each the rows of its positive and negative passages."""

import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxretr.data.corpus import Corpus, read_corpus
from jaxretr.data.duplicate_groups import duplicate_groups_among, rows_of_texts
from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.data.formats.kinds import is_training_file, training_format
from jaxretr.data.formats.reading import examples_file, read_examples
from jaxretr.data.question_identity import first_with_text
from jaxretr.data.questions import Question
from jaxretr.data.source import Input, Source, source_of
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.notes import note

_log = logging.getLogger(__name__)


class Ragged:
    """Rows of different lengths, concatenated.

    Attributes:
      offsets: the place where each row begins, int64 [n + 1].
      values: all rows, [offsets[n]].
    """

    def __init__(self, offsets: np.ndarray, values: np.ndarray):
        if offsets[0] != 0 or offsets[-1] != len(values):
            raise ValueError(f"offsets from {offsets[0]} to {offsets[-1]} for {len(values)} values")
        self.offsets = offsets
        self.values = values

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[float]], dtype: type | np.dtype) -> "Ragged":
        """Return `rows` as arrays of `dtype`."""
        lengths = np.array([len(row) for row in rows], np.int64)
        values = np.array([value for row in rows for value in row], dtype)
        return cls(_offsets(lengths), values)

    @property
    def lengths(self) -> np.ndarray:
        """Length of every row, int64 [n]."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        i %= len(self)
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def only(self, kept: np.ndarray) -> "Ragged":
        """Return the rows for which `kept`, bool [n], is true."""
        return Ragged(_offsets(self.lengths[kept]), self.values[np.repeat(kept, self.lengths)])


@dataclass
class TrainingSet:
    """Questions and the passages they are trained on, B examples.

    Attributes:
      questions: B questions, all ids different.
      passages: the given corpus's rows first, then the texts of the file that are not in it, each once.
      corpus_rows: the number of rows of `passages` that are the given corpus's; 0 without one.
      positives: rows of `passages`, int32; none is empty.
      negatives: rows of the hard negatives, int32; may be empty. No positive of the example is among them.
      other_negatives: rows of DPR's negative_ctxs, int32; may be empty.
      positive_scores: float32 aligned with `positives`, nan if there is none; None if no candidate has a score.
      negative_scores: float32 aligned with `negatives`, nan if there is none; None if no candidate has a score.
    """

    questions: list[Question]
    passages: Corpus
    corpus_rows: int
    positives: Ragged
    negatives: Ragged
    other_negatives: Ragged
    positive_scores: Ragged | None
    negative_scores: Ragged | None

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def texts(self) -> list[str]:
        """The questions' texts."""
        return [question.text for question in self.questions]

    @property
    def lists(self) -> tuple[Ragged, Ragged, Ragged]:
        """The three lists of passages: positives, hard negatives and other negatives."""
        return self.positives, self.negatives, self.other_negatives

    @property
    def qrels(self) -> dict[str, dict[str, int]]:
        """The positives as judgements: question id -> passage id -> 1."""
        ids = self.passages.ids
        return {
            question.id: {ids[row]: 1 for row in self.positives[number].tolist()}
            for number, question in enumerate(self.questions)
        }

    def only(self, kept: np.ndarray) -> "TrainingSet":
        """Return the examples for which `kept`, bool [B], is true, with all passages."""
        scores = (self.positive_scores, self.negative_scores)
        return TrainingSet(
            [question for question, is_kept in zip(self.questions, kept, strict=True) if is_kept],
            self.passages,
            self.corpus_rows,
            *(lists.only(kept) for lists in self.lists),
            *(None if lists is None else lists.only(kept) for lists in scores),
        )


def load_training_set(
    path: Input,
    corpus: Corpus | None = None,
    *,
    format: str | None = None,
    split: str = "train",
    queries: str | Path | None = None,
    skip_bad: bool = False,
) -> TrainingSet:
    """Read a file of any training format, or a BEIR folder, into memory.

    A candidate whose id is in the corpus is that row, whatever text the file gives it; a text that the corpus has
    under another id is that row too; any other text becomes a new passage. Rows of one question id (MS MARCO's
    triples) are one example. A negative in the duplicate group of a positive of its question is left out, also where
    the positive is of another id with the question's text; so is a question without positives, as in DPR. Whatever is left
    out is counted in a warning.

    Args:
      path: a file in one of `jaxretr.data.formats.kinds.FORMATS`, or a folder with queries, qrels and a corpus.
      corpus: the corpus in which candidates that are ids are looked up; a BEIR folder's own by default.
      format: the format's name, by default seen from the content.
      split: the judgements of a BEIR folder.
      queries: the questions' texts, for formats with only their ids.
      skip_bad: whether bad rows, and candidates that are not in the corpus, are left out with a warning that counts
        them, instead of stopping.

    Raises:
      UserError: a bad row or an unknown candidate (as `path:line: what; remedy`), no example, or no such file.
    """
    path = source_of(path)
    # Before the corpus: a wrong path or split should not cost the minutes that a large one takes.
    kind = training_format(path, format).name
    file = examples_file(path, split)
    if corpus is None and kind == "beir":
        corpus = read_corpus(path)
    builder = _Builder(file, corpus, skip_bad)
    examples = read_examples(path, format=kind, skip_bad=skip_bad, corpus=corpus, queries=queries, split=split)
    for example in examples:
        builder.add(example)
    return builder.finish()


def read_passages(path: Input) -> Corpus:
    """Read a corpus, or the positives and negatives of a training file, each once.

    Raises:
      UserError: as `read_corpus` and `load_training_set`.
    """
    return load_training_set(path).passages if is_training_file(path) else read_corpus(path)


# ---- candidates to rows ----------------------------------------------------------------------------------------------


class _Pairs:
    """Columns of (example, passage row, score), filled one by one."""

    def __init__(self) -> None:
        self.examples, self.rows, self.scores = array("i"), array("i"), array("f")

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (
            np.array(self.examples, np.int32),
            np.array(self.rows, np.int32),
            np.array(self.scores, np.float32),
        )


# What is done with rows that are not taken as they are: the kind of a count, and its message with number and first place.
_NOTES = {
    "reworded": "skipped %d bad rows; the first: %s",
    "unknown": "left out %d candidates; the first: %s",
    "changed": "%d passages have another title or text in the corpus (the first: %s); the corpus's version is used",
    "repeated": "a row names a passage twice, %d times (the first %s); it counts once",
    "renamed": "%d passages have the id of another text (the first: %s); both texts are kept, and the later one is renamed",
}


class _Builder:
    """Takes examples one at a time, and keeps only numbers and new texts of them."""

    def __init__(self, path: Source, corpus: Corpus | None, skip_bad: bool):
        self.path = path
        self.corpus = corpus
        self.corpus_rows = 0 if corpus is None else len(corpus)
        self.skip_bad = skip_bad
        self.questions: list[Question] = []
        self.lines = array("q")
        self.index_of_question: dict[str, int] = {}
        # positives, negatives, other negatives
        self.kinds = (_Pairs(), _Pairs(), _Pairs())
        # Texts of the file, rows from corpus_rows on.
        self.row_of_text: dict[tuple[str, str], int] = {}
        self.text_ids: list[str | None] = []
        # A key of _NOTES -> how often, and the place of the first.
        self.counts: dict[str, tuple[int, str]] = {}
        self.joined = 0

    def _count(self, what: str, where: str) -> None:
        count, first = self.counts.get(what, (0, where))
        self.counts[what] = count + 1, first

    def add(self, example: Example) -> None:
        """Take one example."""
        index = self._index(example)
        if index is None:
            return
        for pairs, candidates in zip(self.kinds, example.lists, strict=True):
            rows: set[int] = set()
            for candidate in candidates:
                row = self._row(candidate, example)
                if row in rows:
                    self._count("repeated", f"on line {example.line}")
                elif row is not None:
                    rows.add(row)
                    pairs.examples.append(index)
                    pairs.rows.append(row)
                    pairs.scores.append(np.nan if candidate.score is None else candidate.score)

    def _index(self, example: Example) -> int | None:
        index = self.index_of_question.setdefault(example.id, len(self.questions))
        if index == len(self.questions):
            self.questions.append(Question(example.id, example.question, example.answers))
            self.lines.append(example.line)
        elif self.questions[index].text == example.question:
            self.joined += 1
        else:
            problem = (
                f"{self.path}:{example.line}: question '{example.id}' has another text on line {self.lines[index]}; "
                "give every question an id of its own"
            )
            if not self.skip_bad:
                raise UserError(problem)
            self._count("reworded", problem)
            return None
        return index

    def _row(self, candidate: Candidate, example: Example) -> int | None:
        corpus = self.corpus
        if candidate.id is not None and corpus is not None and candidate.id in corpus:
            row = corpus.row(candidate.id)
            if candidate.text is not None and (
                candidate.text != corpus.texts[row] or candidate.title not in ("", corpus.titles[row])
            ):
                self._count("changed", f"passage '{candidate.id}' on line {example.line}")
            return row
        if candidate.text is None:
            if corpus is None:
                problem = f"passage '{candidate.id}' is given only by its id; give the corpus that has it"
            else:
                problem = f"passage '{candidate.id}' is not in the corpus; give the corpus that the file was made from"
            problem = f"{self.path}:{example.line}: {problem}"
            if not self.skip_bad:
                raise UserError(problem)
            self._count("unknown", problem)
            return None
        row = self.row_of_text.setdefault((candidate.title, candidate.text), self.corpus_rows + len(self.text_ids))
        if row == self.corpus_rows + len(self.text_ids):
            self.text_ids.append(candidate.id)
        return row

    # ---- the whole -------------------------------------------------------------------------------------------------

    def finish(self) -> TrainingSet:
        """Return the set; report what was left out."""
        passages, row_now = self._passages()
        positives, negatives, others = (
            _without_repeats(examples, row_now[rows], scores, len(passages))
            for examples, rows, scores in (pairs.arrays() for pairs in self.kinds)
        )
        groups = duplicate_groups_among(passages, np.unique(np.concatenate([positives[1], negatives[1], others[1]])))
        # Questions with the same text share their positives, whatever their ids.
        same = first_with_text(question.text for question in self.questions)
        known = _keys(same[positives[0]], groups[positives[1]], len(passages))
        before = len(negatives[0]) + len(others[0])
        negatives, others = (
            _masked(pairs, ~np.isin(_keys(same[pairs[0]], groups[pairs[1]], len(passages)), known))
            for pairs in (negatives, others)
        )
        # `has_positive` [questions]: the examples to keep; `index_now` numbers them anew.
        has_positive = np.bincount(positives[0], minlength=len(self.questions)) > 0
        self._report(has_positive, before - len(negatives[0]) - len(others[0]))
        index_now = np.cumsum(has_positive) - 1
        count = int(has_positive.sum())
        positives, negatives, others = (
            (index_now[pairs[0]], *pairs[1:])
            for pairs in (_masked(pairs, has_positive[pairs[0]]) for pairs in (positives, negatives, others))
        )
        scored = any(np.isfinite(pairs[2]).any() for pairs in (positives, negatives))
        positive_rows, positive_scores = _ragged(*positives, count)
        negative_rows, negative_scores = _ragged(*negatives, count)
        return TrainingSet(
            questions=[question for question, kept in zip(self.questions, has_positive, strict=True) if kept],
            passages=passages,
            corpus_rows=self.corpus_rows,
            positives=positive_rows,
            negatives=negative_rows,
            other_negatives=_ragged(*others, count)[0],
            positive_scores=positive_scores if scored else None,
            negative_scores=negative_scores if scored else None,
        )

    def _passages(self) -> tuple[Corpus, np.ndarray]:
        """Return all passages, and the final row of each provisional row, int32."""
        row_now = np.arange(self.corpus_rows + len(self.text_ids), dtype=np.int32)
        titles = [title for title, _ in self.row_of_text]
        texts = [text for _, text in self.row_of_text]
        new = np.ones(len(texts), bool)
        if self.corpus is not None and texts:
            found = rows_of_texts(self.corpus, titles, texts)
            new = found < 0
            row_now[self.corpus_rows :] = np.where(new, self.corpus_rows + np.cumsum(new) - 1, found)
        if not new.any():
            return self.corpus or Corpus([], [], []), row_now
        kept = np.flatnonzero(new).tolist()
        ids = self._new_ids([self.text_ids[i] for i in kept])
        titles, texts = [titles[i] for i in kept], [texts[i] for i in kept]
        if self.corpus is None:
            return Corpus(ids, titles, texts), row_now
        return Corpus([*self.corpus.ids, *ids], [*self.corpus.titles, *titles], [*self.corpus.texts, *texts]), row_now

    def _new_ids(self, given: list[str | None]) -> list[str]:
        """Return an id for every new passage: the file's own for the first passage that has it."""
        taken = {id for id in given if id is not None}
        used: set[str] = set()
        ids = []
        for n, id in enumerate(given):
            if id is not None and id in used:
                self._count("renamed", f"'{id}'")
            if id is None or id in used:
                id = f"text-{n}"
                while id in taken or (self.corpus is not None and id in self.corpus):
                    id += "+"
                taken.add(id)
            used.add(id)
            ids.append(id)
        return ids

    def _report(self, has_positive: np.ndarray, contradicted: int) -> None:
        total, kept = len(has_positive), int(has_positive.sum())
        for what, message in _NOTES.items():
            if what in self.counts:
                note(_log.warning, f"%s: {message}", self.path, *self.counts[what])
        if contradicted:
            note(
                _log.warning, "%s: left out %d negatives that are positives of their question", self.path, contradicted
            )
        if self.joined:
            note(_log.info, "%s: joined %d rows with an earlier one of the same question", self.path, self.joined)
        if not total:
            raise UserError(f"{self.path}: no examples; give a file with at least one")
        if not kept:
            raise UserError(
                f"{self.path}:{self.lines[0]}: no positive passage, nor does any other of the {total} questions have one; "
                "give every question a passage that answers it"
            )
        if kept < total:
            note(
                _log.warning,
                "%s: left out %d of %d questions, which have no positive passage; the first is on line %d",
                self.path,
                total - kept,
                total,
                self.lines[int(np.argmin(has_positive))],
            )


# ---- arrays of (example, row, score) ---------------------------------------------------------------------------------

_Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


def _keys(examples: np.ndarray, rows: np.ndarray, passages: int) -> np.ndarray:
    """One number for every pair, int64."""
    return examples.astype(np.int64) * passages + rows


def _masked(pairs: _Columns, keep: np.ndarray) -> _Columns:
    return pairs[0][keep], pairs[1][keep], pairs[2][keep]


def _without_repeats(examples: np.ndarray, rows: np.ndarray, scores: np.ndarray, passages: int) -> _Columns:
    """Keep the first of a passage that an example names twice."""
    _, first = np.unique(_keys(examples, rows, passages), return_index=True)
    first.sort()
    return examples[first], rows[first], scores[first]


def _ragged(examples: np.ndarray, rows: np.ndarray, scores: np.ndarray, count: int) -> tuple[Ragged, Ragged]:
    # Rows of one question may lie apart in the file.
    order = np.argsort(examples, kind="stable")
    offsets = _offsets(np.bincount(examples, minlength=count))
    return Ragged(offsets, rows[order]), Ragged(offsets, scores[order])


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
