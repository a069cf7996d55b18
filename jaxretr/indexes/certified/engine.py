"""The interface of the certified index's engines, which learn, make codes of rows, and propose candidates by them.

Whatever it proposes is scored with the vectors themselves, tuned and certified in the same way: engines differ in the
candidates that they find in some time. `engines` chooses among them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from jaxretr.config import EngineName

Proposed = tuple[NDArray[np.uint32], NDArray[np.float32]]
"""Candidate rows [B, R], no row twice, and the engine's scores of them; NaN where there is no candidate."""


class Proposer(Protocol):
    """An engine over the codes of N rows, in memory; several threads may ask it at once."""

    def propose(
        self,
        queries: NDArray[np.float32],
        count: int,
        leaves: int,
        threads: int,
        allowed: NDArray[np.bool_] | None = None,
    ) -> Proposed:
        """Find candidates for the nearest rows of each question, by their codes.

        Args:
          queries: [B, D], finite, at least one.
          count: candidates of each question, R or more.
          leaves: leaves of the tree to search; 0 where there is no tree.
          threads: threads to divide the questions among.
          allowed: bool [N], the rows that may be proposed; other rows are proposed as well by an engine that does not
            know filters.
        """
        ...


class Engine(Protocol):
    """An approximate-search library as the certified index uses it: it learns, makes codes, and opens them to search.

    Attributes:
      name: its name in facts and options.
      label: its name for people.
      package: the Python package whose version the certificate states.
      batch: questions of a thread that are proposed for at a time.
      knows_filters: whether only allowed rows are proposed; if not, as many more candidates are asked for.
    """

    name: EngineName
    label: str
    package: str
    batch: int
    knows_filters: bool

    def problem(self) -> str | None:
        """Say why the engine cannot be used here, or None where it can."""
        ...

    def require(self) -> None:
        """Raise UserError, naming what to install, where it cannot be used here."""
        ...

    def model_files(self, tree: bool) -> list[str]:
        """The files that training writes: all that an index needs beside the files of its rows."""
        ...

    def codes_a_row(self, dim: int) -> int:
        """The number of 4-bit codes of a row of D dimensions."""
        ...

    def training_bytes(self, train_rows: int, dim: int, leaves: int) -> int:
        """The most memory that training on a sample, and then making codes, takes."""
        ...

    def train(self, vectors: Path, out: Path, *, leaves: int, sample: int, seed: int) -> object:
        """Learn a tree of leaves (1: none) and a codebook from a sample of vectors.npy, into the folder `out`."""
        ...

    def encode(
        self, vectors: Path, model: Path, out: Path, *, tree: bool, advance: Callable[[int], None] = ...
    ) -> object:
        """Write the codes and leaves of vectors.npy's rows, by the model files of a folder, into the folder `out`."""
        ...

    def finish(self, folder: Path, tree: bool) -> None:
        """Add what the engine's own programs need to read a saved folder."""
        ...

    def open(self, folder: Path, tree: bool) -> Proposer:
        """Read the codes and leaves of a folder's rows.

        Raises:
          UserError: they cannot be read.
        """
        ...
