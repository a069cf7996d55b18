"""Randomness inside a compiled step: one PRNG key per text, by its place in the global batch."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.runtime.streams import KeyStream
from jaxretr.training.steps.live_index import IndexProgram


@dataclass
class TextKeys:
    """The keys of the texts that a device embeds; None without dropout."""

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
