"""A rolling refresh of the live index against a full one every R steps, at equal encoding work.

    python benchmarks/rolling_refresh.py --runs runs/rolling                    # the embedded passages and questions
    python benchmarks/rolling_refresh.py --data DATA --runs runs/rolling        # the whole of DATA/wiki_qa

Runs of configs/art_small.py from the small encoder, which read no judgement. Each takes rounds x R + 1 steps: a full refresh
before steps R, 2R, ... then encodes the corpus as often as slices before all steps but the first do. A third arm never
refreshes its index, and shows what refreshing is worth at all. The last step's model is measured. What is finished is not
repeated. Prints the test questions' metrics, mean and standard deviation over the seeds, with paired tests, the work, the ages
and the seconds of processor time of a step (a busy machine changes them less than the clock's), and draws the first seed's
step times and ages.
"""

import argparse
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
from art_encoders import BLIND, CONFIG, METRICS, Bed
from machine import describe
from once import encoded, kept, last_of, values_of
from tables import cell, difference, markdown

from jaxretr.assets import QUICKSTART
from jaxretr.config import ArtConfig, load
from jaxretr.evaluate import plots
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.runs.art import ArtRun
from jaxretr.training.runs.encoder_start import load_encoder

FULL, ROLLING, NEVER = "full", "rolling", "never"
START = "the encoder as it comes"
AGES = {
    "staleness": "mean of the corpus",
    "staleness_max": "oldest row",
    "staleness_retrieved": "mean of what was found",
}

# One step: {"processor": seconds, "clock": seconds, "encoded": share of the corpus, metric: value}
Steps = list[dict[str, float]]


def settings_of(bed: Bed, arm: str, seed: int, args: argparse.Namespace) -> list[str]:
    """Those of a run, as they are typed."""
    steps = args.rounds * args.every + 1
    every = 10 * steps if arm == NEVER else args.every
    refresh = ROLLING if arm == ROLLING else FULL
    words = (
        *("--data.corpus", bed.folder, "--data.questions", bed.folder, "--data.questions-split", bed.questions),
        *(*BLIND, "--data.token-cache", args.runs / "tokens", "--train.seed", seed),
        *("--train.steps", steps, "--train.batch-size", 8, "--optimizer.learning-rate", 3e-4),
        *("--index.refresh", refresh, "--index.refresh-every", every, *bed.settings, *args.settings),
    )
    return last_of(words)


def trained(bed: Bed, arm: str, seed: int, args: argparse.Namespace) -> tuple[Path, Steps]:
    """Trains a run to its end, unless that has been done; returns its folder, and what its steps reported."""
    folder = args.runs / f"{bed.name}_{arm}_{seed}"
    return folder, kept(folder / "steps.json", partial(train, settings_of(bed, arm, seed, args), folder))


def train(settings: list[str], folder: Path) -> Steps:
    """Runs all steps one by one, and saves the model."""
    config = load(CONFIG, settings)
    assert isinstance(config, ArtConfig)
    run = ArtRun(config, make_mesh(), folder)
    encoded_now = count_encoding(run)
    state = jax.block_until_ready(run.init())
    steps: Steps = []
    for number in range(config.train.steps):
        batch = run.batch(number)
        encoded_now.clear()
        processor, clock = time.process_time(), time.perf_counter()
        state, values = jax.block_until_ready(run.step(state, number, batch))
        taken = {"processor": time.process_time() - processor, "clock": time.perf_counter() - clock}
        metrics = {name: float(value) for name, value in values.items()}
        steps.append({**taken, "encoded": sum(encoded_now), **metrics})
    run.save_model(state, folder / "model")
    return steps


def count_encoding(run: ArtRun) -> list[float]:
    """A list that gets the share of the corpus of each refresh."""
    shares: list[float] = []
    whole: Any = run.whole
    refresh, roll = whole.refresh_program, whole.roll

    def counted_refresh(*arguments: Any) -> Any:
        shares.append(1.0)
        return refresh(*arguments)

    def counted_roll(train: Any, index: Any, every: int) -> Any:
        shares.append(1 / every)
        return roll(train, index, every)

    whole.refresh_program, whole.roll = counted_refresh, counted_roll
    return shares


def draw(path: Path, arms: dict[str, Steps]) -> None:
    """Step times above ages, a column for each arm."""
    figure, axes = plots.pyplot().subplots(
        2, len(arms), figsize=(9, 5), sharex=True, sharey="row", layout="constrained"
    )
    for (name, steps), (times, ages) in zip(arms.items(), axes.T, strict=True):
        numbers = range(1, len(steps))
        # The first step compiles, and the first with a refresh of its kind too.
        times.plot(numbers, [step["processor"] for step in steps[1:]], color="C0", linewidth=1.2)
        for number, (metric, label) in enumerate(AGES.items()):
            ages.plot(numbers, [step[metric] for step in steps[1:]], color=f"C{number}", linewidth=1.2, label=label)
        times.set_title({FULL: "all of it every R steps", ROLLING: "a slice before every step"}[name], fontsize=11)
        ages.set_xlabel("step")
    axes[0, 0].set_ylabel("processor seconds of a step")
    axes[0, 0].set_ylim(bottom=0)
    axes[1, 0].set_ylabel("age in steps")
    axes[1, 1].legend(fontsize=8)
    for one in axes.flat:
        one.grid(alpha=0.25)
        one.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    plots.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("JAXRETR_DATA"), help="a folder with wiki_qa")
    parser.add_argument("--runs", type=Path, default=Path("runs/rolling"))
    parser.add_argument("--every", type=int, default=12, help="R")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--plot", type=Path, help="the picture; default: RUNS/refresh.png")
    parser.add_argument("--settings", nargs=argparse.REMAINDER, default=[], help="further settings of every run, last")
    args = parser.parse_args()
    bed = (
        Bed("wiki_qa", Path(args.data) / "wiki_qa", "train", ("squad", "tydi"))
        if args.data
        else Bed("embedded", QUICKSTART, "train", ("test",))
    )
    measured: dict[str, list[dict[str, dict[str, float]]]] = {}
    steps: dict[str, list[Steps]] = {}

    def measure(name: str, file: str, load_model: Any) -> None:
        of_splits = kept(
            args.runs / "measured" / f"{bed.name}_{file}.json",
            lambda: values_of(encoded(load_model), bed.folder, bed.tests, METRICS),
        )
        merged = {
            metric: {question: value for split in of_splits.values() for question, value in split[metric].items()}
            for metric in METRICS
        }
        measured.setdefault(name, []).append(merged)

    start = load(CONFIG, last_of([*bed.settings, *args.settings]))
    assert isinstance(start, ArtConfig)
    measure(START, "start", lambda: load_encoder(start.encoder))
    for seed in args.seeds:
        for arm in (FULL, ROLLING, NEVER):
            folder, of_run = trained(bed, arm, seed, args)
            steps.setdefault(arm, []).append(of_run)
            measure(arm, folder.name, partial(DualEncoder.from_pretrained, folder))

    asked = len(measured[START][0][METRICS[0]])
    print(f"\n{bed.name}: {asked} test questions, {len(args.seeds)} seeds, R = {args.every}\n")
    rows = {
        name: [cell([100 * statistics.fmean(values[metric].values()) for values in of_seeds]) for metric in METRICS]
        for name, of_seeds in measured.items()
    }
    print(markdown(METRICS, rows) + "\n")
    for first, second in ((ROLLING, FULL), (ROLLING, NEVER), (FULL, NEVER), (FULL, START)):
        for metric in ("recall@20", "mrr@10"):
            pair = ([values[metric] for values in measured[arm]] for arm in (first, second))
            print(f"{first} - {second}, {metric}: {difference(*pair)}")
    print()
    work = {arm: work_of(runs) for arm, runs in steps.items()}
    print(markdown(list(work[FULL]), {arm: list(cells.values()) for arm, cells in work.items()}))
    print(describe())
    draw(args.plot or args.runs / "refresh.png", {arm: steps[arm][0] for arm in (FULL, ROLLING)})


def work_of(runs: list[Steps]) -> dict[str, str]:
    """What the steps of an arm's runs took and how old its index was, mean and standard deviation over the seeds.

    Without each run's first two steps with a refresh of its kind, which may compile.
    """
    timed = []
    for run in runs:
        first = next((number for number, step in enumerate(run) if number and step["encoded"]), 0)
        timed.append([step["processor"] for number, step in enumerate(run) if number not in (0, first)])
    return {
        "corpus encoded, times": cell([sum(step["encoded"] for step in run) for run in runs]),
        "processor s of a step, median": cell([statistics.median(times) for times in timed], 2),
        "longest": cell([max(times) for times in timed], 2),
        "all": cell([sum(times) for times in timed]),
        **{
            f"{label}, age": cell([statistics.fmean(step[metric] for step in run) for run in runs])
            for metric, label in AGES.items()
        },
        "oldest of all": cell([max(step["staleness_max"] for step in run) for run in runs], 0),
    }


if __name__ == "__main__":
    main()
