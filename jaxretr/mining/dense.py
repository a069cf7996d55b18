"""Rankings of a model for mining, a dense or a sparse one's, by exact search."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.data.question_identity import without_own_rows
from jaxretr.data.questions import Question
from jaxretr.embeddings.encoding import Encoder, encode_texts, is_sparse_encoder, loaded, name_of
from jaxretr.embeddings.fingerprints import search_fingerprint
from jaxretr.indexes.exact import ExactIndex
from jaxretr.mining.negatives import Ranking
from jaxretr.models.text_encoder import TextEncoder
from jaxretr.runtime.errors import UsageError

# Questions searched at a time.
_BLOCK = 1024
# The same of a sparse model, whose vectors have all dimensions until they are searched for.
_SPARSE_BLOCK = 128


def rankings_of_model(
    model: Encoder | str | Path | Callable[[], Encoder],
    questions: Sequence[Question],
    positives: Sequence[Sequence[int]],
    own: np.ndarray,
    corpus: Corpus,
    depth: int,
) -> tuple[Iterator[Ranking], str]:
    """Encode a corpus and questions, and rank the corpus for each.

    Args:
      questions: B questions.
      positives: corpus rows of each question's positives.
      own: the row that is the question itself, -1 where none is, [B].

    Returns:
      B rankings, which know the score of every positive; and the model's name with its fingerprint.

    Raises:
      UserError: a model that cannot be used.
    """
    encoder = loaded(model)
    if not isinstance(encoder, TextEncoder):
        raise UsageError(
            f"model: a {type(encoder).__name__} is no encoder of jaxretr's; search with your own, and give run="
        )
    if is_sparse_encoder(encoder):
        from scipy.sparse import csr_array

        from jaxretr.indexes.exact.sparse import SparseIndexes, rows_of_corpus

        blocks, dim = rows_of_corpus(encoder, corpus, None), encoder.config.embedding_size
        index, block_size, everyone = SparseIndexes(blocks, dim), _SPARSE_BLOCK, None
        entries, weights, counts = map(np.concatenate, zip(*blocks, strict=True))
        passages: Any = csr_array((weights, entries, np.concatenate([[0], np.cumsum(counts)])), (len(corpus), dim))
    else:
        passages, everyone = encode_texts(encoder, corpus, None), encode_texts(encoder, questions, None)
        block_size = _BLOCK
        index = ExactIndex(passages, corpus.ids)
    # One more passage is ranked in place of a question that is one itself.
    deeper = min(len(corpus), depth + bool((own >= 0).any()))

    def rankings() -> Iterator[Ranking]:
        for start in range(0, len(questions), block_size):
            block = slice(start, start + block_size)
            asked = encode_texts(encoder, questions[block], None) if everyone is None else everyone[block]
            found = without_own_rows(*index.search_rows(asked, deeper), own[block], depth)
            for scores, rows, question, of_one in zip(*found, asked, positives[block], strict=True):
                yield Ranking(rows, scores, passages[list(of_one)] @ question)

    return rankings(), f"{name_of(encoder)}, {search_fingerprint(encoder)}"
