"""What is measured on a corpus that was read: an encoder, one whose embeddings are stored, and BM25."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxretr.data.corpus import Corpus
from jaxretr.evaluate.measuring import Search
from jaxretr.search.bm25.searching import bm25_searcher as bm25_search

if TYPE_CHECKING:  # They bring JAX along, which BM25 does without.
    from jaxretr.models.text_encoder import TextEncoder
    from jaxretr.stores.embedding_store import EmbeddingStore
    from jaxretr.stores.encoding import Encoder

__all__ = ["bm25_search", "encoder_search", "stored_search"]


def encoder_search(encoder: "TextEncoder", corpus: Corpus, batch_size: int | None) -> Search:
    """Encodes the corpus once; the returned function encodes questions and searches exactly."""
    from jaxretr.search.exact import ExactIndex
    from jaxretr.stores.encoding import encode_texts

    index = ExactIndex(encode_texts(encoder, corpus, batch_size), corpus.ids)
    return lambda questions, k: index.search(encode_texts(encoder, questions, batch_size), k)


def stored_search(encoder: "Encoder", store: "EmbeddingStore", ids: Sequence[str], batch_size: int | None) -> Search:
    """The same with what `jaxretr.encode` made of a corpus with these ids."""
    from jaxretr.search.searching import search_store
    from jaxretr.stores.encoding import encode_texts

    return lambda questions, k: search_store(store, ids, encode_texts(encoder, questions, batch_size), k)
