"""The quickstart with several seeds: means and standard deviations of its tables, and how long each took.

    python benchmarks/quickstart_seeds.py --seeds 0 1 2 --runs runs/quickstart_seeds

Seeds that are finished are not repeated. The machine is printed with its load: times of a busy one mean nothing.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
from tables import cell, markdown

MEASURES = ("recall@5", "recall@20", "recall@100", "mrr@10", "ndcg@10")
OF_HARDER = ("recall@20", "mrr@10")


def run(seed: int, runs: Path, steps: int | None) -> dict[str, Any]:
    """The results of one seed, with the seconds that it took; run now, or before."""
    workdir = runs / f"seed{seed}"
    taken = workdir / "seconds.json"
    if not taken.exists():
        words = ["quickstart", "--workdir", str(workdir), "--seed", str(seed)]
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "jaxretr", *words, *([] if steps is None else ["--steps", str(steps)])], check=True
        )
        taken.write_text(json.dumps(time.monotonic() - began))
    return {**json.loads((workdir / "results.json").read_text()), "seconds": json.loads(taken.read_text())}


def table(first: str, columns: Sequence[str], rows: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """A Markdown table in percent, one list of the seeds' values a cell."""
    cells = {name: [cell([100 * value for value in values]) for values in of_row] for name, of_row in rows.items()}
    return markdown(columns, cells, first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/quickstart_seeds"))
    parser.add_argument("--steps", type=int, help="of both ART runs (default: the config's)")
    args = parser.parse_args()

    print(machine.describe(), flush=True)
    found = [run(seed, args.runs, args.steps) for seed in args.seeds]
    rows = {name: [[each["test"][name][m] for each in found] for m in MEASURES] for name in found[0]["test"]}
    print("\n" + table(f"{len(found)} seeds", MEASURES, rows))
    harder, systems = (
        found[0]["harder"],
        [name for name in next(iter(found[0]["harder"].values())) if name != "questions"],
    )
    of_harder = {
        f"{content['questions']} {name}": [
            [each["harder"][name][system][measure] for each in found] for system in systems for measure in OF_HARDER
        ]
        for name, content in harder.items()
    }
    columns = [f"{system}: {measure}" for system in systems for measure in OF_HARDER]
    print("\n" + table("questions", columns, of_harder))
    print("\nlexical weight: " + ", ".join(f"{each['lexical_weight']:g}" for each in found))
    print("seconds: " + ", ".join(f"{each['seconds']:.0f}" for each in found))


if __name__ == "__main__":
    main()
