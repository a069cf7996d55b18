"""Rank-biased overlap against sums over sets written down from its definition, and against published values."""

import math
import string
from fractions import Fraction

import numpy as np
import pytest

from jaxretr.data.runs import ranked_ids
from jaxretr.evaluate.metrics import evaluate
from jaxretr.evaluate.rank_overlap import find_shared, overlap_at, rank_biased_overlap
from jaxretr.runtime.errors import UserError

# Deep enough that what lies below is lost in rounding: .9 ** 1500 is 1e-69.
FOR_EVER = 1500


def common(a, b, depth: int) -> int:
    return len(set(a[:depth]) & set(b[:depth]))


def slow_base(a, b, p: float) -> float:
    weights = Fraction(p)
    k = min(len(a), len(b))
    return float(sum((1 - weights) * weights ** (d - 1) * Fraction(common(a, b, d), d) for d in range(1, k + 1)))


def slow_maximum(a, b, p: float) -> float:
    """The sum of two rankings whose unseen ends, after the shorter one's, are as much alike as they can be."""
    k = min(len(a), len(b))
    a, b = list(a[:k]), list(b[:k])
    # Each first brings what the other one has and it lacks; from then on both bring the same.
    a_lacks, b_lacks = [x for x in b if x not in a], [x for x in a if x not in b]
    new = [("new", i) for i in range(FOR_EVER)]
    a, b = (a + a_lacks + new)[:FOR_EVER], (b + b_lacks + new)[:FOR_EVER]
    counts, of_a, of_b, shared = [], set(), set(), 0
    for x, y in zip(a, b, strict=True):
        shared += (x in of_b) + (y in of_a) + (x == y)
        of_a.add(x)
        of_b.add(y)
        counts.append(shared)
    return math.fsum((1 - p) * p ** (d - 1) * count / d for d, count in enumerate(counts, start=1))


def slow_extrapolated(a, b, p: float) -> float:
    """The share of each depth where it is seen, that expected where only the longer ranking is, and then the last."""
    short, long = sorted((a, b), key=len)
    s, l = len(short), len(long)  # noqa: E741  # the paper's letters
    counts = [common(a, b, d) for d in range(1, l + 1)]
    total = []
    for d in range(1, FOR_EVER):
        seen = min(d, l)
        share = counts[seen - 1] / seen
        if d > s:
            # An unseen passage of the shorter ranking is shared as often as its seen ones were.
            share += counts[s - 1] / s * (seen - s) / seen
        total.append((1 - p) * p ** (d - 1) * share)
    return math.fsum(total)


def one(a, b, p: float = 0.9, depth: int = 1000) -> tuple[float, float, float]:
    found = rank_biased_overlap(find_shared([a], [b], depth), p)
    return float(found.base[0]), float(found.residual[0]), float(found.extrapolated[0])


def test_equals_the_sums_of_the_definition():
    """Rankings of all lengths and overlaps, all in one call as a run is measured, cut at a depth too."""
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(40):
        lengths = rng.integers(1, 40, 2)
        pool = int(rng.integers(max(lengths), 90))
        pairs.append([rng.permutation(pool)[:n].tolist() for n in lengths])
    a, b = zip(*pairs, strict=True)
    for p, depth in ((0.9, 100), (0.5, 12), (0.97, 7)):
        found = rank_biased_overlap(find_shared(a, b, depth), p)
        cut = [(x[:depth], y[:depth]) for x, y in pairs]
        # Sums of at most a hundred float64 numbers below 1.
        np.testing.assert_allclose(found.base, [slow_base(x, y, p) for x, y in cut], rtol=1e-12, atol=1e-14)
        maxima = [slow_maximum(x, y, p) for x, y in cut]
        np.testing.assert_allclose(found.base + found.residual, maxima, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(
            found.extrapolated, [slow_extrapolated(x, y, p) for x, y in cut], rtol=1e-12, atol=1e-14
        )
        swapped = rank_biased_overlap(find_shared(b, a, depth), p)
        np.testing.assert_array_equal(swapped.base, found.base)
        np.testing.assert_array_equal(swapped.extrapolated, found.extrapolated)


def test_published_values():
    # The paper's example of rankings that share a and c: the shares at each depth, as its table gives them.
    a, b = "abcdefg", "zcavwxy"
    shares = [round(float(overlap_at(find_shared([a], [b]), cut)[0]), 3) for cut in range(1, 8)]
    assert shares == [0, 0, 0.667, 0.5, 0.4, 0.333, 0.286]
    # What the package `rbo` 0.1.3 gives, base (at the shorter length) and extrapolated; the second pair is uneven.
    assert one(a, b)[::2] == pytest.approx((0.15156102857142856, 0.28821728571428573), rel=1e-12)
    letters = string.ascii_lowercase
    assert one(letters, "kxcnarvmwyp")[::2] == pytest.approx((0.14511721085415583, 0.290852282121333), rel=1e-12)
    assert one(letters, "kxcnarvmwyp", p=0.99)[2] == pytest.approx(0.52939174745252, rel=1e-12)
    # "the first ten ranks have 86 % of the weight": nothing in common after them, equation 21 gives 0.8556.
    assert one(range(1000), [*range(10), *range(5000, 5990)])[0] == pytest.approx(0.85558544674735182, rel=1e-12)


def test_alike_and_different_rankings():
    for k in (1, 10, 100):
        base, residual, extrapolated = one(range(k), range(k))
        assert base == pytest.approx(1 - 0.9**k, rel=1e-14)
        assert residual == pytest.approx(0.9**k, rel=1e-12)
        assert extrapolated == pytest.approx(1, rel=1e-14)
    assert one(range(100), range(100, 200))[::2] == (0.0, 0.0)
    # The same passages in another order: less at the top than below.
    assert one([1, 0, 2, 3], [0, 1, 2, 3])[0] < one([0, 1, 3, 2], [0, 1, 2, 3])[0] < 1 - 0.9**4


def test_a_deep_tail_weighs_next_to_nothing_and_never_less_than_that():
    rng = np.random.default_rng(1)
    rankings = [rng.permutation(3000)[:1000].tolist() for _ in range(8)]
    found = rank_biased_overlap(find_shared(rankings[:4], rankings[4:], 1000))
    assert ((found.residual > 0) & (found.residual < 0.9**1000)).all()
    assert one(rankings[0], rankings[1], depth=100)[1] < 3e-5  # what the unseen tail weighs at depth 100


def test_empty_rankings_have_nothing_in_common():
    shared = find_shared([[], [], ["a"]], [[], ["a", "b"], ["a"]])
    found = rank_biased_overlap(shared)
    np.testing.assert_allclose(found.base, [0, 0, 0.1])
    np.testing.assert_allclose(found.residual, [1, 1, 0.9])
    np.testing.assert_allclose(found.extrapolated, [0, 0, 1])
    np.testing.assert_array_equal(overlap_at(shared, 10), [0, 0, 1])
    assert len(rank_biased_overlap(find_shared([], [])).base) == 0


def test_overlap_at_a_cut():
    a, b = list("abcdef"), list("badxyz")
    shared = find_shared([a, a, a], [b, b[:3], a])
    np.testing.assert_allclose(overlap_at(shared, 1), [0, 0, 1])
    np.testing.assert_allclose(overlap_at(shared, 2), [1, 1, 1])
    np.testing.assert_allclose(overlap_at(shared, 4), [3 / 4, 3 / 4, 1])
    np.testing.assert_allclose(overlap_at(shared, 100), [1 / 2, 1 / 2, 1])  # six are all there is


def test_ranks_as_the_metrics_do():
    """Equal float32 scores by id, descending; the order of the lines does not count."""
    scores = {"a": 1.0, "10": 0.5, "9": 0.5, "b": 1.0 + 1e-9, "\ufffd": 0.5, "\U0001d4b3": 0.5}
    ranked = ranked_ids(scores, 10)
    assert ranked == ["b", "a", "\U0001d4b3", "\ufffd", "9", "10"]
    for rank, passage in enumerate(ranked, start=1):
        assert evaluate({"q": {passage: 1}}, {"q": scores}, ["mrr"])["mrr"] == 1 / rank
    assert ranked_ids(scores, 2) == ["b", "a"]
    with pytest.raises(UserError, match="the score of passage 'b' is not a number"):
        ranked_ids({"a": 1.0, "b": math.nan}, 10)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="1 rankings cannot be compared with 2"):
        find_shared([["a"]], [["a"], ["b"]])
    with pytest.raises(ValueError, match="a passage twice"):
        find_shared([["a", "b", "a"]], [["a"]])
    with pytest.raises(ValueError, match="depth must be at least 1"):
        find_shared([["a"]], [["a"]], 0)
    for p in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="p must be above 0"):
            rank_biased_overlap(find_shared([["a"]], [["a"]]), p)
