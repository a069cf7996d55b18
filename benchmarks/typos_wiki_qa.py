"""Training for typos on wiki_qa: what each way of it gains on misspelt questions, and what it costs on clean ones.

    python benchmarks/typos_wiki_qa.py --data DATA --runs runs/typos --seeds 0 1 2
    python benchmarks/typos_wiki_qa.py --data DATA --runs runs/typos_minilm --start minilm --passages 5000
    python benchmarks/typos_wiki_qa.py --seeds 0

DATA holds wiki_qa (a BEIR folder with the splits train, squad and tydi) and, if there, noiseqa (the squad questions with
typos made by another program). Every arm is a run of configs/typos_small.py with in-batch negatives and a few settings
changed; finished runs are not repeated. Arms are trained on one profile of typos and tested on ten draws of each: the
questions of squad and tydi were not trained on, nor were their typos. `--start minilm` begins with all-MiniLM-L6-v2;
`--passages 5000` searches so many of the passages, those that answer the questions among them. Without --data the runs
train and test on the data that ships with the package.

Prints MRR@10 of clean and misspelt questions, mean and standard deviation over the seeds, BM25 beside it, and paired
randomisation tests on the questions' means over seeds and draws.
"""

import argparse
import dataclasses
import gzip
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

from once import encoded, kept, last_of, trained
from parts import minilm, part_of
from tables import cell, difference, markdown

from jaxretr.assets import QUICKSTART
from jaxretr.config import ContrastiveConfig, load
from jaxretr.data.corpus import Corpus
from jaxretr.data.readers import read_corpus
from jaxretr.data.typos import TypoGenerator
from jaxretr.evaluate.measuring import Search, TestSet
from jaxretr.evaluate.robustness import measure_altered, read_splits
from jaxretr.evaluate.searches import bm25_search
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.training.runs.encoder_start import load_encoder

ROOT = Path(__file__).parents[1]
PROFILES = ("dictionary", "single_word")
METRIC = "mrr@10"
CLEAN = "clean"
DRAWS = 10
AS_IT_COMES = "as it comes"

# condition -> question -> mean over the draws
Values = dict[str, dict[str, float]]

OFF = ["--typos.contrast-weight", "0", "--typos.passage-weight", "0"]
ARMS: dict[str, list[str]] = {
    "base": OFF,
    "augmentation": [*OFF, "--typos.augmentation", "0.5"],
    "contrast": ["--typos.passage-weight", "0"],
    "contrast and passages": [],
    "self-teaching": [*OFF, "--typos.self-teaching-weight", "1"],
    "multi-positive": [
        *OFF,
        *("--contrastive.symmetric", "--typos.multi-positive", "--typos.clean-weight", "0.5"),
        *("--typos.self-teaching-weight", "0.4", "--typos.passage-self-teaching-weight", "0.1"),
    ],
}
COMPARED = (
    ("base", AS_IT_COMES),
    ("augmentation", "base"),
    ("contrast and passages", "base"),
    ("contrast and passages", "augmentation"),
    ("self-teaching", "contrast and passages"),
    ("multi-positive", "contrast and passages"),
)
# No evaluation while it trains: the last model is measured, whatever it is.
SHARED = [
    *("--negatives.retrieved", "0", "--data.dev", "None", "--data.dev-questions", "None"),
    *("--train.save-every", "10000", "--train.eval-every", "10000"),
]
STARTS: dict[str, list[str]] = {
    "small": ["--train.steps", "60"],
    "minilm": ["--optimizer.learning-rate", "5e-5", "--train.steps", "40", "--train.batch-size", "32"],
}


def start_of(args: argparse.Namespace) -> list[str]:
    """The settings of the encoder that all runs begin with."""
    path = ["--encoder.path", str(args.model or minilm())] if args.start == "minilm" else []
    return [*SHARED, *STARTS[args.start], *path]


def name_of(arm: str, profile: str, seed: int) -> str:
    """Of a run."""
    return f"{arm.replace(' ', '_')}-{'none' if arm == 'base' else profile}-{seed}"


def train(arm: str, profile: str, seed: int, args: argparse.Namespace) -> Path:
    """Runs one arm to its end, unless that has been done; returns its folder."""
    settings = [*start_of(args), *ARMS[arm], "--typos.profile", profile, "--train.seed", seed]
    settings += ["--data.token-cache", args.runs / "tokens"]
    if arm == "multi-positive":
        settings += ["--typos.variants", args.variants, "--typos.pre-drawn", args.variants]
    if args.data is not None:
        settings += ["--data", args.data / "wiki_qa"]
    return trained(args.config, args.runs / name_of(arm, profile, seed), [*settings, *args.settings])


def beir_folder(args: argparse.Namespace) -> Path:
    """What is searched: wiki_qa, or a part of it."""
    if args.data is None:
        return QUICKSTART
    return part_of(args.data / "wiki_qa", args.runs / "part", args.splits, args.passages)


def conditions(split: TestSet, row_of: dict[str, int], name: str, folder: Path | None) -> dict[str, list[list[str]]]:
    """What the split's questions look like, by name: ten draws of each profile, and noiseqa's."""
    rows = [row_of[question.id] for question in split.questions]
    drawn = {
        profile: [TypoGenerator(profile).texts(split.texts, draw, rows) for draw in range(DRAWS)]
        for profile in PROFILES
    }
    noisy = None if folder is None else folder / "noiseqa" / "queries-noisy.jsonl.gz"
    if noisy is not None and name == "squad" and noisy.exists():
        with gzip.open(noisy, "rt") as file:
            rows = [json.loads(line) for line in file]
        misspelt = {row["_id"]: row["keyboard_synthetic"] for row in rows}
        texts = [misspelt.get(question.id.split(":")[-1]) for question in split.questions]
        if None not in texts:
            drawn["noiseqa"] = [[text for text in texts if text is not None]]
    return drawn


def values_of(name: str, search_in: Callable[[Corpus], Search], args: argparse.Namespace) -> dict[str, Values]:
    """What a system finds for the questions of every split, {split: values}; kept in a file."""

    def of_splits() -> dict[str, Values]:
        corpus = read_corpus(args.beir)
        search = search_in(corpus)
        found: dict[str, Values] = {}
        questions, splits = read_splits(str(args.beir), args.splits)
        row_of = {question.id: row for row, question in enumerate(questions)}
        for split_name, split in splits.items():
            altered = conditions(split, row_of, split_name, args.data)
            on = dataclasses.replace(split, corpus=corpus)
            measured = measure_altered(search, on, altered, (METRIC,), split_name)
            found[split_name] = {CLEAN: measured.original[METRIC]}
            for condition in measured.draws:
                draws = measured.of_draws(condition, METRIC)
                found[split_name][condition] = {id: statistics.fmean(draw[id] for draw in draws) for id in draws[0]}
        return found

    return kept(args.runs / "measured" / f"{name}.json", of_splits)


def table(systems: dict[str, list[dict[str, Values]]]) -> str:
    """MRR@10 in percent: clean, and the misspelt with what is lost of the clean, in percent of it."""
    first = next(iter(systems.values()))[0]
    columns = [(split, condition) for split, values in first.items() for condition in values]
    rows = {}
    for name, of_seeds in systems.items():
        rows[name] = []
        for split, condition in columns:
            means, clean = (
                [100 * statistics.fmean(values[split][which].values()) for values in of_seeds]
                for which in (condition, CLEAN)
            )
            loss = 100 * (statistics.fmean(means) / statistics.fmean(clean) - 1)
            rows[name].append(cell(means) + (f" ({loss:+.0f} %)" if condition != CLEAN else ""))
    return markdown([f"{split} {condition}" for split, condition in columns], rows)


def tests(systems: dict[str, list[dict[str, Values]]], profile: str) -> list[str]:
    """Paired comparisons of arms that were trained on one profile."""
    lines = []
    for one, other in COMPARED:
        pair = [of for arm in (one, other) for name, of in systems.items() if name in (arm, f"{arm}, {profile}")]
        if len(pair) < 2:
            continue
        for split, conditions_of in pair[0][0].items():
            for condition in conditions_of:
                first, second = ([values[split][condition] for values in of_seeds] for of_seeds in pair)
                lines.append(f"trained on {profile}: {one} - {other}, {split} {condition}: {difference(first, second)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with wiki_qa and noiseqa (default: the embedded data)")
    parser.add_argument("--runs", type=Path, default=Path("runs/typos"))
    parser.add_argument("--start", choices=STARTS, default="small")
    parser.add_argument("--model", type=Path, help="another encoder in MiniLM's place")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=list(PROFILES), help="to train on")
    parser.add_argument("--passages", type=int, default=0, help="of wiki_qa that are searched (0: all)")
    parser.add_argument("--variants", type=int, default=8, help="forms of multi-positive (default: %(default)s)")
    parser.add_argument("--config", type=Path, default=ROOT / "configs/typos_small.py")
    parser.add_argument("--settings", nargs=argparse.REMAINDER, default=[], help="further settings of every run, last")
    args = parser.parse_args()
    args.splits = ("test",) if args.data is None else ("squad", "tydi")
    args.beir = beir_folder(args)

    config = load(args.config, last_of([*start_of(args), *args.settings]))
    assert isinstance(config, ContrastiveConfig)
    systems = {
        "BM25": [values_of("BM25", bm25_search, args)],
        AS_IT_COMES: [values_of("start", encoded(lambda: load_encoder(config.encoder)), args)],
    }
    wanted = [(arm, p) for p in args.profiles for arm in args.arms if arm != "base" or p == args.profiles[0]]
    for seed in args.seeds:
        for arm, profile in wanted:
            name = name_of(arm, profile, seed)
            run = train(arm, profile, seed, args)
            values = values_of(name, encoded(partial(DualEncoder.from_pretrained, run)), args)
            systems.setdefault(arm if arm == "base" else f"{arm}, {profile}", []).append(values)
    print(table(systems))
    print()
    for profile in args.profiles:
        print("\n".join(tests(systems, profile)))


if __name__ == "__main__":
    main()
