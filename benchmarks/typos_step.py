"""What misspelt questions cost a training step: without, one form a question, and 40 of them, interleaved in one run.

    python benchmarks/typos_step.py
    python benchmarks/typos_step.py --passages 8 --batch-size 16

The runs are configs/typos_small.py on the data that ships with the package; each question has a positive and
`--passages` - 1 negatives, which are retrieved in the step. Whole steps are timed as the trainer runs them: the batch made
on the host (typos are drawn and tokenised there, ahead of time in a thread), the copy to the devices, the compiled step.
The refresh of the index is left out. Prints seconds a step, the ratio to the step without typos round by round (median,
lowest and highest), and what the host alone takes for a batch.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
from machine import describe
from once import last_of

from jaxretr.config import ContrastiveConfig, load
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.runs.contrastive import ContrastiveRun

ROOT = Path(__file__).parents[1]
OFF = ["--typos.contrast-weight", "0", "--typos.passage-weight", "0"]
MULTI_POSITIVE = [
    *OFF,
    *("--contrastive.symmetric", "--typos.multi-positive", "--typos.clean-weight", "0.5"),
    *("--typos.self-teaching-weight", "0.4", "--typos.passage-self-teaching-weight", "0.1"),
]


def arms(variants: int) -> dict[str, list[str]]:
    """Settings by name; the first is what the others are compared with."""
    return {
        "without": OFF,
        "one form, fresh": [],
        "one form, pre-drawn": ["--typos.pre-drawn", "8"],
        f"{variants} forms, fresh": [*MULTI_POSITIVE, "--typos.variants", str(variants)],
        f"{variants} forms, pre-drawn": [
            *(*MULTI_POSITIVE, "--typos.variants", str(variants), "--typos.pre-drawn", str(variants)),
        ],
    }


class Timed:
    """A run that is stepped from time to time."""

    def __init__(self, words: list[str], args: argparse.Namespace, workdir: Path):
        settings = ["--data.dev", "None", "--data.dev-questions", "None"]
        settings += ["--negatives.retrieved", str(args.passages - 1), "--train.batch-size", str(args.batch_size)]
        settings += ["--data.token-cache", str(workdir)]
        config = load(ROOT / "configs/typos_small.py", last_of([*settings, *words, *args.settings]))
        assert isinstance(config, ContrastiveConfig)
        self.run = ContrastiveRun(config, make_mesh(), workdir)
        self.state: Any = self.run.init()
        self.number = 0
        self.times: list[float] = []
        self.steps(2)  # compiles
        self.times.clear()

    def steps(self, count: int) -> None:
        """Runs some steps and notes the mean time."""
        began = time.perf_counter()
        for _ in range(count):
            self.state, values = self.run.step(self.state, self.number, self.run.batch(self.number))
            self.number += 1
        jax.block_until_ready((self.state, values))
        self.times.append((time.perf_counter() - began) / count)

    def host_ms(self) -> float:
        """Milliseconds that a batch takes on the host, by the processor's clock of this thread."""
        began = time.thread_time()
        for number in range(1000, 1010):
            self.run._on_host(number)
        return (time.thread_time() - began) * 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=2, help="of each question (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--variants", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="a round")
    parser.add_argument("--settings", nargs=argparse.REMAINDER, default=[], help="further settings, last")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        runs = {name: Timed(words, args, Path(folder)) for name, words in arms(args.variants).items()}
        for _ in range(args.rounds):
            for run in runs.values():
                run.steps(args.steps)
        base = next(iter(runs.values())).times
        device = jax.devices()[0].device_kind
        print(f"{describe()}; jax {jax.__version__} on {jax.device_count()} x {device}")
        print(f"batches of {args.batch_size} questions with {args.passages} passages each")
        for name, run in runs.items():
            ratios = [time / of_base for time, of_base in zip(run.times, base, strict=True)]
            print(
                f"{name:<24}{statistics.median(run.times):8.3f} s a step, {statistics.median(ratios):5.2f} times "
                f"({min(ratios):.2f} - {max(ratios):.2f}); on the host {run.host_ms():6.1f} ms"
            )


if __name__ == "__main__":
    main()
