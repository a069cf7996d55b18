"""BM25: our pruned search against bm25s, and the memory of the lexical ranking, in one run.

    python benchmarks/bm25.py --corpus DATA/corpus.jsonl.gz --queries 2000 --threads 2

Sentences of the corpus's own passages are searched, k = 50, with the same words and parameters. The rounds are
interleaved; printed are the questions a second of each, and the ratio ours / bm25s with its spread, by the clock and by
processor time (which other programs disturb less). Then LexicalRanker's peak memory at two shard sizes, each in a
process of its own. bm25s takes its Numba backend.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

from jaxretr.data.corpus import Corpus, iter_passages, read_corpus
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.indexes.bm25.lexical_ranker import rank
from jaxretr.indexes.bm25.words import Bm25Settings, split_words

K = 50


def sentences(corpus: Corpus, number: int) -> list[str]:
    """One sentence of each of so many random passages: what stands between two full stops."""
    rng = np.random.default_rng(0)
    found = []
    for row in rng.permutation(len(corpus)).tolist():
        of_passage = [part for part in re.split(r"(?<=[.!?])\s+", corpus.texts[row]) if len(part.split()) > 3]
        if of_passage:
            found.append(of_passage[rng.integers(len(of_passage))])
        if len(found) == number:
            break
    return found


def bm25s_search(corpus: Corpus, index: Bm25Index, threads: int) -> Callable[[list[str]], np.ndarray]:
    """Returns bm25s' search, over the same words."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # at import it runs a top-k on JAX
    import bm25s

    vocabulary = index._vocabulary
    rows = [vocabulary.ids_of_question(f"{passage.title} {passage.text}") for passage in corpus]
    retriever = bm25s.BM25(k1=0.9, b=0.4, method="lucene", backend="numba")
    retriever.index((rows, vocabulary.ids), create_empty_token=False, show_progress=False)

    def search(questions: list[str]) -> np.ndarray:
        words: Any = [vocabulary.ids_of_question(question) for question in questions]
        found: Any = retriever.retrieve(
            words, k=K, n_threads=threads, show_progress=False, backend_selection="numba", sorted=True
        )
        return found.scores

    return search


def timed(search: Callable[[list[str]], np.ndarray], questions: list[str]) -> tuple[float, float]:
    clock, processor = time.perf_counter(), time.process_time()
    search(questions)
    return time.perf_counter() - clock, time.process_time() - processor


def compare(corpus: Corpus, questions: list[str], threads: int, rounds: int) -> None:
    began = time.process_time()
    index = Bm25Index.build(corpus)
    print(f"built in {time.process_time() - began:.1f} s of processor time")

    def ours(texts: list[str]) -> np.ndarray:
        return index.search(texts, K, threads=threads)[0]

    peer = bm25s_search(corpus, index, threads)
    some = questions[:100]  # also compiles both
    np.testing.assert_allclose(ours(some), peer(some), rtol=1e-5, atol=1e-5)
    seconds = [(timed(ours, questions), timed(peer, questions)) for _ in range(rounds)]
    for number, kind in enumerate(("clock", "processor time")):
        mine, theirs = ([len(questions) / pair[who][number] for pair in seconds] for who in (0, 1))
        ratios = sorted(one / other for one, other in zip(mine, theirs, strict=True))
        print(
            f"{kind}: ours {statistics.median(mine):.0f}/s, bm25s {statistics.median(theirs):.0f}/s, "
            f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def peak_memory() -> float:
    """Returns the most memory that this process has had, in MiB; `ru_maxrss` begins with that of the parent."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) / 1024  # pyright: ignore[reportOptionalSubscript]
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rank_once(corpus: str, questions: list[str], shard: int, threads: int) -> None:
    """Ranks in this process, and prints its peak memory before and after."""
    before = peak_memory()
    began, processor = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        rank(
            lambda: iter_passages(corpus),
            questions,
            Path(folder) / "ranking",
            Bm25Settings(),
            depth=K,
            corpus_name=corpus,
            corpus_fingerprint="corpus",
            queries_fingerprint="questions",
            shard_passages=shard,
            threads=threads,
        )
    print(
        f"shards of {shard}: peak {peak_memory():.0f} MiB ({before:.0f} before), "
        f"{time.perf_counter() - began:.0f} s, {time.process_time() - processor:.0f} s of processor time"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, nargs="+", default=[50_000, 200_000], help="passages a shard")
    parser.add_argument("--ranks", type=Path, help=argparse.SUPPRESS)  # the questions' file, in a process of its own
    args = parser.parse_args()
    if args.ranks:
        rank_once(args.corpus, json.loads(args.ranks.read_text()), args.shards[0], args.threads)
        return
    corpus = read_corpus(args.corpus)
    questions = sentences(corpus, args.queries)
    words = statistics.mean(len(split_words(question)) for question in islice(questions, 1000))
    print(f"{len(corpus)} passages, {len(questions)} sentences of {words:.1f} words, k = {K}, {args.threads} threads")
    print(describe(args.threads))
    compare(corpus, questions, args.threads, args.rounds)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "questions.json"
        file.write_text(json.dumps(questions))
        for shard in args.shards:
            options = ["--corpus", args.corpus, "--ranks", file, "--shards", shard, "--threads", args.threads]
            subprocess.run([sys.executable, __file__, *map(str, options)], check=True)


if __name__ == "__main__":
    main()
