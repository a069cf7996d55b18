"""Index-aware training: what quantising costs a model that was trained on exact scores, and one trained on the index's.

    python benchmarks/index_aware.py --data DATA/wiki_qa --runs runs/index_aware --seeds 0 1 2
    python benchmarks/index_aware.py                                        # the data in the repository

    python benchmarks/index_aware.py --start words                          # an encoder without layers: a minute a run

Every arm is a run of configs/dpr_small.py with in-batch negatives and with the settings of `index_aware` that its name says,
from the small encoder that ships with the package or from one without layers (a bag of word pieces, which begins as weighted
random projections); finished runs are not repeated. The last step's model is measured. It embeds --passages of the corpus
(all judged ones among them), which are then stored in several ways and searched for the questions of all splits, none of
which was trained on:

- float32, and int8 as embedding stores have it,
- product codes of 16 centres for blocks of 2, 4 and 8 dimensions, with centres fitted to the embedded passages; ranked by
  the codes alone,
- the codes of 2 dimensions that our FAISS and ScaNN engines make, ranked by the codes alone, which is how they propose
  candidates. Our index scores these again with the vectors; "candidates" is how many hold 95% of the exact top 20.

Prints means and standard deviations over the seeds, and paired tests of aware against exact training for each storage, on
the questions' means over the seeds.
"""

import argparse
import logging
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from once import kept
from parts import part_of
from tables import cell, difference, markdown

import jaxretr
from jaxretr.assets import QUICKSTART
from jaxretr.config import override
from jaxretr.data.readers import beir_splits, read_beir
from jaxretr.embeddings.encoding import encode_texts
from jaxretr.embeddings.vector_files import dequantise, quantise
from jaxretr.evaluate import metrics
from jaxretr.indexes.certified.engines import engine_of
from jaxretr.losses.quantised import decoded, fitted_codebook, nearest_codes
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.training.experiment import load_config

ROOT = Path(__file__).parents[1]
METRICS = ("ndcg@10", "recall@20")
PRODUCT = {"index_aware.kind": "product", "index_aware.relearn_every": 50, "index_aware.sample": 2048}
ARMS: dict[str, dict[str, Any]] = {
    "exact": {},
    "int8": {"index_aware.kind": "int8"},
    "2 dimensions a code": {**PRODUCT, "index_aware.block": 2},
    "4 dimensions a code": {**PRODUCT, "index_aware.block": 4},
    "8 dimensions a code": {**PRODUCT, "index_aware.block": 8},
    "8, with commitment": {**PRODUCT, "index_aware.block": 8, "index_aware.commitment": 0.1},
}
# What runs of the quickstart's lexical model have.
STARTS: dict[str, dict[str, Any]] = {
    "small": {},
    "words": {
        "encoder.fresh": {"hidden_size": 512, "layers": 0, "heads": 8, "intermediate_size": 2048},
        "encoder.fresh_start": "lexical",
        "train.batch_size": 128,
        "contrastive.chunk": 64,
        "optimizer.learning_rate": 5e-4,
    },
}
BLOCKS = (2, 4, 8)
STORED = ("float32", "int8", *(f"{block} dimensions a code" for block in BLOCKS), "FAISS codes", "ScaNN codes")
SHARED: dict[str, Any] = {
    **{"data.dev": None, "data.dev_questions": None, "data.dev_qrels": None, "train.best_metric": "loss"},
    **{"train.eval_every": 10_000, "train.save_every": 10_000, "negatives.retrieved": 0},
}
DEPTH, SHARE = 20, 0.95
# Rows that an engine's codebook is learnt from.
_SAMPLE = 5_000

Scores = NDArray[np.float32]
# {storage: {metric: {question: value}}}
Values = dict[str, dict[str, dict[str, float]]]


def train(arm: str, seed: int, args: argparse.Namespace) -> Path:
    """Runs one arm to its end, unless that has been done; returns its folder."""
    folder = args.runs / f"{arm.replace(' ', '_')}_{seed}"
    of_run = {"train.seed": seed, "train.steps": args.steps, "data.token_cache": args.runs / "tokens"}
    of_run |= {"data.train": args.data, "data.corpus": args.data}
    config = load_config(ROOT / "configs/dpr_small.py", **SHARED, **STARTS[args.start], **ARMS[arm], **of_run)
    jaxretr.train(override(config, args.settings), folder)  # does nothing where all steps are done
    return folder


def measure(model: Path, args: argparse.Namespace) -> Values:
    """What each way of storing the passages finds for the questions of all splits."""
    encoder = DualEncoder.from_pretrained(model)
    sets = {split: read_beir(args.searched, split) for split in args.splits}
    passages = next(iter(sets.values())).corpus
    questions = {f"{split} {q.id}": q for split, beir in sets.items() for q in beir.questions}
    qrels = {f"{split} {name}": judged for split, beir in sets.items() for name, judged in beir.qrels.items()}
    rows, asked = encode_texts(encoder, passages, None), encode_texts(encoder, [*questions.values()], None)
    exact = asked @ rows.T
    values: Values = {}
    for storage in args.stored:
        scores = exact if storage == "float32" else scores_of(storage, rows, asked)
        if scores is None:
            continue
        best = np.argsort(-scores, axis=1, kind="stable")[:, :100]
        run = {
            name: {passages.ids[row]: float(scores[number, row]) for row in best[number]}
            for number, name in enumerate(questions)
        }
        values[storage] = metrics.evaluate(qrels, run, METRICS, per_query=True)[1]
        values[storage]["candidates"] = dict(zip(questions, candidates(exact, scores).tolist(), strict=True))
    return values


def scores_of(storage: str, rows: Scores, asked: Scores) -> Scores | None:
    """Scores of all passages [questions, N] as an index of that kind has them; None where its engine cannot run here."""
    if storage == "int8":
        return asked @ dequantise(*quantise(rows)).T
    if storage in ("FAISS codes", "ScaNN codes"):
        return engine_scores("faiss" if storage.startswith("FAISS") else "scann", rows, asked)
    block = int(storage.split()[0])
    codebook = jax.jit(fitted_codebook, static_argnums=(2, 3))(rows, np.ones(len(rows), np.float32), block, 16)
    coded: Callable[[Scores], jax.Array] = jax.jit(
        lambda some: decoded(nearest_codes(some, codebook), codebook, rows.shape[1])
    )
    pieces = np.array_split(rows, -(-len(rows) // 1024))
    return asked @ np.concatenate([np.asarray(coded(jnp.asarray(piece))) for piece in pieces]).T


def engine_scores(name: str, rows: Scores, asked: Scores) -> Scores | None:
    """What an engine scores all passages with, without a tree."""
    engine = engine_of(name)  # pyright: ignore[reportArgumentType]
    if engine.problem():
        return None
    scores = np.full((len(asked), len(rows)), -np.inf, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        np.save(out / "vectors.npy", rows)
        engine.train(out / "vectors.npy", out, leaves=1, sample=min(len(rows), _SAMPLE), seed=0)
        engine.encode(out / "vectors.npy", out, out, tree=False)
        engine.finish(out, False)
        proposer = engine.open(out, False)
        # Not all: what ranks below these has no part in any of the metrics.
        count = min(len(rows), 1000)
        for start in range(0, len(asked), 256):
            found, approximate = proposer.propose(asked[start : start + 256], count, 0, 2)
            there = ~np.isnan(approximate)
            place = np.broadcast_to(np.arange(start, start + len(found))[:, None], found.shape)
            scores[place[there], found[there]] = approximate[there]
    return scores


def candidates(exact: Scores, scores: Scores) -> NDArray[np.int64]:
    """How many of the first passages by `scores` hold SHARE of the first DEPTH by the exact scores, [questions]."""
    wanted = np.argpartition(-exact, DEPTH, axis=1)[:, :DEPTH]
    ranks = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1, kind="stable")
    return np.sort(np.take_along_axis(ranks, wanted, axis=1), axis=1)[:, int(np.ceil(SHARE * DEPTH)) - 1] + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=QUICKSTART, help="a BEIR folder with the split train and others")
    parser.add_argument("--passages", type=int, default=0, help="that are searched: the judged and others (0: all)")
    parser.add_argument("--runs", type=Path, default=Path("runs/index_aware"))
    parser.add_argument("--start", choices=STARTS, default="small")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--stored", nargs="+", choices=STORED, default=list(STORED), help="ways to store the passages")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument(
        "--splits", nargs="+", help="that are measured (default: squad and tydi; test if there are none)"
    )
    parser.add_argument("--settings", nargs=argparse.REMAINDER, default=[], help="further settings of every run, last")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    there = beir_splits(args.data)
    args.splits = args.splits or [split for split in ("squad", "tydi") if split in there] or ["test"]
    args.searched = part_of(args.data, args.runs / "part", args.splits, args.passages)

    found: dict[str, list[Values]] = {}
    for seed in args.seeds:
        for arm in args.arms:
            path = args.runs / f"measured/{arm.replace(' ', '_')}_{seed}.json"
            values = kept(path, lambda arm=arm, seed=seed: measure(train(arm, seed, args), args))
            found.setdefault(arm, []).append(values)
    stored = [
        storage for storage in args.stored if all(storage in values for each in found.values() for values in each)
    ]

    def line(of_seeds: list[Values], metric: str) -> list[str]:
        factor = 1 if metric == "candidates" else 100
        return [
            cell([factor * statistics.fmean(values[storage][metric].values()) for values in of_seeds])
            for storage in stored
        ]

    for metric in (*METRICS, "candidates"):
        print(
            markdown(stored, {arm: line(each, metric) for arm, each in found.items()}, f"{metric}, trained on") + "\n"
        )
    for arm in args.arms:
        for storage in stored if arm != "exact" and "exact" in found else ():
            for metric in METRICS:
                one, other = ([values[storage][metric] for values in found[name]] for name in (arm, "exact"))
                print(f"trained on {arm} - on exact, stored as {storage}, {metric}: {difference(one, other)}")


if __name__ == "__main__":
    main()
