"""Searching the same vectors in the engines that a service can use: recall, latency, throughput, build time, disk.

    python benchmarks/engines.py [VECTORS.npy] --address postgresql://USER@HOST/DATABASE

Without a file: random clusters. Without an address: no PostgreSQL. Every engine answers the same questions in turns, a round
each; the table has medians over the rounds. Neither a model nor texts are needed: texts are empty.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe
from tables import markdown

from jaxretr import ExactIndex
from jaxretr.data.readers import read_corpus
from jaxretr.embeddings.embedding_store import EmbeddingStore, StoreMeta
from jaxretr.indexes.graph_width import GraphOptions
from jaxretr.indexes.index import Opening, SearchOptions
from jaxretr.indexes.source import IndexSource

K = 10

# Questions [B, D] -> the ids that each finds.
Search = Callable[[np.ndarray], list[list[str]]]


class Engine:
    """One way to search.

    Attributes:
      search: see above.
      seconds: that building took.
      bytes: on disk.
    """

    def __init__(self, search: Search, seconds: float, bytes: int):
        self.search, self.seconds, self.bytes = search, seconds, bytes
        self.singles: list[float] = []
        self.rates: list[float] = []


class FixedQuestions:
    """In the place of an encoder: the golden questions are passages."""

    def __init__(self, vectors: np.ndarray):
        self.vectors = vectors

    def encode_queries(self, queries: list[str], **settings: Any) -> np.ndarray:
        return self.vectors[: len(queries)]


def main() -> None:
    """Builds, and measures in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors", nargs="?", help="a .npy file, float32 [N + questions, D]")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--questions", type=int, default=400, help="half of them tune, half are measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--address", help="of a PostgreSQL database; its table jaxretr_benchmark is replaced")
    parser.add_argument("--engines", nargs="+", default=["exact", "scann", "pgvector", "lance"])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    passages, asked = given(args) if args.vectors else drawn(args)
    half = len(asked) // 2
    tuning, questions = asked[:half], asked[half:]
    print(f"{describe()}; {len(passages):,} x {passages.shape[1]}, {len(questions)} questions, recall@{K}")
    with tempfile.TemporaryDirectory() as name, built(Path(name), passages, tuning, args) as engines:
        true = [set(found) for found in ExactIndex(passages, ids_of(passages)).search(questions, K)[1]]
        for _ in range(args.rounds):
            for engine in engines.values():
                measure(engine, questions)
        rows = {name: row_of(engine, questions, true) for name, engine in engines.items()}
    print(markdown(["recall", "p50 ms", "p99 ms", "batched/s", "build s", "MB on disk"], rows, "engine"))


def given(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of a file; the last rows are the questions."""
    vectors = np.load(args.vectors, mmap_mode="r")[: args.rows + args.questions].astype(np.float32)
    return vectors[: -args.questions], vectors[-args.questions :]


def drawn(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around random centres, 50 a centre."""
    rng = np.random.default_rng(args.seed)
    centres = rng.standard_normal((max(1, args.rows // 50), args.dim))
    count = args.rows + args.questions
    vectors = centres[rng.integers(len(centres), size=count)] + rng.standard_normal((count, args.dim))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return vectors[: args.rows], vectors[args.rows :]


def ids_of(passages: np.ndarray) -> list[str]:
    return [f"p{row}" for row in range(len(passages))]


@contextmanager
def built(
    folder: Path, passages: np.ndarray, tuning: np.ndarray, args: argparse.Namespace
) -> Iterator[dict[str, Engine]]:
    """Builds the engines that were asked for, one after the other."""
    source, corpus = source_of(folder, passages)
    stub: Any = FixedQuestions(passages[:10])
    settings: dict[str, Any] = {"corpus": corpus, "options": GraphOptions(questions=tuning, k=K)}
    engines: dict[str, Engine] = {}
    indexes: list[Any] = []

    def served(name: str, index: Any, seconds: float, size: int) -> None:
        indexes.append(index)
        for exact in (True, False):
            options = SearchOptions(exact=exact)
            engines[f"{name} {'exact' if exact else 'indexed'}"] = Engine(
                lambda some, options=options: [[hit.id for hit in one] for one in index.search(some, K, options)],
                *(seconds, size),
            )

    if "exact" in args.engines:
        began = time.perf_counter()
        ours = ExactIndex(passages, ids_of(passages))
        engines["exact, in memory"] = Engine(
            lambda some: ours.search(some, K)[1], time.perf_counter() - began, passages.nbytes
        )
    if "scann" in args.engines:
        from jaxretr import ScannIndex

        began = time.perf_counter()
        scann = ScannIndex.build(passages, ids_of(passages), questions=tuning, k=K)
        seconds = time.perf_counter() - began
        scann.save(folder / "scann")
        engines["ScaNN"] = Engine(lambda some: scann.search(some, K)[1], seconds, size_of(folder / "scann"))
    if "pgvector" in args.engines and args.address:
        from jaxretr.indexes.pgvector import build as exporting
        from jaxretr.indexes.pgvector import index as pgvector
        from jaxretr.indexes.pgvector.address import Address

        address = Address.parse(args.address, "jaxretr_benchmark")
        began = time.perf_counter()
        exporting.export(source, stub, address, **settings)
        seconds = time.perf_counter() - began
        text = args.address + ("&" if "?" in args.address else "?") + "table=jaxretr_benchmark"
        index = pgvector.open(text, Opening("pgvector"))
        served("pgvector", index, seconds, index.facts()["disk_bytes"])
    if "lance" in args.engines:
        from jaxretr.indexes.lance import build as exporting_lance
        from jaxretr.indexes.lance import index as lance

        began = time.perf_counter()
        exporting_lance.export(source, stub, folder / "lance", **settings)
        seconds = time.perf_counter() - began
        served("LanceDB", lance.open(str(folder / "lance"), Opening("lance")), seconds, size_of(folder / "lance"))
    try:
        yield engines
    finally:
        for index in indexes:
            index.close()


def source_of(folder: Path, passages: np.ndarray) -> tuple[IndexSource, Path]:
    """A store of the vectors, and its corpus of ids and short texts."""
    corpus, ids = folder / "corpus.jsonl", ids_of(passages)
    with open(corpus, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"_id": name, "text": name}) + "\n" for name in ids)
    meta = StoreMeta(
        side="passage",
        model="random clusters",
        model_fingerprint="none",
        texts_fingerprint=read_corpus(corpus).fingerprint(),
        rows=len(passages),
        dim=passages.shape[1],
        dtype="float32",
        compute="float32",
        shard_rows=4096,
    )
    store = EmbeddingStore.begin(folder / "store", meta, ids)
    for shard in store.missing():
        store.write(shard, passages[slice(*meta.span(shard))], 0)
    return IndexSource.open(EmbeddingStore.open(folder / "store")), corpus


def measure(engine: Engine, questions: np.ndarray) -> None:
    """One round: every question by itself, then all in one batch."""
    engine.search(questions[:2])
    for row in range(len(questions)):
        began = time.perf_counter()
        engine.search(questions[row : row + 1])
        engine.singles.append(time.perf_counter() - began)
    began = time.perf_counter()
    engine.search(questions)
    engine.rates.append(len(questions) / (time.perf_counter() - began))


def row_of(engine: Engine, questions: np.ndarray, true: list[set[str]]) -> list[str]:
    found = engine.search(questions)
    recall = np.mean([len(set(ids) & wanted) / K for ids, wanted in zip(found, true, strict=True)])
    p50, p99 = (1000 * value for value in np.quantile(engine.singles, [0.5, 0.99]))
    return [
        f"{recall:.4f}",
        f"{p50:.2f}",
        f"{p99:.2f}",
        f"{statistics.median(engine.rates):,.0f}",
        f"{engine.seconds:.1f}",
        f"{engine.bytes / 1e6:.0f}",
    ]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
