"""Checks of every kind of index: whether the model that encodes the questions made it, and of these texts."""

import logging
from collections.abc import Mapping
from typing import Any

from jaxretr.data.corpus import Corpus
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.embeddings.encoding import Encoder, name_of
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.indexes.index import Index
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UserError

log = logging.getLogger(__name__)


def check_model(
    where: str, dim: int, model: str | None, fingerprint: str | None, encoder: Encoder | None, name: str | None = None
) -> None:
    """Refuse an index of another model than the one that encodes the questions.

    Args:
      where: the name of the index in errors.
      dim, model, fingerprint: the index's; a fingerprint of None is noted, since nothing tells which model made it.
      encoder: the model; None: nothing is encoded, so there is nothing to compare.
      name: the model's name in errors; by default the place that it was loaded from.

    Raises:
      UserError: another model made it, or its vectors are not as long as the model's.
    """
    if encoder is None:
        return
    name, whose = name or name_of(encoder), f" ({model})" if model else ""
    if dim != (size := encoder.config.embedding_size):
        if isinstance(encoder, DualEncoder) and not encoder.config.sparse and dim <= encoder.config.full_size:
            remedy = f"load the model with truncate_dim={dim}"
        else:
            remedy = "search with that model" if model else "search with its own model"
        raise UserError(
            f"{where}: contains embeddings of {dim} dimensions{whose}, but {name} gives {size}; "
            f"{remedy}, or encode the corpus again"
        )
    if fingerprint is None:
        log.info("%s does not state which model made it; make sure that it was %s", where, name)
    elif fingerprint != model_fingerprint(encoder):
        raise UserError(
            f"{where}: was encoded with another model{whose} than {name}, or with another passage_prompt=; "
            "search with that model, or encode the corpus again"
        )


def check_index(index: Index, encoder: Encoder, name: str | None = None) -> None:
    """Refuse an index that another model made; see `check_model`."""
    standing = index.standing
    check_model(index.name, index.dim, standing.model, standing.model_fingerprint, encoder, name)


def warn_of_other_texts(corpus: Corpus, facts: Mapping[str, Any], source: object, index: str) -> None:
    """Warn of a corpus, by its source, with other passages or texts than an index of these facts was encoded from."""
    encoded = facts.get("texts_fingerprint")
    if encoded and corpus.fingerprint() != encoded:
        log.warning(
            "%s: has other passages or texts than %s was encoded from; hits are read there all the same", source, index
        )


def check_store(store: EmbeddingStore, encoder: Encoder | None) -> None:
    """Refuse a store that holds no passages, or that another model made; see `check_model`."""
    meta = store.meta
    if meta.side != "passage":
        raise UserError(f"{store.folder}: contains embeddings of questions; encode the corpus instead")
    check_model(str(store.folder), meta.dim, meta.model, meta.model_fingerprint, encoder)
