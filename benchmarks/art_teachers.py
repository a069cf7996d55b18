"""ART with two kinds of teacher, in equal steps: the small T5 that ships with the package, and a cross-encoder.

    python benchmarks/art_teachers.py --cross-encoder FOLDER --data DATA --runs runs/art_teachers --seeds 0 1 2
    python benchmarks/art_teachers.py --cross-encoder FOLDER --embedded      # the package's own passages and questions

Runs of configs/art_small.py on the train questions of DATA/wiki_qa, from the small encoder; only the teacher differs, and its
temperature, for a cross-encoder's logits are further apart than a T5's log-probabilities. No judgement is read, and the last
step's model is measured. What is finished is not repeated. Prints the test questions' metrics before and after, mean and
standard deviation over the seeds, with paired tests, and the seconds of a step.
"""

import argparse
import os
import statistics
from pathlib import Path

from art_encoders import Bed, compare_arms, run_folder
from machine import describe
from tables import cell

from jaxretr.assets import QUICKSTART
from jaxretr.training.metrics_log import read_metrics

T5, CROSS_ENCODER = "T5", "cross-encoder"


def seconds_per_step(run: Path) -> float:
    """Of a finished run, without its first step, which is compiled; a refresh of the index counts among them."""
    lines = read_metrics(run)
    return sum(line.get("seconds/steps", 0.0) for line in lines) / max(1, lines[-1]["step"] - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cross-encoder", type=Path, required=True, help="a folder of one, best of the T5's size")
    parser.add_argument("--temperature", type=float, default=1.0, help="that divides the cross-encoder's logits")
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a question and a passage in its row")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("JAXRETR_DATA", "data")))
    parser.add_argument("--embedded", action="store_true", help="the package's own passages and questions instead")
    parser.add_argument("--runs", type=Path, default=Path("runs/art_teachers"))
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--settings", nargs=argparse.REMAINDER, default=[], help="further settings of every run, last")
    args = parser.parse_args()
    steps = ("--train.steps", str(args.steps))
    bed = (
        Bed("embedded", QUICKSTART, "train", ("test",), steps)
        if args.embedded
        else Bed("wiki_qa", args.data / "wiki_qa", "train", ("squad", "tydi"), steps)
    )
    # A T5 reads the question apart from the passage, a cross-encoder in the same row.
    cross_encoder = ("--scorer.path", str(args.cross_encoder), "--scorer.max-length", str(args.max_length))
    arms = {
        T5: (),
        CROSS_ENCODER: (*cross_encoder, "--art.teacher-temperature", str(args.temperature)),
    }
    compare_arms(bed, arms, args)
    print()
    for arm in arms:
        seconds = [seconds_per_step(run_folder(bed, arm, seed, args)) for seed in args.seeds]
        print(f"{arm}: {cell(seconds, 2)} s a step (median {statistics.median(seconds):.2f})")
    print(describe())


if __name__ == "__main__":
    main()
