"""The passages of an example: drawn at every step, a function of (seed, step) alone."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jaxretr.config import ContrastiveConfig
from jaxretr.data.corpus import Corpus
from jaxretr.data.lexical_set import META, LexicalSet
from jaxretr.data.question_identity import first_with_text, joined_by_text, own_rows
from jaxretr.data.questions import Question
from jaxretr.data.training_set import Ragged, TrainingSet
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.notes import note
from jaxretr.runtime.streams import HostStream, host_generator

log = logging.getLogger(__name__)


class Draws(Protocol):
    """The examples of a run, whatever they are kept in."""

    positives: int
    """Places of positives among an example's passages."""
    content: Any
    """A tree of arrays that the draws depend on, of any shapes."""

    @property
    def places(self) -> int:
        """Passages of an example."""
        ...

    def rows(self, chosen: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Draw the passages of some examples.

        Args:
          chosen: B examples.

        Returns:
          rows int32 [B, places], NO_PASSAGE where an example has too few; and, for distillation, the teacher's scores
          of them, float32 [B, places], NaN where there is none.
        """
        ...

    def known(self, chosen: np.ndarray) -> np.ndarray:
        """Contents of what is no negative of some examples, int32 [B, Q], padded with NO_PASSAGE.

        The passages that are the question itself and, with `negatives.mask_known_positives`, all judged positives.
        """
        ...


class ExampleDraws:
    """Draws of a training set: positives, then static and mined negatives."""

    def __init__(
        self, config: ContrastiveConfig, examples: TrainingSet, mined: TrainingSet | None, contents: np.ndarray
    ):
        self.seed, self.examples = config.train.seed, examples
        self.static = config.negatives.static
        most = int(examples.positives.lengths.max())
        self._first = config.contrastive.positives == "first"
        self.positives = min(config.contrastive.max_positives, most) if config.contrastive.positives == "all" else 1
        judged = config.negatives.mask_known_positives
        self._known = known_contents(examples, contents, judged=judged)
        self._known_width = int(self._known.lengths.max())
        # DPR: a question without hard negatives falls back to its others.
        self._negatives = _first_not_empty(examples.negatives, examples.other_negatives)
        if self.static and not len(self._negatives.values):
            raise UsageError(
                f"{config.data.train}: contains no negatives; set negatives.static=0, or mine some (jaxretr mine)"
            )
        self._scores = None
        if config.distillation.loss != "none":
            self._scores = self._teacher_scores(config)
        self.mined_places = config.negatives.mined
        self._mined = None
        if mined is not None:
            known = self._known if judged else known_contents(examples, contents)
            self._mined = _of_questions(mined, examples, known, contents, config)
        lists = examples.positives, self._negatives, self._mined
        self.content = [[each.offsets, each.values] for each in lists if each is not None], self._scores

    @property
    def places(self) -> int:
        return self.positives + self.static + self.mined_places

    def rows(self, chosen: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray | None]:
        rng = host_generator(self.seed, HostStream.EXAMPLES, step)
        if self._first:
            of_positives = self.examples.positives.offsets[chosen][:, None]
            positives = self.examples.positives.values[of_positives]
        else:
            positives, of_positives = draw_entries(rng, self.examples.positives, chosen, self.positives)
        negatives, of_negatives = draw_entries(rng, self._negatives, chosen, self.static)
        parts = [positives, negatives]
        if self._mined is not None:
            parts.append(draw_entries(rng, self._mined, chosen, self.mined_places)[0])
        teacher = None
        if self._scores is not None:
            of_drawn = [
                np.where(places < 0, np.nan, scores[places])
                for scores, places in zip(self._scores, (of_positives, of_negatives), strict=True)
            ]
            unscored = np.full((len(chosen), self.mined_places), np.nan)
            teacher = np.concatenate([*of_drawn, unscored], axis=1).astype(np.float32)
        return np.concatenate(parts, axis=1), teacher

    def known(self, chosen: np.ndarray) -> np.ndarray:
        known = np.full((len(chosen), self._known_width), NO_PASSAGE, np.int32)
        lengths = self._known.lengths[chosen]
        known[np.arange(self._known_width) < lengths[:, None]] = np.concatenate([self._known[i] for i in chosen])
        return known

    def _teacher_scores(self, config: ContrastiveConfig) -> tuple[np.ndarray, np.ndarray]:
        """The teacher's scores, aligned with the values of the positives and of `_negatives`."""
        scores = self.examples.positive_scores, self.examples.negative_scores
        if scores[0] is None or scores[1] is None:
            raise UserError(
                f"{config.data.train}: its passages have no scores to learn from; add them (jaxretr score), or choose a loss "
                "without a teacher"
            )
        of_others = Ragged(
            self.examples.other_negatives.offsets, np.full(len(self.examples.other_negatives.values), np.nan)
        )
        negatives = _first_not_empty(scores[1], of_others)
        self._note_unscored(config, scores[0], negatives)
        return scores[0].values, negatives.values

    def _note_unscored(self, config: ContrastiveConfig, positives: Ragged, negatives: Ragged) -> None:
        """Say how many examples have too few scores to teach anything.

        Raises:
          UserError: none has enough.
        """
        of_positives = np.minimum(_scored(positives), self.positives)
        of_negatives = np.minimum(_scored(negatives), self.static)
        if config.distillation.loss == "margin_mse":
            lack, taught = "a positive and a negative with a score", (of_positives > 0) & (of_negatives > 0)
        else:
            lack, taught = "two passages with a score", of_positives + of_negatives > 1
        if not taught.any():
            drawn = "" if self.static else ", of the static negatives too (negatives.static)"
            raise UserError(
                f"{config.data.train}: no example has {lack} to learn from; add scores (jaxretr score){drawn}"
            )
        values = np.concatenate([positives.values, negatives.values])
        if not taught.all():
            note(
                log.warning,
                "%s: %d of %d examples lack %s, and %d of %d passages have none: no distillation for these; add scores "
                "(jaxretr score)",
                *(config.data.train, len(taught) - taught.sum(), len(taught), lack),
                *(np.isnan(values).sum(), len(values)),
            )


def _scored(scores: Ragged) -> np.ndarray:
    """The number of each row's scores that are no NaN, int64 [rows]."""
    return np.diff(np.concatenate([[0], np.cumsum(~np.isnan(scores.values))])[scores.offsets])


def known_contents(examples: TrainingSet, contents: np.ndarray, *, judged: bool = True) -> Ragged:
    """The contents of passages that are no negatives of each example.

    They are its judged positives, those of other examples with the same question, and the question itself: under its id
    (see `own_rows`), or as a passage with its text under any id, since many training files have none.

    Args:
      examples: B examples.
      contents: for each of at least their passages the first row with the same title and text, int32 [N].
      judged: False: without the judged positives; the question itself is none of them.

    Returns:
      int32, B rows.
    """
    of_example = Ragged(examples.positives.offsets, contents[examples.positives.values])
    texts = examples.texts
    copies: dict[str, list[int]] = {text: [] for text in texts if text.strip()}
    for row, text in enumerate(examples.passages.texts):
        if text in copies:
            copies[text].append(row)
    itself = [
        [row for row in (own, *copies.get(text, ())) if row >= 0]
        for own, text in zip(own_rows(examples.questions, examples.passages).tolist(), texts, strict=True)
    ]
    if not judged:
        positives = map(set, joined_by_text(texts, (of_example[number] for number in range(len(texts)))))
        others = joined_by_text(texts, [contents[rows] if rows else () for rows in itself])
        rows = [[row for row in of_one if row not in its] for of_one, its in zip(others, positives, strict=True)]
        return Ragged.from_rows(rows, np.int32)
    if not any(itself) and (first_with_text(texts) == np.arange(len(texts))).all():
        return of_example
    known = (
        [*of_example[number], *contents[rows]] if rows else of_example[number] for number, rows in enumerate(itself)
    )
    return Ragged.from_rows(joined_by_text(texts, known), np.int32)


def _first_not_empty(first: Ragged, second: Ragged) -> Ragged:
    """Each row of `first`, or of `second` where that is empty."""
    empty = first.lengths == 0
    lengths = np.where(empty, second.lengths, first.lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    starts = np.where(empty, second.offsets[:-1] + len(first.values), first.offsets[:-1])
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) + np.repeat(starts, lengths)
    return Ragged(offsets, np.concatenate([first.values, second.values])[place])


def _of_questions(
    mined: TrainingSet, examples: TrainingSet, known: Ragged, contents: np.ndarray, config: ContrastiveConfig
) -> Ragged:
    """The mined negatives in the order of the examples; none for a question that was not mined."""
    place = {question.id: number for number, question in enumerate(mined.questions)}
    empty = np.empty(0, np.int32)
    rows = []
    for number, question in enumerate(examples.questions):
        found = mined.negatives[place[question.id]] if question.id in place else empty
        # What the training file judges positive is none, whatever the mined file says; nor is the question itself.
        rows.append(found[~np.isin(contents[found], known[number])])
    lengths = np.array([len(row) for row in rows])
    if not lengths.sum():
        raise UserError(
            f"{config.data.mined}: contains no negatives for the questions of {config.data.train}; check that the ids agree"
        )
    if missing := int((lengths == 0).sum()):
        note(log.warning, "%s: has no negatives for %d of %d questions", config.data.mined, missing, len(rows))
    return Ragged(np.concatenate([[0], np.cumsum(lengths)]), np.concatenate(rows))


def draw_entries(
    rng: np.random.Generator, lists: Ragged, chosen: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw up to `count` different entries from some rows of a Ragged.

    Returns:
      The entries, int32 [B, count], and their places in `lists.values`; NO_PASSAGE where a row has too few.
    """
    lengths = lists.lengths[chosen]
    owner = np.repeat(np.arange(len(chosen)), lengths)
    begins = np.cumsum(lengths) - lengths
    number = np.arange(len(owner)) - begins[owner]  # within its row
    place = lists.offsets[chosen][owner] + number
    # Every row shuffled, all rows at once; then the first `count` of each.
    order = np.lexsort((rng.random(len(owner)), owner))
    rank = number
    kept = rank < count
    drawn = np.full((len(chosen), count), NO_PASSAGE, np.int64)
    drawn[owner[kept], rank[kept]] = place[order][kept]
    entries = np.where(drawn < 0, NO_PASSAGE, lists.values[drawn] if len(lists.values) else NO_PASSAGE)
    return entries.astype(np.int32), drawn


# ---- lexical sets ------------------------------------------------------------------------------------------------------


class LexicalDraws:
    """Draws of a lexical set; see `Draws` (SPAR, Chen et al. 2022).

    Queries and a teacher's ranks are memory-mapped rows of the corpus. This is not a multi-positive loss: each step
    draws one of the teacher's first ranks as the positive, and `negatives.static` of its last ones (section 3 of the
    paper). With several teachers one is drawn for each query, as DRAGON does it.
    """

    def __init__(self, config: ContrastiveConfig, examples: LexicalSet, contents: np.ndarray):
        """Read nothing yet: the set's arrays stay on disk, and each step reads the rows of its batch.

        Args:
          examples: Q queries with the ranks of T teachers, P positives and M negatives each.
          contents: for each corpus row the first with that title and text, int32 [N].
        """
        self.seed, self.contents, self.teachers = config.train.seed, contents, examples.teachers
        self.positives = 1
        self.static = config.negatives.static
        most, ranks = (array.shape[1] for array in (self.teachers[0].positives, self.teachers[0].negatives))
        self.ranks = most if config.data.teacher_positives is None else config.data.teacher_positives
        if not 1 <= self.ranks <= most:
            raise UsageError(f"data.teacher_positives={self.ranks}: {config.data.train} has 1 to {most} a query")
        if self.static > ranks:
            raise UsageError(f"negatives.static={self.static}: {config.data.train} has {ranks} a query; lower it")
        if config.negatives.mined or config.contrastive.positives != "draw":
            raise UsageError(
                f"{config.data.train}: is a lexical set, of which each step draws one positive; leave "
                "negatives.mined and contrastive.positives at their defaults"
            )
        self.judged = config.negatives.mask_known_positives
        self.scored = config.distillation.loss != "none"
        # Of the set itself: its arrays have billions of bytes.
        self.content = np.frombuffer((examples.folder / META).read_bytes(), np.uint8)

    @property
    def places(self) -> int:
        return 1 + self.static

    def rows(self, chosen: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray | None]:
        rng = host_generator(self.seed, HostStream.LEXICAL_EXAMPLES, step)
        teacher = rng.integers(len(self.teachers), size=len(chosen))
        positives, negatives = (
            self._of_teachers(teacher, chosen, part) for part in ("positives", "negatives")
        )  # [B, P], [B, M]
        positives = positives[:, : self.ranks]
        width = positives.shape[1]
        places = np.concatenate(
            [_draw_columns(rng, positives, 1), _draw_columns(rng, negatives, self.static) + width], axis=1
        )  # columns of [positives, negatives]
        rows = np.take_along_axis(np.concatenate([positives, negatives], axis=1), places, axis=1)
        if not self.scored:
            return rows, None
        scores = self._of_teachers(teacher, chosen, "scores")
        of_positives = self.teachers[0].positives.shape[1]
        scores = np.concatenate([scores[:, :width], scores[:, of_positives:]], axis=1)
        of_drawn = np.take_along_axis(scores, places, axis=1)
        return rows, np.where(rows == NO_PASSAGE, np.nan, of_drawn).astype(np.float32)

    def known(self, chosen: np.ndarray) -> np.ndarray:
        """See `Draws`: all positives that the run uses, of all teachers; no query is looked for among the passages."""
        ranks = self.ranks if self.judged else 0
        rows = np.concatenate([teacher.positives[chosen][:, :ranks] for teacher in self.teachers], axis=1)
        return np.where(rows == NO_PASSAGE, NO_PASSAGE, self.contents[rows]).astype(np.int32)

    def _of_teachers(self, teacher: np.ndarray, chosen: np.ndarray, name: str) -> np.ndarray:
        """The rows of each query from the teacher that was drawn for it."""
        found = np.asarray(getattr(self.teachers[0], name)[chosen])
        for number in range(1, len(self.teachers)):
            mine = teacher == number
            found[mine] = getattr(self.teachers[number], name)[chosen[mine]]
        return found


def _draw_columns(rng: np.random.Generator, rows: np.ndarray, count: int) -> np.ndarray:
    """Draw `count` different columns of each row, those with passages first; int64 [B, count]."""
    order = rng.random(rows.shape)
    order[rows == NO_PASSAGE] = 2.0  # after all that contain one
    return np.argsort(order, axis=1, kind="stable")[:, :count]


def open_lexical_set(path: str | Path, corpus: Corpus | None) -> LexicalSet:
    """Open a lexical set and check that it was made of this corpus.

    Raises:
      UsageError: no corpus.
      UserError: another corpus, or a damaged set.
    """
    if corpus is None:
        raise UsageError(f"{path}: contains rows of a corpus; name that corpus with data.corpus=FILE")
    examples = LexicalSet.open(path)
    if examples.corpus_fingerprint != corpus.fingerprint():
        raise UserError(
            f"{path}: was made of another corpus than data.corpus (and data.more_corpora); give the files that "
            "`jaxretr mine lexical` was given, in the same order"
        )
    return examples


def as_training_set(examples: LexicalSet, corpus: Corpus) -> TrainingSet:
    """The first teacher's rank 1 as each query's positive, and its negatives: what the validation looks at."""
    teacher = examples.teachers[0]
    count = len(examples.queries)
    positives = np.asarray(teacher.positives[:, 0], np.int32)
    negatives = np.asarray(teacher.negatives)
    is_present = negatives != NO_PASSAGE
    texts: Sequence[str] = examples.queries[:count]
    return TrainingSet(
        questions=[Question(str(number), text, ()) for number, text in enumerate(texts)],
        passages=corpus,
        corpus_rows=len(corpus),
        positives=Ragged(np.arange(count + 1), positives),
        negatives=Ragged(np.concatenate([[0], np.cumsum(is_present.sum(axis=1))]), negatives[is_present]),
        other_negatives=Ragged(np.zeros(count + 1, np.int64), np.empty(0, np.int32)),
        positive_scores=None,
        negative_scores=None,
    )
