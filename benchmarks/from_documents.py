"""`jaxretr adapt documents` measured on people's questions: the model before and after, and BM25, over several seeds.

    python benchmarks/from_documents.py --data DATA --generator smollm2 --runs runs/documents

2,500 passages of MedQuAD with 1,000 of its questions, of SciFact with all its test claims, and the 800 passages about nervous
disorders of notebooks/medquad with their 350 questions; nothing is trained on these or chosen by them. The package's small
encoder (or --model) learns from a causal language model's questions about --asked of the passages; each seed draws other
questions. What is finished is not repeated. Prints the test questions' metrics, mean and standard deviation over the seeds,
and paired tests.
"""

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from once import Values, encoded, kept, last_of, values_of
from parts import divided, part_of
from tables import cell, difference, markdown

from jaxretr.assets import ENCODER_SMALL
from jaxretr.evaluate.searches import bm25_search
from jaxretr.models.dual_encoder import DualEncoder

METRICS = ("recall@20", "mrr@10", "ndcg@10")
PASSAGES, TEST = 2500, 1000
DISORDERS = Path(__file__).parents[1] / "notebooks/medquad"
SETS = ("medquad", "scifact", "disorders")


def part(name: str, args: argparse.Namespace) -> Path:
    """The passages of one data set, and its test questions."""
    if name == "medquad":
        return divided(args.data / name, args.runs / name, PASSAGES, {"test": TEST}, "rest")
    if name == "disorders":
        return DISORDERS
    return part_of(args.data / name, args.runs / name, ["test"], PASSAGES)


def adapted(name: str, folder: Path, seed: int, args: argparse.Namespace) -> Path:
    """Adapts the model, unless that has been done; returns the folder of the new one."""
    out = args.runs / f"{name}_{args.model.name}_{seed}"
    if not (out / "report.json").exists():
        models = ("--model", args.model, "--generator", args.generator, "--passages", args.asked, "--seed", seed)
        options = last_of([*models, "--prompt-length", 256, "--max-length", 128, *args.settings])
        words = ["adapt", "documents", str(folder), "--out", str(out), *options]
        print("$ jaxretr", *words, file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "jaxretr", *words], check=True)
    report = json.loads((out / "report.json").read_text())
    minutes = {name: round(seconds / 60, 1) for name, seconds in report["seconds"].items()}
    print(
        f"seed {seed}: {report['questions']} questions, step {report['best_step']} of {report['steps']}, minutes {minutes}"
    )
    return out / "model"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("JAXRETR_DATA", "data")))
    parser.add_argument("--runs", type=Path, default=Path("runs/documents"))
    parser.add_argument("--generator", type=Path, required=True, help="a causal language model's or T5's folder")
    parser.add_argument("--model", type=Path, default=ENCODER_SMALL, help="the encoder to adapt")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--asked", type=int, default=500, help="passages that are asked about")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--settings", nargs=argparse.REMAINDER, default=[], help="further options of `adapt documents`, last"
    )
    args = parser.parse_args()
    for name in args.sets:
        print(f"## {name}\n")
        compare(name, part(name, args), args)


def compare(name: str, folder: Path, args: argparse.Namespace) -> None:
    """Measures the model before and after, and BM25, on one data set; prints the table and the tests."""

    def measured(system: str, model: Path | None) -> dict[str, dict[str, float]]:
        search = bm25_search if model is None else encoded(partial(DualEncoder.from_pretrained, model))
        find = partial(values_of, search, folder, ("test",), METRICS)
        found: Values = kept(args.runs / "measured" / f"{name}_{system}.json", find)
        return found["test"]

    systems = {
        "BM25": [measured("BM25", None)],
        "before": [measured(args.model.name, args.model)],
        "after": [measured(f"{args.model.name}_{seed}", adapted(name, folder, seed, args)) for seed in args.seeds],
    }
    means = {
        system: [cell([100 * sum(one[metric].values()) / len(one[metric]) for one in of_seeds]) for metric in METRICS]
        for system, of_seeds in systems.items()
    }
    print(markdown(METRICS, means) + "\n")
    for other in ("before", "BM25"):
        for metric in METRICS:
            first, second = ([one[metric] for one in systems[system]] for system in ("after", other))
            print(f"after - {other}, {metric}: {difference(first, second)}")


if __name__ == "__main__":
    main()
