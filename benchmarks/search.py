"""Exact search: ours against FAISS IndexFlatIP (when faiss-cpu is installed) and blocked numpy, interleaved in one run.

    python benchmarks/search.py                                # under two minutes on 2 cores
    python benchmarks/search.py --preset minilm                # 1M x 384: 8 GB of memory, some minutes
    python benchmarks/search.py --preset bert                  # 200k x 768

FAISS runs as it comes, and with its BLAS path forced and its block sizes tuned by hand, the best of a few. Prints the
seconds of each (median and least) and the ratio peer / ours with its spread (above 1: ours is faster), after checking
that all return the same scores; then the table of ratios, and which formulation of ours each number of questions used.
On a busy machine look at the processor time (all threads, the least of the runs): it does not count what other programs
take, which the seconds do. OMP_WAIT_POLICY=passive keeps FAISS's threads from spinning, which counts as work.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from machine import describe

from jaxretr.runtime.parallel.machine import cpu_threads

Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]

PRESETS = {"minilm": (1_000_000, 384), "bert": (200_000, 768)}

# Rows and questions of a block of FAISS's BLAS path; its defaults are 1024 and 4096.
FAISS_BLOCKS = [(1024, 4096), (4096, 64), (16384, 512), (65536, 64)]

# Seconds in which the threads of the search before (FAISS's, numpy's) stop spinning.
PAUSE = 0.2

_PIECE = 50_000


def clustered(rng: np.random.Generator, n: int, dim: int, centres: np.ndarray) -> np.ndarray:
    """Unit vectors [n, dim] around shared centres: as with real embeddings, neighbours are much closer than the rest."""
    rows = np.empty((n, dim), np.float32)
    for start in range(0, n, _PIECE):
        piece = rows[start : start + _PIECE]
        piece[:] = 0.6 * rng.standard_normal(piece.shape, dtype=np.float32)
        piece += centres[rng.integers(len(centres), size=len(piece))]
        piece /= np.linalg.norm(piece, axis=1, keepdims=True)
    return rows


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


def faiss_searches(rows: np.ndarray, threads: int) -> dict[str, Search]:
    """FAISS as it comes, and its BLAS path with the best blocks for the questions that come first."""
    try:
        import faiss
    except ImportError:
        return {}
    faiss.omp_set_num_threads(threads)
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    variables = faiss.cvar
    names = (
        "distance_compute_blas_threshold",
        "distance_compute_blas_database_bs",
        "distance_compute_blas_query_bs",
    )
    best: dict[int, tuple[int, int]] = {}

    def forced(queries: np.ndarray, k: int, blocks: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        before = [getattr(variables, name) for name in names]
        try:
            for name, value in zip(names, (1, *blocks), strict=True):
                setattr(variables, name, value)
            return index.search(queries, k)
        finally:
            for name, value in zip(names, before, strict=True):
                setattr(variables, name, value)

    def tuned(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        if len(queries) not in best:
            seconds = {blocks: _seconds(functools.partial(forced, queries, k, blocks)) for blocks in FAISS_BLOCKS}
            best[len(queries)] = min(seconds, key=seconds.__getitem__)
        return forced(queries, k, best[len(queries)])

    return {"faiss": index.search, "faiss tuned": tuned}


def formulation(questions: int) -> str:
    """Which formulation of ours is used, in words."""
    import jax

    from jaxretr.indexes.exact import host_search
    from jaxretr.runtime.parallel import machine

    if jax.default_backend() == "cpu":
        if questions >= host_search.BFLOAT16_BATCH and machine.has_amx():
            return f"host: blocks of {host_search.BLOCK_ROWS} rows in bfloat16, candidates again in float64"
        return "host: rows x questions in registers, compared with a rising bound, candidates again in float64"
    return "accelerators: a pyramid of maxima, few selections"


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, help="rows and dimensions of a usual corpus")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("-k", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--block-rows", type=int, default=None, help="rows scored at a time (default: the library's)")
    parser.add_argument("--also", nargs="*", choices=("bfloat16", "first-bfloat16", "first-int8"), default=[],
                        help="other forms of our index: rows stored as bfloat16, or a first pass in few bits")  # fmt: skip
    parser.add_argument("--without", nargs="*", choices=("numpy", "faiss", "faiss tuned"), default=[])
    args = parser.parse_args()
    if args.preset:
        args.rows, args.dim = PRESETS[args.preset]

    import jax

    from jaxretr.indexes.exact import ExactIndex

    rng = np.random.default_rng(0)
    centres = rng.standard_normal((max(1, args.rows // 200), args.dim), dtype=np.float32)
    rows = clustered(rng, args.rows, args.dim, centres)
    block = {} if args.block_rows is None else {"block_rows": args.block_rows}
    forms: dict[str, dict[str, Any]] = {"bfloat16": {"dtype": "bfloat16"}} | {
        f"first-{x}": {"first_pass": x} for x in ("bfloat16", "int8")
    }
    indexes = {"jaxretr": ExactIndex(rows, **block)}
    indexes |= {f"jaxretr {name}": ExactIndex(rows, **block, **forms[name]) for name in args.also}
    threads = cpu_threads()
    searches: dict[str, Search] = {name: index.search_rows for name, index in indexes.items()}
    peers = faiss_searches(rows, threads)
    searches |= peers | {"numpy": numpy_search(rows)}
    live = {name: search for name, search in searches.items() if name not in args.without}
    print(f"{describe(threads)}; jax {jax.__version__} on {jax.devices()[0].device_kind}")
    print(f"{args.rows} x {args.dim} fp32, clustered, k={args.k}, {args.repeats} interleaved runs")
    if not peers:
        print("faiss is left out: pip install faiss-cpu")

    table: dict[str, list[str]] = {name: [] for name in live if name != "jaxretr"}
    for batch in args.queries:
        queries = clustered(rng, batch, args.dim, centres)
        expected = live["jaxretr"](queries, args.k)[0]
        seconds: dict[str, list[float]] = {name: [] for name in live}
        processor: dict[str, list[float]] = {name: [] for name in live}
        for name, search in live.items():  # also compiles, tunes and warms up
            # bfloat16 keeps 8 bits of each coordinate: scores of unit vectors differ by at most 2^-8. Two sums of
            # float32 differ by some of their last bits.
            tolerance = 2**-8 if name == "jaxretr bfloat16" else 1e-5
            np.testing.assert_allclose(search(queries, args.k)[0], expected, atol=tolerance, err_msg=name)
        for _ in range(args.repeats):
            for name, search in live.items():
                time.sleep(PAUSE)
                before = time.process_time()
                seconds[name].append(_seconds(functools.partial(search, queries, args.k)))
                processor[name].append(time.process_time() - before)
        print(f"\n{batch} questions; {formulation(batch)}")
        for name, index in indexes.items():
            if index.first_pass:
                print(f"  {name}: recall {index.first_pass_recall(queries, args.k):.4f}, proven exact "
                      f"{index.search_proven(queries, args.k)[2].mean():.4f} of the questions")  # fmt: skip
        for name, times in seconds.items():
            ratios = sorted(peer / ours for peer, ours in zip(times, seconds["jaxretr"], strict=True))
            work = min(processor[name]) / min(processor["jaxretr"])
            spread = (
                f"{statistics.median(ratios):5.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}); processor time {work:.2f}"
            )
            print(f"  {name:22s} {statistics.median(times):8.4f} s (least {min(times):.4f})   / jaxretr = {spread}")
            if name in table:
                table[name].append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}); {work:.2f}")
    print(
        f"\nseconds of a peer / seconds of jaxretr, median (spread); the same of processor time; {args.rows} x {args.dim}, k={args.k}"
    )
    print("| questions | " + " | ".join(map(str, args.queries)) + " |")
    print("|---" * (len(args.queries) + 1) + "|")
    for name, cells in table.items():
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
