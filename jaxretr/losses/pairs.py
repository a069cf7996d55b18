"""Losses of cross-encoders: each pair separately, a question's passages against each other, or a teacher's scores."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.losses.contrastive import contrastive_losses
from jaxretr.losses.distillation import kl_divergence, margin_mse
from jaxretr.losses.language_models import masked_sum

PairLoss = Literal["binary", "listwise", "lambda", "ranknet", "margin_mse", "kl"]

# mu of NDCG-Loss2++: the weight of its bound beside LambdaRank's, as its authors chose it.
_BOUND_WEIGHT = 10.0


def pair_losses(
    scores: jax.Array,
    is_present: jax.Array,
    teacher: jax.Array | None = None,
    *,
    loss: PairLoss,
    positive_weight: float = 1.0,
    teacher_temperature: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """Return the losses of a batch's questions, whose first passage is the positive.

    binary: w log(1 + exp -s+) of the positive and log(1 + exp s-) of each negative, one loss a pair (Nogueira and Cho
    2019, https://arxiv.org/abs/1901.04085, equation 1). listwise: -log(exp s+ / (exp s+ + sum exp s-)), one loss a
    question (Gao et al. 2021, https://arxiv.org/abs/2101.08751, equation 5). lambda, ranknet: `order_losses`, one loss for
    two passages of different labels. margin_mse, kl: those of distillation.py, one loss a question with scores to compare.

    Args:
      scores: logits, float32 [B, K].
      is_present: whether the pair exists, bool [B, K]; other pairs count nowhere.
      teacher: a teacher's scores, float32 [B, K], NaN where it gave none: for margin_mse and kl, and as labels for lambda
        and ranknet. None: their labels are 1 for the positive and 0 for negatives.
      loss: name of the loss.
      positive_weight: w of the binary loss.
      teacher_temperature: divisor of the teacher's scores (kl).

    Returns:
      Their sum and their number: float32 scalars, the numerator and denominator of the mean.
    """
    positive = is_present & (jnp.arange(scores.shape[1]) == 0)
    negative = is_present & ~positive
    if loss == "listwise":
        has_both = positive.any(axis=1) & negative.any(axis=1)
        return masked_sum(contrastive_losses(scores, positive, negative), has_both.astype(jnp.float32))
    if loss in ("lambda", "ranknet"):
        labels = positive.astype(jnp.float32) if teacher is None else teacher
        return order_losses(scores, labels, is_present & ~jnp.isnan(labels), weighted=loss == "lambda")
    if loss in ("margin_mse", "kl"):
        assert teacher is not None
        scored = is_present & ~jnp.isnan(teacher)
        comparable = scored.sum(axis=1) > 1
        if loss == "margin_mse":
            losses, comparable = margin_mse(scores, teacher, scored), comparable & scored[:, 0]
        else:
            losses = kl_divergence(scores, teacher / teacher_temperature, scored)
        return masked_sum(losses, comparable.astype(jnp.float32))
    each = jnp.where(positive, positive_weight * jax.nn.softplus(-scores), jax.nn.softplus(scores))
    return masked_sum(jnp.where(is_present, each, 0.0), is_present.astype(jnp.float32))


def order_losses(
    scores: jax.Array, labels: jax.Array, counted: jax.Array, *, weighted: bool
) -> tuple[jax.Array, jax.Array]:
    """Return the losses of all pairs i, j of a question's passages whose labels are y_i > y_j.

    w_ij log2(1 + exp(s_j - s_i)). RankNet's w is 1 (Burges et al. 2005). LambdaLoss with NDCG-Loss2++ (Wang et al. 2018,
    https://marc.najork.org/papers/cikm2018.pdf, section 6) weights each pair by what its order means for nDCG: w_ij =
    (|1 / D(r_i) - 1 / D(r_j)| + mu |1 / D(d) - 1 / D(d + 1)|) |G_i - G_j|, where r are the ranks by the scores, from 1, d =
    |r_i - r_j|, D(r) = log2(1 + r), G = (2^y - 1) / (DCG of the ideal order), and mu = 10. A weight is a constant: no
    gradient flows through the ranks.

    Args:
      scores: logits, float32 [B, K].
      labels: y, float32 [B, K]; weighted, those below 0 are taken for 0 in G.
      counted: bool [B, K]; the other passages are in no pair and have no rank.
      weighted: LambdaLoss instead of RankNet.

    Returns:
      The sum of the losses, in bits, and the number of pairs: float32 scalars.
    """
    each = jax.nn.softplus(scores[:, None, :] - scores[:, :, None]) / jnp.log(2.0)  # [B, i, j]
    ordered = counted[:, :, None] & counted[:, None, :] & (labels[:, :, None] > labels[:, None, :])
    if weighted:
        each *= _ndcg_weights(lax.stop_gradient(scores), labels, counted)
    return masked_sum(jnp.where(ordered, each, 0.0), ordered.astype(jnp.float32))


def _ndcg_weights(scores: jax.Array, labels: jax.Array, counted: jax.Array) -> jax.Array:
    """Return w of NDCG-Loss2++ for all pairs of a question's passages, float32 [B, K, K]."""

    def discount(rank: jax.Array) -> jax.Array:
        return 1.0 / jnp.log2(1.0 + rank)

    order = jnp.argsort(-jnp.where(counted, scores, -jnp.inf), axis=1)
    ranks = 1 + jnp.argsort(order, axis=1)  # [B, K]
    # 2^y - 1 in units of the question's largest 2^y, which would overflow from a label of 128 on.
    labels = jnp.where(counted, jnp.maximum(labels, 0.0), 0.0)
    largest = labels.max(axis=1, keepdims=True)
    gains = jnp.exp2(labels - largest) - jnp.exp2(-largest)
    ideal = -jnp.sort(-gains, axis=1) @ discount(1 + jnp.arange(scores.shape[1]))  # [B]
    gains = gains / jnp.maximum(ideal, 1e-10)[:, None]
    apart = jnp.maximum(jnp.abs(ranks[:, :, None] - ranks[:, None, :]), 1)  # A passage and itself are no pair.
    swapped = jnp.abs(discount(ranks)[:, :, None] - discount(ranks)[:, None, :])
    bound = jnp.abs(discount(apart) - discount(apart + 1))
    return (swapped + _BOUND_WEIGHT * bound) * jnp.abs(gains[:, :, None] - gains[:, None, :])
