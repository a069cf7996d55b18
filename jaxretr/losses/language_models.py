"""Losses of language models: cross-entropy of tokens, and of a question's own passage among several.

Sums and counts instead of means: the training step adds them up over chunks and devices before it divides, so that every
token of the global batch counts the same.
"""

import jax
import jax.numpy as jnp


def masked_sum(losses: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the sum and the number of the positions whose weight is 1; losses and weights float32 of one shape."""
    return (losses * weights).sum(), weights.sum()


def mlm_loss(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return -log p(label) of the tokens under the masks (Devlin et al. 2019, section 3.1): its sum and their number.

    Args:
      logits: float32 [B, P, V], at the P places of each row where tokens are predicted.
      labels: the original tokens, int32 [B, P].
      weights: float32 [B, P]: 1 for a prediction, 0 for an unused place.

    Returns:
      float32 scalars; the sum is in nats.
    """
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return masked_sum(jax.nn.logsumexp(logits, axis=-1) - chosen, weights)


def passage_lm_loss(log_probs: jax.Array, lengths: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return -sum_t log p(target_t | target_<t, passage) over the real tokens, and their number.

    Args:
      log_probs: log-probabilities of the target's tokens, float32 [B, T].
      lengths: number of tokens of each target, int32 [B].

    Returns:
      float32 scalars; the sum is in nats.
    """
    is_real = jnp.arange(log_probs.shape[-1]) < lengths[..., None]
    return masked_sum(-log_probs, is_real.astype(jnp.float32))


def ranking_losses(scores: jax.Array, temperature: float) -> jax.Array:
    """Return -log(exp(s_0 / tau) / sum_j exp(s_j / tau)): the cross-entropy of each question's first passage.

    Args:
      scores: mean log-probabilities of a question's tokens given each of its passages, float32 [G, C].
      temperature: tau.

    Returns:
      float32 [G], in nats.
    """
    return -jax.nn.log_softmax(scores / temperature, axis=-1)[:, 0]
