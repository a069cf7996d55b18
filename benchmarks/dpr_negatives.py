"""DPR: in-batch negatives alone, BM25-mined ones, and negatives retrieved in the step, at equal steps.

    python benchmarks/dpr_negatives.py --data DATA/wiki_qa --runs runs/dpr --seeds 0 1 2
    python benchmarks/dpr_negatives.py --data DATA/medquad --runs runs/dpr_medquad --divide 5000 --start minilm
    python benchmarks/dpr_negatives.py                                                   # the data in the repository

--data is a BEIR folder with the splits train, dev and others (default: squad and tydi, wiki_qa's); with --divide one that
has a split test alone, of which so many passages are drawn, and their questions divided into train, dev and test. Every arm
is a run of configs/dpr_small.py with a few settings changed, from the small encoder that ships with the package or from
all-MiniLM-L6-v2; finished runs are not repeated. Then each model embeds the corpus, or a part of it that --passages limits,
and searches it for the questions of every split, none of which was trained on. The last step's model is measured, whatever
it is. Prints recall@20 and MRR@10, mean and standard deviation over the seeds, and paired tests between arms on the
questions' means over the seeds. `--also NAME=MODEL` measures further models.
"""

import argparse
import dataclasses
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from once import Values, kept, last_of, trained, values_of
from parts import divided, minilm, part_of
from tables import cell, difference, markdown

from jaxretr.assets import QUICKSTART
from jaxretr.config import load
from jaxretr.data.corpus import Corpus
from jaxretr.data.readers import beir_splits
from jaxretr.evaluate.measuring import Search
from jaxretr.evaluate.searches import bm25_search, encoder_search
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.training.runs.encoder_start import load_encoder

ROOT = Path(__file__).parents[1]
METRICS = ("recall@20", "mrr@10")
ARMS = {
    "in-batch": ["--negatives.retrieved", "0"],
    "BM25-mined": ["--negatives.retrieved", "0", "--negatives.mined", "1", "--data.mined", "{mined}"],
    "retrieved in the step": ["--negatives.retrieved", "1"],
}
# No evaluation on the way, which would choose a checkpoint: the runs' time goes into steps.
SHARED = [
    *("--data.dev", "None", "--data.dev-questions", "None", "--data.dev-qrels", "None", "--train.best-metric", "loss"),
    *("--train.eval-every", "10000", "--train.save-every", "10000", "--index.refresh-every", "100"),
]
STARTS: dict[str, list[str]] = {
    "small": ["--train.steps", "100"],
    "minilm": [
        *("--optimizer.learning-rate", "2e-5", "--train.steps", "60", "--train.batch-size", "32"),
        *("--encoder.max-passage-length", "128"),
    ],
}
MEDQUAD = {"test": 1000, "dev": 500}
AS_IT_COMES = "the encoder as it comes"
COMPARED = (
    ("in-batch", AS_IT_COMES),
    ("BM25-mined", "in-batch"),
    ("retrieved in the step", "in-batch"),
    ("retrieved in the step", "BM25-mined"),
)


def start_of(args: argparse.Namespace) -> list[str]:
    """The settings of the encoder that all runs begin with."""
    path = ["--encoder.path", str(args.model or minilm())] if args.start == "minilm" else []
    return [*STARTS[args.start], *path, *args.settings]


def train(arm: str, seed: int, args: argparse.Namespace) -> Path:
    """Runs one arm to its end, unless that has been done; returns its folder."""
    words = [word.format(mined=args.runs / "bm25.jsonl") for word in ARMS[arm]]
    data = ["--data.train", args.data, "--data.corpus", args.data]
    shared = [*SHARED, "--data.token-cache", args.runs / "tokens", "--train.seed", seed]
    return trained(
        args.config, args.runs / f"{arm.replace(' ', '_')}_{seed}", [*words, *data, *shared, *start_of(args)]
    )


def mine(args: argparse.Namespace) -> None:
    """BM25's negatives of the training questions."""
    if "BM25-mined" in args.arms and not (args.runs / "bm25.jsonl").exists():
        words = ["--corpus", args.data, "--train", args.data, "--out", args.runs / "bm25.jsonl"]
        subprocess.run([str(word) for word in (sys.executable, "-m", "jaxretr", "mine", *words)], check=True)


def measure(name: str, search_in: Callable[[Corpus], Search], args: argparse.Namespace) -> Values:
    """What a system finds for the questions of every split; kept in a file."""
    path = args.runs / "measured" / f"{name.replace(' ', '_')}.json"
    return kept(path, lambda: values_of(search_in, args.searched, args.splits, METRICS))


def encoded(model: Path | None, args: argparse.Namespace) -> Callable[[Corpus], Search]:
    """Searches with a model; None is the one that the runs begin with."""

    def search_in(corpus: Corpus) -> Search:
        if model and any((model / name).exists() for name in ("model", "jaxretr.json", "modules.json")):
            return encoder_search(DualEncoder.from_pretrained(model, dtype=args.compute), corpus, None)
        # A plain BERT says neither how it pools nor whether it normalises: as the runs begin with it.
        start = load(args.config, last_of(start_of(args))).encoder  # pyright: ignore[reportAttributeAccessIssue]
        start = dataclasses.replace(start, path=str(model or start.path), dtype=args.compute)
        return encoder_search(load_encoder(start), corpus, None)

    return search_in


def line(of_seeds: list[Values], args: argparse.Namespace) -> list[str]:
    """One row of the table, in percent."""
    return [
        cell([100 * statistics.fmean(values[split][metric].values()) for values in of_seeds])
        for split in args.splits
        for metric in METRICS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=QUICKSTART, help="the BEIR folder")
    parser.add_argument(
        "--splits", nargs="+", help="that are measured (default: squad tydi dev; test if there are none)"
    )
    parser.add_argument("--divide", type=int, metavar="N", help="draw N passages, and divide their test questions")
    parser.add_argument("--passages", type=int, default=0, help="that are searched: the judged and others (0: all)")
    parser.add_argument("--runs", type=Path, default=Path("runs/dpr"))
    parser.add_argument("--start", choices=STARTS, default="small")
    parser.add_argument("--model", type=Path, help="another encoder in MiniLM's place")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--config", type=Path, default=ROOT / "configs/dpr_small.py")
    parser.add_argument("--settings", nargs=argparse.REMAINDER, default=[], help="further settings of every run, last")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=MODEL")
    parser.add_argument("--compute", choices=("float32", "bfloat16"), default="float32", help="when measuring")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    if args.divide:
        args.data = divided(args.data, args.runs / "data", args.divide, MEDQUAD, "train")
    there = beir_splits(args.data)
    args.splits = (
        args.splits or [split for split in ("squad", "tydi", "dev") if {"squad", "tydi"} <= {*there}] or ["test"]
    )
    args.searched = part_of(args.data, args.runs / "part", args.splits, args.passages)

    mine(args)
    found: dict[str, list[Values]] = {
        "BM25": [measure("BM25", bm25_search, args)],
        AS_IT_COMES: [measure("start", encoded(None, args), args)],
    }
    for entry in args.also:
        name, model = entry.split("=", 1)
        found.setdefault(name, []).append(measure(f"{name}_{Path(model).name}", encoded(Path(model), args), args))
    for seed in args.seeds:
        for arm in args.arms:
            model = encoded(train(arm, seed, args), args)
            found.setdefault(arm, []).append(measure(f"{arm}_{seed}", model, args))
    columns = [f"{split} {metric}" for split in args.splits for metric in METRICS]
    print(markdown(columns, {name: line(of_seeds, args) for name, of_seeds in found.items()}) + "\n")
    for one, other in COMPARED:
        for split in args.splits if one in found and other in found else ():
            for metric in METRICS:
                first, second = ([values[split][metric] for values in found[system]] for system in (one, other))
                print(f"{one} - {other}, {split} {metric}: {difference(first, second)}")


if __name__ == "__main__":
    main()
