"""`jaxretr.run_overlap`: the similarity of runs' rankings, question by question."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.data.run_reading import read_run
from jaxretr.data.runs import ranked_ids
from jaxretr.evaluate.measuring import Run, warn_of_missing
from jaxretr.evaluate.rank_overlap import find_shared, overlap_at, rank_biased_overlap
from jaxretr.evaluate.results import QUESTION, Block, Results
from jaxretr.evaluate.significance import bootstrap_interval
from jaxretr.evaluate.tables import Cell, Grid, Row
from jaxretr.runtime.errors import UsageError, UserError, at_least, is_number

log = logging.getLogger(__name__)

Values = dict[str, NDArray[np.float64]]
"""The values of each measure, float64 [B]: rbo, residual, extrapolated, and overlap@1, @10, @100 within the depth."""

_CUTS = (1, 10, 100)


@dataclass(frozen=True, eq=False, repr=False)
class RunOverlap(Results):
    """The overlap of runs with a reference.

    Attributes:
      reference: the name of the run that the others are compared with.
      ids: the ids of its B questions.
      p: the parameter of rank-biased overlap.
      depth: the ranks that were compared.
      values: {run: the values of each question}.
    """

    reference: str
    ids: Sequence[str]
    p: float
    depth: int
    values: Sequence[tuple[str, Values]]

    def __repr__(self) -> str:
        return f"RunOverlap({len(self.values)} runs with {self.reference}, {len(self.ids)} questions)"

    def means(self) -> list[tuple[str, dict[str, float]]]:
        """Each run's name and means over questions, with `low` and `high`, the mean rbo's 95% bootstrap interval."""
        return [(name, _means(values)) for name, values in self.values]

    def content(self) -> dict[str, Any]:
        """All means for JSON."""
        runs = [{"run": name, **means} for name, means in self.means()]
        content = {"reference": self.reference, "questions": len(self.ids), "p": self.p, "depth": self.depth}
        return {**content, "runs": runs}

    def grids(self) -> list[Grid]:
        """A table of all means."""
        runs = self.means()
        cuts = [name for name in runs[0][1] if name.startswith("overlap@")]
        rows = []
        for name, means in runs:
            interval, tail = f"[{means['low']:.4f}, {means['high']:.4f}]", f"{means['residual']:.1e}"
            rbo, *others = (f"{means[column]:.4f}" for column in ("rbo", "extrapolated", *cuts))
            rows.append(Row(name, list(map(Cell, (rbo, interval, tail, *others)))))
        title = f"overlap with {self.reference}: {len(self.ids)} questions, p {self.p:g}, depth {self.depth}"
        return [Grid(title, "run", ["rbo", "95% interval", "tail at most", "extrapolated", *cuts], rows)]

    def blocks(self) -> Iterator[Block]:
        """The values of every question and run."""
        for name, values in self.values:
            of_questions = {measure: dict(zip(self.ids, of.tolist(), strict=True)) for measure, of in values.items()}
            yield {QUESTION: "", "run": name}, of_questions


def run_overlap(reference: str | Path, others: Sequence[str | Path], *, p: float = 0.9, depth: int = 100) -> RunOverlap:
    """Compare runs with a reference by rank-biased overlap, and by the passages in common at the top.

    Args:
      reference: the run to compare with; its questions are used.
      others: the runs to compare with it.
      p: probability of continuing to the next rank, in (0, 1); the higher, the more the deeper ranks count.
      depth: ranks to compare.

    Raises:
      UserError: a run cannot be read, or has no question of the reference.
      UsageError: `p` is out of its range.
    """
    if not is_number(p) or not 0 < p < 1:
        raise UsageError(f"p={p!r}: must be above 0 and below 1")
    at_least(1, depth=depth)
    run = read_run(reference)
    ids = list(run)
    rankings = [ranked_ids(run[id], depth) for id in ids]
    values = []
    # One run at a time: with a thousand passages for each of many questions a run takes gigabytes.
    for path in others:
        other = read_run(path)
        _warn_of_other_questions(run, other, str(reference), str(path))
        values.append((str(path), _overlaps(rankings, [ranked_ids(other.get(id, {}), depth) for id in ids], p, depth)))
    return RunOverlap(str(reference), ids, p, depth, values)


def _warn_of_other_questions(reference: Run, other: Run, reference_name: str, name: str) -> None:
    """Warns of questions that only one run has; those that the other run lacks count as 0, as in `evaluate_run`."""
    if not reference.keys() & other.keys():
        raise UserError(
            f"{name} has no question of {reference_name}, for instance '{next(iter(other))}' and "
            f"'{next(iter(reference))}'; give runs of the same questions"
        )
    warn_of_missing(reference, other, name)
    more = [id for id in other if id not in reference]
    if more:
        log.warning(
            "%s has %d questions (%s, ...) that %s lacks: they do not count", name, len(more), more[0], reference_name
        )


def _overlaps(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]], p: float, depth: int) -> Values:
    """Compare B rankings with B others."""
    shared = find_shared(a, b, depth)
    rbo = rank_biased_overlap(shared, p)
    cuts = {f"overlap@{cut}": overlap_at(shared, cut) for cut in _CUTS if cut <= depth}
    return {"rbo": rbo.base, "residual": rbo.residual, "extrapolated": rbo.extrapolated, **cuts}


def _means(values: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    low, high = bootstrap_interval(values["rbo"])
    means = {name: math.fsum(of_questions) / len(of_questions) for name, of_questions in values.items()}
    return {"rbo": means.pop("rbo"), "low": low, "high": high, **means}
