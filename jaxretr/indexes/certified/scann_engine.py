"""ScaNN as the engine of the certified index: it trains and makes codes in a process of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.config import ENGINE_LABELS, EngineName
from jaxretr.indexes.certified import process, worker
from jaxretr.indexes.certified.engine import Proposed
from jaxretr.indexes.certified.instructions import load_scann
from jaxretr.indexes.certified.process import peak_of_job
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.extras import requirement
from jaxretr.runtime.parallel.machine import cpu_threads

# Rows that are hashed at a time.
_BLOCK_ROWS = 4_096

# Memory of the worker besides arrays while it trains (Python, NumPy, ScaNN), and while it makes codes (also Numba,
# which compiles the loop where it finds none in its cache: 34 MB more than reading it).
_TRAINING_BYTES, _CODING_BYTES = 48 << 20, 204 << 20


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
        if problem := process.scann_problem():
            raise UserError(f"ScaNN cannot be used here: {problem}; run: pip install {requirement('scann')}")

    def model_files(self, tree: bool) -> list[str]:
        return [worker.CONFIG, *worker.model_files(tree)]

    def codes_a_row(self, dim: int) -> int:
        return -(-dim // worker.dimensions_a_code(dim))

    def training_bytes(self, train_rows: int, dim: int, leaves: int) -> int:
        # Measured with ScaNN 1.4.2: while it learns the tree, three times the sample (the sample, ScaNN's copy, and that of
        # its leaves), and while it learns the codebook, four times what it learns that from.
        row = 4 * dim
        training = max(int(3.2 * row * train_rows), int(4.3 * row * min(train_rows, worker.CODEBOOK_ROWS)))
        coding = 4 * row * _BLOCK_ROWS + 24 * leaves * dim
        return max(_TRAINING_BYTES + training, _CODING_BYTES + coding)

    def train(self, vectors: Path, out: Path, *, leaves: int, sample: int, seed: int) -> int:
        """Implement `Engine.train`; return the worker's peak of memory, in bytes."""
        job: dict[str, Any] = {"leaves": leaves, "sample": sample, "seed": seed, "threads": cpu_threads()}
        return peak_of_job("train", vectors=str(vectors), out=str(out), **job)

    def encode(
        self, vectors: Path, model: Path, out: Path, *, tree: bool, advance: Callable[[int], None] = lambda rows: None
    ) -> int:
        """Implement `Engine.encode`; return the worker's peak of memory, in bytes."""
        places = {"vectors": str(vectors), "model": str(model.absolute()), "out": str(out.absolute())}
        return peak_of_job("encode", advance, **places, tree=tree, block=_BLOCK_ROWS)

    def finish(self, folder: Path, tree: bool) -> None:
        (folder / worker.ASSETS).write_text(worker.assets(worker.index_files(tree)), encoding="utf-8")

    def open(self, folder: Path, tree: bool) -> "_Proposer":
        """Implement `Engine.open` without ScaNN's own loader, which would unpickle the folder's files."""
        module = load_scann()
        try:
            return _Proposer(module.scann_pybind.ScannNumpy(str(folder), worker.assets(worker.index_files(tree))))
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{folder}: ScaNN cannot read it ({error}); build the index again") from error


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
            rows, approximate = self._scann.search(queries[0], count, -1, leaves)
            return rows[None], approximate[None]
        size = max(1, -(-len(queries) // threads))
        return self._scann.search_batched(queries, count, -1, leaves, threads > 1, min(size, ScannEngine.batch))
