"""The texts of a training step embedded with gradient, chunk by chunk, in padded rows or in packed ones.

Everything here runs inside a shard_map over the mesh's "data" axis: b = B / devices questions are on this device.
"""

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxretr.models.backbones.layers import Params
from jaxretr.models.embed import DualEncoderConfig, JointConfig, Side, embed, tower, word_table
from jaxretr.runtime.parallel.memory import size
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.runtime.streams import KeyStream
from jaxretr.training.state import TokenRows
from jaxretr.training.steps.chunks import EmbedRows, embed_in_chunks
from jaxretr.training.steps.kept_chunks import Chunks, kept_bytes
from jaxretr.training.steps.live_index import IndexProgram
from jaxretr.training.steps.packed_chunks import PackedChunks, PackedForm
from jaxretr.training.steps.padded_chunks import PaddedChunks

log = logging.getLogger(__name__)


@dataclass
class TextKeys:
    """One PRNG key for each text that a device embeds, by its place in the global batch; None without dropout."""

    questions: jax.Array | None
    """Keys of the questions' dropout, [b]."""
    passages: jax.Array | None
    """Keys of the passages' dropout, [b, K]."""
    forms: jax.Array | None
    """Keys of the dropout of the questions' misspelt forms, [b, V]."""
    draws: jax.Array
    """Keys of all other draws of a question's step, [b]: shuffled teachers, negatives."""

    @staticmethod
    def of_step(program: IndexProgram, key: jax.Array, b: int, k: int, forms: int = 0) -> "TextKeys":
        """Return keys that depend on (seed, step, place in the batch) only: any number of devices draws the same masks.

        Args:
          program: constants of the run, with its encoder's dropout.
          key: key of the step, `TrainState.key`.
          b: number of questions on this device.
          k: number of passages per question.
          forms: V, the number of misspelt forms of each question.
        """
        place = lax.axis_index(DATA) * b + jnp.arange(b)
        fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        draws = fold(jax.random.fold_in(key, KeyStream.QUESTION_DRAWS), place)
        shape = program.encoder.backbone
        if not (shape.hidden_dropout_prob or shape.attention_probs_dropout_prob):
            return TextKeys(None, None, None, draws)

        def of_each(stream: KeyStream, count: int) -> jax.Array:
            each = place[:, None] * count + jnp.arange(count)
            return jax.vmap(fold, in_axes=(None, 0))(jax.random.fold_in(key, stream), each)

        return TextKeys(
            fold(jax.random.fold_in(key, KeyStream.QUESTION_DROPOUT), place),
            of_each(KeyStream.PASSAGE_DROPOUT, k),
            of_each(KeyStream.FORM_DROPOUT, forms),
            draws,
        )


class Questions(Protocol):
    """The questions of a batch: tokens [b, L], lengths [b], and their misspelt forms [b, V, ...] or None."""

    tokens: jax.Array
    lengths: jax.Array
    forms: TokenRows | None


def embed_batch(
    program: IndexProgram, params: Params, frozen: Params, questions: Questions, found: TokenRows, keys: TextKeys
) -> tuple[jax.Array, jax.Array | None, jax.Array]:
    """Embed this device's questions, with their misspelt forms if there are any, and the K passages of each of them.

    Questions and forms are one list of texts, so that chunks are filled well; packed rows of a tower that both sides
    share hold passages as well.

    Args:
      params: trained parameters of the dual encoder.
      frozen: its other parameters.
      questions: this device's part of the batch.
      found: tokens [b, K, L] and lengths [b, K] of their passages.

    Returns:
      float32 [b, D], [b, V, D] or None, and [b, K, D].
    """
    texts, given = [TokenRows(questions.tokens, questions.lengths)], [keys.questions]
    if questions.forms is not None:
        texts, given = [*texts, questions.forms], [*given, keys.forms]
    together = program.packed_row > 0 and isinstance(program.encoder, DualEncoderConfig) and program.encoder.shared
    if together:
        texts, given = [*texts, found], [*given, keys.passages]
    drawn = [x.reshape(-1) for x in given if x is not None]
    rows, each = _joined(texts), jnp.concatenate(drawn) if drawn else None
    if together:
        with jax.named_scope("texts"):
            embeddings = _embed_texts(program, "passage", params, frozen, rows, each, program.chunk, sides=2)
    else:
        embeddings = embed_side(program, "question", params, frozen, rows, each)
    parts = jnp.split(embeddings, np.cumsum([x.lengths.size for x in texts])[:-1])
    parts = [part.reshape(*x.lengths.shape, -1) for part, x in zip(parts, texts, strict=True)]
    passages = parts.pop() if together else embed_side(program, "passage", params, frozen, found, keys.passages)
    return parts[0], parts[1] if len(parts) > 1 else None, passages


def embed_side(
    program: IndexProgram, side: Side, params: Params, frozen: Params, rows: TokenRows, keys: jax.Array | None
) -> jax.Array:
    """Embed this device's questions, or the K passages of each of them, float32 [b, D] or [b, K, D].

    A chunk of questions has as many of them as together have the tokens of a chunk of passages.

    Args:
      params: trained parameters of the dual encoder.
      frozen: its other parameters.
      rows: tokens of questions [b, L] or of passages [b, K, L], and lengths [b] or [b, K].
      keys: PRNG keys of their dropout, [b] or [b, K], or None.
    """
    chunk, widths = program.chunk, program.passage_widths
    if side == "question":
        longest = program.encoder.max_passage_length, program.encoder.max_question_length
        chunk, widths = max(chunk, chunk * longest[0] // longest[1]), ()
    keys = None if keys is None else keys.reshape(-1)
    with jax.named_scope(f"{side}s"):
        embeddings = _embed_texts(program, side, params, frozen, _joined([rows]), keys, chunk, widths)
    return embeddings.reshape(*rows.lengths.shape, -1)


def _joined(texts: list[TokenRows]) -> TokenRows:
    """Return texts of several shapes [..., L] as one list [n, L], padded to the largest L."""
    width = max(rows.tokens.shape[-1] for rows in texts)
    flat = [rows.tokens.reshape(-1, rows.tokens.shape[-1]) for rows in texts]
    tokens = [jnp.pad(rows, ((0, 0), (0, width - rows.shape[1]))) if rows.shape[1] < width else rows for rows in flat]
    return TokenRows(jnp.concatenate(tokens), jnp.concatenate([rows.lengths.reshape(-1) for rows in texts]))


def _embed_texts(
    program: IndexProgram,
    side: Side,
    params: Params,
    frozen: Params,
    rows: TokenRows,
    keys: jax.Array | None,
    chunk: int,
    widths: tuple[int, ...] = (),
    *,
    sides: int = 1,
) -> jax.Array:
    """Embed texts [n, L], `chunk` texts of the largest length at once; `sides` is the number of sides that they are of."""
    params, frozen = tower(params, side), tower(frozen, side)
    embed_rows = row_encoder(program.encoder, **program.numbers)
    n, width = rows.tokens.shape
    together = program.shard_parameters
    if program.packed_row:
        form = PackedForm.of(n, width, program.packed_row, chunk * width)
        chunks: Chunks = PackedChunks.of(rows.lengths, form, together=together, tokens=rows.tokens, keys=keys)
    else:
        chunks = PaddedChunks.of(rows.tokens, rows.lengths, keys, chunk=chunk, widths=widths, together=together)
    # All devices look up a split table together, which `embed_rows` does.
    words = None if program.shard_parameters else word_table(params)
    keep = False
    if program.activation_bytes:
        needed = kept_bytes(embed_rows, words, params, frozen, chunks)
        keep = needed <= sides * program.activation_bytes
        log.debug("%d texts: activations of %s are %s", n, size(needed), "kept" if keep else "computed twice")
    words, apart = words if keep else None, program.layers_apart
    return embed_in_chunks(embed_rows, params, chunks, frozen=frozen, keep=keep, words=words, apart=apart)


@cache
def row_encoder(encoder: DualEncoderConfig | JointConfig, dtype: Any, residual: str = "float32") -> EmbedRows:
    """Return the encoder in the form that `embed_in_chunks` calls."""

    def embed_rows(
        params: Params,
        tokens: jax.Array,
        lengths: jax.Array,
        keys: jax.Array | None,
        words: jax.Array | None = None,
    ) -> jax.Array:
        numbers = {"dtype": dtype, "residual": residual}
        return embed(encoder, params, tokens, lengths, **numbers, keys=keys, keep_matmuls=True, words=words)

    return embed_rows
