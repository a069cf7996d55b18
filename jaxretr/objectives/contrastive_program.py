"""What a contrastive step is given: the examples of a batch, and the constants that it is compiled with."""

from dataclasses import dataclass, field
from typing import Literal

import jax

from jaxretr.config import Typos
from jaxretr.objectives.live_index import IndexProgram
from jaxretr.state import CorpusTokens


@jax.tree_util.register_dataclass
@dataclass
class ContrastiveBatch:
    """The examples of one step, sharded by row. Passages are rows of the corpus, NO_PASSAGE where there is none."""

    tokens: jax.Array
    """[CLS] q [SEP], integers [B, L]."""
    lengths: jax.Array
    """int32 [B]."""
    rows: jax.Array
    """int32 [B, C]: places of positives, then of negatives; the retrieved ones are not among them yet."""
    known: jax.Array
    """Contents (first rows with that title and text) of all judged positives, int32 [B, Q]."""
    teacher: jax.Array | None
    """A teacher's scores of `rows`, float32 [B, C], NaN where it gave none; None without distillation."""
    forms: CorpusTokens | None = None
    """The questions' misspelt forms, tokens [B, V, L] and lengths [B, V]; None without terms for typos."""


@dataclass(frozen=True)
class ContrastiveProgram(IndexProgram):
    """All that is fixed while a contrastive run's programs are compiled; the fields are the config's."""

    positives: int
    """Places of positives among each question's passages."""
    retrieved: int
    first_rank: int
    last_rank: int
    draw: Literal["random", "top"]
    margin: float | None
    mask_known_positives: bool
    mask_duplicates: bool
    temperature: float
    symmetric: bool
    corpus_softmax: bool
    sizes: tuple[int, ...]
    """Of the embedding's prefixes, the whole included, whose losses are summed."""
    write_back: bool
    distillation: Literal["none", "margin_mse", "kl"]
    distillation_weight: float
    contrastive_weight: float
    teacher_temperature: float
    typos: Typos = field(default_factory=Typos)

    @property
    def searches(self) -> bool:
        """Whether the step reads the live index."""
        return self.retrieved > 0 or self.corpus_softmax
