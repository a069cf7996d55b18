"""Teachers that score passages inside a compiled step: a T5, a cross-encoder or a causal language model.

They are constants while a program is compiled, hashable. The rows that a teacher's encoder reads are passages for a T5, and
pairs of question and passage for the others.
"""

from dataclasses import dataclass
from typing import Any

import jax

from jaxretr.models.backbones.layers import Params, define
from jaxretr.models.backbones.t5 import PassagesRead, T5Config, T5Model
from jaxretr.models.scorers import causal_lm, cross_encoder, t5_scorer
from jaxretr.models.scorers.causal_lm import CausalLmConfig
from jaxretr.models.scorers.cross_encoder_shape import CrossEncoderConfig
from jaxretr.models.scorers.pair_frame import PairFrame
from jaxretr.models.scorers.t5_scorer import Prompt


@dataclass(frozen=True)
class T5Teacher:
    """A T5 that scores by mean log p(question token | passage), ART's own teacher: it reads a passage once for all of its
    questions."""

    config: T5Config
    prompt: Prompt

    def row_lengths(self, passage_lengths: Any, question_lengths: Any) -> Any:
        """Return the real tokens of rows, int32 [...], by those of passages and questions, numpy's or JAX's."""
        return passage_lengths + self.prompt.size

    def longest_row(self, passage_width: int, question_width: int) -> int:
        """Return the largest number of tokens of a row of a passage and a question with at most so many tokens."""
        return passage_width + self.prompt.size

    def read(self, params: Params, passages: jax.Array, lengths: jax.Array, *, width: int, dtype: Any) -> PassagesRead:
        """Read passages.

        Args:
          passages: token ids by the scorer's template for passages, [E, P], padded on the right.
          lengths: int32 [E].
          width: length that no row exceeds.
        """
        passages = passages[:, : width - self.prompt.size]
        return t5_scorer.read_passages(self.config, self.prompt, params, passages, lengths, dtype=dtype)

    def score(
        self,
        params: Params,
        read: PassagesRead,
        of: jax.Array,
        questions: jax.Array,
        lengths: jax.Array,
        *,
        dtype: Any,
    ) -> jax.Array:
        """Score n questions, each against one of the passages that were read.

        Args:
          of: number of each question's passage, int32 [n].
          questions: token ids by the scorer's template for questions, [n, T], padded on the right.
          lengths: int32 [n].

        Returns:
          float32 [n]; higher is better.
        """
        return t5_scorer.score_questions(self.config, params, read, of, questions, lengths, dtype=dtype)

    def abstract_params(self) -> Params:
        """Return the shapes of the parameters, as ShapeDtypeStructs of float32."""
        return define(lambda rngs: T5Model(self.config, rngs=rngs))[1]


@dataclass(frozen=True)
class PairTeacher:
    """A teacher that reads question and passage in one row: a cross-encoder, or a causal language model."""

    config: CrossEncoderConfig | CausalLmConfig
    frame: PairFrame

    def row_lengths(self, passage_lengths: Any, question_lengths: Any) -> Any:
        questions, passages = self.frame.fit(question_lengths, passage_lengths)
        return questions + passages + self.frame.fixed

    def longest_row(self, passage_width: int, question_width: int) -> int:
        return min(passage_width + question_width + self.frame.fixed, self.frame.max_length)

    def score(
        self,
        params: Params,
        passages: jax.Array,
        passage_lengths: jax.Array,
        questions: jax.Array,
        question_lengths: jax.Array,
        *,
        width: int,
        dtype: Any,
    ) -> jax.Array:
        """Score n questions, each against a passage of its own.

        Args:
          passages: token ids by the scorer's template for passages, [n, P], padded on the right.
          passage_lengths: int32 [n].
          questions: token ids by the scorer's template for questions, [n, T], padded on the right.
          question_lengths: int32 [n].
          width: length that no row exceeds.

        Returns:
          float32 [n]; higher is better.
        """
        tokens, lengths, seconds = self.frame.splice(questions, question_lengths, passages, passage_lengths)
        return self.score_rows(params, tokens[:, :width], lengths, seconds, dtype=dtype)

    def score_rows(
        self, params: Params, tokens: jax.Array, lengths: jax.Array, seconds: jax.Array, *, dtype: Any
    ) -> jax.Array:
        """Score rows that are already joined by `PairFrame.splice`: float32 [n]."""
        if isinstance(self.config, CrossEncoderConfig):
            return cross_encoder.relevance(self.config, params, tokens, lengths, seconds, dtype=dtype)
        return causal_lm.question_likelihood(self.config, params, tokens, lengths, seconds, dtype=dtype)

    def abstract_params(self) -> Params:
        if isinstance(self.config, CrossEncoderConfig):
            return cross_encoder.abstract_params(self.config)
        return causal_lm.abstract_params(self.config)


Teacher = T5Teacher | PairTeacher
