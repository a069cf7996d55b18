"""Rank-biased overlap: the similarity of two rankings, of which the top ranks count most.

W. Webber, A. Moffat and J. Zobel, "A similarity measure for indefinite rankings", ACM TOIS 28(4), 2010. A reader goes
down both rankings at once and stops after each rank with probability 1 - p. The measure is the share of passages in
common that is expected where the reader stops: the sum over depths d of (1 - p) p^(d-1) |A_1:d ∩ B_1:d| / d.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Shared:
    """The passages that the two rankings of each of B questions share, and their depths.

    Attributes:
      lengths: the number of passages of each ranking, int64 [B, 2].
      questions: the question of each shared passage, int64 [M].
      depths: the smallest depth (from 1) at which both rankings hold that passage, int64 [M].
    """

    lengths: NDArray[np.int64]
    questions: NDArray[np.int64]
    depths: NDArray[np.int64]

    def count(self, depths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return |A_1:d ∩ B_1:d| of each question, int64 [B], with its own depth d, int64 [B]."""
        return np.bincount(self.questions[self.depths <= depths[self.questions]], minlength=len(self.lengths))


@dataclass(frozen=True)
class RankBiasedOverlap:
    """The measure for B questions; k is the length of the shorter ranking.

    Attributes:
      base: the sum over the depths 1 to k, float64 [B], in [0, 1 - p^k].
      residual: the most that the depths after k could add, whatever they contain, float64 [B]; base + residual is the
        paper's RBO_max of the first k ranks.
      extrapolated: RBO_ext, float64 [B], in [0, 1]: the last shares are assumed to continue for ever (equation 32,
        which uses the whole of the longer ranking as well). 0 where a ranking is empty.
    """

    base: NDArray[np.float64]
    residual: NDArray[np.float64]
    extrapolated: NDArray[np.float64]


def find_shared(a: Sequence[Sequence[Hashable]], b: Sequence[Sequence[Hashable]], depth: int = 100) -> Shared:
    """Find what rankings share among their first `depth` passages.

    Args:
      a: the passages of B questions, best first: lists of ids (see `jaxretr.data.runs.ranked_ids`), or rows of integers.
      b: the other rankings of the same questions.
      depth: ranks to look at, at least 1.

    Raises:
      ValueError: not as many rankings in both, a passage twice in one of them, or a depth below 1.
    """
    if len(a) != len(b):
        raise ValueError(f"{len(a)} rankings cannot be compared with {len(b)}")
    if depth < 1:
        raise ValueError(f"depth must be at least 1, not {depth}")
    lengths = np.zeros((len(a), 2), np.int64)
    questions: list[int] = []
    depths: list[int] = []
    for question, (of_a, of_b) in enumerate(zip(a, b, strict=True)):
        ranks_a, ranks_b = _ranks(of_a[:depth]), _ranks(of_b[:depth])
        lengths[question] = len(ranks_a), len(ranks_b)
        both = ranks_a.keys() & ranks_b.keys()
        questions += [question] * len(both)
        # Sorted, since sets of strings come in another order in each process, and sums depend on it in the last bit.
        depths += sorted(max(ranks_a[passage], ranks_b[passage]) for passage in both)
    return Shared(lengths, np.array(questions, np.int64), np.array(depths, np.int64))


def _ranks(ranking: Sequence[Hashable]) -> dict[Hashable, int]:
    ranks = {passage: rank for rank, passage in enumerate(ranking, start=1)}
    if len(ranks) < len(ranking):
        raise ValueError("a ranking holds a passage twice")
    return ranks


def rank_biased_overlap(shared: Shared, p: float = 0.9) -> RankBiasedOverlap:
    """Compute rank-biased overlap, its residual and its extrapolation.

    Args:
      shared: the result of `find_shared`.
      p: the probability that the reader continues to the next rank, in (0, 1); the first ten ranks have 86 % of the
        weight with .9.

    Raises:
      ValueError: p outside (0, 1).
    """
    if not 0 < p < 1:
        raise ValueError(f"p must be above 0 and below 1, not {p}")
    short, long = shared.lengths.min(axis=1), shared.lengths.max(axis=1)
    of_short, of_long = shared.count(short), shared.count(long)
    # after[n]: the sum of (1 - p) p^(d-1) / d over d > n. Summed from the far end, so that differences of the tiny
    # numbers down there keep their digits. The residual looks twice as deep as the rankings go.
    depths = np.arange(1, 2 * int(long.max(initial=0)) + 1)
    after = np.append(np.cumsum(((1 - p) * p ** (depths - 1.0) / depths)[::-1])[::-1], 0.0)

    def seen_to(ends: NDArray[np.int64]) -> NDArray[np.float64]:
        # A passage shared from depth m on counts 1/d at each depth d from m to the end.
        weights = after[shared.depths - 1] - after[ends[shared.questions]]
        return np.bincount(shared.questions, np.maximum(weights, 0.0), minlength=len(ends)).astype(np.float64)

    # After k, at best, each ranking brings one of the other's unshared passages a rank: 2 more in common each, until
    # depth `full`, from where on everything is shared.
    full = 2 * short - of_short
    residual = 2 * p**short - p**full - full * (after[short] - after[full])
    share = of_short / np.maximum(short, 1)
    extrapolated = (
        seen_to(long)
        + share * p**short
        - of_short * (after[short] - after[long])
        + (of_long - of_short) / np.maximum(long, 1) * p**long
    )
    return RankBiasedOverlap(seen_to(short), residual, extrapolated)


def overlap_at(shared: Shared, cut: int) -> NDArray[np.float64]:
    """Compute the share of passages in common among the first `cut` of both rankings.

    Args:
      shared: the result of `find_shared` with a depth of at least `cut`.
      cut: ranks to look at, at least 1.

    Returns:
      The shares, float64 [B], of `cut`, or of the length of the longer ranking where both are shorter than that.
    """
    ends = np.minimum(cut, shared.lengths.max(axis=1))
    return np.divide(shared.count(ends), np.maximum(ends, 1), dtype=np.float64)
