"""A guide of the negatives: another encoder's embeddings of a run's passages and questions."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr.data.corpus import Corpus
from jaxretr.embeddings.encoding import name_of
from jaxretr.embeddings.fingerprints import search_fingerprint
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.parallel.mesh import put_rows
from jaxretr.runtime.progress import Progress


class Guide(NamedTuple):
    """What a run needs of a guide; the encoder itself is freed."""

    questions: np.ndarray
    """Embeddings of all questions, of length 1, float32 [Q, D']."""
    passages: jax.Array
    """The passages' embeddings, of length 1, float32 [N, D'], sharded by row."""
    fingerprint: str
    """Of the encoder."""


def read_guide(path: str, questions: Sequence[str], passages: Corpus, mesh: Mesh, rows: int) -> Guide:
    """Load the encoder; encode the questions on every host, and the passages on the host of their devices.

    Args:
      path: a dual encoder's folder or hub name.
      questions: Q questions.
      rows: N, the passages' rows with padding.

    Raises:
      UserError: there is no such encoder.
    """
    encoder = DualEncoder.from_pretrained(path, dtype="auto")
    asked = _unit(encoder.encode_queries(list(questions)))
    with Progress(len(passages), "passage", f"encoded by {name_of(encoder)}") as progress:

        @functools.cache  # Devices that hold copies ask again.
        def embeddings(start: int, stop: int) -> np.ndarray:
            if start >= len(passages):
                return np.zeros((0, asked.shape[1]), np.float32)
            chosen = [passages[row] for row in range(start, min(stop, len(passages)))]
            [(found, _)] = encoder.encode_pieces("passage", [chosen], advance=progress.advance)
            return _unit(found)

        of_passages = put_rows(mesh, embeddings, (rows, asked.shape[1]), np.float32)
    return Guide(asked, of_passages, search_fingerprint(encoder))


def _unit(embeddings: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return (embeddings / np.maximum(lengths, 1e-12)).astype(np.float32)
