"""The teacher's scores that an ART run keeps."""

from dataclasses import dataclass

from jaxretr.config.choices import Replacement
from jaxretr.runtime.errors import UsageError


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

    def check(self) -> None:
        """Raise UsageError for a capacity that no table can have, and for scores without a table."""
        if self.capacity < 0:
            raise UsageError(f"table.capacity={self.capacity}: must be at least 0; set table.capacity")
        if self.path is not None and not self.capacity:
            raise UsageError(
                "table.path fills the table, and table.capacity=0 keeps none; set table.capacity, or leave it out"
            )
