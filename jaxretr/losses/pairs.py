"""Losses of cross-encoders on judged pairs: each pair separately, or a question's passages against each other."""

from typing import Literal

import jax
import jax.numpy as jnp

from jaxretr.losses.contrastive import contrastive_losses
from jaxretr.losses.language_models import masked_sum


def pair_losses(
    scores: jax.Array, is_present: jax.Array, *, loss: Literal["binary", "listwise"], positive_weight: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """Return the losses of a batch's questions, whose first passage is the positive.

    binary: w log(1 + exp -s+) of the positive and log(1 + exp s-) of each negative, one loss a pair (Nogueira and Cho
    2019, https://arxiv.org/abs/1901.04085, equation 1). listwise: -log(exp s+ / (exp s+ + sum exp s-)), one loss a
    question (Gao et al. 2021, https://arxiv.org/abs/2101.08751, equation 5).

    Args:
      scores: logits, float32 [B, K].
      is_present: whether the pair exists, bool [B, K]; other pairs count nowhere.
      loss: name of the loss.
      positive_weight: w of the binary loss.

    Returns:
      Their sum and their number: float32 scalars, the numerator and denominator of the mean.
    """
    positive = is_present & (jnp.arange(scores.shape[1]) == 0)
    negative = is_present & ~positive
    if loss == "listwise":
        has_both = positive.any(axis=1) & negative.any(axis=1)
        return masked_sum(contrastive_losses(scores, positive, negative), has_both.astype(jnp.float32))
    each = jnp.where(positive, positive_weight * jax.nn.softplus(-scores), jax.nn.softplus(scores))
    return masked_sum(jnp.where(is_present, each, 0.0), is_present.astype(jnp.float32))
