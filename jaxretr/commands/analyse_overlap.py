"""`jaxretr analyse overlap`: how alike the rankings of runs are."""

import argparse
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxretr.errors import UserError
from jaxretr.evaluate.rank_overlap import find_shared, overlap_at, rank_biased_overlap, ranked_ids
from jaxretr.evaluate.runs import read_run
from jaxretr.evaluate.significance import bootstrap_interval
from jaxretr.storage.files import atomic_write, check_output

log = logging.getLogger(__name__)

Run = Mapping[str, Mapping[str, float]]

_CUTS = (1, 10, 100)


def run(args: argparse.Namespace) -> None:
    """Prints the overlap of every further run with the first, and writes that of each question if asked to."""
    if args.per_query is not None:
        check_output(args.per_query)
    reference = read_run(args.reference)
    ids = list(reference)
    rankings = [ranked_ids(reference[id], args.depth) for id in ids]
    # One run at a time: with a thousand passages for each of many questions a run takes gigabytes.
    values = []
    for path in args.others:
        other = read_run(path)
        warn_of_other_questions(reference, other, args.reference, path)
        values.append(overlaps(rankings, [ranked_ids(other.get(id, {}), args.depth) for id in ids], args.p, args.depth))
    if args.per_query is not None:
        write_per_query(args.per_query, ids, args.others, values)
    summaries = [summary(of_run) for of_run in values]
    print((as_json if args.json else as_table)(args, len(ids), summaries))


def warn_of_other_questions(reference: Run, other: Run, reference_name: str, name: str) -> None:
    """Says which questions only one run has; as in `jaxretr evaluate`, those that the measured run lacks count as 0.

    Raises:
      UserError: they have no question in common.
    """
    missing = [id for id in reference if id not in other]
    if len(missing) == len(reference):
        raise UserError(
            f"{name} has no question of {reference_name}, for instance '{next(iter(other))}' and '{missing[0]}'; "
            "give runs of the same questions"
        )
    if missing:
        log.warning(
            "%s lacks %d of %d questions (%s, ...): they count as 0", name, len(missing), len(reference), missing[0]
        )
    more = [id for id in other if id not in reference]
    if more:
        log.warning(
            "%s has %d questions (%s, ...) that %s lacks: they do not count", name, len(more), more[0], reference_name
        )


def overlaps(
    a: Sequence[Sequence[str]], b: Sequence[Sequence[str]], p: float, depth: int
) -> dict[str, NDArray[np.float64]]:
    """Measures B rankings against B others.

    Returns:
      {measure: float64 [B]}: rbo, residual, extrapolated, and overlap@1, @10 and @100, those that `depth` reaches.
    """
    shared = find_shared(a, b, depth)
    rbo = rank_biased_overlap(shared, p)
    cuts = {f"overlap@{cut}": overlap_at(shared, cut) for cut in _CUTS if cut <= depth}
    return {"rbo": rbo.base, "residual": rbo.residual, "extrapolated": rbo.extrapolated, **cuts}


def summary(values: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """The means over questions, and `low` and `high`, the 95% bootstrap interval of the mean rbo."""
    low, high = bootstrap_interval(values["rbo"])
    means = {name: math.fsum(of_questions) / len(of_questions) for name, of_questions in values.items()}
    return {"rbo": means.pop("rbo"), "low": low, "high": high, **means}


def write_per_query(
    path: str, ids: Sequence[str], names: Sequence[str], values: Sequence[Mapping[str, NDArray[np.float64]]]
) -> None:
    """Writes a line for each run and question, by tabs, under a header."""
    with atomic_write(Path(path).expanduser()) as file:
        file.write("\t".join(["question-id", "run", *values[0]]) + "\n")
        for name, of_run in zip(names, values, strict=True):
            for id, *numbers in zip(ids, *of_run.values(), strict=True):
                file.write("\t".join([id, name, *(f"{number:.6g}" for number in numbers)]) + "\n")


def as_json(args: argparse.Namespace, questions: int, summaries: Sequence[Mapping[str, float]]) -> str:
    """All figures as one JSON object."""
    runs = [{"run": name, **figures} for name, figures in zip(args.others, summaries, strict=True)]
    content = {"reference": args.reference, "questions": questions, "p": args.p, "depth": args.depth, "runs": runs}
    return json.dumps(content, indent=1)


def as_table(args: argparse.Namespace, questions: int, summaries: Sequence[Mapping[str, float]]) -> str:
    """All figures as a table for people."""
    cuts = [name for name in summaries[0] if name.startswith("overlap@")]
    width = max(len("run"), *map(len, args.others)) + 2
    lines = [
        f"overlap with {args.reference}: {questions} questions, p {args.p:g}, depth {args.depth}",
        f"{'run':<{width}}{'rbo':>8}{'95% interval':>20}{'tail at most':>14}{'extrapolated':>14}"
        + "".join(f"{name:>13}" for name in cuts),
    ]
    for name, figures in zip(args.others, summaries, strict=True):
        interval = f"[{figures['low']:.4f}, {figures['high']:.4f}]"
        lines.append(
            f"{name:<{width}}{figures['rbo']:>8.4f}{interval:>20}{figures['residual']:>14.1e}"
            f"{figures['extrapolated']:>14.4f}" + "".join(f"{figures[cut]:>13.4f}" for cut in cuts)
        )
    return "\n".join(lines)
