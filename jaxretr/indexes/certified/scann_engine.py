"""ScaNN as the engine of the certified index: it trains and makes codes in a process of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.config import ENGINE_LABELS, EngineName
from jaxretr.indexes.certified import process, worker
from jaxretr.indexes.certified.engine import Proposed


class ScannEngine:
    """ScaNN as an `Engine`."""

    name: EngineName = "scann"
    label = ENGINE_LABELS["scann"]
    package = "scann"
    batch = 256  # With more or fewer ScaNN is slower.
    knows_filters = False

    def problem(self) -> str | None:
        return process.scann_problem()

    def require(self) -> None:
        process.require_scann()

    def model_files(self, tree: bool) -> list[str]:
        return [worker.CONFIG, *worker.model_files(tree)]

    def codes_a_row(self, dim: int) -> int:
        return -(-dim // worker.dimensions_a_code(dim))

    def training_bytes(self, train_rows: int, dim: int, leaves: int) -> int:
        return process.worker_bytes(train_rows, dim, leaves)

    def train(self, vectors: Path, out: Path, *, leaves: int, sample: int, seed: int) -> int:
        return process.train(vectors, out, leaves=leaves, sample=sample, seed=seed)

    def encode(
        self, vectors: Path, model: Path, out: Path, *, tree: bool, advance: Callable[[int], None] = lambda rows: None
    ) -> int:
        return process.encode(vectors, model, out, tree=tree, advance=advance)

    def finish(self, folder: Path, tree: bool) -> None:
        (folder / worker.ASSETS).write_text(worker.assets(worker.index_files(tree)), encoding="utf-8")

    def open(self, folder: Path, tree: bool) -> "_Proposer":
        return _Proposer(process.open_searcher(folder, tree))


class _Proposer:
    """ScaNN's searcher in memory as a `Proposer`."""

    def __init__(self, scann: Any):
        self._scann = scann

    def propose(
        self,
        queries: NDArray[np.float32],
        count: int,
        leaves: int,
        threads: int,
        allowed: NDArray[np.bool_] | None = None,
    ) -> Proposed:
        del allowed  # ScaNN's restricts work without a tree alone.
        leaves = leaves or -1
        if len(queries) == 1:
            found, approximate = self._scann.search(queries[0], count, -1, leaves)
            return found[None], approximate[None]
        size = max(1, -(-len(queries) // threads))
        return self._scann.search_batched(queries, count, -1, leaves, threads > 1, min(size, ScannEngine.batch))
