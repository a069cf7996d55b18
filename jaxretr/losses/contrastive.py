"""The softmax cross-entropy of contrastive learning, and which passages count in it (Karpukhin et al. 2020).

Every passage has a text id, int32: the first row with the same title and text, so that copies have one id; NO_PASSAGE
stands in empty places.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

# Finite, so that a question without any negative has a gradient of 0 and not NaN; exp(_NOTHING - x) is exactly 0.
_NOTHING = -1e30

NO_PASSAGE = -1


def scaled_scores(questions: jax.Array, passages: jax.Array, temperature: float) -> jax.Array:
    """Return inner products divided by the temperature: the scores that all losses read, and the place that divides.

    Args:
      questions: embeddings, float32 [..., b, D].
      passages: embeddings, float32 [..., M, D], with the same leading axes.
      temperature: divisor of the scores; 1 leaves them as they are.

    Returns:
      float32 [..., b, M].
    """
    # HIGHEST keeps GPUs and TPUs from rounding their operands. A product is written as it always was, with and without
    # leading axes: XLA sums small ones in another order otherwise, which changes a run's last bits.
    if passages.ndim == 2:
        return jnp.matmul(questions, passages.T, precision=lax.Precision.HIGHEST) / temperature
    return jnp.einsum("...bd,...md->...bm", questions, passages, precision=lax.Precision.HIGHEST) / temperature


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


def passage_losses(
    scores: jax.Array,
    own: jax.Array,
    excluded: jax.Array,
    *,
    first: jax.Array | int,
    loss: Callable[..., jax.Array] = contrastive_losses,
) -> jax.Array:
    """Softmax cross-entropy of the other direction: each positive passage against the batch's questions.

    A passage's positives are all forms of its own question; a question for which the passage is no negative is no
    negative of the passage. The mean over a question's positives is taken.

    Args:
      scores: scores of the positives with F forms of every question, divided by the temperature, float32 [b, P, B, F].
      own: text ids of these questions' positives, int32 [b, P].
      excluded: see `false_negatives`; of the whole batch, int32 [B, X].
      first: place of the first of these questions in the batch.
      loss: another function in the place of `contrastive_losses`.

    Returns:
      float32 [b], in nats; 0 for a question without positives.
    """
    b, places, size, forms = scores.shape
    mine = jnp.arange(size) == (first + jnp.arange(b))[:, None]  # [b, B]
    losses = []
    for place in range(places):
        text_ids = own[:, place]
        is_present = (text_ids != NO_PASSAGE)[:, None]
        negative = ~mine & ~among(text_ids, excluded).T & is_present
        masks = (jnp.repeat(mask, forms, axis=1) for mask in (mine & is_present, negative))
        losses.append(loss(scores[:, place].reshape(b, size * forms), *masks))
    return sum(losses) / jnp.maximum((own != NO_PASSAGE).sum(axis=-1), 1)


def others_logsumexp(scores: jax.Array, counts: jax.Array) -> jax.Array:
    """Return log sum exp of the scores [..., M] that count, bool [..., M]: `further` of `contrastive_losses`, [...]."""
    return jax.nn.logsumexp(jnp.where(counts, scores, _NOTHING), axis=-1)


# ---- which passages count --------------------------------------------------------------------------------------------


def among(text_ids: jax.Array, lists: jax.Array) -> jax.Array:
    """Test which passages are in each question's list.

    Args:
      text_ids: int32 [M].
      lists: the questions' lists of text ids, int32 [b, X], padded with NO_PASSAGE.

    Returns:
      bool [b, M].
    """
    # The compiler folds the comparison into the reduction: there is no [b, M, X] array.
    return (lists[:, None, :] == text_ids[:, None]).any(axis=-1) & (text_ids != NO_PASSAGE)


def false_negatives(known: jax.Array, own: jax.Array, *, positives: int, mask_duplicates: bool) -> jax.Array:
    """Return the text ids that are no negatives of each question, wherever they come from, int32 [b, X].

    Args:
      known: text ids that are known to be none, int32 [b, Q].
      own: text ids of the questions' own passages, int32 [b, C], positives in the first places.
      positives: number of places of positives among the C.
      mask_duplicates: whether copies of a question's positives are no negatives either.
    """
    return jnp.concatenate([known, own[:, :positives]], axis=1) if mask_duplicates else known


@dataclass(frozen=True)
class Masks:
    """Masks of the batch's M = B C passages that are positives and negatives of some of its questions, bool [b, M]."""

    positive: jax.Array
    negative: jax.Array

    @staticmethod
    def of_batch(text_ids: jax.Array, excluded: jax.Array, *, first: jax.Array | int, positives: int) -> "Masks":
        """Sort the passages of the whole batch for some of its questions.

        Args:
          text_ids: text ids of the whole batch's passages, int32 [B, C]: of each question the positives in the first
            places, NO_PASSAGE where there is none.
          excluded: see `false_negatives`; of these b questions, int32 [b, X].
          first: place of the first of these questions in the batch.
          positives: number of places of positives among the C.
        """
        b, c = len(excluded), text_ids.shape[1]
        flat = text_ids.reshape(-1)
        column = jnp.arange(flat.shape[0])
        mine = (column // c == (first + jnp.arange(b))[:, None]) & (column % c < positives)
        is_present = flat != NO_PASSAGE
        return Masks(mine & is_present, ~mine & is_present & ~among(flat, excluded))


def guided(scores: jax.Array, own: jax.Array, *, margin: float, relative: bool) -> jax.Array:
    """Return which texts a guide leaves as negatives (GISTEmbed: Solatorio 2024, arXiv 2402.16829).

    Args:
      scores: the guide's similarities of b questions, or of their positives, with M texts, float32 [b, M].
      own: the guide's similarity of each question with its positive, float32 [b].
      margin: m; a text is no negative where its score exceeds own - m, or own - m |own|.
      relative: whether the margin is a share.

    Returns:
      bool [b, M].
    """
    limit = own - margin * (jnp.abs(own) if relative else 1.0)
    return scores <= limit[:, None]
