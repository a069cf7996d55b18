"""`SparseEncoder`: questions and passages as weights of words (SPLADE)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import Side
from jaxretr.models.given_texts import given_list
from jaxretr.models.hub.dual_encoder_folder import states_use
from jaxretr.runtime.errors import UsageError, UserError, at_least, path_text

# Texts whose vectors exist with all their dimensions at a time.
_ROWS = 512


class SparseEncoder(DualEncoder):
    """A `DualEncoder` with pooling "splade": its vectors have a weight for each entry of the vocabulary, most of them 0.

    All that takes a `DualEncoder` takes it, and `encode`, `search`, `evaluate` and `mine` treat a `DualEncoder` of such a
    folder alike. `encode_queries` and `encode_passages` return all dimensions, float32 [n, V]; `sparse` stores only the
    weights.
    """

    @classmethod
    def from_pretrained(cls, path_or_name: str | Path, **settings: Any) -> "SparseEncoder":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Load a sparse encoder.

        Args:
          path_or_name: a folder that `save` wrote, a folder of sentence-transformers' SparseEncoder, or a Hugging Face
            folder with a head of masked language modelling (...ForMaskedLM), which becomes one.
          settings: as for `DualEncoder.from_pretrained`; the pooling of a folder that states none is "splade" by default.

        Raises:
          UserError: as there; or a dense encoder, or no such head.
        """
        pooling = settings.pop("pooling", None)
        if pooling is None and (Path(path_text(path_or_name)).expanduser().is_file() or not states_use(path_or_name)):
            pooling = "splade"
        found = super().from_pretrained(path_or_name, pooling=pooling, **settings)
        assert isinstance(found, cls)
        if not found.config.sparse:
            raise UserError(
                f"{path_or_name}: has pooling '{found.config.pooling}' and is no sparse encoder; load it as a "
                "DualEncoder, or train a sparse one"
            )
        return found

    def sparse(self, side: Side, texts: Sequence[Any], *, batch_size: int | None = None) -> Any:
        """Embed questions or passages.

        Args:
          side: "question" or "passage".
          texts: n texts, as for `encode_queries` or `encode_passages`.
          batch_size: as there.

        Returns:
          scipy.sparse.csr_array, float32 [n, V].

        Raises:
          UsageError: another side.
          UserError: as `encode_passages`.
        """
        from scipy.sparse import csr_array, vstack

        texts = given_list(texts, f"{side}s")
        pieces = (texts[start : start + _ROWS] for start in range(0, len(texts), _ROWS))
        found = self.encode_pieces(side, pieces, batch_size=batch_size, total=len(texts))
        parts = [csr_array(vectors) for vectors, _ in found]
        return vstack(parts, format="csr") if parts else csr_array((0, self.config.embedding_size), dtype=np.float32)

    def words(self, vectors: Any, most: int | None = None) -> list[dict[str, float]]:
        """Return the vocabulary's entries with a weight in each vector, the largest first.

        Args:
          vectors: of this encoder, [n, V] or one of them [V], an array or a sparse one.
          most: entries of each; None: all.

        Raises:
          UsageError: vectors of another shape, or `most` is no whole number from 1.
        """
        at_least(1, most=most)
        dense = np.atleast_2d(vectors.toarray() if hasattr(vectors, "toarray") else vectors)
        size = self.config.embedding_size
        if dense.ndim != 2 or dense.shape[1] != size or dense.dtype.kind not in "fiuV":
            raise UsageError(
                f"vectors: expected numbers [n, {size}] of this encoder, got {dense.dtype} {list(dense.shape)}"
            )
        found = []
        for row in dense:
            order = np.argsort(-row, kind="stable")[: np.count_nonzero(row)][:most]
            names = self.tokenizer.convert_ids_to_tokens(order.tolist())
            found.append(dict(zip(names, row[order].tolist(), strict=True)))
        return found
