"""FAISS as the engine of the certified index: inverted lists of 4-bit codes that are compared in registers (fast scan).

  faiss_centres.npy     float32 [leaves, D]: a row is in the leaf whose centre has the highest inner product with it
  faiss_codebook.npy    float32 [ceil(D / 2), 16, 2]: the values that a pair of dimensions of a residual can take

Codes are of what remains of a row without its leaf's centre (residuals): with as many candidates they find more than
codes of the rows themselves, in the same time. Without a tree there is one leaf, whose centre is 0.

FAISS trusts the files that it reads, so that it reads none: its index is made of arrays that were checked.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.config import ENGINE_LABELS, EngineName
from jaxretr.data.arrays import read_array, write_header
from jaxretr.indexes.certified.engine import Proposed
from jaxretr.indexes.certified.worker import CODES, TOKENS, sample_rows
from jaxretr.runtime.errors import UserError, import_extra
from jaxretr.runtime.parallel.machine import cpu_threads

CENTRES, CODEBOOK = "faiss_centres.npy", "faiss_codebook.npy"

# A code of 4 bits is of two dimensions: half a byte, as ScaNN has it.
_DIMENSIONS_A_CODE, _VALUES = 2, 16

# Rows whose residuals the codebook is learnt from; more of them do not change it.
_CODEBOOK_ROWS = 65_536

_ITERATIONS = 10

# Rows that codes are made of at a time.
_BLOCK_ROWS = 16_384

# Bytes that FAISS and its loops hold besides arrays.
_FAISS_BYTES = 64 << 20

# Questions and centres whose products FAISS holds at a time, while it looks for the nearest centre.
_PRODUCTS = 4096 * 1024


class FaissEngine:
    """FAISS as an `Engine`."""

    name: EngineName = "faiss"
    label = ENGINE_LABELS["faiss"]
    package = "faiss-cpu"
    batch = 2048  # Questions that search the same leaf share reading it.
    knows_filters = True

    def problem(self) -> str | None:
        try:
            self.require()
        except UserError as error:
            return str(error)
        return None

    def require(self) -> None:
        import_extra("faiss", "export")

    def model_files(self, tree: bool) -> list[str]:
        del tree
        return [CENTRES, CODEBOOK]

    def codes_a_row(self, dim: int) -> int:
        return -(-dim // _DIMENSIONS_A_CODE)

    def training_bytes(self, train_rows: int, dim: int, leaves: int) -> int:
        sample, codebook = 4 * dim * train_rows, 4 * dim * min(train_rows, _CODEBOOK_ROWS)
        encoding = 3 * 4 * dim * _BLOCK_ROWS
        return _FAISS_BYTES + 4 * _PRODUCTS + 2 * 4 * dim * leaves + max(sample + 2 * codebook, encoding)

    def train(self, vectors: Path, out: Path, *, leaves: int, sample: int, seed: int) -> None:
        faiss = import_extra("faiss", "export")
        with _threads(faiss, cpu_threads()):
            centres, codebook = _learnt(faiss, sample_rows(vectors, sample, seed, shuffled=True), leaves, seed)
        np.save(out / CENTRES, centres)
        np.save(out / CODEBOOK, codebook)

    def encode(
        self, vectors: Path, model: Path, out: Path, *, tree: bool, advance: Callable[[int], None] = lambda rows: None
    ) -> None:
        faiss = import_extra("faiss", "export")
        n, dim = np.load(vectors, mmap_mode="r").shape
        centres, quantizer = _model(faiss, model, dim)
        leaves = np.empty(n, np.int32)
        with _threads(faiss, cpu_threads()), open(out / CODES, "wb") as file:
            write_header(file, (n, quantizer.code_size), np.uint8)
            for start in range(0, n, _BLOCK_ROWS):
                # Opened again for each block: closing the file gives its pages back.
                rows = np.array(np.load(vectors, mmap_mode="r")[start : start + _BLOCK_ROWS], np.float32)
                _, leaf = _nearest(faiss, centres, rows)
                file.write(quantizer.compute_codes(_padded(rows - centres[leaf])).data)
                leaves[start : start + len(rows)] = leaf
                advance(len(rows))
        if tree:
            np.save(out / TOKENS, leaves)

    def finish(self, folder: Path, tree: bool) -> None:
        del folder, tree  # The arrays are all.

    def open(self, folder: Path, tree: bool) -> "_Proposer":
        faiss = import_extra("faiss", "export")
        codes = np.load(folder / CODES, mmap_mode="r", allow_pickle=False)
        leaves = np.load(folder / TOKENS, allow_pickle=False) if tree else np.zeros(len(codes), np.int32)
        dim = _array(folder / CENTRES, 2).shape[1]
        centres, quantizer = _model(faiss, folder, dim)
        if codes.shape != (len(leaves), quantizer.code_size) or codes.dtype != np.uint8:
            raise UserError(f"{folder / CODES}: does not fit {CODEBOOK}; build the index again")
        if len(leaves) and not (leaves.min() >= 0 and leaves.max() < len(centres)):
            raise UserError(f"{folder / TOKENS}: names leaves that are not in {CENTRES}; build the index again")
        return _Proposer(faiss, _index(faiss, centres, quantizer, codes, leaves), dim)


class _Proposer:
    """FAISS's index in memory as a `Proposer`."""

    def __init__(self, faiss: Any, index: tuple[Any, Any], dim: int):
        self._faiss, self._dim = faiss, dim
        self._index, self._centres = index  # FAISS does not keep the index of the centres alive.

    def propose(
        self,
        queries: NDArray[np.float32],
        count: int,
        leaves: int,
        threads: int,
        allowed: NDArray[np.bool_] | None = None,
    ) -> Proposed:
        faiss = self._faiss
        # FAISS keeps neither the bits nor the selector alive: both are this function's until it returns.
        bits = None if allowed is None else np.packbits(allowed, bitorder="little")
        selector = None if bits is None else faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
        settings = faiss.SearchParametersIVF(nprobe=max(leaves, 1), sel=selector)
        with _threads(faiss, threads):
            approximate, rows = self._index.search(_padded(queries), count, params=settings)
        approximate[rows < 0] = np.nan
        return rows.astype(np.uint32), approximate


@contextlib.contextmanager
def _threads(faiss: Any, count: int) -> Iterator[None]:
    """Set the number of threads that FAISS uses for this thread's calls, within the block."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _learnt(
    faiss: Any, rows: NDArray[np.float32], leaves: int, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Learn centres [leaves, D] and a codebook [ceil(D / 2), 16, 2] from a sample in a random order."""
    dim = rows.shape[1]
    centres = np.zeros((leaves, dim), np.float32)
    if leaves > 1:
        means = faiss.Kmeans(
            dim,
            leaves,
            niter=_ITERATIONS,
            spherical=True,
            seed=seed,
            min_points_per_centroid=1,  # no warning about small samples
            max_points_per_centroid=len(rows),  # learn from the whole sample
        )
        means.train(rows)
        # Spherical k-means gives directions; as long as the rows are along them, the residuals are short.
        centres = means.centroids * np.float32(_nearest(faiss, means.centroids, rows)[0].mean())
    sample = rows[: min(len(rows), _CODEBOOK_ROWS)]
    _, leaf = _nearest(faiss, centres, sample)
    quantizer = _quantizer(faiss, dim)
    quantizer.cp.seed, quantizer.cp.min_points_per_centroid, quantizer.cp.max_points_per_centroid = seed, 1, len(sample)
    quantizer.train(_padded(sample - centres[leaf]))
    return centres, faiss.vector_to_array(quantizer.centroids).reshape(-1, _VALUES, _DIMENSIONS_A_CODE)


def _nearest(
    faiss: Any, centres: NDArray[np.float32], rows: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Find the highest inner product of each row with a centre, and the number of that centre."""
    flat = faiss.IndexFlatIP(centres.shape[1])
    flat.add(np.ascontiguousarray(centres))
    products, leaves = flat.search(np.ascontiguousarray(rows), 1)
    return products[:, 0], leaves[:, 0]


def _padded(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Append a column of zeros where the number of dimensions is odd, which changes no inner product."""
    return np.ascontiguousarray(np.pad(rows, ((0, 0), (0, 1))) if rows.shape[1] % _DIMENSIONS_A_CODE else rows)


def _quantizer(faiss: Any, dim: int) -> Any:
    pairs = -(-dim // _DIMENSIONS_A_CODE)
    return faiss.ProductQuantizer(pairs * _DIMENSIONS_A_CODE, pairs, 4)


def _model(faiss: Any, folder: Path, dim: int) -> tuple[NDArray[np.float32], Any]:
    """The centres [leaves, D] and the product quantizer of a folder."""
    centres, codebook = _array(folder / CENTRES, 2), _array(folder / CODEBOOK, 3)
    quantizer = _quantizer(faiss, dim)
    if centres.shape[1] != dim or codebook.shape != (quantizer.M, _VALUES, _DIMENSIONS_A_CODE):
        raise UserError(f"{folder / CODEBOOK}: is not of {dim} dimensions; build the index again")
    faiss.copy_array_to_vector(np.ascontiguousarray(codebook).ravel(), quantizer.centroids)
    return centres, quantizer


def _array(path: Path, axes: int) -> NDArray[np.float32]:
    array = read_array(path, np.float32, (None,) * axes, "build the index again", mapped=False)
    if not len(array) or not np.isfinite(array).all():
        raise UserError(f"{path}: contains nothing, or NaN; build the index again")
    return array


def _index(
    faiss: Any,
    centres: NDArray[np.float32],
    quantizer: Any,
    codes: NDArray[np.uint8],
    leaves: NDArray[np.int32],
) -> tuple[Any, Any]:
    """The searchable index of codes [N, C], the row's number as its id; and the index of the centres."""
    flat = faiss.IndexFlatIP(quantizer.d)
    flat.add(_padded(centres))
    lists = faiss.IndexIVFPQ(flat, quantizer.d, len(centres), quantizer.M, 4, faiss.METRIC_INNER_PRODUCT)
    lists.by_residual, lists.is_trained = True, True
    lists.pq.centroids = quantizer.centroids
    order = np.argsort(leaves, kind="stable")
    ends = np.cumsum(np.bincount(leaves, minlength=len(centres))).tolist()
    first = 0
    for leaf, end in enumerate(ends):
        if end > first:
            ids, leaf_codes = order[first:end], np.ascontiguousarray(codes[order[first:end]])
            lists.invlists.add_entries(leaf, end - first, faiss.swig_ptr(ids), faiss.swig_ptr(leaf_codes))
        first = end
    lists.ntotal = len(codes)
    return faiss.IndexIVFPQFastScan(lists), flat
