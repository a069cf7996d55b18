"""A learned sparse encoder against BM25 and a dense encoder, from the same start in as many steps.

    python benchmarks/sparse_encoders.py --data DATA/wiki_qa --runs runs/sparse --seeds 0 1 2

UniCOIL and a dense encoder, both from all-MiniLM-L6-v2, are runs of configs/dpr_small.py on the training questions of a
BEIR folder with the splits train, squad and tydi: 60 steps of 32 questions, the batch's negatives and one that BM25
mined; with --masked-lm FOLDER also SPLADE, from a head of masked language modelling, whose scores are first lowered by a
constant, so that a passage has about 200 above 0: the head's softmax knows no constant, and one that was trained here
begins with nearly all above 0. Finished runs are not repeated.
All search the passages that are judged for the test questions and others, --passages in all. Prints nDCG@10 and
recall@20, mean and standard deviation over the seeds, paired tests, the numbers above 0 of a passage's vector, and the
questions a second that an index answers with 100 passages on all threads, without encoding (BM25: with its words).
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from once import kept, last_of, trained
from parts import minilm, part_of
from tables import cell, difference, markdown

from jaxretr.config import ContrastiveConfig, load
from jaxretr.data.corpus import Corpus
from jaxretr.data.readers import read_beir
from jaxretr.embeddings.vector_files import SparseRows
from jaxretr.evaluate import metrics
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.indexes.exact import ExactIndex
from jaxretr.indexes.exact.sparse import SparseIndex
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import WORDS_HEAD
from jaxretr.models.sparse_encoder import SparseEncoder
from jaxretr.runtime.parallel.machine import cpu_threads

CONFIG = Path(__file__).parents[1] / "configs/dpr_small.py"
METRICS = ("ndcg@10", "recall@20")
SPLITS = ("squad", "tydi")
SHARED = (
    *("--data.dev", "None", "--data.dev-questions", "None", "--data.dev-qrels", "None", "--train.best-metric", "loss"),
    *("--train.eval-every", "10000", "--train.save-every", "10000", "--index.refresh-every", "10000"),
    *("--negatives.retrieved", "0", "--negatives.mined", "1", "--encoder.max-passage-length", "128"),
    *("--train.batch-size", "32", "--train.steps", "60", "--optimizer.learning-rate", "2e-5"),
)
SPARSE = ("--encoder.normalise", "False", "--contrastive.temperature", "1")
ARMS = {
    "dense": (),
    # The new head takes larger steps than the encoder.
    "UniCOIL": (*SPARSE, "--encoder.pooling", "unicoil", "--optimizer.rates", "term_head=100"),
    "SPLADE": (
        *(*SPARSE, "--encoder.pooling", "splade", "--contrastive.flops-warmup", "20"),
        *("--contrastive.flops-passages", "1e-3", "--contrastive.flops-questions", "3e-3"),
    ),
}

ENTRIES = 200

# Vectors or texts of B questions, and k -> scores and rows [B, k].
Search = Callable[[Any, int], tuple[np.ndarray, np.ndarray]]


def lowered(args: argparse.Namespace) -> Path:
    """The masked language model with its scores lowered so that a passage has about ENTRIES above 0; made once."""
    folder = args.runs / "lowered"
    if not folder.exists():
        config = load(CONFIG, last_of([*SHARED, *args.settings]))
        assert isinstance(config, ContrastiveConfig)
        read = {"max_passage_length": config.encoder.max_passage_length}
        encoder = SparseEncoder.from_pretrained(args.masked_lm, pooling="splade", **read)
        corpus = read_beir(args.searched, SPLITS[0]).corpus
        weights = encoder.encode_passages([corpus[row] for row in range(0, len(corpus), -(-len(corpus) // 64))])
        weights.sort(axis=1)
        head = encoder.params["shared"][WORDS_HEAD]
        head["bias"] = head["bias"] - np.expm1(weights[:, -1 - ENTRIES]).mean()
        encoder.save(folder)
    return folder


def train(arm: str, seed: int, args: argparse.Namespace) -> Path:
    """Runs an arm to its end, unless that has been done; returns its folder."""
    mined = args.runs / "bm25.jsonl"
    if not mined.exists():
        words = ["mine", "--corpus", args.data, "--train", args.data, "--negatives", "10", "--out", mined]
        subprocess.run([sys.executable, "-m", "jaxretr", *map(str, words)], check=True)
    start = lowered(args) if arm == "SPLADE" else args.model or minilm()
    data = ("--data.train", args.data, "--data.corpus", args.data, "--data.mined", mined, "--encoder.path", start)
    shared = (*data, *SHARED, "--data.token-cache", args.runs / "tokens", "--train.seed", seed)
    return trained(CONFIG, args.runs / f"{arm}_{seed}", (*shared, *ARMS[arm], *args.settings))


def index_of(model: Path | None, corpus: Corpus) -> tuple[Callable[[list[str]], Any], Search, float]:
    """What a model makes of questions, the search of its index of a corpus, and the numbers above 0 of a passage."""
    passages = [corpus[row] for row in range(len(corpus))]
    if model is None:
        index = Bm25Index.build(corpus)
        words = statistics.fmean(len({*f"{each.title} {each.text}".lower().split()}) for each in passages)
        return list, lambda texts, k: index.search(texts, k, threads=cpu_threads()), words
    encoder = DualEncoder.from_pretrained(model)
    if encoder.config.sparse:
        found = SparseEncoder.from_pretrained(model).sparse("passage", passages)
        rows = SparseRows(found.indices, found.data, np.diff(found.indptr))
        return encoder.encode_queries, SparseIndex([rows], found.shape[1]).search_rows, found.nnz / len(corpus)
    vectors = encoder.encode_passages(passages)
    return encoder.encode_queries, ExactIndex(vectors).search_rows, float(vectors.shape[1])


def measured(name: str, model: Path | None, args: argparse.Namespace) -> dict[str, Any]:
    """A system's metrics of each question, the numbers of a passage, and questions a second; kept in a file."""

    def measure() -> dict[str, Any]:
        corpus = read_beir(args.searched, SPLITS[0]).corpus
        prepare, search, numbers = index_of(model, corpus)
        values: dict[str, dict[str, float]] = {metric: {} for metric in METRICS}
        asked, seconds = 0, 0.0
        for split in SPLITS:
            beir = read_beir(args.searched, split)
            questions = prepare([question.text for question in beir.questions])
            search(questions[:8], 100)
            started = time.perf_counter()
            scores, rows = search(questions, 100)
            asked, seconds = asked + len(beir.questions), seconds + time.perf_counter() - started
            run = {
                question.id: {corpus.ids[row]: float(score) for row, score in zip(*found, strict=True) if row >= 0}
                for question, *found in zip(beir.questions, rows.tolist(), scores.tolist(), strict=True)
            }
            for metric, of_questions in metrics.evaluate(beir.qrels, run, METRICS, per_query=True)[1].items():
                values[metric] |= of_questions
        return {"values": values, "numbers": numbers, "speed": asked / seconds}

    return kept(args.runs / "measured" / f"{name}.json", measure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the BEIR folder")
    parser.add_argument("--passages", type=int, default=10_000, help="that are searched (0: all)")
    parser.add_argument("--runs", type=Path, default=Path("runs/sparse"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--model", type=Path, help="another encoder in MiniLM's place")
    parser.add_argument("--masked-lm", type=Path, help="a folder with a head of masked language modelling")
    parser.add_argument("--settings", nargs=argparse.REMAINDER, default=[], help="further settings of every run, last")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    args.searched = part_of(args.data, args.runs / "part", SPLITS, args.passages)

    start = args.model or minilm()
    found = {"BM25": [measured("BM25", None, args)], "the encoder as it comes": [measured("start", start, args)]}
    for arm in ARMS:
        if arm != "SPLADE" or args.masked_lm:
            found[arm] = [measured(f"{arm}_{seed}", train(arm, seed, args), args) for seed in args.seeds]
    rows = {
        name: [
            *(cell([100 * statistics.fmean(one["values"][metric].values()) for one in of_seeds]) for metric in METRICS),
            *(cell([one[column] for one in of_seeds], 0) for column in ("numbers", "speed")),
        ]
        for name, of_seeds in found.items()
    }
    print(markdown([*METRICS, "numbers of a passage", "questions a second"], rows) + "\n")
    for one in [arm for arm in found if arm in ARMS and arm != "dense"]:
        for other in ("BM25", "dense"):
            for metric in METRICS:
                first, second = ([each["values"][metric] for each in found[name]] for name in (one, other))
                print(f"{one} - {other}, {metric}: {difference(first, second)}")


if __name__ == "__main__":
    main()
