"""The names of all streams of random numbers of a training run, so that no two draws share one.

A draw on the host is a function of (seed, stream, step); a PRNG key inside a compiled step one of (seed, step, stream,
place in the global batch). Changing a number here changes what runs draw that were begun before.
"""

from enum import IntEnum, unique

import numpy as np


@unique
class HostStream(IntEnum):
    """What the host draws in a step."""

    EXAMPLES = 0
    """Positives and negatives of a training set."""
    LEXICAL_EXAMPLES = 1
    """Teachers, positives and negatives of a lexical set."""
    MISSPELT_QUESTIONS = 2
    """Which questions are misspelt, and which of their pre-drawn forms are read."""
    TEXT = 3
    """Windows, masks and targets of a language model's batch."""
    HELD_OUT_TEXT = 4
    """The same of the batches that it is evaluated on; drawn by the batch's number, for every seed alike."""
    OTHER_NEGATIVES = 5
    """A cross-encoder's negatives from BM25's ranking and from the whole corpus."""
    GIVEN_PASSAGES = 6
    """Judged passages and hard negatives of an ART run."""


@unique
class KeyStream(IntEnum):
    """What the PRNG keys inside a compiled step are for."""

    QUESTION_DROPOUT = 0
    PASSAGE_DROPOUT = 1
    QUESTION_DRAWS = 2
    """Whatever else a question's step draws: shuffled teachers, negatives."""
    FORM_DROPOUT = 3
    QUANTISER_SAMPLE = 4
    """The passages that product codes are fitted to."""
    UNIFORM_PASSAGES = 5
    """Passages of an ART run that are drawn from the whole corpus."""


def host_generator(seed: int, stream: HostStream, step: int) -> np.random.Generator:
    """Returns the generator of what the host draws for one purpose in one step.

    Args:
      seed: of the run, from 0.
      stream: the purpose.
      step: counted from 0.
    """
    # A spawn key, unlike a longer list of seeds, never makes the sequence of another list, such as [seed] or [seed, 0].
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, step)))
