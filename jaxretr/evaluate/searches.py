"""The searches that are measured on a corpus in memory: an encoder, one whose embeddings are stored, and BM25."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jaxretr.data.corpus import Corpus
from jaxretr.evaluate.measuring import Search
from jaxretr.indexes.bm25.searching import bm25_searcher as bm25_search

if TYPE_CHECKING:  # They bring JAX along, which BM25 does without.
    from jaxretr.embeddings.embedding_store import EmbeddingStore
    from jaxretr.embeddings.encoding import Encoder
    from jaxretr.models.text_encoder import TextEncoder

__all__ = ["bm25_search", "encoder_search", "note_lengths", "read_lengths", "stored_search"]

log = logging.getLogger(__name__)


def encoder_search(encoder: "TextEncoder", corpus: Corpus, batch_size: int | None) -> Search:
    """Encode the corpus once; the returned function encodes questions and searches exactly."""
    from jaxretr.embeddings.encoding import encode_texts
    from jaxretr.indexes.exact import ExactIndex

    index = ExactIndex(encode_texts(encoder, corpus, batch_size), corpus.ids)
    return lambda questions, k: index.search(encode_texts(encoder, questions, batch_size), k)


def stored_search(encoder: "Encoder", store: "EmbeddingStore", ids: Sequence[str], batch_size: int | None) -> Search:
    """Search the store that `jaxretr.encode` made of a corpus with these ids; see `encoder_search`."""
    from jaxretr.embeddings.encoding import encode_texts
    from jaxretr.indexes.searching import search_store

    return lambda questions, k: search_store(store, ids, encode_texts(encoder, questions, batch_size), k)


def read_lengths(encoder: "TextEncoder") -> tuple[int, int]:
    """The most tokens of a question, and of a passage, that an encoder reads."""
    return encoder.config.max_question_length, encoder.config.max_passage_length


def note_lengths(read: Mapping[str, tuple[int, int]]) -> None:
    """Warn where models that are compared read different lengths: name -> `read_lengths`."""
    if len(set(read.values())) > 1:
        each = ", ".join(f"{name} {question} and {passage}" for name, (question, passage) in read.items())
        log.warning("the models read different lengths, in tokens of a question and of a passage: %s", each)
