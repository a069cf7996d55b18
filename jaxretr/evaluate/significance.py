"""Is one run better than another, or lucky? Paired tests on the same questions' values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from jaxretr.runtime.errors import UserError

# Why not scipy's: with 600 questions and as many resamples, scipy.stats.permutation_test takes 0.6 s and
# `randomisation_test` 0.08; scipy.stats.bootstrap draws the same numbers as `bootstrap_band`, but takes 3 times as long for
# the 24 cuts of a plot, and refuses a single question.

# Resamples are drawn in blocks of about this many numbers, so that 22,000 questions do not need 1.8 GB.
_BLOCK = 4_000_000


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`; "a" is the run, "b" the baseline.

    Attributes:
      mean_a: mean of a.
      mean_b: mean of b.
      difference: mean_a - mean_b; positive when a is better.
      p_value: the p-value of the paired randomisation test, two-sided.
      low: lower end of the 95% bootstrap interval of the difference.
      high: upper end of the same interval.
      wins: questions on which a is better.
      ties: questions on which they are equal.
      losses: questions on which a is worse.
      t_test_p_value: the p-value of the paired t-test, two-sided; NaN with a single question.
    """

    mean_a: float
    mean_b: float
    difference: float
    p_value: float
    low: float
    high: float
    wins: int
    ties: int
    losses: int
    t_test_p_value: float

    HEADS: ClassVar = ("difference", "95% interval", "p", "p (t-test)")

    def named(self, a: str, b: str) -> dict[str, Any]:
        """The attributes by name, with the names `a` and `b` for the two means."""
        attributes = dict(vars(self))
        return {a: attributes.pop("mean_a"), b: attributes.pop("mean_b"), **attributes}

    @property
    def cells(self) -> tuple[str, ...]:
        """The texts under `HEADS` in tables, and the numbers of questions that are better, equal and worse."""
        return self._cells(self.p_value, self.t_test_p_value)

    def _cells(self, *p_values: float) -> tuple[str, ...]:
        difference, interval = f"{self.difference:+.4f}", f"[{self.low:+.4f}, {self.high:+.4f}]"
        return difference, interval, *map(printed_p, p_values), self.counts

    @property
    def counts(self) -> str:
        """The numbers of questions that are better, equal and worse, as tables print them."""
        return f"{self.wins}/{self.ties}/{self.losses}"


@dataclass(frozen=True)
class Corrected(Comparison):
    """One of several comparisons, with p-values for all of them together; see `corrected`.

    Attributes:
      p_value_holm: the corrected p-value of the randomisation test.
      t_test_p_value_holm: the corrected p-value of the t-test; NaN with a single question.
    """

    p_value_holm: float
    t_test_p_value_holm: float

    HEADS: ClassVar = ("difference", "95% interval", "p", "Holm", "p (t-test)", "Holm")

    @property
    def cells(self) -> tuple[str, ...]:
        """The texts under `HEADS` in tables, and the numbers of questions that are better, equal and worse."""
        return self._cells(self.p_value, self.p_value_holm, self.t_test_p_value, self.t_test_p_value_holm)


def printed_p(value: float) -> str:
    """A p-value as tables print it."""
    if math.isnan(value):
        return "-"
    return f"{value:.4f}" if value >= 1e-4 else "<0.0001"


def compare(a: Mapping[str, float], b: Mapping[str, float], seed: int = 0) -> Comparison:
    """Compare the per-question values of two runs.

    Args:
      a: {question id: value} of the run, for instance from `metrics.evaluate(..., per_query=True)`.
      b: the same questions' values of the baseline.
      seed: seed of the resampling; the same seed and values give the same numbers, whatever the order of the questions.

    Raises:
      UserError: no question, or not the same questions in both.
    """
    if a.keys() != b.keys():
        odd = sorted(a.keys() ^ b.keys())
        where = "the baseline" if odd[0] in a else "the run"
        raise UserError(
            f"paired tests need the same questions in both runs: {len(odd)} are in one only, "
            f"for instance '{odd[0]}', which {where} lacks"
        )
    if not a:
        raise UserError("paired tests need at least one question; both runs are empty")
    question_ids = sorted(a)
    of_a = np.array([a[question_id] for question_id in question_ids], np.float64)
    of_b = np.array([b[question_id] for question_id in question_ids], np.float64)
    # Values that should be equal may differ in the last bit when they were summed in another order: no test may see it.
    differences = np.where(np.isclose(of_a, of_b, rtol=1e-12, atol=1e-12), 0.0, of_a - of_b)
    low, high = bootstrap_interval(differences, seed=seed)
    return Comparison(
        mean_a=float(of_a.mean()),
        mean_b=float(of_b.mean()),
        difference=float(differences.mean()),
        p_value=randomisation_test(differences, seed=seed),
        low=low,
        high=high,
        wins=int((differences > 0).sum()),
        ties=int((differences == 0).sum()),
        losses=int((differences < 0).sum()),
        t_test_p_value=paired_t_test(differences),
    )


def randomisation_test(differences: NDArray[np.float64], *, resamples: int = 10_000, seed: int = 0) -> float:
    """The p-value, in (0, 1], of the paired (Fisher) randomisation test, two-sided.

    Under the null hypothesis the two systems are exchangeable on each question, so the sign of each difference is a
    coin toss. The p-value is the share of tosses whose mean is at least as far from 0 as the observed one, the
    observed one counted in ((1 + hits) / (1 + resamples)), which keeps it above 0.

    Args:
      differences: value of a minus value of b on each question, float64 [B].
      resamples: number of tosses.
      seed: seed of the tosses.
    """
    rng = np.random.default_rng(seed)
    # A difference of 0 has no sign: leaving it out changes no sum.
    differences = differences[differences != 0]
    observed = abs(differences.sum())
    # Sums of the same numbers in another order are equal only up to rounding.
    reached = observed - 1e-12 * np.abs(differences).sum()
    hits = 0
    for size in _blocks(resamples, len(differences)):
        tossed = rng.integers(0, 2, (size, len(differences)), dtype=np.int8) * 2 - 1
        hits += int((np.abs(tossed @ differences) >= reached).sum())
    return (1 + hits) / (1 + resamples)


def bootstrap_interval(
    differences: NDArray[np.float64], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean difference: questions are drawn with replacement.

    Args:
      differences: value of a minus value of b on each question, float64 [B], B at least 1.
      confidence: coverage, in (0, 1).
      resamples: number of draws of B questions.
      seed: seed of the draws.

    Returns:
      The lower and the upper end.
    """
    low, high = bootstrap_band(differences[:, None], confidence=confidence, resamples=resamples, seed=seed)
    return float(low[0]), float(high[0])


def bootstrap_band(
    values: NDArray[np.float64], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The percentile bootstrap interval of several means over the same questions, such as a metric at K cuts.

    Args:
      values: float64 [B, K], B at least 1.
      confidence: coverage of each single interval, in (0, 1).
      resamples: number of draws of B questions.
      seed: seed of the draws.

    Returns:
      The lower and the upper ends, float64 [K] each.
    """
    rng = np.random.default_rng(seed)
    questions = len(values)
    means = []
    for size in _blocks(resamples, questions):
        draws = rng.integers(0, questions, (size, questions), dtype=np.int64)
        draws += questions * np.arange(size)[:, None]
        # The number of times that each draw has each question: all columns then share one product.
        counts = np.bincount(draws.ravel(), minlength=size * questions).reshape(size, questions)
        means.append(counts.astype(np.float64) @ values / questions)
    low, high = np.quantile(np.concatenate(means), [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def paired_t_test(differences: NDArray[np.float64]) -> float:
    """The two-sided p-value of the paired t-test of differences, float64 [B]; nan for a single one."""
    from scipy import stats  # slow to import, and only `jaxretr evaluate --baseline` needs it

    if len(differences) < 2:
        return float("nan")
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    if error == 0:
        return 1.0 if differences[0] == 0 else 0.0
    return float(2 * stats.t.sf(abs(differences.mean() / error), df=len(differences) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values of several comparisons so that any false finding among them is as rare as their level says.

    Holm's step-down: the smallest of m is multiplied by m, the next by m - 1 and so on, and none falls below a smaller
    one's. Nothing is assumed about how the comparisons depend on each other.

    Args:
      p_values: each in [0, 1]; nan for a test that could not be made, which is not counted.

    Returns:
      The corrected values in the order of `p_values`, at most 1; nan where they are.
    """
    order = sorted((number for number, p in enumerate(p_values) if not math.isnan(p)), key=lambda n: p_values[n])
    corrected = [math.nan] * len(p_values)
    largest = 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[number]))
        corrected[number] = largest
    return corrected


def corrected(comparisons: Sequence[Comparison]) -> list[Corrected]:
    """Correct the p-values of comparisons by `holm`, those of each test for all comparisons together."""
    p_values = holm([each.p_value for each in comparisons])
    of_t_tests = holm([each.t_test_p_value for each in comparisons])
    return [
        Corrected(**vars(each), p_value_holm=p, t_test_p_value_holm=t)
        for each, p, t in zip(comparisons, p_values, of_t_tests, strict=True)
    ]


def _blocks(resamples: int, questions: int) -> list[int]:
    """Cut the number of resamples into blocks of at most `_BLOCK` numbers."""
    size = max(1, _BLOCK // max(1, questions))
    return [min(size, resamples - start) for start in range(0, resamples, size)]
