"""ScaNN's training and hashing: a program of its own, started by jaxretr/indexes/certified/process.py.

A broken installation ends this process alone, what ScaNN prints stays here, and the memory that training takes is
given back to the last byte. Nothing here imports JAX, so that it starts in a second and holds little.

The whole corpus is never in memory: ScaNN learns the tree and then the codebook from a sample, and codes.py makes the codes
of one block of rows after the other.
"""

import ctypes
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.indexes.certified.instructions import load_scann
from jaxretr.indexes.certified.learnt import CODEBOOK, CONFIG, TREE, Learnt, leaf_centres, nearest, score_threshold
from jaxretr.runtime.errors import import_extra

CODES = "hashed_dataset.npy"
TOKENS = "datapoint_to_token.npy"
ASSETS = "scann_assets.pbtxt"

_KINDS = {
    CODEBOOK: "AH_CENTERS",
    TREE: "PARTITIONER",
    TOKENS: "TOKENIZATION_NPY",
    CODES: "AH_DATASET_NPY",
}

# Pairs of dimensions share a codebook, as in ScaNN's own examples; above 512 dimensions more do, because ScaNN has its
# fastest loop for up to 256 codes a row.
_DIMENSIONS_A_CODE, _MOST_CODES = 2, 256

# Weight of errors along a vector in the centre of its leaf: searching with it takes .8 times as long as with means
# (195,388 x 384, recall .90 and .95), and as long at .99.
_LEAF_ANISOTROPY = 2.5

# The most rows of the sample that the codebook is learnt from.
CODEBOOK_ROWS = 20_000

# Rows of the sample that are read at a time.
_ROWS_READ = 2048

# Leaves smaller than this are dissolved, in a sample of the whole corpus.
_SMALLEST_LEAF = 50


def assets(names: list[str]) -> str:
    """The text of scann_assets.pbtxt, with paths that are relative to its folder."""
    return "".join(f'assets {{\n  asset_type: {_KINDS[name]}\n  asset_path: "{name}"\n}}\n' for name in names)


def model_files(tree: bool) -> list[str]:
    """The files that training writes, apart from the configuration."""
    return [CODEBOOK, TREE] if tree else [CODEBOOK]


def index_files(tree: bool) -> list[str]:
    """The files that searching an index needs, apart from the configuration."""
    return [*model_files(tree), *([TOKENS] if tree else []), CODES]


def dimensions_a_code(dim: int) -> int:
    """The number of dimensions, of D, that share a code; a code takes half a byte in ScaNN's memory."""
    return max(_DIMENSIONS_A_CODE, -(-dim // _MOST_CODES))


def train(vectors: str, out: str, leaves: int, sample: int, seed: int, threads: int) -> dict[str, Any]:
    """Learn a tree of `leaves` leaves (1: none) and the codebook from `sample` rows, into the folder `out`.

    ScaNN would learn both at once; but when it saves that, it writes the codebook out once for each leaf.
    """
    rows = sample_rows(vectors, sample, seed, shuffled=False)
    dim = rows.shape[1]
    length = float(np.sqrt(np.mean(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))))
    tree = {
        "num_leaves": leaves,
        "num_leaves_to_search": leaves,
        "training_sample_size": sample,
        "min_partition_size": max(1, min(_SMALLEST_LEAF * sample // _rows_of(vectors), sample // leaves // 4)),
        "avq": _LEAF_ANISOTROPY,
    }
    codes = {
        "dimensions_per_block": dimensions_a_code(dim),
        "anisotropic_quantization_threshold": length * score_threshold(dim),
        "training_sample_size": sample,
    }
    builder = _builder(rows[:1]).score_ah(**codes) if leaves < 2 else _builder(rows[:1]).tree(**tree).score_ah(**codes)
    (Path(out) / CONFIG).write_bytes(_config(builder.create_config()))
    if leaves > 1:
        _build(_builder(rows).tree(**tree).score_brute_force(), threads, TREE, out)
        centres = leaf_centres(Path(out))
        for start in range(0, sample, _ROWS_READ):
            part = rows[start : start + _ROWS_READ]
            part -= centres[nearest(part, centres)]
    # 16 centres of a few dimensions need fewer rows than the leaves do.
    _build(_builder(rows[:: -(-sample // CODEBOOK_ROWS)]).score_ah(**codes), threads, CODEBOOK, out)
    return {}


def _rows_of(vectors: str) -> int:
    return len(np.load(vectors, mmap_mode="r"))


def sample_rows(vectors: str | Path, sample: int, seed: int, *, shuffled: bool) -> np.ndarray:
    """Draw rows of a file of vectors, float32 [sample, D], without holding the others; in their order, or a random one."""
    n, dim = np.load(vectors, mmap_mode="r").shape
    row_numbers = np.random.default_rng(seed).choice(n, sample, replace=False)
    if not shuffled:
        row_numbers.sort()
    order = np.argsort(row_numbers)
    rows = np.empty((sample, dim), np.float32)
    for start in range(0, sample, _ROWS_READ):
        part = order[start : start + _ROWS_READ]
        # Opened again for each part: the pages that were read count as this process's memory until the file is closed.
        rows[part] = np.load(vectors, mmap_mode="r")[row_numbers[part]]
    return rows


def _builder(rows: np.ndarray) -> Any:
    return load_scann().builder(rows, 10, "dot_product")


def _build(builder: Any, threads: int, name: str, out: str) -> None:
    """Build what a builder describes, and keep one of its files."""
    searcher = builder.set_n_training_threads(threads).build()
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        searcher.serialize(scratch, relative_path=True)
        os.replace(Path(scratch) / name, Path(out) / name)


def _config(text: str) -> bytes:
    """ScaNN's configuration as it writes it."""
    text_format = import_extra("google.protobuf.text_format", "scann")

    config = import_extra("scann.proto.scann_pb2", "scann").ScannConfig()
    return text_format.Parse(text, config).SerializeToString()


def encode(vectors: str, model: str, out: str, tree: bool, block: int) -> dict[str, Any]:
    """Make the codes and the leaves' numbers of all rows, a block at a time, with the files of the folder `model`."""
    from jaxretr.indexes.certified.codes import codes_of  # Numba takes more memory than training a small index

    n = _rows_of(vectors)
    learnt = Learnt.read(Path(model), tree)
    with open(Path(out) / CODES, "wb") as codes_file, open(Path(out) / TOKENS, "wb") as tokens_file:
        for start in range(0, n, block):
            # Opened again for each block: closing the file gives its pages back.
            rows = np.array(np.load(vectors, mmap_mode="r")[start : start + block])
            codes, leaf = codes_of(rows, learnt)
            _append(codes_file, codes, start, n)
            _append(tokens_file, leaf, start, n)
            print(json.dumps({"done": min(start + block, n)}), flush=True)
    if not tree:
        os.unlink(Path(out) / TOKENS)
    return {}


def _append(file: Any, values: np.ndarray, start: int, n: int) -> None:
    """Add a block to a .npy file of n rows; no memory map, whose pages would count as this process's memory."""
    if not start:
        header = np.lib.format.header_data_from_array_1_0(values)
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (n, *values.shape[1:])})
    file.write(np.ascontiguousarray(values).data)


def self_test() -> dict[str, Any]:
    """Trains, hashes, loads and searches a tiny index, whose right answers are known."""
    vectors = np.random.default_rng(0).standard_normal((256, 8), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    with tempfile.TemporaryDirectory() as out:
        path = str(Path(out) / "vectors.npy")
        np.save(path, vectors)
        train(path, out, 4, 256, 0, 1)
        encode(path, out, out, True, 100)
        searcher = load_scann().scann_pybind.ScannNumpy(out, assets(index_files(True)))
        proposals, _ = searcher.search_batched(vectors[:8], 20, -1, 4, False, 0)
    if not all(row in candidates for row, candidates in enumerate(proposals.tolist())):
        raise RuntimeError("a tiny index does not find its own vectors")
    return {}


def main() -> None:
    """Do the job that standard input names, as JSON, and answer with a line of JSON."""
    # PR_SET_PDEATHSIG: nobody reads the answer once the thread that started this has ended.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    job = json.load(sys.stdin)
    answer = {"train": train, "encode": encode, "self_test": self_test}[job.pop("job")](**job)
    with open("/proc/self/status", encoding="ascii") as file:
        answer["peak"] = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
