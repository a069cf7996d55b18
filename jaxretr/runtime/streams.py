"""The names of all streams of random numbers of a training run, so that no two draws share one.

A draw on the host is a function of (seed, stream, step); a PRNG key inside a compiled step one of (seed, step, stream,
place in the global batch). Changing a number here changes what runs draw that were begun before.
"""

from enum import IntEnum, unique

import numpy as np


@unique
class HostStream(IntEnum):
    """Draws of the host in a step, one stream each."""

    EXAMPLES = 0
    """Draws of positives and negatives from a training set."""
    LEXICAL_EXAMPLES = 1
    """Draws of teachers, positives and negatives from a lexical set."""
    MISSPELT_QUESTIONS = 2
    """Draws of the questions that are misspelt, and of the pre-drawn form that each is read in."""
    TEXT = 3
    """Draws of windows, masks and targets for a language model's batch."""
    HELD_OUT_TEXT = 4
    """Draws of these for the batches that it is evaluated on; by the batch's number, the same for every seed."""
    OTHER_NEGATIVES = 5
    """Draws of a cross-encoder's negatives from BM25's ranking and from the whole corpus."""
    GIVEN_PASSAGES = 6
    """Draws of judged passages and hard negatives for an ART run."""


@unique
class KeyStream(IntEnum):
    """Purposes of the PRNG keys inside a compiled step."""

    QUESTION_DROPOUT = 0
    PASSAGE_DROPOUT = 1
    QUESTION_DRAWS = 2
    """All other draws of a question's step: shuffled teachers, negatives."""
    FORM_DROPOUT = 3
    QUANTISER_SAMPLE = 4
    """Draws of the passages that product codes are fitted to."""
    UNIFORM_PASSAGES = 5
    """Draws of an ART run's passages from the whole corpus."""


def host_generator(seed: int, stream: HostStream, step: int) -> np.random.Generator:
    """Return the generator of the host's draws for one purpose in one step.

    Args:
      seed: seed of the run, from 0.
      step: number of the step, counted from 0.
    """
    # A spawn key, unlike a longer list of seeds, never makes the sequence of another list, such as [seed] or [seed, 0].
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, step)))
