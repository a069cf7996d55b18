"""DPR on wiki_qa: in-batch negatives alone, BM25-mined ones, and negatives retrieved in the step, at equal steps.

    jaxretr mine --corpus DATA/wiki_qa --train DATA/wiki_qa --out runs/dpr/bm25.jsonl
    python benchmarks/dpr_wiki_qa.py --data DATA/wiki_qa --mined runs/dpr/bm25.jsonl --runs runs/dpr --seeds 0 1 2

DATA/wiki_qa is a BEIR folder with the splits train, dev, squad and tydi. Every arm is a run of configs/dpr_small.py with
a few settings changed; finished runs are not repeated. Then each model encodes the whole corpus once and searches it for
the questions of every split, none of which was trained on; dev is what the best checkpoint was picked by. Prints recall@20
and MRR@10, mean and standard deviation over the seeds, and paired tests between arms on the questions' means over the
seeds. `--also NAME=MODEL` measures further models (the initial encoder, an ART run).
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jaxretr.config import load
from jaxretr.data.corpus import Corpus
from jaxretr.data.readers import read_beir
from jaxretr.evaluate import metrics
from jaxretr.evaluate.retrieval import Retriever, dense_retriever
from jaxretr.evaluate.significance import compare
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.recipes.encoder_start import load_encoder
from jaxretr.search.bm25 import Bm25Index

# split -> metric -> question -> value
Values = dict[str, dict[str, dict[str, float]]]

ROOT = Path(__file__).parents[1]
SPLITS = ("squad", "tydi", "dev")
METRICS = ("recall@20", "mrr@10")
ARMS = {
    "in-batch": ["--negatives.retrieved", "0"],
    "BM25-mined": ["--negatives.retrieved", "0", "--negatives.mined", "1", "--data.mined", "{mined}"],
    "retrieved in the step": ["--negatives.retrieved", "1"],
}
# Evaluated at the end alone, with the index encoded again once: the runs' time goes into steps.
SHARED = ["--train.eval-every", "200", "--index.refresh-every", "100"]
COMPARED = (
    ("BM25-mined", "in-batch"),
    ("retrieved in the step", "in-batch"),
    ("retrieved in the step", "BM25-mined"),
)


def train(arm: str, seed: int, args: argparse.Namespace) -> Path:
    """Runs one arm to its end, unless that has been done; returns its folder."""
    workdir = args.runs / f"{arm.replace(' ', '_')}_{seed}"
    words = [word.format(mined=args.mined) for word in ARMS[arm]]
    shared = [*SHARED, "--data.token-cache", str(args.runs / "tokens"), "--train.seed", str(seed)]
    command = [sys.executable, "-m", "jaxretr", "train", str(args.config), "--workdir", str(workdir)]
    environment = {**os.environ, "JAXRETR_DATA": str(args.data.parent)}
    subprocess.run([*command, *words, *shared, *args.settings], check=True, env=environment)
    return workdir


def measure(name: str, model: Path, args: argparse.Namespace) -> Values:
    """What a model finds, encoded once."""

    def retriever(corpus: Corpus) -> Retriever:
        if any((model / name).exists() for name in ("model", "jaxretr.json", "modules.json")):
            encoder = DualEncoder.from_pretrained(model, dtype=args.compute)
        else:  # a plain BERT says neither how it pools nor whether it normalises: as the runs begin with it
            start = load(args.config, args.settings).encoder  # pyright: ignore[reportAttributeAccessIssue]
            encoder = load_encoder(dataclasses.replace(start, path=str(model)))
        return dense_retriever(encoder, corpus)

    return values_of(name, retriever, args)


def values_of(name: str, retriever: Callable[[Corpus], Retriever], args: argparse.Namespace) -> Values:
    """Searches the corpus for the questions of every split; the values are kept in a file."""
    kept = args.runs / "measured" / f"{name.replace(' ', '_')}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    values: Values = {}
    search = None
    for split in SPLITS:
        beir = read_beir(args.data, split)
        search = search or retriever(beir.corpus)
        scores, rows = search([question.text for question in beir.questions], 100)
        run = {
            question.id: {
                beir.corpus.ids[row]: float(score)
                for row, score in zip(found, of_question, strict=True)
                if row >= 0  # Behind BM25's last hit there is none.
            }
            for question, found, of_question in zip(beir.questions, rows, scores, strict=True)
        }
        qrels = {question.id: beir.qrels[question.id] for question in beir.questions}
        _, values[split] = metrics.evaluate(qrels, run, list(METRICS), per_query=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(values))
    return values


def line(name: str, of_seeds: list[Values]) -> str:
    """One row of the table, in percent."""
    cells = []
    for split in SPLITS:
        for metric in METRICS:
            means = [100 * statistics.fmean(values[split][metric].values()) for values in of_seeds]
            spread = f" ± {statistics.stdev(means):.1f}" if len(means) > 1 else ""
            cells.append(f"{statistics.fmean(means):.1f}{spread}")
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the BEIR folder")
    parser.add_argument("--mined", type=Path, required=True, help="what `jaxretr mine` wrote")
    parser.add_argument("--runs", type=Path, default=Path("runs/dpr"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--config", type=Path, default=ROOT / "configs/dpr_small.py")
    parser.add_argument("--settings", nargs=argparse.REMAINDER, default=[], help="further settings of every run, last")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=MODEL")
    parser.add_argument("--compute", choices=("float32", "bfloat16"), default="float32", help="when measuring")
    args = parser.parse_args()

    found: dict[str, list[Values]] = {arm: [] for arm in args.arms}
    for seed in args.seeds:
        for arm in args.arms:
            found[arm].append(measure(f"{arm}_{seed}", train(arm, seed, args), args))
    print("| | " + " | ".join(f"{split} {metric}" for split in SPLITS for metric in METRICS) + " |")
    print("|---|" + "---|" * len(SPLITS) * len(METRICS))
    print(line("BM25", [values_of("BM25", lambda corpus: Bm25Index.build(corpus).search, args)]))
    groups: dict[str, list[Values]] = {}
    for entry in args.also:
        name, model = entry.split("=", 1)
        groups.setdefault(name, []).append(measure(f"{name}_{Path(model).name}", Path(model), args))
    for name, values in [*groups.items(), *found.items()]:
        print(line(name, values))
    print()
    for one, other in COMPARED:
        if one not in found or other not in found:
            continue
        for split in SPLITS:
            for metric in METRICS:
                first, second = (
                    {
                        question: float(np.mean([values[split][metric][question] for values in found[arm]]))
                        for question in found[arm][0][split][metric]
                    }
                    for arm in (one, other)
                )
                result = compare(first, second)
                print(
                    f"{one} - {other}, {split} {metric}: {100 * result.difference:+.1f} points, 95% interval "
                    f"{100 * result.low:+.1f} to {100 * result.high:+.1f}, p = {result.p_value:.4f}"
                )


if __name__ == "__main__":
    main()
