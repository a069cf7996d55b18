"""The sizes of ART's step on the card, which ours and its peer share: they run in processes of their own."""

from dataclasses import dataclass

import numpy as np

from jaxretr.models.backbones.t5 import T5Config
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.scorers.t5_scorer import Prompt
from on_gpu import formulas


@dataclass(frozen=True)
class ArtSizes:
    """64 questions, the first 32 passages of the index for each, a frozen T5; lengths of real text."""

    encoder: DualEncoderConfig
    t5: T5Config
    prompt: Prompt
    b: int
    """Questions."""
    k: int
    """Passages of each."""
    width: int
    """Columns of a passage's token ids as the towers read it."""
    scorer_width: int
    """As the T5 does."""
    n: int
    """Passages that are searched."""
    rows: int
    """Rows of the index; those behind n are padding."""

    @property
    def case(self) -> str:
        """Its name in the report."""
        return f"ART step, T5 of {self.t5.num_layers} x {self.t5.d_model}"

    @property
    def passage_lengths(self) -> np.ndarray:
        """int32 [rows]."""
        return formulas.draw_lengths(formulas.PASSAGE_TOKENS, self.rows, self.width)

    @property
    def scorer_lengths(self) -> np.ndarray:
        """int32 [rows]."""
        return formulas.draw_lengths(formulas.T5_PASSAGE_TOKENS, self.rows, self.scorer_width)

    @property
    def question_lengths(self) -> np.ndarray:
        """int32 [b]."""
        return formulas.draw_lengths(formulas.QUESTION_TOKENS, self.b, 32)

    @property
    def target_lengths(self) -> np.ndarray:
        """int32 [b]."""
        return formulas.draw_lengths(formulas.TARGET_TOKENS, self.b, 40)
