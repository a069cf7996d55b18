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

# A word of more than one passage in so many is kept as a score for every passage: adding a whole column, in one sweep
# through memory, then costs less than adding its postings one by one, and at most 4 times their memory.
_DENSE_SHARE = 8

# Where fewer passages are scored, the steps of a search are so short that threads wait for the interpreter's lock.
_ROWS_WORTH_THREADS = 250_000

# Groups of passages that the selection of hits looks at first, for each hit: more cost time, fewer let more through.
_GROUPS_A_HIT = 8


class Corpus(Protocol):
    """Passages as columns of N rows."""

    @property
    def titles(self) -> Sequence[str]: ...
    @property
    def texts(self) -> Sequence[str]: ...


class Bm25Index:
    """An inverted index of a corpus's titles and texts."""

    def __init__(self, postings: "_Postings", words: "_Words"):
        """Use `build`."""
        self._postings = postings
        self._words = words
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
        return cls(_Postings(retriever), words)

    def search(
        self, questions: Sequence[str], k: int, *, threads: int = 1
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Finds the k best passages of each question.

        Equal scores are ordered by row, lowest first, also at the k-th place; so are the passages that share no word
        with the question, whose score is 0. The order of the words of a question does not change a score.

        Args:
          questions: B questions.
          k: passages per question; where k is above N, N are returned.
          threads: questions searched at a time; in a small corpus one, which is faster there.

        Returns:
          Scores, float32 [B, min(k, N)], descending, and corpus rows, int64 [B, min(k, N)].

        Raises:
          UsageError: k or threads below 1.
        """
        if k < 1:
            raise UsageError(f"k must be at least 1, not {k}")
        if threads < 1:
            raise UsageError(f"threads must be at least 1, not {threads}")
        return self.search_and_score(questions, k, [()] * len(questions), threads=threads)[:2]

    def search_and_score(
        self, questions: Sequence[str], k: int, wanted: Sequence[Sequence[int]], *, threads: int = 1
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], list[NDArray[np.float32]]]:
        """Finds the k best passages of each question, as `search`, and scores passages given beforehand.

        Args:
          questions: B questions.
          k: passages per question; where k is above N, N are returned.
          wanted: corpus rows to score for each question, found or not, [B][any number].
          threads: questions searched at a time; in a small corpus one, which is faster there.

        Returns:
          What `search` returns, and the scores of the wanted rows, B times float32 [any number].

        Raises:
          UsageError: k or threads below 1.
          ValueError: not as many `wanted` as questions.
        """
        if k < 1:
            raise UsageError(f"k must be at least 1, not {k}")
        if threads < 1:
            raise UsageError(f"threads must be at least 1, not {threads}")
        if len(wanted) != len(questions):
            raise ValueError(f"{len(questions)} questions, but rows to score for {len(wanted)}")
        k = min(k, self.num_passages)
        scores = np.empty((len(questions), k), np.float32)
        rows = np.empty((len(questions), k), np.int64)
        of_wanted: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(questions)

        def search_one(number: int) -> None:
            of_all = self._postings.scores(self._words.ids_of_question(questions[number]))
            scores[number], rows[number] = _top_k(of_all, k)
            if len(wanted[number]):
                of_wanted[number] = of_all[np.asarray(wanted[number], np.int64)]

        if threads == 1 or self.num_passages < _ROWS_WORTH_THREADS:
            for number in range(len(questions)):
                search_one(number)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(search_one, range(len(questions))))
        return scores, rows, of_wanted


class _Postings:
    """What each word adds to the score of each passage that holds it, as bm25s computed it."""

    def __init__(self, retriever: Any):
        self.num_passages: int = retriever.scores["num_docs"]
        self._rows: NDArray[np.int32] = retriever.scores["indices"]
        self._scores: NDArray[np.float32] = retriever.scores["data"]
        self._starts: list[int] = retriever.scores["indptr"].tolist()
        # Of BM25L and BM25+: what a word adds to a passage that does not hold it (the postings are relative to that).
        self._absent: NDArray[np.float32] | None = retriever.nonoccurrence_array
        self._columns: dict[int, NDArray[np.float32]] = {}
        lengths = np.diff(retriever.scores["indptr"])
        for word in np.flatnonzero(lengths > self.num_passages / _DENSE_SHARE).tolist():
            postings = slice(self._starts[word], self._starts[word + 1])
            column = np.zeros(self.num_passages, np.float32)
            column[self._rows[postings]] = self._scores[postings]
            self._columns[word] = column

    def scores(self, word_ids: list[int]) -> NDArray[np.float32]:
        """Returns the score of every passage, float32 [N], summed in the order of the words."""
        scores = np.zeros(self.num_passages, np.float32)
        for word in word_ids:
            column = self._columns.get(word)
            if column is not None:
                scores += column
            else:
                postings = slice(self._starts[word], self._starts[word + 1])
                scores[self._rows[postings]] += self._scores[postings]  # a word has each row once
        if self._absent is not None and word_ids:
            scores += self._absent[word_ids].sum()
        return scores


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
    # The k-th largest of the maxima of groups: at least k passages reach it, and few others. The columns are the groups,
    # so that the maxima of all of them are taken in one sweep.
    group = max(1, len(scores) // (_GROUPS_A_HIT * k))
    groups = len(scores) // group
    maxima = scores[: group * groups].reshape(group, groups).max(axis=0)
    candidates = np.flatnonzero(scores >= np.partition(maxima, groups - k)[groups - k])
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
