"""SPAR on wiki_qa: a lexical model that imitates BM25, concatenated to the DPR of step 2, and what the paper asks of it.

    python benchmarks/spar_wiki_qa.py --data DATA --runs runs/spar --seeds 0 1 2
    python benchmarks/spar_wiki_qa.py --embedded --runs runs/spar_embedded --seeds 0     # the data in the repository

DATA holds the BEIR folders wiki_qa (splits train, dev, squad, tydi), wiki_passages (a corpus alone) and, for the last
table, scifact. For each seed a base is trained by configs/dpr_small.py and Lambda by configs/spar_small.py; what is
finished is not repeated. The weights are tuned for recall@100 on one half of the dev questions, by full search; the
other half and the further splits are measured. Prints tables in percent, mean and standard deviation over the seeds,
with paired randomisation tests on the questions' means over the seeds.

The weighted sum needs vectors of one size: the base's are filled up with zeros, which changes none of its scores.
"""

import argparse
import dataclasses
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from once import last_of
from tables import cell, difference, markdown

from jaxretr.assets import QUICKSTART
from jaxretr.config.choices import Dtype
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import BeirSet, read_beir
from jaxretr.data.word_shuffle import shuffle_words
from jaxretr.evaluate import metrics
from jaxretr.evaluate.rank_overlap import find_shared, rank_biased_overlap
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.indexes.hybrid.weight_choice import adaptive_grid, balancing_weight, choose
from jaxretr.indexes.hybrid.weight_grid import search_weights
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.training.metrics_log import read_metrics

ROOT = Path(__file__).parents[1]
METRICS = ("recall@20", "recall@100", "mrr@10")
TUNED = "recall@100"
POSITIVES = (1, 2, 5, 10)
DEPTH = 200

# {split: {metric: {question: value}}}
Values = dict[str, dict[str, dict[str, float]]]
# Scores [B, K] and rows [B, K], best first.
Found = tuple[np.ndarray, np.ndarray]
# Question vectors and passage vectors of one space.
Vectors = tuple[np.ndarray, np.ndarray]


# ---- training --------------------------------------------------------------------------------------------------------


def jaxretr(*words: object) -> None:
    """Runs a command of the library."""
    print("$ jaxretr", *words, file=sys.stderr)
    subprocess.run([sys.executable, "-m", "jaxretr", *map(str, words)], check=True)


def train(args: argparse.Namespace) -> None:
    """Makes the lexical set, the bases and the Lambdas."""
    lexical = args.runs / "lexical"
    corpora = [QUICKSTART] if args.embedded else [args.data / "wiki_qa", args.data / "wiki_passages"]
    tokenizer = args.data / "tokenizers/bert-base-uncased"
    of_lambda: list[object] = ["--data", lexical]
    of_base: list[object] = []
    if not args.embedded:
        of_lambda += ["--data.corpus", corpora[0], "--data.more-corpora", corpora[1]]
        of_base += ["--data", corpora[0]]
    if args.tokenizer or (tokenizer.is_dir() and not args.embedded):
        of_lambda += ["--encoder.path", args.tokenizer or tokenizer]
    if not (lexical / "meta.json").exists():
        named = [word for path in corpora for word in ("--corpus", path)]
        jaxretr("mine", "lexical", *named, "--limit", args.queries, "--dev", args.dev, "--out", lexical)

    def run(config: str, name: str, *words: object) -> None:
        settings = last_of(("--data.token-cache", args.runs / "tokens", *words))
        if not (args.runs / name / "model").exists():
            jaxretr("train", ROOT / config, "--workdir", args.runs / name, *settings)

    # The embedded corpus has few sentences.
    steps, fewer = (("--train.steps", 200), 100) if args.embedded else ((), 300)
    for seed in args.seeds:
        run("configs/spar_small.py", f"lambda_{seed}", *of_lambda, "--train.seed", seed, *steps, *args.lambda_settings)
        shorter = ("--train.eval-every", 200, "--index.refresh-every", 100)
        run("configs/dpr_small.py", f"base_{seed}", *of_base, "--train.seed", seed, *shorter, *args.base_settings)
    for count in POSITIVES if args.positives_curve else ():
        words = ("--data.teacher-positives", count, "--encoder.fresh-start", "random", "--train.steps", fewer)
        often = ("--train.eval-every", fewer // 3, "--train.save-every", fewer, *args.lambda_settings)
        run("configs/spar_small.py", f"lambda_{count}_positives", *of_lambda, *words, *often)


# ---- search ----------------------------------------------------------------------------------------------------------


class Bench:
    """A corpus with its splits, searched by models whose vectors are kept in files."""

    def __init__(self, data: Path, splits: Sequence[str], runs: Path, tuned_on: str | None, dtype: Dtype = "float32"):
        """Reads the splits; of `tuned_on` the even questions tune and the odd ones stand for the split."""
        self.runs, self.name, self.dtype = runs / "vectors", data.name, dtype
        self.tuning: BeirSet | None = None
        self.splits: dict[str, BeirSet] = {}
        for split in splits:
            beir = read_beir(data, split)
            self.corpus: Corpus = beir.corpus
            self.splits[split] = beir
            if split == tuned_on:
                self.tuning = part(beir, 0)
                self.splits[split] = part(beir, 1)

    @cached_property
    def bm25(self) -> Bm25Index:
        return Bm25Index.build(self.corpus)

    def passages(self, model: Path) -> np.ndarray:
        """float32 [N, D]."""
        return self._kept(model, "passages", lambda encoder: encoder.encode_passages(list(self.corpus)))

    def questions(self, model: Path, split: str, texts: Sequence[str]) -> np.ndarray:
        """float32 [B, D]."""
        return self._kept(model, f"{split}_{len(texts)}", lambda encoder: encoder.encode_queries(list(texts)))

    def vectors(self, model: Path, beir: BeirSet, name: str) -> Vectors:
        return self.questions(model, name, texts_of(beir.questions)), self.passages(model)

    def _kept(self, model: Path, what: str, encode) -> np.ndarray:
        path = self.runs / f"{self.name}_{model.name}_{what}.npy"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, encode(DualEncoder.from_pretrained(model, dtype=self.dtype)))
        return np.load(path)

    def values(
        self, split: str, beir: BeirSet, found: Found, measures: Sequence[str] = METRICS
    ) -> dict[str, dict[str, float]]:
        """The metrics of each question."""
        return metrics.evaluate(beir.qrels, run_of(beir.questions, self.corpus, found), measures, per_query=True)[1]


def part(beir: BeirSet, which: int) -> BeirSet:
    """Every second question, with their judgements."""
    questions = beir.questions[which::2]
    return dataclasses.replace(
        beir, questions=questions, qrels={question.id: beir.qrels[question.id] for question in questions}
    )


def texts_of(questions: Sequence[Question]) -> list[str]:
    return [question.text for question in questions]


def run_of(questions: Sequence[Question], corpus: Corpus, found: Found) -> dict[str, dict[str, float]]:
    """The hits as a run, in the order of the search also where scores are equal."""
    return {
        question.id: {corpus.ids[row]: -float(rank) for rank, row in enumerate(rows) if row >= 0}
        for question, rows in zip(questions, found[1].tolist(), strict=True)
    }


def weighted(first: Vectors, second: Vectors, weights: Sequence[float], k: int = DEPTH) -> dict[float, Found]:
    """Exact search by s1 + w s2 for each weight w."""
    scores, rows = search_weights((first[0], [first[1]]), (second[0], [second[1]]), list(weights), k)
    return {weight: (scores[number], rows[number]) for number, weight in enumerate(weights)}


def summed(first: Vectors, second: Vectors) -> tuple[Vectors, Vectors]:
    """(q1 + w q2).(p1 + p2) = s + w s' with s = q1.(p1 + p2) and s' = q2.(p1 + p2)."""
    size = max(first[0].shape[1], second[0].shape[1])
    (q1, p1), (q2, p2) = (
        tuple(np.pad(array, ((0, 0), (0, size - array.shape[1]))) for array in pair) for pair in (first, second)
    )
    return (q1, p1 + p2), (q2, p1 + p2)


def interpolated(first: Found, second: Found, weight: float) -> Found:
    """Hybrid search over the union of both runs' hits; a passage that a run lacks gets its lowest score."""
    scores, rows = [], []
    for s1, r1, s2, r2 in zip(*first, *second, strict=True):
        union = np.union1d(r1, r2[r2 >= 0])
        total = _aligned(union, s1, r1) + weight * _aligned(union, s2, r2)
        order = np.argsort(-total, kind="stable")[:DEPTH]
        scores.append(total[order])
        rows.append(union[order])
    return np.stack(scores), np.stack(rows)


def _aligned(union: np.ndarray, scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
    hits = rows >= 0  # BM25 may have fewer.
    found = np.full(len(union), scores[hits].min() if hits.any() else 0.0, np.float64)
    found[np.searchsorted(union, rows[hits])] = scores[hits]
    return found


# ---- systems ---------------------------------------------------------------------------------------------------------


class Systems:
    """All that is compared with one seed: tuned on the dev half, then measured on the splits."""

    def __init__(self, bench: Bench, base: Path, lexical: Path, other: Path | None, tuned: str = TUNED):
        """`tuned` is the metric that chooses the weights."""
        self.bench, self.base, self.lexical, self.other, self.tuned = bench, base, lexical, other, tuned
        self.weights: dict[str, float] = {}

    def tune(self) -> dict[str, dict[float, float]]:
        """Finds each combination's weight; returns the curves {system: {weight: figure}}."""
        beir = self.bench.tuning
        assert beir is not None
        curves = {}
        pairs = self._pairs(beir, "tuning")
        dense = weighted(*pairs["concat"], [0.0])[0.0]
        spar = None
        for name, (first, second) in pairs.items():

            def figures(weights: Sequence[float], first=first, second=second) -> dict[float, float]:
                return {
                    weight: self._figure(beir, found) for weight, found in weighted(first, second, weights, 100).items()
                }

            sampled = zip(
                (q[:64] @ p[:2048].T for q, p in [first]), (q[:64] @ p[:2048].T for q, p in [second]), strict=True
            )
            s1, s2 = next(sampled)
            curves[name] = adaptive_grid(figures, balancing_weight(zip(s1, s2, strict=True)))
            self.weights[name] = choose(curves[name]).weight
            if name == "concat":
                spar = weighted(first, second, [self.weights[name]])[self.weights[name]]
        assert spar is not None
        lexical = self.bench.bm25.search(texts_of(beir.questions), DEPTH)
        for name, found in (("base + BM25", dense), ("concat + BM25", spar)):

            def figures_of(weights: Sequence[float], found=found) -> dict[float, float]:
                return {weight: self._figure(beir, interpolated(found, lexical, weight)) for weight in weights}

            pairs = ((one, other[other > -np.inf]) for one, other in zip(found[0], lexical[0], strict=True))
            curves[name] = adaptive_grid(figures_of, balancing_weight(pair for pair in pairs if len(pair[1])))
            self.weights[name] = choose(curves[name]).weight
        return curves

    def search(self, beir: BeirSet, split: str) -> dict[str, Found]:
        """What every system finds."""
        pairs = self._pairs(beir, split)
        found = {}
        for name, (first, second) in pairs.items():
            alone = {"base": 0.0, "Lambda": np.inf} if name == "concat" else {}
            of_weights = weighted(first, second, [*alone.values(), self.weights[name]])
            found |= {system: of_weights[weight] for system, weight in alone.items()}
            found[name] = of_weights[self.weights[name]]
        found["BM25"] = self.bench.bm25.search(texts_of(beir.questions), DEPTH)
        for name, dense in (("base + BM25", "base"), ("concat + BM25", "concat")):
            found[name] = interpolated(found[dense], found["BM25"], self.weights[name])
        return found

    def _pairs(self, beir: BeirSet, split: str) -> dict[str, tuple[Vectors, Vectors]]:
        base, lexical = (self.bench.vectors(model, beir, split) for model in (self.base, self.lexical))
        pairs = {"concat": (base, lexical), "sum": summed(base, lexical)}
        if self.other is not None:
            pairs["two bases"] = (base, self.bench.vectors(self.other, beir, split))
        return pairs

    def _figure(self, beir: BeirSet, found: Found) -> float:
        run = run_of(beir.questions, self.bench.corpus, found)
        return metrics.evaluate(beir.qrels, run, [self.tuned])[self.tuned]


# ---- tables ----------------------------------------------------------------------------------------------------------


def table(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
    print(f"\n{title}\n\n{markdown(columns, rows)}")


def overlap(found: Found, reference: Found) -> float:
    return float(
        rank_biased_overlap(
            find_shared(
                *([[row for row in rows[:100] if row >= 0] for rows in one[1].tolist()] for one in (found, reference))
            )
        ).base.mean()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("JAXRETR_DATA", "data")))
    parser.add_argument("--embedded", action="store_true", help="the package's own passages and questions instead")
    parser.add_argument("--runs", type=Path, default=Path("runs/spar"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--queries", type=int, default=160_000)
    parser.add_argument("--dev", type=int, default=2_000, help="queries of the mini-index")
    parser.add_argument(
        "--tokenizer", help="of Lambda: a folder or a name of the hub (default: DATA/tokenizers/bert-base-uncased)"
    )
    for kind in ("lambda", "base"):
        settings = f"overrides, in one word: --{kind}-settings='--train.steps 9'"
        parser.add_argument(f"--{kind}-settings", type=shlex.split, default=[], help=settings)
    parser.add_argument("--no-positives-curve", dest="positives_curve", action="store_false")
    args = parser.parse_args()
    train(args)

    data = QUICKSTART if args.embedded else args.data / "wiki_qa"
    bench = Bench(data, ("test", "dev") if args.embedded else ("squad", "tydi", "dev"), args.runs, "dev")
    bases, lambdas = ([args.runs / f"{kind}_{seed}" for seed in args.seeds] for kind in ("base", "lambda"))
    systems = []
    curves = []
    for number in range(len(args.seeds)):
        other = bases[(number + 1) % len(bases)] if len(bases) > 1 else None
        systems.append(Systems(bench, bases[number], lambdas[number], other))
        curves.append(systems[-1].tune())
    for name in systems[0].weights:
        print(f"weight of {name}: {', '.join(f'{system.weights[name]:.4g}' for system in systems)}")
    (args.runs / "weights.json").write_text(
        json.dumps([{name: sorted(curve.items()) for name, curve in of_seed.items()} for of_seed in curves], indent=1)
    )

    # ---- retrieval -----------------------------------------------------------------------------------------------
    values: dict[str, list[Values]] = {}
    overlaps: dict[str, dict[str, list[float]]] = {"base": {}, "Lambda": {}, "concat": {}}
    shuffled: dict[str, list[Values]] = {}
    for system in systems:
        of_seed: dict[str, Values] = {}
        of_shuffled: dict[str, Values] = {}
        for split, beir in bench.splits.items():
            found = system.search(beir, split)
            for name, hits in found.items():
                of_seed.setdefault(name, {})[split] = bench.values(split, beir, hits)
            for name, of_splits in overlaps.items():
                of_splits.setdefault(split, []).append(overlap(found[name], found["BM25"]))
            questions = [Question(q.id, shuffle_words(q.text), q.answers) for q in beir.questions]
            found = system.search(dataclasses.replace(beir, questions=questions), f"{split}_shuffled")
            for name in ("BM25", "base", "Lambda", "concat"):
                of_shuffled.setdefault(name, {})[split] = bench.values(split, beir, found[name])
        for name, of_splits in of_seed.items():
            values.setdefault(name, []).append(of_splits)
        for name, of_splits in of_shuffled.items():
            shuffled.setdefault(name, []).append(of_splits)

    def percents(of_seeds: Sequence[Values], split: str, metric: str) -> list[float]:
        return [100 * statistics.fmean(each[split][metric].values()) for each in of_seeds]

    columns = [(split, metric) for split in bench.splits for metric in METRICS]
    order = ("BM25", "base", "two bases", "Lambda", "sum", "concat", "base + BM25", "concat + BM25")
    table(
        "Retrieval",
        [" ".join(column) for column in columns],
        {name: [cell(percents(values[name], *column)) for column in columns] for name in order if name in values},
    )
    print()
    pairs = [("concat", "base"), ("concat", "two bases"), ("concat", "sum"), ("concat", "base + BM25")]
    for one, other in [*pairs, ("concat + BM25", "concat")]:
        for split, metric in columns:
            if one in values and other in values and metric != "mrr@10":
                first, second = ([each[split][metric] for each in values[name]] for name in (one, other))
                print(f"{one} - {other}, {split} {metric}: {difference(first, second)}")

    # ---- what Lambda is ------------------------------------------------------------------------------------------
    table(
        "Rank-biased overlap with BM25 (p = .9, depth 100)",
        list(bench.splits),
        {name: [cell(of_splits[split], 3) for split in bench.splits] for name, of_splits in overlaps.items()},
    )
    columns = [(split, metric) for split in bench.splits for metric in METRICS[:2]]
    table(
        "Questions with their words shuffled: change in points",
        [" ".join(column) for column in columns],
        {
            name: [
                cell([b - a for a, b in zip(percents(values[name], *c), percents(shuffled[name], *c), strict=True)])
                for c in columns
            ]
            for name in ("BM25", "base", "Lambda", "concat")
        },
    )
    if args.positives_curve:
        draw_positives({count: args.runs / f"lambda_{count}_positives" for count in POSITIVES}, args.runs)

    # ---- another domain ------------------------------------------------------------------------------------------
    if not args.embedded and (args.data / "scifact").is_dir():
        zero_shot(args, systems)


def draw_positives(runs: Mapping[int, Path], folder: Path) -> None:
    """The validation MRR of Lambdas that begin at random and learn from the teacher's first 1, 2, 5 or 10 passages."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    rows = {}
    steps: list[int] = []
    for count, run in runs.items():
        curve = [(line["step"], line["mrr"]) for line in read_metrics(run) if "mrr" in line]
        steps, values = map(list, zip(*curve, strict=True))
        axes.plot(steps, values, marker="o", label=f"{count} positive{'s' if count > 1 else ''}")
        rows[str(count)] = [f"{value:.3f}" for value in values]
    axes.set(xlabel="step", ylabel="MRR of the teacher's first passage\namong two passages a query")
    axes.legend()
    figure.savefig(folder / "positives.png", dpi=120, bbox_inches="tight")
    table("Validation MRR by the number of positives (seed 0, random start)", [f"step {step}" for step in steps], rows)


def zero_shot(args: argparse.Namespace, systems: Sequence[Systems]) -> None:
    """nDCG@10 on SciFact with the weights of wiki_qa."""
    bench = Bench(args.data / "scifact", ("test",), args.runs, None)
    beir = bench.splits["test"]
    found: dict[str, list[dict[str, float]]] = {}
    for system in systems:
        there = Systems(bench, system.base, system.lexical, system.other)
        there.weights = system.weights
        for name, hits in there.search(beir, "test").items():
            run = run_of(beir.questions, bench.corpus, hits)
            found.setdefault(name, []).append(
                metrics.evaluate(beir.qrels, run, ["ndcg@10"], per_query=True)[1]["ndcg@10"]
            )
    rows = {
        name: [cell([100 * statistics.fmean(each.values()) for each in of_seeds])] for name, of_seeds in found.items()
    }
    rows["BM25"] = [cell([100 * statistics.fmean(found["BM25"][0].values())])]
    table("SciFact, zero-shot", ["nDCG@10"], rows)
    print(f"\nconcat - base: {difference(found['concat'], found['base'])}")


if __name__ == "__main__":
    main()
