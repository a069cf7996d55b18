"""Question likelihood given a passage, by a causal language model (Sachan et al. 2022,
https://arxiv.org/abs/2204.07496).

The score is mean_t log p(question_t | passage and instruction, question_<t), over the question's own tokens.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxretr.models.backbones.backbone import bound_backbone, make_backbone, token_states
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.backbones.layers import Params, chosen_log_probs, define, matmuls_in
from jaxretr.models.backbones.rotary_config import RotaryConfig
from jaxretr.models.scorers.t5_scorer import mean_log_prob

LM_HEAD = "lm_head"
"""Branch of the parameters that holds a separate output layer: {"kernel": [D, V]}."""


@dataclass(frozen=True)
class CausalLmConfig:
    """A decoder with its output layer."""

    backbone: RotaryConfig
    max_question_length: int
    """T, the largest number of tokens of a question that are scored."""
    tied: bool = False
    """Whether the output layer is the table of word embeddings."""


def abstract_params(config: CausalLmConfig) -> Params:
    """Return the shapes of the parameters, as ShapeDtypeStructs; allocates nothing."""
    params: Params = {BACKBONE: define(lambda rngs: make_backbone(config.backbone, rngs=rngs))[1]}
    if not config.tied:
        kernel = (config.backbone.hidden_size, config.backbone.vocab_size)
        params[LM_HEAD] = {"kernel": jax.ShapeDtypeStruct(kernel, jnp.float32)}
    return params


def question_likelihood(
    config: CausalLmConfig, params: Params, tokens: jax.Array, lengths: jax.Array, seconds: jax.Array, *, dtype: Any
) -> jax.Array:
    """Score rows that hold a passage, an instruction and a question each; part of the compiled programs.

    Args:
      tokens: token ids, any integer type [n, L], padded on the right; a row ends with its question.
      lengths: int32 [n].
      seconds: start of the question in each row, int32 [n], at least 1; the question is no longer than T.

    Returns:
      float32 [n]: mean log p(question token | what precedes it), in nats; 0 for an empty question.
    """
    with matmuls_in(dtype):
        states = token_states(config.backbone, params[BACKBONE], tokens, lengths, dtype=dtype)
        # Only at the places whose next token is the question's: the vocabulary is most of the work.
        place = seconds[:, None] + jnp.arange(config.max_question_length)  # [n, T]
        before = jnp.clip(place - 1, 0, tokens.shape[1] - 1)
        logits = next_logits(config, params, jnp.take_along_axis(states, before[..., None], axis=1), dtype=dtype)
    targets = jnp.take_along_axis(tokens, jnp.clip(place, 0, tokens.shape[1] - 1), axis=1)
    return mean_log_prob(chosen_log_probs(logits, targets), lengths - seconds)


def likelihoods_behind(
    config: CausalLmConfig,
    params: Params,
    firsts: jax.Array,
    first_lengths: jax.Array,
    texts: jax.Array,
    lengths: jax.Array,
    of_text: jax.Array,
    *,
    dtype: Any,
) -> jax.Array:
    """Score questions of which several follow the same passage and instruction, which are read once.

    Args:
      params: the model's parameters, of stacked layers.
      firsts: token ids of the passages with their instruction, int32 [P, L], padded on the right.
      first_lengths: int32 [P], at least 1.
      texts: token ids of the questions, int32 [B, T], padded on the right.
      lengths: int32 [B].
      of_text: the row of `firsts` that each question follows, int32 [B].

    Returns:
      float32 [B], as `question_likelihood` of the joined rows.
    """
    with matmuls_in(dtype):
        encoder: Any = bound_backbone(config.backbone, params[BACKBONE], dtype=dtype)
        rows, states = encoder.continued(firsts, first_lengths, texts, of_text)
        last = jnp.take_along_axis(rows, jnp.maximum(first_lengths - 1, 0)[:, None, None], axis=1)
        before = jnp.concatenate([last[of_text], states[:, :-1]], axis=1)
        logits = next_logits(config, params, before, dtype=dtype)
    return mean_log_prob(chosen_log_probs(logits, texts), lengths)


def next_logits(config: CausalLmConfig, params: Params, states: jax.Array, *, dtype: Any) -> jax.Array:
    """Return the vocabulary's scores for the token after each state: [n, T, D] -> float32 [n, T, V]."""
    states = states.astype(dtype)
    if config.tied:
        table = params[BACKBONE]["word_embedding"]["table"].astype(dtype)
        return jnp.einsum("ntd,vd->ntv", states, table, preferred_element_type=jnp.float32)
    kernel = params[LM_HEAD]["kernel"].astype(dtype)
    return jnp.einsum("ntd,dv->ntv", states, kernel, preferred_element_type=jnp.float32)
