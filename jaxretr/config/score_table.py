"""The teacher's scores that an ART run keeps."""

from dataclasses import dataclass

from jaxretr.config.choices import Replacement


@dataclass(frozen=True)
class ScoreTable:
    """The teacher's scores by training question, on the devices and in the checkpoints: it is asked for no pair
    twice."""

    capacity: int = 256
    """C: passages of a question whose scores are kept, 8 bytes each; at least `art.top_k`, unless it is 0: keep
    none."""
    replacement: Replacement = "unused"
    """Score that a question with C scores loses for a new one. unused: that of the passage that was not retrieved for
    the longest time; oldest: the one that was scored first; worst: the lowest, which may be the new one."""
    path: str | None = None
    """A file of scores to begin with, as `jaxretr mine scores` or `jaxretr score` writes it: the same teacher's, of the
    same questions and passages, by their ids."""
