"""The certified index, with ScaNN and with FAISS, against FAISS's own: recall that was promised, questions a second at
equal recall, memory, filters, and a tenth replaced.

    python benchmarks/approximate_search.py runs/passages runs/questions               # stores that `jaxretr encode` wrote
    python benchmarks/approximate_search.py runs/passages runs/questions --filters     # and with filters, against exact search
    python benchmarks/approximate_search.py runs/passages runs/questions --update      # and delete and add a tenth of the passages

Half of the questions tunes, the other half is what everything here is measured on. Every peer gets the cheapest of its
settings that reaches at least our recall (the higher one of our engines') on those questions; all run one thread,
interleaved, in one batch and one by one. Filtered questions come one by one.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
from machine import describe

from jaxretr import ScannIndex
from jaxretr.config import EngineName
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.indexes.certified import process
from jaxretr.indexes.certified.build import plan_of
from jaxretr.indexes.certified.engines import engine_of
from jaxretr.indexes.recall import table
from jaxretr.runtime.parallel import memory
from jaxretr.runtime.parallel.machine import cpu_threads

K = 10

# Questions of a round of timing: in a batch, one by one, and one by one with filters.
_TIMED, _SINGLES, _TIMED_SINGLY = 1000, 200, 20

# Of the passages, that filters allow.
_SHARES = (0.9, 0.5, 0.2, 0.1, 0.03, 0.01, 0.003)

# Searches so many questions to the end; the rows found.
Search = Callable[[np.ndarray], np.ndarray]


def main() -> None:
    """Builds, compares, and changes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("passages", help="a store of passages")
    parser.add_argument("questions", help="a store of questions")
    parser.add_argument("--count", type=int, default=4000, help="questions that are drawn")
    parser.add_argument("--targets", type=float, nargs="+", default=[0.90, 0.95, 0.99])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hnsw-m", type=int, default=32)
    peers = ("HNSW", "IVF-Flat", "IVF-PQ refined", "IVF-PQ/3 refined")
    parser.add_argument("--peers", nargs="*", choices=peers, default=peers, help="none: FAISS is left out")
    parser.add_argument("--engines", nargs="+", choices=get_args(EngineName), default=get_args(EngineName))
    parser.add_argument("--filters", action="store_true")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    store = EmbeddingStore.open(args.passages)
    asked = np.concatenate([np.asarray(block, np.float32) for block in EmbeddingStore.open(args.questions).blocks()])
    rng = np.random.default_rng(args.seed)
    asked = asked[rng.choice(len(asked), min(args.count, len(asked)), replace=False)]
    print(f"{describe()}; {store.meta.rows:,} x {store.meta.dim}, {len(asked)} questions")

    with tempfile.TemporaryDirectory() as folder:
        indexes = {}
        for engine in args.engines:
            index = build(store, asked, args, engine)
            assert index.certificate is not None and index.questions is not None
            print(table(index.certificate))
            index.save(Path(folder) / engine)
            indexes[f"ours, {engine_of(engine).label}"] = ScannIndex.load(Path(folder) / engine)
        if args.peers:
            compare(indexes, store, args)
        if args.filters:
            compare_filtered(indexes, args)
    if args.update:
        for engine in args.engines:
            replace_a_tenth(store, asked, args, engine)


def build(store: EmbeddingStore, asked: np.ndarray, args: argparse.Namespace, engine: EngineName) -> ScannIndex:
    """The index, and what building it took against what was predicted."""
    plan = plan_of(store.meta.rows, store.meta.dim, None, None, engine)
    peaks = [0]
    run = process.run_worker

    def watched(*job: Any, **facts: Any) -> dict[str, Any]:
        answer = run(*job, **facts)
        peaks.append(answer["peak"])
        return answer

    process.run_worker = watched
    before = memory.resident()
    memory.reset_peak()
    began = time.perf_counter()
    index = ScannIndex.build(store, questions=asked, target_recall=args.targets, k=K, seed=args.seed, engine=engine)
    seconds = time.perf_counter() - began
    process.run_worker = run
    own, worker = memory.peak() - before, max(peaks)
    held = 4.25 * store.meta.rows * store.meta.dim
    print(
        f"{engine_of(engine).label}: built in {seconds:.0f} s; peak {memory.size(own)} beside the {memory.size(before)} before, the worker's "
        f"{memory.size(worker)}, predicted {memory.size(plan.memory())}; vectors and codes take {memory.size(held)}: "
        f"{max(own, worker) / held:.2f} times these, {max(own, worker) / plan.memory():.2f} of the prediction"
    )
    return index


# ---- against FAISS ---------------------------------------------------------------------------------------------------


def compare(indexes: dict[str, ScannIndex], store: EmbeddingStore, args: argparse.Namespace) -> None:
    """For every target: each peer's cheapest setting with our recall, timed in turns."""
    import faiss

    index = next(iter(indexes.values()))
    assert index.questions is not None
    questions = index.questions.vectors[index.questions.certify]
    row_of = index.rows.row_of()
    exact = np.array([[row_of[name] for name in names[:K]] for names in index.questions.neighbours])
    faiss.omp_set_num_threads(cpu_threads())
    peers = dict(faiss_indexes(faiss, store, args))
    faiss.omp_set_num_threads(1)
    tried: dict[tuple, tuple[float, float]] = {}
    for target in args.targets:
        chosen: dict[str, tuple[str, Search, float]] = {}
        told = []
        for name, ours in indexes.items():
            setting = next(each for each in ours.facts.settings if each.target == target)

            def search(some: np.ndarray, ours: ScannIndex = ours, target: float = target) -> np.ndarray:
                return ours.search_rows(some, K, target_recall=target, threads=1)[1]

            what = f"{setting.leaves} leaves, {setting.candidates} candidates"
            chosen[name] = (what, search, recall(search(questions), exact))
            told.append(f"{name}: {shares(ours, setting.leaves, setting.candidates, questions[:_TIMED])}")
        reached = max(found for _, _, found in chosen.values())
        for name, (peer, settings) in peers.items():
            if found := cheapest(name, peer, settings, questions, exact, reached, tried):
                chosen[name] = found
            else:
                print(f"  {name}: no setting reaches {reached:.4f}")
        print(f"\ntarget {target}: recall@{K} {reached:.4f} on {len(questions)} questions that were not tuned on")
        print(*(f"  {line}" for line in told), sep="\n")
        batches = [questions[:_TIMED]], [questions[row : row + 1] for row in range(_SINGLES)]
        taken = [in_turns({name: search for name, (_, search, _) in chosen.items()}, some, args) for some in batches]
        for name, (what, _, found) in chosen.items():
            rates = [
                sum(map(len, some)) / statistics.median(times[name]) for some, times in zip(batches, taken, strict=True)
            ]
            faster = ", ".join(
                f"{ours} {ratio(taken[0][name], taken[0][ours])}, one by one {ratio(taken[1][name], taken[1][ours])}"
                for ours in indexes
                if ours != name
            )
            print(
                f"  {name:16s} {rates[0]:7,.0f} questions/s, {rates[1]:6,.0f} one by one, at {found:.4f} ({what}); times as "
                f"fast: {faster or '-'}"
            )


def ratio(theirs: list[float], ours: list[float]) -> str:
    """How many times as fast ours are: the median, and the lowest and the highest."""
    ratios = sorted(peer / mine for peer, mine in zip(theirs, ours, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def compare_filtered(indexes: dict[str, ScannIndex], args: argparse.Namespace) -> None:
    """Random filters that nothing was tuned on: the index's choice against scoring every allowed passage."""
    for name, index in indexes.items():
        assert index.questions is not None
        questions = index.questions.vectors[index.questions.certify]
        for share in _SHARES:
            allowed = np.random.default_rng(args.seed + 1).random(len(index)) < share
            timed = questions[:_TIMED_SINGLY]
            exact = index.searcher.exact(questions, K, allowed)[1]
            for target in args.targets:
                found = index.search_rows(questions, K, target_recall=target, allowed=allowed)[1]
                seconds: dict[str, list[float]] = {"chosen": [], "scored": []}
                for _ in range(args.rounds):
                    for question in np.split(timed, len(timed)):
                        began = time.perf_counter()
                        index.search_rows(question, K, target_recall=target, threads=1, allowed=allowed)
                        chosen = time.perf_counter()
                        index.searcher.exact(question, K, allowed)
                        seconds["chosen"].append(chosen - began)
                        seconds["scored"].append(time.perf_counter() - chosen)
                print(
                    f"  {name}, target {target}, {share:.1%} allowed: recall@{K} {recall(found, exact):.4f}, "
                    f"{1000 * statistics.median(seconds['chosen']):.2f} ms, "
                    f"{1000 * statistics.median(seconds['scored']):.2f} ms if all are scored: "
                    f"{statistics.median(seconds['scored']) / statistics.median(seconds['chosen']):.1f} times as fast",
                    flush=True,
                )


def in_turns(
    searches: dict[str, Search], batches: list[np.ndarray], args: argparse.Namespace
) -> dict[str, list[float]]:
    """The seconds that each search takes for all batches, a round after the other."""
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    for _ in range(args.rounds):
        for name, search in searches.items():
            began = time.perf_counter()
            for batch in batches:
                search(batch)
            seconds[name].append(time.perf_counter() - began)
    return seconds


def shares(index: ScannIndex, leaves: int, candidates: int, questions: np.ndarray) -> str:
    """What of a search is the engine's tree and codes, and what is the exact scores."""
    proposing, whole = [], []
    for _ in range(5):
        began = time.perf_counter()
        for start in range(0, len(questions), 256):
            index.searcher.candidates(questions[start : start + 256], leaves, candidates, 1)
        between = time.perf_counter()
        index.searcher.search(questions, K, leaves, candidates, 1)
        proposing.append(between - began)
        whole.append(time.perf_counter() - between)
    each = 1e6 / len(questions)
    return (
        f"of {each * min(whole):.0f} us a question the engine takes {each * min(proposing):.0f}, exact scores the rest"
    )


def faiss_indexes(
    faiss: Any, store: EmbeddingStore, args: argparse.Namespace
) -> Iterator[tuple[str, tuple[Any, list]]]:
    """Name -> index and its settings, the cheapest first."""
    rows = np.concatenate([np.asarray(block, np.float32) for block in store.blocks()])
    n, dim = rows.shape
    lists = round(n**0.5)
    probes = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 160, 200, 256, 320]
    kinds = {
        "HNSW": (f"HNSW{args.hnsw_m},Flat", [{"efSearch": ef} for ef in (10, 12, 14, *(2 * p for p in probes[6:]))]),
        "IVF-Flat": (f"IVF{lists},Flat", [{"nprobe": p} for p in probes]),
    }
    for name, width in (("IVF-PQ refined", 2), ("IVF-PQ/3 refined", 3)):
        settings = [{"nprobe": p, "k_factor_rf": f} for p in probes for f in (2, 4, 8, 16)]
        kinds[name] = f"IVF{lists},PQ{dim // width}x4fs,RFlat", settings
    for name in args.peers:
        text, settings = kinds[name]
        if "/3" in name and dim % 3:
            print(f"  {name}: {dim} dimensions cannot be divided by 3")
            continue
        began = time.perf_counter()
        index = faiss.index_factory(dim, text, faiss.METRIC_INNER_PRODUCT)
        if name == "HNSW":
            index.hnsw.efConstruction = 100
        index.train(rows)
        index.add(rows)
        print(f"  FAISS {text}: built in {time.perf_counter() - began:.0f} s", flush=True)
        yield name, (index, settings)


def cheapest(
    kind: str,
    index: Any,
    settings: list[dict[str, int]],
    questions: np.ndarray,
    exact: np.ndarray,
    wanted: float,
    tried: dict[tuple, tuple[float, float]],
) -> tuple[str, Search, float] | None:
    """The fastest setting that reaches a recall: the first of a ladder, or of several ladders the fastest first.

    What was measured is kept in `tried`, for the next target.
    """
    import faiss

    space = faiss.ParameterSpace()
    best: tuple[float, str, Search, float] | None = None
    done = set()
    for setting in settings:
        ladder = setting.get("k_factor_rf")
        if ladder in done:
            continue

        def search(some: np.ndarray, setting: dict[str, int] = setting) -> np.ndarray:
            for name, value in setting.items():
                space.set_index_parameter(index, name, value)
            return index.search(some, K)[1]

        key = (kind, *setting.values())
        if key not in tried:
            began = time.perf_counter()
            tried[key] = recall(search(questions), exact), time.perf_counter() - began
        reached, seconds = tried[key]
        if reached >= wanted:
            done.add(ladder)
            if best is None or seconds < best[0]:
                best = seconds, ", ".join(f"{name} {value}" for name, value in setting.items()), search, reached
    return None if best is None else best[1:]


def recall(found: np.ndarray, exact: np.ndarray) -> float:
    """Recall@K."""
    pairs = zip(found.tolist(), exact.tolist(), strict=True)
    return float(np.mean([len(set(rows) & set(wanted)) / len(wanted) for rows, wanted in pairs]))


# ---- changes ---------------------------------------------------------------------------------------------------------


def replace_a_tenth(store: EmbeddingStore, asked: np.ndarray, args: argparse.Namespace, engine: EngineName) -> None:
    """An index of nine tenths of the passages; of these a ninth goes, and the tenth that it has never seen comes."""
    rows = np.concatenate([np.asarray(block, np.float32) for block in store.blocks()])
    ids = store.read_ids()
    order = np.random.default_rng(args.seed + 1).permutation(len(rows))
    tenth = len(rows) // 10
    new, gone, there = order[:tenth], order[tenth : 2 * tenth], np.sort(order[tenth:])
    index = ScannIndex.build(
        *(rows[there], [ids[row] for row in there]),
        **{"questions": asked, "target_recall": args.targets, "k": K, "seed": args.seed, "engine": engine},
    )
    assert index.certificate is not None
    before = index.certificate
    began = time.perf_counter()
    index.delete([ids[row] for row in gone])
    index.add(rows[new], [ids[row] for row in new])
    changing = time.perf_counter() - began
    index.certify()
    print(f"\n{engine_of(engine).label}: {tenth:,} passages deleted and {tenth:,} added in {changing:.1f} s")
    for old, line in zip(before.lines, index.certificate.lines, strict=True):
        for one, other in zip(old.recalls, line.recalls, strict=True):
            difference = other.recall - one.recall
            print(f"  target {line.target}: recall@{one.k} {one.recall:.4f} -> {other.recall:.4f} ({difference:+.4f})")
    index.rebalance()
    for line in index.certificate.lines:
        print(f"  rebalanced: target {line.target}: recall@{K} {line.recalls[0].recall:.4f}")


if __name__ == "__main__":
    main()
