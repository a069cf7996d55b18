"""The index on the devices that a training step searches."""

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
        """Refuse settings that contradict each other.

        Raises:
          UsageError: names the setting.
        """
        if self.refresh_every < 1:
            raise UsageError(f"index.refresh_every={self.refresh_every}: must be at least 1; set index.refresh_every")
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
