"""The searches that are measured on a corpus in memory: an encoder, an encoder with an index of the corpus, and BM25."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jaxretr.data.corpus import Corpus, Passage
from jaxretr.data.questions import Question
from jaxretr.evaluate.measuring import Run, Search, TestSet, depth
from jaxretr.indexes.bm25.searching import bm25_searcher as bm25_search
from jaxretr.runtime.errors import UsageError

if TYPE_CHECKING:  # They bring JAX along, which BM25 does without.
    from jaxretr.embeddings.embedding_store import EmbeddingStore
    from jaxretr.indexes.index import Index
    from jaxretr.models.text_encoder import TextEncoder

__all__ = ["EncoderSearch", "System", "bm25_search", "encoder_search", "find_all", "index_search", "note_lengths"]

log = logging.getLogger(__name__)

System = tuple[str, Run | Callable[[Corpus], Search]]
"""A system's name, and its run or a function that makes its search of a corpus."""


@dataclass(frozen=True)
class EncoderSearch:
    """A `Search` with the embeddings of an encoder.

    Attributes:
      encoder: the encoder of the questions.
      find: a function of embeddings float32 [B, D] and k that returns scores float32 [B, k] and passages' ids.
      batch_size: questions per batch; None: chosen for the device.
    """

    encoder: "TextEncoder"
    find: Callable[[np.ndarray, int], tuple[np.ndarray, Sequence[Sequence[str]]]]
    batch_size: int | None

    def __call__(self, questions: Sequence[Question], k: int) -> tuple[np.ndarray, Sequence[Sequence[str]]]:
        from jaxretr.embeddings.encoding import encode_texts

        return self.find(encode_texts(self.encoder, questions, self.batch_size), k)

    @property
    def lengths(self) -> tuple[int, int]:
        """The most tokens of a question, and of a passage, that the encoder reads."""
        return self.encoder.config.max_question_length, self.encoder.config.max_passage_length


def encoder_search(encoder: "TextEncoder", corpus: Corpus, batch_size: int | None) -> EncoderSearch:
    """Encode the corpus once; the returned function encodes questions and searches exactly."""
    from jaxretr.embeddings.encoding import encode_texts, is_sparse_encoder
    from jaxretr.indexes.exact import ExactIndex

    if is_sparse_encoder(encoder):
        from jaxretr.indexes.exact import sparse

        return EncoderSearch(encoder, sparse.of_corpus(encoder, corpus, batch_size), batch_size)
    index = ExactIndex(encode_texts(encoder, corpus, batch_size), corpus.ids)
    return EncoderSearch(encoder, index.search, batch_size)


class OwnEncoder(Protocol):
    """Anything of the user's that embeds texts."""

    def encode_queries(self, questions: list[str], /) -> Any:
        """Embed n questions, float [n, D]."""
        ...

    def encode_passages(self, passages: list[Passage], /) -> Any:
        """Embed n passages, float [n, D]."""
        ...


def own_encoder_search(encoder: OwnEncoder, corpus: Corpus) -> Search:
    """`encoder_search` for any object that has encode_queries and encode_passages.

    Raises:
      UsageError: it has only one of them, or returns anything but a row a text.
    """
    from jaxretr.indexes.exact import ExactIndex

    def embedded(name: str, texts: Sequence[Any]) -> np.ndarray:
        returned = getattr(encoder, name)(texts)
        try:
            found = np.asarray(returned, np.float32)
        except (TypeError, ValueError):
            raise UsageError(
                f"{name} returned a {type(returned).__name__} that is no array of numbers; return [{len(texts)}, D]"
            ) from None
        if found.ndim != 2 or len(found) != len(texts):
            raise UsageError(f"{name} returned {list(found.shape)} for {len(texts)} texts; return [{len(texts)}, D]")
        return found

    if not callable(getattr(encoder, "encode_queries", None)):
        raise UsageError(f"a {type(encoder).__name__} has no encode_queries; give it that method")
    index = ExactIndex(embedded("encode_passages", list(corpus)), corpus.ids)

    def search(questions: Sequence[Question], k: int) -> tuple[np.ndarray, Sequence[Sequence[str]]]:
        return index.search(embedded("encode_queries", [each.text for each in questions]), k)

    return search


def index_search(encoder: "TextEncoder", index: "Index", batch_size: int | None) -> EncoderSearch:
    """Encode questions and search an index that the encoder made; see `encoder_search`."""
    from jaxretr.indexes.index import SearchOptions
    from jaxretr.indexes.read_only import search_ids

    return EncoderSearch(encoder, lambda vectors, k: search_ids(index, vectors, k, SearchOptions()), batch_size)


def store_search(encoder: "TextEncoder", store: "EmbeddingStore", batch_size: int | None = None) -> EncoderSearch:
    """Encode questions and search the embeddings that the encoder made."""
    from jaxretr.indexes.exact.store import streamed
    from jaxretr.indexes.index import Opening

    return index_search(encoder, streamed(store, Opening(str(store.folder), once=True)), batch_size)


def find_all(
    systems: Sequence[System], on: TestSet, metrics: Sequence[str], first_hits: int = 0
) -> list[tuple[str, Run]]:
    """Search with each system, one after the other, and leave out the hits that are the question itself.

    Args:
      systems: the systems; runs are taken as they are.
      metrics: the metrics, which tell how many hits of a question are needed.
      first_hits: the least hits of a question by the first system.

    Returns:
      Each system's name and run.
    """
    lengths: dict[str, tuple[int, int]] = {}

    # A function, so that the embeddings of one system are freed before the next one's are computed.
    def hits_of(name: str, make: Callable[[Corpus], Search], k: int) -> Run:
        search = make(on.corpus)
        if isinstance(search, EncoderSearch):
            lengths[name] = search.lengths
        return on.search(search, k)

    runs: list[tuple[str, Run]] = []
    for name, run in systems:
        k = max(depth(metrics), 0 if runs else first_hits)
        runs.append((name, hits_of(name, run, k) if callable(run) else on.others(run, metrics, name)))
    note_lengths(lengths)
    return runs


def note_lengths(read: Mapping[str, tuple[int, int]]) -> None:
    """Warn where encoders that are compared read different lengths: name -> `EncoderSearch.lengths`."""
    if len(set(read.values())) > 1:
        each = ", ".join(f"{name} {question} and {passage}" for name, (question, passage) in read.items())
        log.warning("the models read different lengths, in tokens of a question and of a passage: %s", each)
