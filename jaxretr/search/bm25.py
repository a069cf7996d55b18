"""BM25, on bm25s: the lexical baseline, and the source of hard negatives.

The defaults are Anserini's and Pyserini's for Lucene, k1 = 0.9 and b = 0.4 (Lucene's own are 1.2 and 0.75), with
Lucene's formula: idf = log(1 + (N - df + .5) / (df + .5)), term frequency part tf / (tf + k1 (1 - b + b len / avg)). No
stop words are removed. A word that a question repeats counts as often as it stands there.
"""

import logging
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxretr.errors import UsageError, UserError, did_you_mean

Method = Literal["lucene", "robertson", "atire", "bm25l", "bm25+"]

_METHODS = ("lucene", "robertson", "atire", "bm25l", "bm25+")
_STEMMERS = ("english",)
# bm25s' own pattern wants two characters and so drops "C", "5" and the "U" and "S" of "U.S.".
_WORD = re.compile(r"\b\w+\b")


class Corpus(Protocol):
    """Passages as columns of N rows."""

    @property
    def titles(self) -> Sequence[str]: ...
    @property
    def texts(self) -> Sequence[str]: ...


class Bm25Index:
    """An inverted index of a corpus's titles and texts."""

    def __init__(self, retriever: Any, words: "_Words", num_passages: int):
        """Use `build`."""
        self._retriever = retriever
        self._words = words
        self.num_passages = num_passages

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        stemmer: Literal["english"] | None = "english",
        method: Method = "lucene",
    ) -> "Bm25Index":
        """Indexes title + " " + text of every passage, lower-cased; words of one character are kept.

        Args:
          corpus: passages; a row with empty title and text keeps its place and matches nothing.
          k1: how fast repeated words saturate, at least 0.
          b: how much long passages are held back, in [0, 1].
          stemmer: "english" (Snowball) or None.
          method: the variant of the formula, a name of bm25s.

        Raises:
          UsageError: a parameter out of its range or unknown.
          UserError: the corpus has no passage, or no word.
        """
        if not k1 >= 0:
            raise UsageError(f"BM25's k1 must be at least 0, not {k1}")
        if not 0 <= b <= 1:
            raise UsageError(f"BM25's b must be between 0 and 1, not {b}")
        if method not in _METHODS:
            raise UsageError(f"unknown BM25 method '{method}'{did_you_mean(method, _METHODS)}")
        if stemmer is not None and stemmer not in _STEMMERS:
            raise UsageError(f"unknown stemmer '{stemmer}'{did_you_mean(stemmer, _STEMMERS)} (english or none)")
        words = _Words(stemmer)
        rows = [
            words.ids_of_passage(f"{title} {text}") for title, text in zip(corpus.titles, corpus.texts, strict=True)
        ]
        if not rows:
            raise UserError("the corpus is empty: BM25 needs at least one passage")
        if not words.ids:
            raise UserError("the corpus has no word: every title and text is empty or punctuation")
        retriever = _import_bm25s().BM25(k1=k1, b=b, method=method)
        retriever.index((rows, words.ids), create_empty_token=False, show_progress=False)
        return cls(retriever, words, len(rows))

    def search(
        self, questions: Sequence[str], k: int, *, threads: int = 1
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Finds the k best passages of each question.

        Equal scores are ordered by row, lowest first, also at the k-th place; so are the passages that share no word
        with the question, whose score is 0. The order of the words of a question does not change a score.

        Args:
          questions: B questions.
          k: passages per question; where k is above N, N are returned.
          threads: questions searched at a time.

        Returns:
          Scores, float32 [B, min(k, N)], descending, and corpus rows, int64 [B, min(k, N)].

        Raises:
          UsageError: k or threads below 1.
        """
        if k < 1:
            raise UsageError(f"k must be at least 1, not {k}")
        if threads < 1:
            raise UsageError(f"threads must be at least 1, not {threads}")
        k = min(k, self.num_passages)
        scores = np.empty((len(questions), k), np.float32)
        rows = np.empty((len(questions), k), np.int64)

        def search_one(number: int) -> None:
            scores[number], rows[number] = _top_k(self._scores(questions[number]), k)

        if threads == 1:
            for number in range(len(questions)):
                search_one(number)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(search_one, range(len(questions))))
        return scores, rows

    def _scores(self, question: str) -> NDArray[np.float32]:
        """Returns the score of every passage, float32 [N]."""
        word_ids = self._words.ids_of_question(question)
        if not word_ids:
            return np.zeros(self.num_passages, np.float32)
        return self._retriever.get_scores_from_ids(word_ids)


class _Words:
    """Text to word ids: lower case, words, stems."""

    def __init__(self, stemmer: str | None):
        self.ids: dict[str, int] = {}
        self._stem = _stem_function(stemmer)
        self._id_of_word: dict[str, int] = {}

    def ids_of_passage(self, text: str) -> list[int]:
        """Returns the ids of a passage's words, giving new words new ids."""
        known = self._id_of_word
        found = []
        for word in _WORD.findall(text.lower()):
            word_id = known.get(word)
            if word_id is None:
                word_id = known[word] = self.ids.setdefault(self._stem(word), len(self.ids))
            found.append(word_id)
        return found

    def ids_of_question(self, text: str) -> list[int]:
        """Returns the ids of a question's words that the corpus has, repeated ones repeated, in ascending order.

        Ascending, because float32 sums depend on their order: so no shuffle of the words can reorder the hits.
        """
        ids = (self.ids.get(self._stem(word)) for word in _WORD.findall(text.lower()))
        return sorted(word_id for word_id in ids if word_id is not None)


def _stem_function(stemmer: str | None) -> Callable[[str], str]:
    if stemmer is None:
        return str
    import Stemmer

    # A stemmer object is not safe to share between threads while its own cache is on; ours is the dict of words.
    return Stemmer.Stemmer(stemmer, 0).stemWord


def _top_k(scores: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Selects the k highest scores, ties to the lowest row.

    Args:
      scores: float32 [N].
      k: at most N.

    Returns:
      Scores, float32 [k], descending, and their rows, int64 [k].
    """
    # Most passages share no word with a question: the selection need not look at them unless they are wanted.
    candidates = np.flatnonzero(scores > 0)
    if len(candidates) < k:
        candidates = np.arange(len(scores))
    of_candidates = scores[candidates]
    kth = np.partition(of_candidates, len(candidates) - k)[len(candidates) - k]
    above = np.flatnonzero(of_candidates > kth)
    tied = np.flatnonzero(of_candidates == kth)[: k - len(above)]
    chosen = np.concatenate([above[np.argsort(-of_candidates[above], kind="stable")], tied])
    return of_candidates[chosen], candidates[chosen]


def _import_bm25s() -> ModuleType:
    """Imports bm25s without letting it start JAX.

    At import it looks for jax and runs a top-k on it (bm25s 0.3.16, selection.py), which would claim the accelerators
    before `jax.distributed.initialize` or the choice of a platform. We select the hits ourselves and need none of that,
    so the import does not get to see jax.
    """
    if "bm25s" in sys.modules:
        return sys.modules["bm25s"]
    seen = sys.modules.get("jax.lax")
    sys.modules["jax.lax"] = None  # type: ignore[assignment]  # None makes the import fail
    try:
        import bm25s
    finally:
        if seen is None:
            del sys.modules["jax.lax"]
        else:
            sys.modules["jax.lax"] = seen
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it asks for DEBUG
    return bm25s
