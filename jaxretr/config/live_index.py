"""The index on the devices that a training step searches."""

from dataclasses import dataclass

from jaxretr.config.choices import Dtype


@dataclass(frozen=True)
class LiveIndex:
    """The corpus's embeddings on the devices, which a training step searches."""

    refresh_every: int = 500
    """R: the whole corpus is encoded again every R steps."""
    write_back: bool = False
    """Put the fresh passage embeddings of a step into the index in the same step (with dropout's noise, if on)."""
    dtype: Dtype = "bfloat16"
    """Of the embeddings."""
    block_rows: int = 16384
    """Corpus rows that the search scores at once on each device, at most; a GPU with 8 questions or fewer scores all."""
    encode_rows: int = 512
    """Corpus rows that the refresh encodes at once on each device."""
