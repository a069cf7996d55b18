"""ScaNN's training and hashing: a program of its own, started by jaxretr/search/scann/process.py.

A broken installation ends this process alone, what ScaNN prints stays here, and the memory that training takes is
given back to the last byte. Nothing here imports JAX, so that it starts in a second and holds little.

The whole corpus is never in memory: ScaNN learns the tree and the codebook from a sample, and then makes the codes of
one block of rows after the other, each as a small index of its own that is handed the finished tree and codebook.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.search.scann.instructions import load_scann

CONFIG = "scann_config.pb"
CODEBOOK = "ah_codebook.pb"
TREE = "serialized_partitioner.pb"
CODES = "hashed_dataset.npy"
TOKENS = "datapoint_to_token.npy"
ASSETS = "scann_assets.pbtxt"
VECTORS = "dataset.npy"

_KINDS = {
    CODEBOOK: "AH_CENTERS",
    TREE: "PARTITIONER",
    TOKENS: "TOKENIZATION_NPY",
    CODES: "AH_DATASET_NPY",
    VECTORS: "DATASET_NPY",
}

# ScaNN's own examples: pairs of dimensions share a codebook, and errors along a vector of length 1 count for more than
# those across it where the inner product is above .2 (of vectors of another length, in proportion).
_DIMENSIONS_A_CODE = 2
_ANISOTROPY = 0.2

# Of the sample, at a time.
_ROWS_READ = 2048

# Leaves smaller than this are dissolved, in a sample of the whole corpus.
_SMALLEST_LEAF = 50


def assets(names: list[str]) -> str:
    """The text of scann_assets.pbtxt, with paths that are relative to its folder."""
    return "".join(f'assets {{\n  asset_type: {_KINDS[name]}\n  asset_path: "{name}"\n}}\n' for name in names)


def model_files(tree: bool) -> list[str]:
    """What training writes, apart from the configuration."""
    return [CODEBOOK, TREE] if tree else [CODEBOOK]


def index_files(tree: bool) -> list[str]:
    """What an index is searched with, apart from the configuration."""
    return [*model_files(tree), *([TOKENS] if tree else []), CODES]


def train(vectors: str, out: str, leaves: int, sample: int, seed: int, threads: int) -> dict[str, Any]:
    """Learns a tree of `leaves` leaves (1: none) and the codebook from `sample` rows, into the folder `out`."""
    scann_ops_pybind = load_scann()

    n = len(np.load(vectors, mmap_mode="r"))
    drawn = np.sort(np.random.default_rng(seed).choice(n, sample, replace=False)) if sample < n else np.arange(n)
    # Opened again for each part: the pages that were read count as this process's memory until the file is closed.
    parts = np.array_split(drawn, -(-sample // _ROWS_READ))
    rows = np.concatenate([np.load(vectors, mmap_mode="r")[part] for part in parts])
    length = float(np.sqrt(np.mean(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))))
    builder: Any = scann_ops_pybind.builder(rows, 10, "dot_product")
    if leaves > 1:
        builder = builder.tree(
            num_leaves=leaves,
            num_leaves_to_search=leaves,
            training_sample_size=sample,
            min_partition_size=max(1, min(_SMALLEST_LEAF * sample // n, sample // leaves // 4)),
        )
    builder = builder.score_ah(
        _DIMENSIONS_A_CODE, anisotropic_quantization_threshold=_ANISOTROPY * length, training_sample_size=sample
    )
    searcher = builder.set_n_training_threads(threads).build()
    with tempfile.TemporaryDirectory(dir=out) as made:
        searcher.serialize(made, relative_path=True)
        for name in (CONFIG, *model_files(leaves > 1)):
            os.replace(Path(made) / name, Path(out) / name)
    return {}


def encode(vectors: str, model: str, out: str, tree: bool, block: int, codes: str, tokens: str) -> dict[str, Any]:
    """Makes the codes and the leaves' numbers of all rows, a block at a time, with the files of the folder `model`."""
    scann_ops_pybind = load_scann()

    n = len(np.load(vectors, mmap_mode="r"))
    with open(Path(out) / codes, "wb") as codes_file, open(Path(out) / tokens, "wb") as tokens_file:
        for start in range(0, n, block):
            with tempfile.TemporaryDirectory(dir=out) as folder:
                for name in (CONFIG, *model_files(tree)):
                    os.symlink(os.path.abspath(Path(model) / name), Path(folder) / name)
                # Opened again for each block: closing the file gives its pages back.
                np.save(Path(folder) / VECTORS, np.load(vectors, mmap_mode="r")[start : start + block])
                given = assets([*model_files(tree), VECTORS])
                searcher = scann_ops_pybind.scann_pybind.ScannNumpy(folder, given)
                made = Path(folder) / "made"
                made.mkdir()
                searcher.serialize(str(made), True)
                del searcher
                _append(codes_file, np.load(made / CODES), start, n)
                if tree:
                    _append(tokens_file, np.load(made / TOKENS), start, n)
            print(json.dumps({"done": min(start + block, n)}), flush=True)
    if not tree:
        os.unlink(Path(out) / tokens)
    return {}


def _append(file: Any, values: np.ndarray, start: int, n: int) -> None:
    """Adds a block to a .npy file of n rows; no memory map, whose pages would count as this process's memory."""
    if not start:
        header = np.lib.format.header_data_from_array_1_0(values)
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (n, *values.shape[1:])})
    file.write(np.ascontiguousarray(values).data)


def self_test() -> dict[str, Any]:
    """Trains, hashes, loads and searches a tiny index; what it must find is known."""
    scann_ops_pybind = load_scann()

    vectors = np.random.default_rng(0).standard_normal((256, 8), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    with tempfile.TemporaryDirectory() as out:
        path = str(Path(out) / "vectors.npy")
        np.save(path, vectors)
        train(path, out, 4, 256, 0, 1)
        encode(path, out, out, True, 100, CODES, TOKENS)
        searcher = scann_ops_pybind.scann_pybind.ScannNumpy(out, assets(index_files(True)))
        found, _ = searcher.search_batched(vectors[:8], 20, -1, 4, False, 0)
    if not all(row in candidates for row, candidates in enumerate(found.tolist())):
        raise RuntimeError("a tiny index does not find its own vectors")
    return {}


def main() -> None:
    """Does the job that standard input names, as JSON, and answers with a line of JSON."""
    job = json.load(sys.stdin)
    answer = {"train": train, "encode": encode, "self_test": self_test}[job.pop("job")](**job)
    with open("/proc/self/status", encoding="ascii") as file:
        answer["peak"] = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
