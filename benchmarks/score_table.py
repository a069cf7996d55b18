"""What the table of the teacher's scores saves: ART with it and without it, over epochs of the same questions.

    python benchmarks/score_table.py                                              # the package's passages and questions
    python benchmarks/score_table.py --data DATA/wiki_qa --questions 1024 --plot score_table.png

Two runs of configs/art_small.py in one process, a step of one and a step of the other in turns, on the same questions in the
same order; they differ in `table.capacity` alone. Prints for each epoch the share of pairs that the table knew, blocks of the
teacher, and seconds by wall clock and of CPU, and how far the losses of the two runs are apart.
"""

import argparse
import dataclasses
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from machine import describe
from tables import markdown

from jaxretr.assets import QUICKSTART

ARMS = {"with": 256, "without": 0}


class Step(NamedTuple):
    """One step of one run."""

    loss: float
    hits: float
    blocks: float
    wall: float
    cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=QUICKSTART, help="a BEIR folder (default: the package's)")
    parser.add_argument("--split", default="train", help="whose questions are learnt from")
    parser.add_argument("--questions", type=int, default=512, help="the first so many of the split")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--plot", type=Path, help="a picture of hits and seconds by step: .png, .pdf or .svg")
    parser.add_argument("--settings", nargs=argparse.REMAINDER, default=[], help="further settings of both runs, last")
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    print(describe())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        some_questions(args.data, args.split, args.questions, folder / "data")
        found = [epochs_of(folder, seed, args) for seed in args.seeds]
    print(table(found))
    apart = [
        abs(ours.loss - theirs.loss) / theirs.loss
        for of_seed in found
        for pair in zip(*of_seed.values(), strict=True)
        for ours, theirs in zip(*pair, strict=True)
    ]
    print(f"losses apart by {max(apart):.1e} at most, {statistics.median(apart):.1e} in the median, relative")
    print(describe())
    if args.plot is not None:
        plot(found[0], args.plot)


def some_questions(source: Path, split: str, count: int, folder: Path) -> None:
    """A BEIR folder with the source's passages and questions, whose split names the first `count` questions."""
    (folder / "qrels").mkdir(parents=True)
    for path in (*source.glob("corpus.jsonl*"), *source.glob("queries.jsonl*")):
        os.symlink(path.absolute(), folder / path.name)
    head, *rows = (source / f"qrels/{split}.tsv").read_text().splitlines()
    ids = list(dict.fromkeys(row.split("\t")[0] for row in rows))[:count]
    kept = [row for row in rows if row.split("\t")[0] in set(ids)]
    (folder / f"qrels/{split}.tsv").write_text("\n".join([head, *kept]) + "\n")


def epochs_of(folder: Path, seed: int, args: argparse.Namespace) -> dict[str, list[list[Step]]]:
    """Both runs, step by step in turns; the steps of each epoch."""
    from jaxretr.config import override
    from jaxretr.quickstart.configs import config
    from jaxretr.runtime.parallel.mesh import make_mesh
    from jaxretr.training.runs.art import ArtRun

    data = {"corpus": str(folder / "data"), "questions": str(folder / "data"), "questions_split": args.split}
    begun = config(str(folder))
    some = dataclasses.replace(begun.data, **data, dev_questions=None, dev_qrels=None)
    per_epoch = args.questions // begun.train.batch_size
    train = dataclasses.replace(begun.train, steps=args.epochs * per_epoch, seed=seed)
    chosen: Any = override(dataclasses.replace(begun, data=some, train=train), args.settings)
    per_epoch = args.questions // chosen.train.batch_size
    runs, states = {}, {}
    for name, capacity in ARMS.items():
        of_arm = dataclasses.replace(chosen, table=dataclasses.replace(chosen.table, capacity=capacity))
        workdir = folder / f"{name}-{seed}"
        shutil.rmtree(workdir, ignore_errors=True)
        workdir.mkdir()
        runs[name] = ArtRun(of_arm, make_mesh(), workdir)
        states[name] = runs[name].init()
    first = next(iter(runs.values()))
    print(
        f"seed {seed}: {len(first.corpus)} passages, {len(first.questions)} questions, batches of "
        f"{chosen.train.batch_size} with {first.program.top_k} passages, {per_epoch} steps an epoch, refreshed every "
        f"{chosen.index.refresh_every}; rows of the teacher padded to {first.program.teaching.widths.rows}"
    )
    epochs: dict[str, list[list[Step]]] = {name: [[] for _ in range(args.epochs)] for name in ARMS}
    for number in range(args.epochs * per_epoch):
        # The one that waited for the other is first the next time.
        for name in sorted(ARMS, reverse=bool(number % 2)):
            states[name], step = timed(runs[name], states[name], number)
            epochs[name][number // per_epoch].append(step)
    return epochs


def timed(run: Any, state: Any, number: int) -> tuple[Any, Step]:
    """One step of a run; refreshes of the index are not timed, for both runs make the same ones."""
    import jax

    batch = run.batch(number)
    state = jax.block_until_ready(run.refreshed(state, number))
    wall, cpu = time.perf_counter(), time.process_time()
    state, values = run.step(state, number, batch)
    metrics = {name: float(value) for name, value in values.items()}
    jax.block_until_ready(state)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return state, Step(metrics["loss"], metrics["teacher_hits"], metrics["teacher_blocks"], wall, cpu)


def table(found: list[dict[str, list[list[Step]]]]) -> str:
    """Each epoch's hits, blocks and seconds: means over its steps, and over the seeds."""
    rows = {}
    for epoch in range(len(found[0]["with"])):
        ours, theirs = ([step for of_seed in found for step in of_seed[name][epoch]] for name in ARMS)
        if epoch == 0:
            # The first step of each run is compiled.
            ours, theirs = ([step for of_seed in found for step in of_seed[name][0][1:]] for name in ARMS)
        ratios = [
            sum(step.wall for step in of_seed["without"][epoch][1:])
            / sum(step.wall for step in of_seed["with"][epoch][1:])
            for of_seed in found
        ]
        rows[str(epoch + 1)] = [
            f"{100 * mean(ours, 'hits'):.1f}%",
            f"{mean(ours, 'blocks'):.1f} / {mean(theirs, 'blocks'):.1f}",
            f"{mean(ours, 'wall'):.3f} / {mean(theirs, 'wall'):.3f}",
            f"{mean(ours, 'cpu'):.3f} / {mean(theirs, 'cpu'):.3f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        ]
    names = ["hits", "blocks a step, with / without", "seconds a step", "seconds of CPU", "times as fast by wall clock"]
    return markdown(names, rows, "epoch")


def mean(steps: list[Step], name: str) -> float:
    return statistics.fmean(getattr(step, name) for step in steps)


def plot(epochs: dict[str, list[list[Step]]], path: Path) -> None:
    """Hits and seconds of every step but the first."""
    from jaxretr.evaluate.plots import pyplot, save

    figure, (above, below) = pyplot().subplots(2, 1, sharex=True, figsize=(7, 5), layout="constrained")
    for name, color in (("with", "C0"), ("without", "C1")):
        steps = [step for epoch in epochs[name] for step in epoch][1:]
        places = range(2, len(steps) + 2)
        if name == "with":
            above.plot(places, [100 * step.hits for step in steps], color=color)
        below.plot(places, [step.wall for step in steps], color=color, label=f"{name} the table")
    for begin in range(len(epochs["with"][0]), len(epochs["with"]) * len(epochs["with"][0]), len(epochs["with"][0])):
        for axes in (above, below):
            axes.axvline(begin + 0.5, color="0.8", zorder=0)
    above.set(ylabel="pairs that the table knew, %", ylim=(-3, 103))
    below.set(xlabel="step; the lines are the ends of epochs", ylabel="seconds", ylim=(0, None))
    below.legend(frameon=False)
    save(figure, path)


if __name__ == "__main__":
    main()
