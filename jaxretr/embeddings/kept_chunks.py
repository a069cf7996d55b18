"""Finished chunks of long work next to the file that it will write: an interrupted call resumes after them."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from numpy.typing import DTypeLike

from jaxretr.data.arrays import read_chunk, write_chunk
from jaxretr.runtime.parallel.hosts import agree, wait_for_all
from jaxretr.runtime.storage.files import plain_number


@dataclass(frozen=True)
class KeptChunks:
    """The folder in which a call keeps its finished chunks, which are arrays.

    Attributes:
      folder: the folder, named by everything that decides the numbers, so that those of other models or texts never mix.
    """

    folder: Path

    @classmethod
    def beside(cls, out: Path, what: str, facts: Mapping[str, object]) -> "KeptChunks":
        """The folder of a call that will write `out`, next to it; all processes must call this.

        Args:
          out: the file.
          what: what the chunks are, a word for the folder's name.
          facts: everything that decides the numbers, by name, as JSON holds it.

        Raises:
          UserError: processes have different facts.
        """
        facts = {**facts, "number of devices": jax.local_device_count()}
        agree("the first chunk", {name: str(value) for name, value in facts.items()})
        name = hashlib.sha256(json.dumps(facts, default=plain_number).encode()).hexdigest()[:16]
        return cls(out.with_name(f"{out.name}.{what}-{name}"))

    def read(self, number: int, *wanted: tuple[DTypeLike, Sequence[int | None]]) -> list[np.ndarray] | None:
        """The arrays of a finished chunk, of these dtypes and shapes; None if it is not there, or not whole."""
        return read_chunk(self._path(number), *wanted)

    def write(self, number: int, *arrays: np.ndarray) -> None:
        """Keep the arrays of a chunk."""
        write_chunk(self._path(number), *arrays)

    def remove(self) -> None:
        """Remove the folder, after process 0 has written the output; all processes must call this."""
        wait_for_all("the end of the chunks")
        if not jax.process_index():
            shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"chunk-{number:06d}.npy"
