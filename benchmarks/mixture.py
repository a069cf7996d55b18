"""One model of three sets at once, against three models of one set each: SciFact, MedQuAD and wiki_qa, a prompt each.

    python benchmarks/mixture.py --data DATA --runs runs/mixture --seeds 0 1 2

DATA has the BEIR folders scifact, medquad and wiki_qa. --passages of each are searched (the judged ones and others), and
MedQuAD's questions are divided by their passages into train and test. Every run is configs/dpr_small.py with in-batch
negatives and without evaluations on the way; each set is trained on for --steps batches of its own, alone or in turn with the
others, so that a single model has a third of the mixture's steps. `mixed` draws every batch from all sets. Finished runs are
not repeated. Prints nDCG@10 on each set's test questions, mean and standard deviation over the seeds, with paired tests, and
the batches that the mixture's steps were of.
"""

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from once import Values, encoded, kept, last_of, trained, values_of
from parts import divided, part_of
from tables import cell, difference, markdown

from jaxretr.config import load
from jaxretr.data.corpus import Corpus
from jaxretr.evaluate.measuring import Search
from jaxretr.evaluate.searches import bm25_search
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.training.runs.mixture import Mixture

ROOT = Path(__file__).parents[1]
METRIC = "ndcg@10"
# The split that is measured, and the prompts.
SETS = {
    "scifact": ("test", "claim: ", "abstract: "),
    "medquad": ("test", "medical question: ", "medical answer: "),
    "wiki_qa": ("squad", "question: ", "wikipedia: "),
}
ARMS = ("alone", "mixture", "mixed batches")
START = "the start"


def folders(args: argparse.Namespace) -> dict[str, Path]:
    """The sets as BEIR folders with a split train."""
    found = {}
    for name in args.sets:
        source, out = args.data / name, args.runs / "data" / name
        if name == "medquad":
            found[name] = divided(source, out, args.passages or 4000, {"test": 500}, "train")
        else:
            found[name] = part_of(source, out, ["train", SETS[name][0]], args.passages)
    return found


def settings(arm: str, sets: Sequence[str], seed: int, data: dict[str, Path], args: argparse.Namespace) -> list[str]:
    """The settings of one arm on some sets."""
    mixture = [
        {
            "name": name,
            "train": str(data[name]),
            "weight": 1.0,
            "query_prompt": SETS[name][1],
            "passage_prompt": SETS[name][2],
        }
        for name in sets
    ]
    words = ["--data.train", "", "--data.mixture", json.dumps(mixture)]
    for name in ("dev", "dev-questions", "dev-qrels"):
        words += [f"--data.{name}", "None"]
    words += ["--data.mixed-batches"] if arm == "mixed batches" else []
    words += [
        "--negatives.retrieved",
        "0",
        "--train.best-metric",
        "loss",
        "--data.token-cache",
        str(args.runs / "tokens"),
    ]
    words += ["--train.seed", str(seed), "--train.steps", str(args.steps * len(sets)), "--train.batch-size", "32"]
    words += ["--train.eval-every", "10000", "--train.save-every", "10000", *args.settings]
    return last_of(words)


def measure(system: str, name: str, search_in: Callable[[Corpus], Search], folder: Path, runs: Path) -> Values:
    """What a system finds for a set's test questions; kept in a file."""
    path = runs / "measured" / f"{system.replace(' ', '_')}_{name}.json"
    return kept(path, lambda: values_of(search_in, folder, [SETS[name][0]], [METRIC]))


def of_model(model: Path, name: str, longest: int) -> Callable[[Corpus], Search]:
    """Searches with a model and the prompts of a set, with passages of at most so many tokens."""
    _, query, passage = SETS[name]
    settings: Any = {"query_prompt": query, "passage_prompt": passage, "max_passage_length": longest, "dtype": "auto"}
    return encoded(lambda: DualEncoder.from_pretrained(model, **settings))


def batches_of(arm: str, config: Any) -> str:
    """Counts the batches of each set among a run's steps."""
    mixture = Mixture(config)
    names = [member.name for member in mixture.members]
    sets = [mixture.sets_of(mixture.batches.indices(step)).tolist() for step in range(config.train.steps)]
    counts = Counter(tuple(sorted(Counter(each).items())) for each in sets)
    shown = ", ".join(f"{n} of {' + '.join(f'{b} {names[i]}' for i, b in each)}" for each, n in counts.most_common(6))
    return f"{arm}: {config.train.steps} batches, {shown}{' ...' if len(counts) > 6 else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the BEIR folders")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--runs", type=Path, default=Path("runs/mixture"))
    parser.add_argument("--passages", type=int, default=4000, help="that are searched of each set, about (0: all)")
    parser.add_argument("--steps", type=int, default=100, help="batches of each set")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--config", type=Path, default=ROOT / "configs/dpr_small.py")
    parser.add_argument("--settings", nargs=argparse.REMAINDER, default=[], help="further settings of every run, last")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    data = folders(args)

    # {system: {set: the values of each seed}}
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    given: Any = load(args.config, args.settings)
    longest = given.encoder.max_passage_length
    for name, folder in data.items():
        split = SETS[name][0]
        encoder = of_model(Path(given.encoder.path), name, longest)
        for system, search in (("BM25", bm25_search), (START, encoder)):
            values = measure(system, name, search, folder, args.runs)
            found.setdefault(system, {})[name] = [values[split][METRIC]]
    for seed in args.seeds:
        for arm in args.arms:
            for sets in [[name] for name in data] if arm == "alone" else [list(data)]:
                name = "_".join([arm.replace(" ", "_"), *(sets if arm == "alone" else ()), str(seed)])
                run = trained(args.config, args.runs / name, settings(arm, sets, seed, data, args))
                for name in sets:
                    values = measure(
                        f"{arm} {seed}", name, of_model(run / "model", name, longest), data[name], args.runs
                    )
                    found.setdefault(arm, {}).setdefault(name, []).append(values[SETS[name][0]][METRIC])
    rows = {
        system: [cell([100 * statistics.fmean(each.values()) for each in of_sets[name]]) for name in data]
        for system, of_sets in found.items()
    }
    print(markdown([f"{name}, {len(found['BM25'][name][0])} questions" for name in data], rows) + "\n")
    for one, other in (("alone", START), ("mixture", START), ("mixture", "alone"), ("mixed batches", "mixture")):
        for name in data if one in found and other in found else ():
            print(f"{one} - {other}, {name} {METRIC}: {difference(found[one][name], found[other][name])}")
    for arm in args.arms:
        if arm != "alone":
            print(batches_of(arm, load(args.config, settings(arm, list(data), args.seeds[0], data, args))))


if __name__ == "__main__":
    main()
