"""Training on the scores of a quantised index."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class IndexAware:
    """Take the loss on scores as an index of quantised passages computes them; see jaxretr/training/steps/index_aware.py.

    The questions stay as they are, as in the index. Searches in the step read the live index, which is not quantised.
    """

    kind: Literal["none", "int8", "product"] = "none"
    """Code of the index. int8: rows of integers with a scale each, as embedding stores and the first pass of the exact
    index have them. product: the nearest of a few centres in each block of dimensions, as ScaNN and FAISS code rows."""
    weight: float = 1.0
    """Weight of the loss on the index's scores, from 0 to 1; the loss on the exact scores has the rest."""
    commitment: float = 0.0
    """Weight of the squared distance from passages to their stored rows, relative to the passages' squared length."""
    block: int = 2
    """Dimensions that share a code (product). ScaNN has 2, and more for more than 512 dimensions; FAISS 2."""
    centres: int = 16
    """Centres per block of dimensions, which are the values that a code can have (product)."""
    anisotropic: bool = False
    """Choose codes by ScaNN's score-aware loss, which counts errors along a passage for more than those across it
    (Guo et al. 2020); otherwise the nearest centres, as FAISS does (product)."""
    relearn_every: int = 100
    """Steps between two fits of the centres to passages that are encoded with the current weights (product)."""
    sample: int = 4096
    """Passages of the corpus that such a fit encodes, or all of a smaller corpus (product)."""
