"""The index on the devices that a training step searches, and training on the scores of a quantised one."""

from dataclasses import dataclass
from typing import Literal

from jaxretr.config.choices import Dtype
from jaxretr.runtime.errors import UsageError


@dataclass(frozen=True)
class LiveIndex:
    """The corpus's embeddings on the devices, which a training step searches."""

    refresh_every: int = 500
    """R, the number of steps in which every row is encoded again."""
    write_back: bool = False
    """Put the fresh passage embeddings of a step into the index in the same step (with dropout's noise, if on)."""
    dtype: Dtype = "bfloat16"
    """Floating-point type of the embeddings in the index."""
    block_rows: int = 16384
    """Corpus rows that the search scores at once on each device, at most, where it searches block by block; on GPUs it
    mostly does not."""
    encode_rows: int = 512
    """Corpus rows that the refresh encodes at once on each device."""
    refresh: Literal["full", "rolling"] = "full"
    """Way to encode the corpus again with the current weights. full: all of it, every R steps. rolling: before every
    step the rows r with r mod R = step mod R, so that every step takes equally long; and all of it before an
    evaluation."""
    refresh_share: float | None = None
    """Share of a step's matrix products that encodes rows in a rolling refresh. R then follows from the number of these
    products, and `refresh_every` is not read."""

    @property
    def rolling(self) -> bool:
        """Whether a part of the corpus is encoded again before every step."""
        return self.refresh == "rolling"

    def check(self) -> None:
        """Raise UsageError for settings that contradict each other."""
        if self.refresh_share is None:
            return
        if not self.rolling:
            raise UsageError(
                "index.refresh_share is for a rolling refresh; set index.refresh=rolling, or leave the share out"
            )
        if not 0 < self.refresh_share < 1:
            raise UsageError(
                f"index.refresh_share={self.refresh_share}: must be above 0 and below 1; set index.refresh_share"
            )


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

    def check(self) -> None:
        """Raise UsageError for settings that do not define a quantiser, or that nothing would read."""
        if self.kind == "none":
            if self != IndexAware():
                raise UsageError("index_aware: has settings but no kind; set index_aware.kind=int8 or product")
            return
        if not 0 < self.weight <= 1:
            raise UsageError(f"index_aware.weight={self.weight}: must be above 0 and at most 1")
        if self.commitment < 0:
            raise UsageError(f"index_aware.commitment={self.commitment}: must be at least 0")
        if self.kind == "int8":
            return
        if not 2 <= self.centres <= 256:
            raise UsageError(f"index_aware.centres={self.centres}: must be from 2 to 256, the values of a byte")
        if self.block < 1 or self.relearn_every < 1:
            raise UsageError("index_aware.block and index_aware.relearn_every must be at least 1")
        if self.sample < self.centres:
            raise UsageError(
                f"index_aware.sample={self.sample}: is too few to fit {self.centres} centres; give {self.centres} or more"
            )
