"""`jaxretr fuse`: one run of several."""

import argparse
import logging
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxretr.commands.hits import check_output, say_written
from jaxretr.commands.weight_curve import trace
from jaxretr.data.readers import read_qrels
from jaxretr.errors import UsageError
from jaxretr.evaluate.measuring import depth, of_qrels
from jaxretr.evaluate.runs import read_run, write_trec
from jaxretr.search.hybrid.fusion import Missing, Normalise, Run, interpolate, reciprocal_rank
from jaxretr.search.hybrid.weight_choice import balancing_weight

log = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> None:
    """Fuses, or tunes the weight and fuses with the best one."""
    check_arguments(args)
    if args.out is not None:
        check_output(args.out)
    qrels = None if args.tune is None else read_qrels(args.tune)
    runs = [read_run(path, trec_ids=args.out is not None) for path in args.runs]
    warn_of_other_questions(runs, args.runs)
    if args.method == "interpolation" and args.missing is None:
        warn_of_short_lists(runs, args.runs)
    if args.method == "rrf":
        fused = reciprocal_rank(runs, k=args.k)
    else:
        weights = args.weights
        if qrels is not None:
            weights = [tuned(args, runs, qrels)]
        fused = interpolate(runs, [1.0, *weights], normalise=args.normalise or "none", missing=args.missing, k=args.k)
    if args.out is not None:
        write_trec(args.out, fused)
        say_written(args.out, f"{sum(map(len, fused.values()))} hits of {len(fused)} questions")


def check_arguments(args: argparse.Namespace) -> None:
    """Raises UsageError unless the arguments say exactly one thing to do."""
    if len(args.runs) < 2:
        raise UsageError("one run alone cannot be fused; give at least two")
    if args.method == "rrf":
        given = {
            "--weight": args.weights,
            "--normalise": args.normalise,
            "--missing": args.missing,
            "--tune": args.tune,
        }
        if superfluous := next((name for name, value in given.items() if value is not None), None):
            raise UsageError(f"{superfluous} belongs to --method interpolation; leave it out: rrf looks at ranks alone")
    elif args.tune is not None:
        if args.weights is not None:
            raise UsageError("--tune finds the weight; leave --weight out")
        if len(args.runs) != 2:
            raise UsageError(f"--tune finds the one weight of two runs, not {len(args.runs)}; fuse them step by step")
    elif len(args.weights or ()) != len(args.runs) - 1:
        raise UsageError(
            f"{len(args.weights or ())} weights for {len(args.runs) - 1} runs besides the first; give --weight once for "
            "each of them, or find it with --tune QRELS"
        )
    if args.missing is not None and len(args.missing) != len(args.runs):
        raise UsageError(
            f"--missing is given {len(args.missing)} times for {len(args.runs)} runs; give it once for each run, in "
            "their order"
        )
    if args.tune is None:
        given = {"--metric": args.metric, "--grid": args.grid}
        if superfluous := next((name for name, value in given.items() if value is not None), None):
            raise UsageError(f"{superfluous} belongs to --tune QRELS; leave it out")
        if args.out is None:
            raise UsageError("give --out FUSED, the run to write")


def warn_of_other_questions(runs: Sequence[Run], names: Sequence[str]) -> None:
    """Says which run lacks questions that another one has."""
    questions = dict.fromkeys(name for found in runs for name in found)
    for found, name in zip(runs, names, strict=True):
        if missing := [question_id for question_id in questions if question_id not in found]:
            log.warning(
                "%s lacks %d of %d questions (%s, ...): the other runs alone rank their passages",
                *(name, len(missing), len(questions), missing[0]),
            )


def warn_of_short_lists(runs: Sequence[Run], names: Sequence[str]) -> None:
    """Says which run has lists of different lengths, as BM25 has where few passages share a word with the question."""
    for number, (found, name) in enumerate(zip(runs, names, strict=True)):
        longest = max(map(len, found.values()), default=0)
        if short := sum(0 < len(hits) < longest for hits in found.values()):
            of_each = " ".join(f"--missing {'zero' if run == number else 'lowest'}" for run in range(len(runs)))
            log.warning(
                "%s has fewer than %d hits for %d of %d questions; what it lacks there gets its lowest score. If it is "
                "BM25's, whose score of all others is 0, add %s",
                *(name, longest, short, len(found), of_each),
            )


def tuned(args: argparse.Namespace, runs: Sequence[Run], qrels: Mapping[str, Mapping[str, int]]) -> float:
    """The best weight of the second run; prints the table."""
    metric = args.metric or "recall@100"
    normalise = args.normalise or "none"

    def evaluate(weights: Sequence[float]) -> dict[float, Mapping[str, float]]:
        found = {}
        for weight in weights:
            if weight == 0:
                fused: Run = runs[0]
            elif math.isinf(weight):
                fused = runs[1]
            else:
                fused = interpolate(runs, [1.0, weight], normalise=normalise, missing=args.missing, k=depth((metric,)))
            found[weight] = of_qrels(qrels, fused, (metric,))[metric]
        return found

    curve = trace(
        evaluate,
        args.grid or "log",
        lambda: balancing_weight(scores_of_both(runs, normalise, args.missing)),
        metric=metric,
        systems=(args.runs[0], args.runs[1]),
    )
    print(curve.as_table())
    return curve.choice.weight


def scores_of_both(
    runs: Sequence[Run], normalise: Normalise, missing: Sequence[Missing] | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields each question's scores by both runs, of all passages that either has."""
    first, second = (
        interpolate(runs, weights, normalise=normalise, missing=missing) for weights in ((1.0, 0.0), (0.0, 1.0))
    )
    for question_id in (name for name in runs[0] if runs[0][name] and runs[1].get(name)):
        names = list(first[question_id])
        yield tuple(np.array([scores[question_id][name] for name in names]) for scores in (first, second))  # pyright: ignore[reportReturnType]
