"""The kind of index that is a live folder: opened for a service or for one search, and verified."""

from jaxretr.embeddings.encoding import Encoder, is_sparse_encoder, name_of
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.indexes.index import Opening
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.settings import LiveSettings
from jaxretr.indexes.live.verifying import verify as verify
from jaxretr.runtime.errors import UserError


def check_dense(place: str, encoder: Encoder | None) -> None:
    """Raise UserError if live indexes at a place would be of a sparse encoder, which have none."""
    if encoder is not None and is_sparse_encoder(encoder):
        raise UserError(
            f"{place}: a live index has dense vectors, and {name_of(encoder)} gives sparse ones; encode the corpus with "
            "jaxretr encode, and search or serve that"
        )


def open(place: str, opening: Opening) -> LiveIndex:
    """Open a live folder, or make an empty one for the model where there is nothing.

    Raises:
      UserError: see `LiveIndex.open`; or the model is a sparse encoder.
    """
    encoder = opening.encoder
    check_dense(place, encoder)
    return LiveIndex.open(
        place,
        name=opening.name,
        model=None if encoder is None else name_of(encoder),
        model_fingerprint=None if encoder is None else model_fingerprint(encoder),
        dim=None if encoder is None else encoder.config.embedding_size,
        settings=LiveSettings(engine=opening.engine),
        background=not opening.once,
    )
