"""Losses of misspelt forms: a question against the forms of all questions, and distributions that are to be equal.

Which papers combine them how: jaxretr/training/steps/typo_terms.py.
"""

import jax
import jax.numpy as jnp

from jaxretr.losses.contrastive import contrastive_losses
from jaxretr.losses.distillation import kl_divergence


def contrast_losses(scores: jax.Array, first: jax.Array | int, same: jax.Array) -> jax.Array:
    """Return CE(q -> Q~): each question against the misspelt forms of all of the batch's questions.

    A form's target is the place of its own question in the batch, whatever passages that question has. With several
    forms each is compared with the other questions' forms alone, and the mean is taken (Sidiropoulos & Kanoulas 2022).

    Args:
      scores: scores of questions and forms, already divided by the temperature, float32 [b, B, V].
      first: place of the first of these questions in the batch.
      same: bool [b, B], which of the batch's questions have the same text: their forms are not negatives.

    Returns:
      float32 [b], in nats.
    """
    b, size, v = scores.shape
    mine = jnp.arange(size) == (first + jnp.arange(b))[:, None]  # [b, B]
    positive, negative = (jnp.repeat(mask, v, axis=1) for mask in (mine, ~mine & ~same))
    return contrastive_losses(scores.reshape(b, size * v), positive, negative)


def self_teaching_losses(clean: jax.Array, misspelt: jax.Array, counted: jax.Array) -> jax.Array:
    """Return KL(softmax(clean) || softmax(misspelt)), the mean over the forms; the clean scores get no gradient.

    Over passages this is CharacterBERT's self-teaching (Zhuang & Zuccon 2022), over questions that of DST (Tasawong et
    al. 2023).

    Args:
      clean: scores of the question, already divided by the temperature, float32 [b, M].
      misspelt: scores of its forms, already divided by the temperature, float32 [b, V, M].
      counted: bool [b, M]: places that both distributions are taken over.

    Returns:
      float32 [b], in nats; 0 where misspelt equals clean.
    """
    return kl_divergence(misspelt, clean[:, None], counted[:, None]).mean(axis=-1)
