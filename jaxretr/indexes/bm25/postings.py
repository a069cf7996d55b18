"""Postings, of BM25 or of learned sparse vectors: which passages hold each word, and what it adds to their scores."""

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes.bm25.words import Bm25Settings

# A word of more than one passage in so many gets a bit for every passage: at most as much memory as its postings take.
_COMMON_SHARE = 32

# Questions that a thread takes at a time.
_QUESTIONS_AT_A_TIME = 16

_LOWEST_BITS = np.uint64(0xFFFFFFFF)

# Some passages: the ids of their words, one passage behind the other, uint32, and how many each has, int32.
Slab = tuple[NDArray[np.uint32], NDArray[np.int32]]


@dataclass(frozen=True)
class Statistics:
    """The counts over the whole corpus that scores depend on, even where only a shard of it is searched.

    Attributes:
      holders: passages that hold each word, by its id, int64 [V].
      num_passages: N.
      num_words: words of all passages together, repeated ones counted each time.
    """

    holders: NDArray[np.int64]
    num_passages: int
    num_words: int

    @classmethod
    def count(cls, slabs: Iterable[Slab], num_ids: int) -> "Statistics":
        """Count the words of passages, which have `num_ids` different ids."""
        from jaxretr.indexes.bm25 import kernel

        holders = np.zeros(num_ids, np.int64)
        last_row_of = np.full(num_ids, -1, np.int32)
        rows = total = 0
        for words, lengths in slabs:
            kernel.count_holders(words, lengths, rows, last_row_of, holders)
            rows += len(lengths)
            total += len(words)
        return cls(holders, rows, total)

    def order(self) -> NDArray[np.int32]:
        """Numbers the words from the rarest to the most common one, int32 [V]; equally common ones by id.

        In this order a question's words are added up: float32 sums depend on it.
        """
        order = np.empty(len(self.holders), np.int32)
        order[np.argsort(self.holders, kind="stable")] = np.arange(len(order), dtype=np.int32)
        return order


class Postings:
    """An inverted index of N passages, the whole corpus or a shard of it."""

    def __init__(self, lists: Any, num_passages: int, absent: NDArray[np.float32] | None = None):
        """Use `of_words` or `of_weights`; `absent` is what each word adds to the passages without it, float32 [V]."""
        from jaxretr.indexes.bm25 import kernel

        self._kernel, self._lists, self.num_passages, self._absent = kernel, lists, num_passages, absent

    @classmethod
    def of_words(
        cls, slabs: Callable[[], Iterable[Slab]], statistics: Statistics, settings: Bm25Settings
    ) -> "Postings":
        """Build BM25's inverted index of some passages.

        Args:
          slabs: gives the passages; called twice.
        """
        from jaxretr.indexes.bm25 import kernel

        order = statistics.order()
        ids = np.argsort(order)  # the id of each word by its number
        # First pass: `counts`, the passages that hold each word, int64 [V], and every passage's length.
        counts = np.zeros(len(order), np.int64)
        last_row_of = np.full(len(order), -1, np.int32)
        lengths_of_slabs = [np.empty(0, np.int32)]
        row = 0
        for words, lengths in slabs():
            kernel.count_holders(words, lengths, row, last_row_of, counts)
            lengths_of_slabs.append(lengths)
            row += len(lengths)
        # Second pass: the postings [P] as rows and counts, word after word from the rarest on.
        starts = np.zeros(len(order) + 1, np.int64)
        np.cumsum(counts[ids], out=starts[1:])
        del counts
        rows = np.empty(starts[-1], np.int32)
        scores = np.empty(starts[-1], np.float32)
        last_row_of.fill(-1)
        ends = starts[:-1].copy()
        row = 0
        for words, lengths in slabs():
            kernel.add_postings(words, lengths, row, order, last_row_of, ends, rows, scores)
            row += len(lengths)
        del ends, last_row_of

        # `scores` [P]: counts become scores, with idf [V] and the length norm of each passage [N].
        holders = statistics.holders[ids]
        idf, absent = _weights(holders, statistics.num_passages, settings)
        lengths = np.concatenate(lengths_of_slabs).astype(np.int64)
        if settings.quantise_lengths:
            lengths = quantised_lengths(lengths)
        norms = 1 - settings.b + settings.b * lengths / (statistics.num_words / statistics.num_passages)
        form = {"atire": 1, "bm25l": 2, "bm25+": 3}.get(settings.method, 0)
        kernel.counts_to_scores(starts, rows, scores, idf, absent, norms, settings.k1, form)
        # An entry that adds nothing (Robertson's idf is 0 for words of half the passages) is not a posting.
        if len(scores) and scores.min() <= 0:
            is_posting = scores > 0
            starts = np.concatenate([[0], np.cumsum(is_posting)])[starts]
            rows, scores = rows[is_posting], scores[is_posting]
        return cls(
            _lists(starts, rows, scores, holders, statistics.num_passages, row), row, absent if absent.any() else None
        )

    @classmethod
    def of_weights(
        cls, words: NDArray[np.int32], weights: NDArray[np.float32], counts: NDArray[Any], holders: NDArray[np.int64]
    ) -> "Postings":
        """Build the inverted index of sparse vectors, whose dimensions are the words.

        Args:
          words: the words of all passages, as `Statistics.order` numbers them, one passage behind the other, int32 [P].
          weights: their values, float32 [P], above 0.
          counts: the number of words of each passage, integers [N].
          holders: passages that hold each word, ascending, int64 [V].
        """
        # Few words have 16 bits, which numpy sorts by counting.
        place = np.argsort(words.astype(np.uint16) if len(holders) <= 1 << 16 else words, kind="stable")
        rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[place]
        starts = np.concatenate([[0], np.cumsum(holders)])
        return cls(_lists(starts, rows, weights[place], holders, len(counts), len(counts)), len(counts))

    def search(
        self,
        words: NDArray[np.int32],
        ends: NDArray[np.int64],
        k: int,
        *,
        threads: int,
        least: NDArray[np.float32] | None = None,
        weights: NDArray[np.float32] | None = None,
        allowed: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Find the k best passages of each question, equal scores by row; one without any of its words is not a hit.

        Args:
          words: all questions' words, int32, ascending within a question.
          ends: the place where each question's words begin, int64 [B + 1].
          k: hits per question.
          threads: questions searched at a time.
          least: a score for every question below which hits are not wanted and may be missing, float32 [B].
          weights: the factor of each of `words` in the scores, float32, above 0; None: 1.
          allowed: the passages that may be found, bool [N]; None: all.

        Returns:
          Scores, float32 [B, k], descending, and rows, int64 [B, k]; 0 and -1 behind the last hit.
        """
        number = len(ends) - 1
        keys = np.empty((number, k), np.uint64)
        least = np.zeros(number, np.float32) if least is None else least
        base = np.array([self._base(words[ends[i] : ends[i + 1]]) for i in range(number)], np.float32)
        weights = np.ones(len(words), np.float32) if weights is None else weights
        starts = iter(range(0, number, _QUESTIONS_AT_A_TIME))

        best_of_block = self._lists.best_of_block

        def work(_: int) -> None:
            scratch = self._kernel.Scratch(
                sums=np.zeros(self.num_passages, np.float32)
                if allowed is None
                else np.where(allowed, np.float32(0), np.float32(-np.inf)),
                rows=np.empty(self.num_passages + 1, np.int32),
                candidates=np.empty(self.num_passages + 1, np.int32),
                matches=np.empty((2, self.num_passages + 1), np.int32),
                totals=np.empty(self.num_passages + 1, np.float32),
                rest_of_block=np.empty((len(best_of_block) + 1, best_of_block.shape[1]), np.float32),
            )
            for first in starts:  # each thread takes the next
                last = min(first + _QUESTIONS_AT_A_TIME, number)
                self._kernel.search(self._lists, scratch, base, words, weights, ends, first, last, least, k, keys)

        threads = min(threads, -(-number // _QUESTIONS_AT_A_TIME))
        if threads <= 1:
            work(0)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, range(threads)))
        return keys_to_hits(keys)

    def score(self, words: NDArray[np.int32], rows: Sequence[int]) -> NDArray[np.float32]:
        """Return the scores of passages for one question, float32 [any number]."""
        scores = np.empty(len(rows), np.float32)
        self._kernel.score(self._lists, self._base(words), words, np.asarray(rows, np.int64), scores)
        return scores

    def _base(self, words: NDArray[np.int32]) -> np.float32:
        return np.float32(0) if self._absent is None else self._absent[words].sum()


def _lists(
    starts: NDArray[np.int64],
    rows: NDArray[np.int32],
    scores: NDArray[np.float32],
    holders: NDArray[np.int64],
    corpus: int,
    passages: int,
) -> Any:
    """Return the `kernel.Lists` of postings.

    Args:
      starts, rows, scores: see `kernel.Lists`.
      holders: passages of the whole corpus that hold each word, ascending, int64 [V].
      corpus: passages of the whole corpus.
      passages: N, those that are indexed.
    """
    from jaxretr.indexes.bm25 import kernel

    # `best` [V]: the highest score of each word that has postings.
    best = np.zeros(len(holders), np.float32)
    occurring_words = np.flatnonzero(np.diff(starts))
    if len(occurring_words):
        best[occurring_words] = np.maximum.reduceat(scores, starts[occurring_words])
    # Bit maps and bounds of the common words, in blocks of 32 and of 64 passages.
    first_common = int(np.searchsorted(holders, corpus / _COMMON_SHARE, side="right"))
    blocks = np.zeros((len(holders) - first_common, -(-passages // 32)), np.uint64)
    best_of_block = np.zeros((len(blocks), -(-passages // 64)), np.float32)
    kernel.fill_blocks(starts, rows, scores, first_common, blocks, best_of_block)
    return kernel.Lists(starts, rows, scores, best, first_common, blocks, best_of_block)


def quantised_lengths(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Round lengths down as Lucene's norms do (SmallFloat.intToByte4 and back): they fit one byte.

    Lengths below 24 are kept; of what a length has above 24, the first four binary digits are. So lengths below 40 are
    exact, and the error is below an eighth.
    """
    excess = np.maximum(lengths - 24, 0)
    digits = np.frexp(excess.astype(np.float64))[1]  # binary ones
    num_dropped = np.maximum(digits - 4, 0)
    return np.minimum(lengths, 24) + (excess >> num_dropped << num_dropped)


def hits_to_keys(scores: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Pack every hit into one uint64 that is larger for a higher score and, among equal scores, for a lower row.

    Scores are not negative; row -1 means no hit and becomes 0.
    """
    keys = (np.ascontiguousarray(scores).view(np.uint32).astype(np.uint64) << np.uint64(32)) | (
        _LOWEST_BITS - rows.astype(np.uint64)
    )
    return np.where(rows < 0, np.uint64(0), keys)


def keys_to_hits(keys: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Unpack the keys of `hits_to_keys` to scores, float32, and rows, int64."""
    scores = (keys >> np.uint64(32)).astype(np.uint32).view(np.float32)
    rows = np.where(keys == 0, -1, (_LOWEST_BITS - (keys & _LOWEST_BITS)).astype(np.int64))
    return scores, rows


def _weights(holders: NDArray[np.int64], num: int, settings: Bm25Settings) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the idf of every word, and what it adds to the score of a passage without it; both float32 [V]."""
    idf_of: Callable[[int], float] = {
        "lucene": lambda df: math.log(1 + (num - df + 0.5) / (df + 0.5)),
        "robertson": lambda df: math.log(max(1, (num - df + 0.5) / (df + 0.5))),
        "atire": lambda df: math.log(num / df),
        "bm25l": lambda df: math.log((num + 1) / (df + 0.5)),
        "bm25+": lambda df: math.log((num + 1) / df),
    }[settings.method]
    # The part of the term frequency 0; both formulas add a delta of 0.5 to it.
    part = {"bm25l": (settings.k1 + 1) * 0.5 / (settings.k1 + 0.5), "bm25+": 0.5}.get(settings.method, 0.0)
    different, which = np.unique(holders, return_inverse=True)
    idf = np.array([idf_of(df) for df in different.tolist()], np.float64)
    return idf.astype(np.float32)[which], (idf * part).astype(np.float32)[which]
