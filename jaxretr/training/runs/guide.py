"""A guide of the negatives: another encoder's embeddings of a run's passages and questions."""

import functools
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr.data.corpus import Corpus
from jaxretr.embeddings.encoding import encode_rows, name_of
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.parallel.mesh import put_rows
from jaxretr.runtime.progress import Progress


class Guide:
    """A guide and its embeddings of the questions.

    Attributes:
      questions: float32 [Q, D'], of length 1.
      fingerprint: of the encoder.
    """

    def __init__(self, path: str, questions: Sequence[str]):
        """Load the encoder, and encode the questions on every host.

        Raises:
          UserError: there is no such encoder.
        """
        self._encoder = DualEncoder.from_pretrained(path, dtype="auto")
        self.fingerprint = model_fingerprint(self._encoder)
        self.questions = _unit(self._encoder.encode_queries(list(questions)))

    def passages(self, passages: Corpus, mesh: Mesh, rows: int) -> jax.Array:
        """Encode the passages, on each host those of its devices; float32 [rows, D'], sharded by row."""
        with Progress(len(passages), "passage", f"encoded by {name_of(self._encoder)}") as progress:

            @functools.cache  # Devices that hold copies ask again.
            def embeddings(start: int, stop: int) -> np.ndarray:
                if start >= len(passages):
                    return np.zeros((0, self.questions.shape[1]), np.float32)
                chosen = Corpus.from_passages([passages[row] for row in range(start, min(stop, len(passages)))])
                found, _ = encode_rows(self._encoder, chosen, advance=progress.advance)
                return _unit(found)

            return put_rows(mesh, embeddings, (rows, self.questions.shape[1]), np.float32)


def _unit(embeddings: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return (embeddings / np.maximum(lengths, 1e-12)).astype(np.float32)
