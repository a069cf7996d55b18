"""Examples of a lexical set: queries and a teacher's ranks as memory-mapped rows of the corpus (SPAR, Chen et al. 2022).

Not a multi-positive loss: each step draws one of the teacher's first ranks as the positive, and `negatives.static` of
its last ones (section 3 of the paper). Of several teachers one is drawn for each query, as DRAGON does it.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxretr.config import ContrastiveConfig
from jaxretr.data.corpus import Corpus
from jaxretr.data.lexical_set import LexicalSet
from jaxretr.data.questions import Question
from jaxretr.data.training_set import Ragged, TrainingSet
from jaxretr.errors import UsageError, UserError
from jaxretr.objectives.contrastive import NO_PASSAGE
from jaxretr.streams import HostStream, host_generator


class LexicalDraws:
    """Draws of a lexical set; see `jaxretr.recipes.example_draws.Draws`."""

    def __init__(self, config: ContrastiveConfig, examples: LexicalSet, contents: np.ndarray):
        """Reads nothing yet: the set's arrays stay on disk, and each step reads the rows of its batch.

        Args:
          config: of the run.
          examples: Q queries with the ranks of T teachers, P positives and M negatives each.
          contents: for each corpus row the first with that title and text, int32 [N].
        """
        self.seed, self.contents, self.teachers = config.train.seed, contents, examples.teachers
        self.positives = 1
        self.static = config.negatives.static
        there, ranks = (array.shape[1] for array in (self.teachers[0].positives, self.teachers[0].negatives))
        self.ranks = there if config.data.teacher_positives is None else config.data.teacher_positives
        if not 1 <= self.ranks <= there:
            raise UsageError(f"data.teacher_positives={self.ranks}: {config.data.train} has 1 to {there} a query")
        if self.static > ranks:
            raise UsageError(f"negatives.static={self.static}: {config.data.train} has {ranks} a query; lower it")
        if config.negatives.mined or config.contrastive.positives == "all":
            raise UsageError(
                f"{config.data.train}: is a lexical set, of which each step draws one positive; leave "
                "negatives.mined and contrastive.positives at their defaults"
            )
        self.scored = config.distillation.loss != "none"

    @property
    def places(self) -> int:
        """See `Draws`."""
        return 1 + self.static

    def rows(self, chosen: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray | None]:
        """See `Draws`."""
        rng = host_generator(self.seed, HostStream.LEXICAL_EXAMPLES, step)
        teacher = rng.integers(len(self.teachers), size=len(chosen))
        positives, negatives = (
            self._of_teachers(teacher, chosen, part) for part in ("positives", "negatives")
        )  # [B, P], [B, M]
        positives = positives[:, : self.ranks]
        width = positives.shape[1]
        places = np.concatenate(
            [_draw(rng, positives, 1), _draw(rng, negatives, self.static) + width], axis=1
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
        """See `Draws`: all positives that the run uses, of all teachers."""
        rows = np.concatenate([teacher.positives[chosen][:, : self.ranks] for teacher in self.teachers], axis=1)
        return np.where(rows == NO_PASSAGE, NO_PASSAGE, self.contents[rows]).astype(np.int32)

    def _of_teachers(self, teacher: np.ndarray, chosen: np.ndarray, name: str) -> np.ndarray:
        """The rows of each query from the teacher that was drawn for it."""
        found = np.asarray(getattr(self.teachers[0], name)[chosen])
        for number in range(1, len(self.teachers)):
            mine = teacher == number
            found[mine] = getattr(self.teachers[number], name)[chosen[mine]]
        return found


def _draw(rng: np.random.Generator, rows: np.ndarray, count: int) -> np.ndarray:
    """Draws `count` different columns of each row, those that hold passages first; int64 [B, count]."""
    order = rng.random(rows.shape)
    order[rows == NO_PASSAGE] = 2.0  # behind all that hold one
    return np.argsort(order, axis=1, kind="stable")[:, :count]


def open_lexical_set(path: str | Path, corpus: Corpus | None) -> LexicalSet:
    """Opens a lexical set and checks that it was made of this corpus.

    Raises:
      UsageError: no corpus.
      UserError: another corpus, or a damaged set.
    """
    if corpus is None:
        raise UsageError(f"{path}: holds rows of a corpus; name it with --data.corpus FILE")
    examples = LexicalSet.open(path)
    if examples.corpus_fingerprint != corpus.fingerprint():
        raise UserError(
            f"{path}: was made of another corpus than --data.corpus (and --data.more-corpora); give the files that "
            "`jaxretr mine lexical` was given, in the same order"
        )
    return examples


def as_training_set(examples: LexicalSet, corpus: Corpus) -> TrainingSet:
    """The first teacher's rank 1 as each query's positive, and its negatives: what the validation looks at."""
    teacher = examples.teachers[0]
    count = len(examples.queries)
    positives = np.asarray(teacher.positives[:, 0], np.int32)
    negatives = np.asarray(teacher.negatives)
    there = negatives != NO_PASSAGE
    texts: Sequence[str] = examples.queries[:count]
    return TrainingSet(
        questions=[Question(str(number), text, ()) for number, text in enumerate(texts)],
        passages=corpus,
        corpus_rows=len(corpus),
        positives=Ragged(np.arange(count + 1), positives),
        negatives=Ragged(np.concatenate([[0], np.cumsum(there.sum(axis=1))]), negatives[there]),
        other_negatives=Ragged(np.zeros(count + 1, np.int64), np.empty(0, np.int32)),
        positive_scores=None,
        negative_scores=None,
    )
