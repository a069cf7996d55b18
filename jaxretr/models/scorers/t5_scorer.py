"""The question scorer: how likely a question is given a passage, by a frozen T5 (ART, Sachan et al. 2023, section 2.3).

The passage's score is mean_t log p(question_t | question_<t, passage), over all tokens of "Question: {q}</s>" given
"Passage: {title} {text} . Please write a question based on this passage.</s>".
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.models.backbones.layers import Params, define, matmuls_in
from jaxretr.models.backbones.t5 import PassagesRead, T5Config, T5Model
from jaxretr.models.scorers.splicing import splice

PREFIX = "Passage: "
SUFFIX = " . Please write a question based on this passage."


@dataclass(frozen=True)
class Prompt:
    """The token ids around a passage in the scorer's encoder input."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    """Ids after the passage, which end with </s>."""

    @staticmethod
    def of(tokenizer: Any) -> "Prompt":
        """Tokenise the instruction's two segments, each separately, as ART does."""
        prefix, suffix = tokenizer([PREFIX, SUFFIX], add_special_tokens=False)["input_ids"]
        return Prompt(tuple(prefix), (*suffix, tokenizer.eos_token_id))

    @property
    def size(self) -> int:
        """Number of tokens that the instruction takes from the encoder's length."""
        return len(self.prefix) + len(self.suffix)


def encoder_input(prompt: Prompt, passages: jax.Array, lengths: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Put the instruction around passages of different lengths.

    Args:
      passages: token ids without special tokens, any integer type [..., M], padded on the right.
      lengths: number of real tokens of each, int32 [...].

    Returns:
      (tokens int32 [..., M + prompt.size], lengths int32 [...]).
    """
    spliced = splice((prompt.prefix, (passages, lengths), prompt.suffix))
    return spliced.tokens, spliced.lengths


def graph(config: T5Config, dtype: Any, *, stacked: bool = True) -> Any:
    """Return the scorer's NNX graph; `nnx.merge(graph, params)` is the model."""
    return define(lambda rngs: T5Model(config, dtype=dtype, stacked=stacked, rngs=rngs))[0]


def mean_log_prob(log_probs: jax.Array, lengths: jax.Array) -> jax.Array:
    """Return the mean over the real target tokens: log_probs float32 [..., T], lengths int32 [...] -> float32 [...]."""
    real = jnp.arange(log_probs.shape[-1]) < lengths[..., None]
    return jnp.where(real, log_probs, 0.0).sum(axis=-1) / jnp.maximum(lengths, 1)


def read_passages(
    config: T5Config,
    prompt: Prompt,
    params: Params,
    passages: jax.Array,
    lengths: jax.Array,
    *,
    dtype: Any = jnp.float32,
    keep: bool = True,
) -> PassagesRead:
    """Read passages, each for any number of questions.

    Args:
      passages: token ids of the passages alone, [n, M].
      lengths: int32 [n].
      keep: whether to keep the decoder's keys and values, for several calls of `score_questions`; see `T5Model.read`.
    """
    model = nnx.merge(graph(config, dtype), params)
    with matmuls_in(dtype):
        return model.read(*encoder_input(prompt, passages, lengths), keep=keep)


def score_questions(
    config: T5Config,
    params: Params,
    read: PassagesRead,
    of: jax.Array | None,
    targets: jax.Array,
    target_lengths: jax.Array,
    *,
    dtype: Any = jnp.float32,
) -> jax.Array:
    """Score n questions, each against one of the passages that `read_passages` read.

    Args:
      of: number of each question's passage, int32 [n]; None: question i against passage i.
      targets: token ids of "Question: {q}</s>", [n, T].
      target_lengths: int32 [n].

    Returns:
      float32 [n]: mean log p(question token | passage), in nats.
    """
    model = nnx.merge(graph(config, dtype), params)
    with matmuls_in(dtype):
        log_probs = model.target_log_probs(targets, read, of)
    return mean_log_prob(log_probs, target_lengths)


def score_pairs(
    config: T5Config,
    prompt: Prompt,
    params: Params,
    passages: jax.Array,
    passage_lengths: jax.Array,
    targets: jax.Array,
    target_lengths: jax.Array,
    of: jax.Array | None = None,
    *,
    dtype: Any = jnp.float32,
) -> jax.Array:
    """Score n questions, each against a passage of its own, or against passage `of[i]` where several share one.

    Shapes and result are those of `read_passages` and `score_questions`.
    """
    read = read_passages(config, prompt, params, passages, passage_lengths, dtype=dtype, keep=False)
    return score_questions(config, params, read, of, targets, target_lengths, dtype=dtype)
