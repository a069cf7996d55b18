"""The live index: durable commits, searches with and without a tail, opening, and the memory that it announces.

    python benchmarks/live_index.py                                    # 30,000 x 384; some minutes on 2 cores
    python benchmarks/live_index.py --rows 3000 --dim 16 --seconds 1   # a look at it

The peer of the commits is plain SQLite (WAL, synchronous=FULL) with a commit for each write, whose rate does not grow with the
number of writers; the two are measured by turns. A commit waits for the disk, so the numbers are those of the disk of --folder.
"""

import argparse
import queue
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from machine import describe

from jaxretr.indexes.index import Document, SearchOptions
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.settings import LiveSettings
from jaxretr.runtime.parallel import memory

WRITERS = (1, 8, 64)
TEXT = "A passage of about a hundred words, as corpora have them. " * 10


def documents(start: int, count: int) -> list[Document]:
    return [Document(f"doc{n}", f"title {n}", f"{n}: {TEXT}", {"year": n % 30}) for n in range(start, start + count)]


def vectors(count: int, dim: int, seed: int) -> np.ndarray:
    """Unit vectors around shared centres, as real embeddings have neighbours."""
    centres = np.random.default_rng(0).standard_normal((500, dim))
    draws = np.random.default_rng(seed)
    found = centres[draws.integers(500, size=count)] + draws.standard_normal((count, dim))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def opened(folder: Path, dim: int, **settings: float) -> LiveIndex:
    given = LiveSettings(**settings)  # pyright: ignore[reportArgumentType]
    return LiveIndex.open(folder, model="m", model_fingerprint="f", dim=dim, settings=given, background=False)


def writes_a_second(write: Callable[[int, int], object], writers: int, seconds: float) -> float:
    """Lets threads call `write(writer, number)` for some seconds."""
    until = time.monotonic() + seconds
    counts = [0] * writers

    def run(writer: int) -> None:
        while time.monotonic() < until:
            write(writer, counts[writer])
            counts[writer] += 1

    threads = [threading.Thread(target=run, args=[writer]) for writer in range(writers)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - began)


def commits(folder: Path, dim: int, seconds: float) -> None:
    """Writes of one passage each, by turns with the peer."""
    index, vector = opened(folder / "commits", dim), vectors(1, dim, 1)
    idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
    connection = sqlite3.connect(folder / "peer.sqlite", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE documents (id TEXT PRIMARY KEY, text TEXT, vector BLOB)")
    idle.put(connection)

    def ours(writer: int, number: int) -> None:
        index.upsert([Document(f"{writer}-{number}", "", TEXT)], vector)

    def peer(writer: int, number: int) -> None:
        found = idle.get()
        found.execute(
            "INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", (f"{writer}-{number}", TEXT, vector.tobytes())
        )
        idle.put(found)

    print("| writers | ours, writes/s | SQLite, a commit each | ratio |\n| --- | --- | --- | --- |")
    for writers in WRITERS:
        turns = [[writes_a_second(each, writers, seconds / 2) for each in (ours, peer)] for _ in range(2)]
        ratios = [one / other for one, other in turns]
        means = [statistics.mean(each) for each in zip(*turns, strict=True)]
        spread = f"{statistics.mean(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
        print(f"| {writers} | {means[0]:.0f} | {means[1]:.0f} | {spread} |", flush=True)
    index.close()
    connection.close()


def milliseconds(search: Callable[[np.ndarray], object], questions: np.ndarray) -> str:
    search(questions[:1])
    found = []
    for row in range(len(questions)):
        began = time.perf_counter()
        search(questions[row : row + 1])
        found.append(1000 * (time.perf_counter() - began))
    p50, p99 = np.quantile(found, [0.5, 0.99])
    return f"{p50:.2f} / {p99:.2f}"


def searches(index: LiveIndex, questions: np.ndarray, tail: str) -> None:
    for name, options in (
        ("exact", SearchOptions(exact=True)),
        ("default", SearchOptions()),
        ("one of 30 years", SearchOptions(where={"year": 7})),
    ):
        found = milliseconds(lambda question, options=options: index.search(question, 10, options), questions)
        print(f"| {tail} | {name} | {found} |", flush=True)


def opening(folder: Path, dim: int) -> None:
    """In a process of its own, for the memory: what is announced, and what is taken."""
    small = opened(folder / "warm", dim)
    small.upsert(documents(0, 2000), vectors(2000, dim, 1))
    for batch in (1, 64):
        small.search(vectors(batch, dim, 2), 10, SearchOptions(exact=True))  # Compiled programs are not the index's.
    small.close()
    before, began = memory.resident(), time.perf_counter()
    index = opened(folder / "live", dim)
    seconds = time.perf_counter() - began
    for exact in (True, False):
        index.search(vectors(64, dim, 3), 10, SearchOptions(exact=exact))
    taken, announced = memory.resident() - before, index.facts()["bytes"]
    print(
        f"opening {len(index):,} passages: {seconds:.2f} s; memory announced {memory.size(announced)}, taken "
        f"{memory.size(taken)} (ratio {announced / taken:.2f})",
        flush=True,
    )
    index.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each number of writers")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured (default: the system's)")
    parser.add_argument("--open-only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.open_only:
        opening(args.folder, args.dim)
        return
    print(describe())
    folder = Path(tempfile.mkdtemp(prefix="live-index-", dir=args.folder))
    try:
        commits(folder, args.dim, args.seconds)
        index = opened(folder / "live", args.dim)
        found = vectors(args.rows, args.dim, 4)
        for start in range(0, args.rows, 10_000):
            part = documents(start, min(10_000, args.rows - start))
            began = time.perf_counter()
            index.upsert(part, found[start : start + len(part)])
            print(f"{len(part):,} passages in one batch: {time.perf_counter() - began:.2f} s", flush=True)
        began = time.perf_counter()
        index.upkeep.compact()
        kind = "with ScaNN" if index.facts()["approximate"] else "without ScaNN"
        print(f"snapshot {kind}: {time.perf_counter() - began:.1f} s")
        questions = vectors(args.questions, args.dim, 5)
        print("| tail | search | p50 / p99 ms |\n| --- | --- | --- |")
        searches(index, questions, "none")
        count = args.rows // 10
        index.upsert(documents(args.rows, count), vectors(count, args.dim, 6))
        searches(index, questions, f"{count:,} rows")
        index.close()
        words = [sys.executable, __file__, "--open-only", "--folder", str(folder), "--dim", str(args.dim)]
        print(subprocess.run(words, check=True, capture_output=True, text=True).stdout, end="")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
