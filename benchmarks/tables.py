"""Tables and tests that several benchmarks print: means over seeds, and paired differences of questions."""

import statistics
from collections.abc import Mapping, Sequence

from jaxretr.evaluate.significance import compare


def cell(values: Sequence[float], digits: int = 1) -> str:
    """Mean and standard deviation over the seeds; the mean alone of one seed, or where all agree."""
    seeds = {round(value, digits + 4) for value in values}
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(seeds) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def markdown(columns: Sequence[str], rows: Mapping[str, Sequence[str]], first: str = "") -> str:
    """A Markdown table, one row a name."""
    lines = [f"| {first} | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    return "\n".join([*lines, *(f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items())])


def mean_over_seeds(of_seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each question's mean."""
    return {question: statistics.fmean(values[question] for values in of_seeds) for question in of_seeds[0]}


def difference(first: Sequence[Mapping[str, float]], second: Sequence[Mapping[str, float]]) -> str:
    """How much more the first system has than the second, in points, by a paired test of the questions' means."""
    result = compare(mean_over_seeds(first), mean_over_seeds(second))
    return (
        f"{100 * result.difference:+.1f} points, 95% interval {100 * result.low:+.1f} to {100 * result.high:+.1f}, "
        f"p = {result.p_value:.4f}"
    )
