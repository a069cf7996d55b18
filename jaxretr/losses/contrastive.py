"""The softmax cross-entropy of contrastive learning, and which passages count in it: pure functions of arrays."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

# Finite, so that a question without any negative has a gradient of 0 and not NaN; exp(_NOTHING - x) is exactly 0.
_NOTHING = -1e30

NO_PASSAGE = -1


def contrastive_losses(
    scores: jax.Array, positive: jax.Array, negative: jax.Array, further: jax.Array | None = None
) -> jax.Array:
    """Softmax cross-entropy of every positive against the negatives, per question.

    With one positive this is DPR's equation 2: -log(exp s+ / (exp s+ + sum exp s-)). With several, each is compared with
    the negatives alone (the others leave its denominator), and the mean is taken. A score that is neither positive nor
    negative has a gradient of exactly 0.

    Args:
      scores: already divided by the temperature, float32 [..., M].
      positive: bool [..., M]; a question without any has a loss of 0.
      negative: bool [..., M].
      further: logarithm of a sum of exp(score) over more negatives, float32 [...]; -inf or very negative for none.

    Returns:
      float32 [...], in nats.
    """
    scores = scores.astype(jnp.float32)
    rest = jax.nn.logsumexp(jnp.where(negative, scores, _NOTHING), axis=-1)
    if further is not None:
        rest = jnp.logaddexp(rest, jnp.maximum(further, _NOTHING))
    # softplus(rest - s) = log(exp s + exp rest) - s; elements that do not count must not see huge differences.
    difference = jnp.where(positive, rest[..., None] - scores, 0.0)
    each = jnp.where(positive, jax.nn.softplus(difference), 0.0)
    return each.sum(axis=-1) / jnp.maximum(positive.sum(axis=-1), 1)


def among(contents: jax.Array, known: jax.Array) -> jax.Array:
    """Test which passages are in each question's list.

    Args:
      contents: what each passage is, int32 [M].
      known: the questions' lists, int32 [b, Q], padded with NO_PASSAGE.

    Returns:
      bool [b, M].
    """
    # The compiler folds the comparison into the reduction: there is no [b, M, Q] array.
    return (known[:, None, :] == contents[:, None]).any(axis=-1) & (contents != NO_PASSAGE)


@dataclass(frozen=True)
class Masks:
    """Masks of the batch's passages that are positives and negatives of this device's questions, bool [b, M]."""

    positive: jax.Array
    negative: jax.Array

    @staticmethod
    def of_batch(
        own: jax.Array,
        contents: jax.Array,
        known: jax.Array,
        *,
        first: jax.Array | int,
        positives: int,
        mask_duplicates: bool,
    ) -> "Masks":
        """Sort the passages of the whole batch for some of its questions.

        Args:
          own: contents of these questions' own passages, int32 [b, C], positives in the first places, NO_PASSAGE where
            there is none.
          contents: of the whole batch's passages, int32 [B, C].
          known: contents that are no negatives of these questions, wherever they come from, int32 [b, Q].
          first: the place of these questions' first in the batch.
          positives: places of positives among the C.
          mask_duplicates: whether copies of the question's positives in the batch are not negatives either.
        """
        b, c = own.shape
        flat = contents.reshape(-1)
        column = jnp.arange(flat.shape[0])
        mine = (column // c == (first + jnp.arange(b))[:, None]) & (column % c < positives)
        positive = mine & (flat != NO_PASSAGE)
        negative = ~mine & (flat != NO_PASSAGE)
        negative &= ~among(flat, known)
        if mask_duplicates:
            negative &= ~among(flat, own[:, :positives])
        return Masks(positive, negative)
