"""Learning another encoder's embeddings (Reimers and Gurevych 2020): the teacher's vector of a text is the target."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.losses.distillation import cosine_losses
from jaxretr.models.backbones.layers import Params
from jaxretr.models.embed import DualEncoderConfig, embed
from jaxretr.training.steps.token_step import SumLoss


class TextsOfOneLength(NamedTuple):
    """Rows of token ids of one width, and the teacher's embeddings of them."""

    tokens: np.ndarray  # [B, L]
    lengths: np.ndarray  # int32 [B]
    targets: np.ndarray  # float32 [B, D], of length 1


class DistillationBatch(NamedTuple):
    """Passages, and sentences or questions, which are padded to a width of their own."""

    passages: TextsOfOneLength
    short: TextsOfOneLength


def embedding_loss(config: DualEncoderConfig, dtype: Any) -> SumLoss:
    """Return the loss 1 - cos(student, teacher), summed over a batch's texts; short and long texts count the same.

    Args:
      config: configuration of the student, whose embeddings have length 1.
    """

    def loss(params: Params, batch: DistillationBatch, keys: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        total, count = jnp.zeros(()), 0
        for texts in batch:
            vectors = embed(config, params, jnp.asarray(texts.tokens), jnp.asarray(texts.lengths), dtype=dtype)
            total += cosine_losses(vectors, jnp.asarray(texts.targets)).sum()
            count += len(texts.targets)
        return total, jnp.float32(count)

    return loss


def principal_directions(embeddings: np.ndarray, size: int) -> np.ndarray:
    """Return the directions that keep most of some embeddings' inner products.

    Args:
      embeddings: float [N, D].
      size: number of directions, at most D.

    Returns:
      Orthonormal columns float32 [D, size], the one with the largest sum of squares first. Nothing is centred:
      projecting on them keeps inner products, not variances.
    """
    rows = embeddings.astype(np.float64)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    return np.ascontiguousarray(vectors[:, np.argsort(-values)[:size]], np.float32)
