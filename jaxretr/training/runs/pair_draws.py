"""The passages of a cross-encoder's questions: drawn at every step, a function of (seed, step) alone."""

import logging
import os
from collections.abc import Sequence

import numpy as np

from jaxretr.config import PairNegatives
from jaxretr.data.corpus import Corpus
from jaxretr.data.training_set import Ragged
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.runtime.streams import HostStream, host_generator
from jaxretr.training.runs.example_draws import draw_entries
from jaxretr.training.runs.run_examples import RunExamples

log = logging.getLogger(__name__)

# Number of redraws of a random passage that is a positive, or was drawn already.
_TRIES = 32


class PairDraws:
    """Draws a positive and negatives from the training file, BM25's ranking and the whole corpus."""

    def __init__(self, examples: RunExamples, negatives: PairNegatives, seed: int):
        """Rank the corpus with BM25 where the settings ask for it.

        Args:
          examples: examples of the run; their own draws give a positive, and the negatives of files.
        """
        self.examples, self.negatives, self.seed = examples, negatives, seed
        # A training file's own passages where there is no corpus.
        self.searched = examples.corpus_rows or len(examples.passages)
        self._ranked = None
        if negatives.bm25:
            log.info("BM25 ranks %d passages for %d questions", self.searched, len(examples.texts))
            found = first_ranks(examples.passages.first(self.searched), examples.texts, negatives.last_rank)
            kept = [rows[negatives.first_rank - 1 :] for rows in found]
            offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in kept])])
            self._ranked = Ragged(offsets, np.concatenate(kept).astype(np.int32))

    @property
    def places(self) -> int:
        """K, the number of passages of a question: the positive and its negatives."""
        return 1 + self.negatives.count

    def rows(self, chosen: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Draw the passages of some questions.

        No negative is judged positive for its question, has the title and text of such a passage, or occurs twice.

        Args:
          chosen: B questions.

        Returns:
          rows int32 [B, K], the positive first; NO_PASSAGE in the places that a small corpus cannot fill; and, if the run
          learns from a teacher, its scores of them, float32 [B, K], NaN where there is none.
        """
        rng = host_generator(self.seed, HostStream.OTHER_NEGATIVES, step)
        of_files, teacher = self.examples.draws.rows(chosen, step)
        parts = [of_files]
        if self._ranked is not None:
            parts.append(draw_entries(rng, self._ranked, chosen, self.negatives.bm25)[0])
        parts.append(np.full((len(chosen), self.negatives.random), NO_PASSAGE, np.int32))
        rows = np.concatenate(parts, axis=1)
        known = self.examples.draws.known(chosen)
        barred = self._barred(rows, known)
        rows[:, 1:][barred] = NO_PASSAGE
        if teacher is not None:
            teacher[:, 1:][barred] = np.nan
        for _ in range(_TRIES):
            empty = rows[:, 1:] == NO_PASSAGE
            if not empty.any():
                break
            rows[:, 1:][empty] = rng.integers(0, self.searched, int(empty.sum()))
            rows[:, 1:][self._barred(rows, known)] = NO_PASSAGE
        return rows, teacher

    def _barred(self, rows: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Whether negatives are positives of their question, or copies of a passage before them: bool [B, K - 1]."""
        contents = np.where(rows == NO_PASSAGE, NO_PASSAGE, self.examples.contents[rows])
        positive = (contents[:, 1:, None] == known[:, None]).any(axis=-1)
        before = np.tri(rows.shape[1], k=-1, dtype=bool)
        copies = ((contents[:, :, None] == contents[:, None]) & before).any(axis=-1)[:, 1:]
        return (positive | copies) & (contents[:, 1:] != NO_PASSAGE)


def first_ranks(corpus: Corpus, questions: Sequence[str], depth: int) -> list[np.ndarray]:
    """Return BM25's first rows of a corpus for each question, best first; fewer if fewer passages share its words."""
    _, rows = Bm25Index.build(corpus).search(questions, min(depth, len(corpus)), threads=os.cpu_count() or 1)
    return [found[found >= 0] for found in rows]
