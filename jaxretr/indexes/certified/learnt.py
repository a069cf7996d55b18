"""The centres of the leaves and the codebook that ScaNN has learnt, read from its files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.runtime.errors import import_extra

CONFIG = "scann_config.pb"
CODEBOOK = "ah_codebook.pb"
TREE = "serialized_partitioner.pb"


@dataclass(frozen=True)
class Learnt:
    """The tree and the codebook that ScaNN has learnt from a sample.

    Attributes:
      centres: the centres of the leaves, float32 [L, D]; one row of zeros where there is no tree.
      codebook: float32 [S, C, W]: the centres of S groups of W dimensions; the last group has zeros for those that
        there are not, and infinities are no centres.
      threshold: T of the score-aware loss, a length; NaN: the nearest centres are the codes.
    """

    centres: NDArray[np.float32]
    codebook: NDArray[np.float32]
    threshold: float

    @classmethod
    def read(cls, folder: Path, tree: bool) -> "Learnt":
        """Read ScaNN's files in a folder."""
        hashing = _message("proto.scann_pb2", "ScannConfig", folder / CONFIG).hash.asymmetric_hash
        groups = _message("proto.centers_pb2", "CentersForAllSubspaces", folder / CODEBOOK).subspace_centers
        centres = [[centre.feature_value_float for centre in group.center] for group in groups]
        codebook = np.full((len(centres), max(map(len, centres)), len(centres[0][0])), np.inf, np.float32)
        for group, values in enumerate(centres):
            codebook[group, : len(values)] = 0
            codebook[group, : len(values), : len(values[0])] = values
        dim = sum(len(values[0]) for values in centres)
        leaves = leaf_centres(folder) if tree else np.zeros((1, dim), np.float32)
        return cls(leaves, codebook, hashing.noise_shaping_threshold)


def leaf_centres(folder: Path) -> NDArray[np.float32]:
    """The centres of the leaves of ScaNN's tree in a folder, float32 [L, D]."""
    tree = _message("partitioning.partitioner_pb2", "SerializedPartitioner", folder / TREE).kmeans.kmeans_tree
    root = tree.root
    order = np.argsort([child.leaf_id for child in root.children])
    return np.array([root.centers[leaf].dimension for leaf in order], np.float32)


def nearest(rows: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.int64]:
    """The leaf of each row [n], which is the one with the nearest centre."""
    return (rows @ centres.T - np.einsum("ld,ld->l", centres, centres) / 2).argmax(axis=1)


def _message(module: str, kind: str, path: Path) -> Any:
    """Read a file that holds one of ScaNN's protocol buffers."""
    return getattr(import_extra(f"scann.{module}", "scann"), kind).FromString(path.read_bytes())


# The threshold of ScaNN's examples, which have 100 dimensions. With more dimensions the same number would weigh errors
# along a vector more and more, until the codes find nothing.
_SCORE, _DIMENSIONS = 0.2, 128


def score_threshold(dim: int) -> float:
    """The inner product with a vector of length 1 above which errors along it count for more than those across it.

    It is in proportion to the length of vectors of another length. Training for such codes takes it, too.

    Args:
      dim: dimensions of the vectors.
    """
    return _SCORE * min(1, _DIMENSIONS / dim) ** 0.75
