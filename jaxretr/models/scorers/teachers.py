"""What scores passages inside a compiled step, whatever it is: a T5, a cross-encoder or a causal language model."""

from dataclasses import dataclass
from typing import Any, Protocol

import jax

from jaxretr.models.layers import Params, define
from jaxretr.models.scorers import causal_lm, cross_encoder, t5_scorer
from jaxretr.models.scorers.causal_lm import CausalLmConfig
from jaxretr.models.scorers.cross_encoder_shape import CrossEncoderConfig
from jaxretr.models.scorers.pair_frame import PairFrame
from jaxretr.models.scorers.t5_scorer import Prompt
from jaxretr.models.t5 import T5Config, T5Model


class Teacher(Protocol):
    """All of a scorer that is fixed while a program is compiled; hashable."""

    def score(
        self,
        params: Params,
        passages: jax.Array,
        passage_lengths: jax.Array,
        questions: jax.Array,
        question_lengths: jax.Array,
        *,
        dtype: Any,
    ) -> jax.Array:
        """Scores n questions, each against a passage of its own.

        Args:
          params: the scorer's parameters.
          passages: token ids as the scorer's template for passages makes them, [n, P], padded on the right.
          passage_lengths: int32 [n].
          questions: likewise by its template for questions, [n, Q].
          question_lengths: int32 [n].
          dtype: of the matmuls' operands.

        Returns:
          float32 [n]; higher is better.
        """
        ...

    def abstract_params(self) -> Params:
        """The shapes of the parameters, as ShapeDtypeStructs of float32."""
        ...


@dataclass(frozen=True)
class T5Teacher:
    """mean log p(question token | passage) by a T5: ART's own."""

    config: T5Config
    prompt: Prompt

    def score(
        self,
        params: Params,
        passages: jax.Array,
        passage_lengths: jax.Array,
        questions: jax.Array,
        question_lengths: jax.Array,
        *,
        dtype: Any,
    ) -> jax.Array:
        pairs = (passages, passage_lengths, questions, question_lengths)
        return t5_scorer.score_pairs(self.config, self.prompt, params, *pairs, dtype=dtype)

    def abstract_params(self) -> Params:
        return define(lambda rngs: T5Model(self.config, rngs=rngs))[1]


@dataclass(frozen=True)
class PairTeacher:
    """What reads question and passage in one row: a cross-encoder, or a causal language model."""

    config: CrossEncoderConfig | CausalLmConfig
    frame: PairFrame

    def score(
        self,
        params: Params,
        passages: jax.Array,
        passage_lengths: jax.Array,
        questions: jax.Array,
        question_lengths: jax.Array,
        *,
        dtype: Any,
    ) -> jax.Array:
        rows = self.frame.splice(questions, question_lengths, passages, passage_lengths)
        return self.score_rows(params, *rows, dtype=dtype)

    def score_rows(
        self, params: Params, tokens: jax.Array, lengths: jax.Array, seconds: jax.Array, *, dtype: Any
    ) -> jax.Array:
        """Scores rows that are put together already, as `PairFrame.splice` gives them: float32 [n]."""
        if isinstance(self.config, CrossEncoderConfig):
            return cross_encoder.relevance(self.config, params, tokens, lengths, seconds, dtype=dtype)
        return causal_lm.question_likelihood(self.config, params, tokens, lengths, seconds, dtype=dtype)

    def abstract_params(self) -> Params:
        if isinstance(self.config, CrossEncoderConfig):
            return cross_encoder.abstract_params(self.config)
        return causal_lm.abstract_params(self.config)
