"""Exact search: ours against FAISS IndexFlatIP (when faiss-cpu is installed) and blocked numpy, interleaved in one run.

    python benchmarks/search.py                                # under two minutes on 2 cores
    python benchmarks/search.py --rows 1000000 --dim 384 --queries 1 8 64 512

Prints the median seconds of each and the ratio peer / ours with its spread (above 1: ours is faster), after checking
that all return the same scores.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def clustered(rng: np.random.Generator, n: int, dim: int, centres: np.ndarray) -> np.ndarray:
    """Unit vectors [n, dim] around shared centres: as with real embeddings, neighbours are much closer than the rest."""
    rows = centres[rng.integers(len(centres), size=n)] + 0.6 * rng.standard_normal((n, dim), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def numpy_search(rows: np.ndarray, block: int = 16384) -> Search:
    """The usual brute force: blocked matrix products, argpartition of each block, one sort at the end."""

    def search(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores, found = [], []
        for start in range(0, len(rows), block):
            block_scores = queries @ rows[start : start + block].T
            kept = min(k, block_scores.shape[1])
            columns = np.argpartition(-block_scores, kept - 1, axis=1)[:, :kept]
            scores.append(np.take_along_axis(block_scores, columns, axis=1))
            found.append(columns + start)
        scores, found = np.concatenate(scores, axis=1), np.concatenate(found, axis=1)
        order = np.lexsort((found, -scores), axis=1)[:, :k]
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(found, order, axis=1)

    return search


def faiss_search(rows: np.ndarray, threads: int) -> Search | None:
    try:
        import faiss
    except ImportError:
        return None
    faiss.omp_set_num_threads(threads)
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    return index.search


def cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("-k", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--block-rows", type=int, default=None, help="rows scored at a time (default: the library's)")
    args = parser.parse_args()

    import jax

    from jaxretr.search.exact import ExactIndex

    rng = np.random.default_rng(0)
    centres = rng.standard_normal((max(1, args.rows // 200), args.dim), dtype=np.float32)
    rows = clustered(rng, args.rows, args.dim, centres)
    block = {} if args.block_rows is None else {"block_rows": args.block_rows}
    index, half = ExactIndex(rows, **block), ExactIndex(rows, dtype="bfloat16", **block)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    searches: dict[str, Search | None] = {
        "jaxretr": index.search_rows,
        "jaxretr bf16": half.search_rows,
        "numpy": numpy_search(rows),
        "faiss": faiss_search(rows, threads),
    }
    print(f"{cpu_name()}, {threads} threads; jax {jax.__version__} on {jax.devices()[0].device_kind}")
    print(f"{args.rows} x {args.dim} fp32, k={args.k}, median of {args.repeats} interleaved runs")
    if searches["faiss"] is None:
        print("faiss is left out: pip install faiss-cpu")
    live = {name: search for name, search in searches.items() if search is not None}

    for batch in args.queries:
        queries = clustered(rng, batch, args.dim, centres)
        expected = live["numpy"](queries, args.k)[0]
        seconds: dict[str, list[float]] = {name: [] for name in live}
        for name, search in live.items():  # also compiles and warms up
            # bfloat16 keeps 8 bits of each coordinate: scores of unit vectors differ by at most 2^-8.
            tolerance = 2**-8 if name == "jaxretr bf16" else 1e-5
            np.testing.assert_allclose(search(queries, args.k)[0], expected, atol=tolerance, err_msg=name)
        for _ in range(args.repeats):
            for name, search in live.items():
                start = time.perf_counter()
                search(queries, args.k)
                seconds[name].append(time.perf_counter() - start)
        print(f"\n{batch} questions")
        for name, times in seconds.items():
            ratios = sorted(peer / ours for peer, ours in zip(times, seconds["jaxretr"], strict=True))
            spread = f"{statistics.median(ratios):5.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(f"  {name:13s} {statistics.median(times):8.4f} s   {name} / jaxretr = {spread}")


if __name__ == "__main__":
    main()
