"""Training of cross-encoders: each pair separately, a question's passages against each other, or a teacher's scores.

`pair_loss` makes a `SumLoss` of the losses in jaxretr/losses/pairs.py, from which token_step.py builds the compiled step. Rows of question and passage are joined
in the step, and scored chunk by chunk (chunks.py).
"""

import logging
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxretr.config import RerankerConfig
from jaxretr.losses.pairs import pair_losses
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.partition import partition
from jaxretr.models.scorers.cross_encoder import relevance
from jaxretr.models.scorers.cross_encoder_shape import CrossEncoderConfig
from jaxretr.models.scorers.pair_frame import PairFrame, marked, unmarked
from jaxretr.training.steps.chunks import embed_in_chunks
from jaxretr.training.steps.kept_chunks import kept_bytes
from jaxretr.training.steps.padded_chunks import PaddedChunks
from jaxretr.training.steps.token_step import SumLoss

log = logging.getLogger(__name__)


class PairBatch(NamedTuple):
    """Questions with K passages each, the positive in the first place."""

    questions: Any  # token ids without special ones, [B, Q]
    question_lengths: Any  # int32 [B]
    passages: Any  # token ids without special ones, [B, K, P]
    passage_lengths: Any  # int32 [B, K]
    is_present: Any  # bool [B, K]: whether there is a passage
    teacher: Any = None  # a teacher's scores, float32 [B, K], NaN where it gave none; None without a teacher


def pair_loss(
    config: RerankerConfig, shape: CrossEncoderConfig, frame: PairFrame, frozen: tuple[str, ...], activation_bytes: int
) -> SumLoss:
    """Return the loss of a `PairBatch` in the form that `make_token_step` takes.

    Args:
      shape: the cross-encoder's shape, with the dropout of the training.
      frame: special tokens around question and passage.
      frozen: names of the branches of the parameters that are not trained.
      activation_bytes: bytes of the pairs' activations that a device may keep; 0: none.
    """
    vocabulary, ranking = shape.backbone.vocab_size, config.ranking

    def score_rows(params: Params, tokens: jax.Array, lengths: jax.Array, keys: jax.Array | None) -> jax.Array:
        tokens, seconds = unmarked(tokens, lengths, vocabulary)
        scores = relevance(
            shape,
            params,
            tokens,
            lengths,
            seconds,
            dtype=config.encoder.dtype,
            adapter=config.encoder.adapter,
            keys=keys,
            keep_matmuls=True,
        )
        return scores[:, None]

    def loss(params: Params, batch: PairBatch, keys: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        b, k, width = batch.passages.shape
        tokens, lengths, seconds = frame.splice(
            jnp.repeat(batch.questions, k, axis=0),
            jnp.repeat(batch.question_lengths, k),
            batch.passages.reshape(b * k, width),
            batch.passage_lengths.reshape(-1),
        )
        keys = None if keys is None else _keys_of_pairs(keys, k)
        # A chunk has no place for the positions where second texts begin.
        pairs = marked(tokens, lengths, seconds, vocabulary)
        chunks = PaddedChunks.of(pairs, lengths, keys, chunk=ranking.chunk)
        trained, kept = partition(params, frozen)
        keep = False
        if activation_bytes:
            needed_bytes = kept_bytes(score_rows, None, trained, kept, chunks)
            keep = needed_bytes <= activation_bytes
            log.debug(
                "activations of %d pairs: %d bytes, %s", b * k, needed_bytes, "kept" if keep else "computed twice"
            )
        scores = embed_in_chunks(score_rows, trained, chunks, frozen=kept, keep=keep)
        return pair_losses(
            scores.reshape(b, k),
            batch.is_present,
            batch.teacher,
            loss=ranking.loss,
            positive_weight=ranking.positive_weight,
            teacher_temperature=ranking.teacher_temperature,
        )

    return loss


def _keys_of_pairs(keys: jax.Array, k: int) -> jax.Array:
    """Return a PRNG key for each of the K passages of each question: [b] -> [b K]."""
    each = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return jax.vmap(each, in_axes=(0, None))(keys, jnp.arange(k)).reshape(-1)
