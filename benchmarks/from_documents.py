"""`jaxretr adapt documents` measured on people's questions: the model before and after, and BM25, over several seeds.

    python benchmarks/from_documents.py --data DATA --generator smollm2 --runs runs/documents

2,500 passages of MedQuAD, and 1,000 of its questions, which nothing is trained on or chosen by. The package's small encoder (or
--model) learns from a causal language model's questions about --asked of the passages; each seed draws other questions. What
is finished is not repeated. Prints the test questions' metrics, mean and standard deviation over the seeds, and paired tests.
"""

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from once import Values, encoded, kept, last_of, values_of
from parts import divided
from tables import cell, difference, markdown

from jaxretr.assets import ENCODER_SMALL
from jaxretr.evaluate.searches import bm25_search
from jaxretr.models.dual_encoder import DualEncoder

METRICS = ("recall@20", "mrr@10", "ndcg@10")
PASSAGES, TEST = 2500, 1000


def adapted(seed: int, args: argparse.Namespace) -> Path:
    """Adapts the model, unless that has been done; returns the folder of the new one."""
    out = args.runs / f"{args.model.name}_{seed}"
    if not (out / "report.json").exists():
        models = ("--model", args.model, "--generator", args.generator, "--passages", args.asked, "--seed", seed)
        options = last_of([*models, "--prompt-length", 256, "--max-length", 128, *args.settings])
        words = ["adapt", "documents", str(args.folder), "--out", str(out), *options]
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
    parser.add_argument("--asked", type=int, default=500, help="passages that are asked about")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--settings", nargs=argparse.REMAINDER, default=[], help="further options of `adapt documents`, last"
    )
    args = parser.parse_args()
    args.folder = divided(args.data / "medquad", args.runs / "medquad", PASSAGES, {"test": TEST}, "rest")

    def measured(name: str, model: Path | None) -> dict[str, dict[str, float]]:
        search = bm25_search if model is None else encoded(partial(DualEncoder.from_pretrained, model))
        find = partial(values_of, search, args.folder, ("test",), METRICS)
        found: Values = kept(args.runs / "measured" / f"{name}.json", find)
        return found["test"]

    systems = {
        "BM25": [measured("BM25", None)],
        "before": [measured(args.model.name, args.model)],
        "after": [measured(f"{args.model.name}_{seed}", adapted(seed, args)) for seed in args.seeds],
    }
    means = {
        name: [cell([100 * sum(one[metric].values()) / len(one[metric]) for one in of_seeds]) for metric in METRICS]
        for name, of_seeds in systems.items()
    }
    print(markdown(METRICS, means) + "\n")
    for other in ("before", "BM25"):
        for metric in METRICS:
            first, second = ([one[metric] for one in systems[name]] for name in ("after", other))
            print(f"after - {other}, {metric}: {difference(first, second)}")


if __name__ == "__main__":
    main()
