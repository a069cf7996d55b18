"""BM25: the lexical baseline, and the source of hard negatives.

The defaults are Anserini's and Pyserini's for Lucene, k1 = 0.9 and b = 0.4 (Lucene's own are 1.2 and 0.75), with
Lucene's formula: idf = log(1 + (N - df + .5) / (df + .5)), term frequency part tf / (tf + k1 (1 - b + b len / avg)). No
stop words are removed. A word that a question repeats counts as often as it occurs.

A passage that shares no word with the question is not a hit. Of a word that adds nothing to any score (one that every
passage holds with "atire", or half of them with "robertson") the same is true as of no word; Lucene's words always add
something.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from jaxretr.data.runs import Corpus
from jaxretr.indexes.bm25.postings import Postings, Slab, Statistics
from jaxretr.indexes.bm25.words import Bm25Settings, Method, Vocabulary, questions_as_words
from jaxretr.runtime.errors import UsageError, UserError, check_rows, require_at_least


class Bm25Index:
    """An inverted index of a corpus's titles and texts, in memory."""

    def __init__(self, postings: Postings, vocabulary: Vocabulary, order: NDArray[np.int32]):
        """Use `build`."""
        self._postings = postings
        self._vocabulary = vocabulary
        self._order = order
        self.num_passages = postings.num_passages

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        stemmer: Literal["english"] | None = "english",
        method: Method = "lucene",
        quantise_lengths: bool = False,
    ) -> "Bm25Index":
        """Index title + " " + text of every passage, with the words that `words.split_words` finds.

        Args:
          corpus: passages; a row with empty title and text keeps its place and matches nothing.
          k1, b, stemmer, method, quantise_lengths: see `words.Bm25Settings`.

        Raises:
          UsageError: a parameter out of its range or unknown.
          UserError: the corpus has no passage, or no word.
        """
        settings = Bm25Settings(k1, b, stemmer, method, quantise_lengths)
        if not hasattr(corpus, "titles"):
            raise UsageError(
                f"corpus: a {type(corpus).__name__} is no corpus; give a Corpus, or the path to search_bm25"
            )
        vocabulary = Vocabulary(stemmer)
        words = array("I")
        lengths = array("i")
        for title, text in zip(corpus.titles, corpus.texts, strict=True):
            lengths.append(vocabulary.add_passage(title, text, words))
        if not lengths:
            raise UserError("the corpus is empty: BM25 needs at least one passage")
        if not len(vocabulary):
            raise UserError("the corpus has no word: every title and text is empty or punctuation")
        slabs: list[Slab] = [(np.frombuffer(words, np.uint32), np.frombuffer(lengths, np.int32))]
        statistics = Statistics.count(slabs, len(vocabulary))
        return cls(Postings.of_words(lambda: slabs, statistics, settings), vocabulary, statistics.order())

    def __repr__(self) -> str:
        return f"Bm25Index({self.num_passages} passages, {len(self._vocabulary)} words)"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a Bm25Index cannot be pickled or copied: its postings belong to compiled loops; build it from the corpus, "
            "with Bm25Index.build(corpus)"
        )

    def search(
        self, questions: Iterable[str], k: int, *, threads: int = 1
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Find the k best passages of each question.

        Equal scores are ordered by row, lowest first, also at the k-th place. A passage that shares no word with the
        question is not among its hits, so that a question may have fewer than k, or none. The order of the words of a
        question does not change a score.

        Args:
          questions: B questions.
          k: passages per question; where k is above N, N are returned.
          threads: questions searched at a time.

        Returns:
          Scores, float32 [B, min(k, N)], descending, and corpus rows, int64 [B, min(k, N)]; -inf and -1 behind a
          question's last hit.

        Raises:
          UsageError: k or threads below 1, or questions that are no list of texts.
        """
        return self.search_and_score(questions, k, threads=threads)[:2]

    def search_and_score(
        self, questions: Iterable[str], k: int, wanted: Sequence[Sequence[int]] | None = None, *, threads: int = 1
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], list[NDArray[np.float32]]]:
        """Find the k best passages of each question, as `search`, and score passages given beforehand.

        Args:
          questions, k, threads: see `search`.
          wanted: corpus rows to score for each question, hits or not, [B][any number]; None: none.

        Returns:
          What `search` returns, and the scores of the wanted rows, B times float32 [any number]; the formula's value,
          usually 0, for a row that is not a hit.

        Raises:
          UsageError: k or threads below 1, or questions that are no list of texts.
          ValueError: not as many `wanted` as questions.
        """
        require_at_least(1, k=k, threads=threads)
        check_rows("questions", questions)
        questions = list(questions)
        if others := [each for each in questions if not isinstance(each, str)]:
            raise UsageError(f"questions: {others[0]!r:.60} is no text; give a list of texts")
        wanted = [()] * len(questions) if wanted is None else wanted
        if len(wanted) != len(questions):
            raise ValueError(f"{len(questions)} questions, but rows to score for {len(wanted)}")
        words, ends = questions_as_words(self._vocabulary, self._order, questions)
        scores, rows = self._postings.search(words, ends, min(k, self.num_passages), threads=threads)
        scores[rows < 0] = -np.inf
        of_wanted = [
            self._postings.score(words[ends[number] : ends[number + 1]], of_question)
            if len(of_question)
            else np.empty(0, np.float32)
            for number, of_question in enumerate(wanted)
        ]
        return scores, rows, of_wanted
