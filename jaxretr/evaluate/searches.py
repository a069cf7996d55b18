"""What is measured on a corpus that was read: an encoder, one whose embeddings are stored, and BM25."""

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.evaluate.measuring import Search
from jaxretr.progress import Progress

if TYPE_CHECKING:  # They bring JAX along, which BM25 does without.
    from jaxretr.models.text_encoder import TextEncoder
    from jaxretr.stores.embedding_store import EmbeddingStore
    from jaxretr.stores.encoding import Encoder

log = logging.getLogger(__name__)

# Questions that BM25 searches between two signs of life.
_BLOCK = 256


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


def bm25_search(corpus: Corpus, **settings: Any) -> Search:
    """Indexes the corpus for BM25; `run_of` makes a run of what the returned function finds.

    Args:
      corpus: the passages.
      settings: as of `Bm25Index.build`; its defaults otherwise.
    """
    from jaxretr.search.bm25 import Bm25Index

    log.info("indexing %d passages", len(corpus))
    index = Bm25Index.build(corpus, **settings)

    def search(questions: Sequence[Question], k: int) -> tuple[np.ndarray, list[list[str]]]:
        scores, ids = [], []
        with Progress(len(questions), "question", "searched") as progress:
            for start in range(0, len(questions), _BLOCK):
                texts = [question.text for question in questions[start : start + _BLOCK]]
                of_block, rows = index.search(texts, k, threads=os.cpu_count() or 1)
                scores.append(of_block)
                ids += [[corpus.ids[row] for row in found if row >= 0] for found in rows.tolist()]
                progress.advance(len(texts))
        return np.concatenate(scores), ids

    return search
