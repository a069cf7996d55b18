"""The searches that are measured on a corpus in memory: an encoder, an encoder with an index of the corpus, and BM25."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.evaluate.measuring import Search
from jaxretr.indexes.bm25.searching import bm25_searcher as bm25_search

if TYPE_CHECKING:  # They bring JAX along, which BM25 does without.
    from jaxretr.indexes.index import Index
    from jaxretr.models.text_encoder import TextEncoder

__all__ = ["bm25_search", "encoder_search", "index_search", "note_lengths", "read_lengths"]

log = logging.getLogger(__name__)


def encoder_search(encoder: "TextEncoder", corpus: Corpus, batch_size: int | None) -> Search:
    """Encode the corpus once; the returned function encodes questions and searches exactly."""
    from jaxretr.embeddings.encoding import encode_texts
    from jaxretr.indexes.exact import ExactIndex

    index = ExactIndex(encode_texts(encoder, corpus, batch_size), corpus.ids)
    return lambda questions, k: index.search(encode_texts(encoder, questions, batch_size), k)


def index_search(encoder: "TextEncoder", index: "Index", batch_size: int | None) -> Search:
    """Encode questions and search an index that the encoder made; see `encoder_search`."""
    from jaxretr.embeddings.encoding import encode_texts
    from jaxretr.indexes.index import SearchOptions

    def search(questions: Sequence[Question], k: int) -> tuple[np.ndarray, list[list[str]]]:
        found = index.search(encode_texts(encoder, questions, batch_size), k, SearchOptions())
        scores = np.full((len(found), max(map(len, found), default=0)), -np.inf, np.float32)
        for row, hits in zip(scores, found, strict=True):
            row[: len(hits)] = [hit.score for hit in hits]
        return scores, [[hit.id for hit in hits] for hits in found]

    return search


def read_lengths(encoder: "TextEncoder") -> tuple[int, int]:
    """The most tokens of a question, and of a passage, that an encoder reads."""
    return encoder.config.max_question_length, encoder.config.max_passage_length


def note_lengths(read: Mapping[str, tuple[int, int]]) -> None:
    """Warn where models that are compared read different lengths: name -> `read_lengths`."""
    if len(set(read.values())) > 1:
        each = ", ".join(f"{name} {question} and {passage}" for name, (question, passage) in read.items())
        log.warning("the models read different lengths, in tokens of a question and of a passage: %s", each)
