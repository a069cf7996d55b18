"""The checks that every database's index makes: of the model, and of the shape of vectors."""

from collections.abc import Sequence

import numpy as np

from jaxretr.embeddings.encoding import Encoder, name_of
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.indexes.exact.host_rows import checked_matrix
from jaxretr.indexes.searching import another_model, check_dim
from jaxretr.indexes.served import Document
from jaxretr.runtime.errors import UserError


def check_model(where: str, dim: int, model: str, fingerprint: str, encoder: Encoder | None) -> None:
    """Refuse an index of another model than the one that encodes the questions.

    Args:
      where: the name of the index in errors.
      dim, model, fingerprint: the index's.
      encoder: the model; None: nothing is encoded, so there is nothing to compare.
    """
    if encoder is None:
        return
    check_dim(where, dim, model, encoder, name_of(encoder))
    if fingerprint != model_fingerprint(encoder):
        raise another_model(where, model, name_of(encoder))


def check_questions(vectors: np.ndarray, dim: int, k: int) -> np.ndarray:
    """The questions' vectors as float32 [B, D].

    Raises:
      UserError: another shape, NaN or infinity, or k < 1.
    """
    if k < 1:
        raise UserError(f"k={k} must be at least 1")
    return checked_matrix(vectors, dim, "questions")


def check_documents(documents: Sequence[Document], vectors: np.ndarray, dim: int) -> np.ndarray:
    """The passages' vectors as float32 [n, D].

    Raises:
      UserError: another shape, NaN or infinity, or ids that repeat.
    """
    found = checked_matrix(vectors, dim, "vectors") if len(documents) else np.empty((0, dim), np.float32)
    if len(found) != len(documents):
        raise UserError(f"vectors: {len(found)} for {len(documents)} documents; give one for each")
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise UserError(f"documents: the id {document.id[:80]!r} occurs twice; give every passage an id of its own")
        seen.add(document.id)
    return found
