"""Rankings of a dense model for mining, by exact search."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.data.question_identity import without_own_rows
from jaxretr.data.questions import Question
from jaxretr.embeddings.encoding import Encoder, encode_texts, is_sparse_encoder, loaded, name_of
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.indexes.exact import ExactIndex
from jaxretr.mining.negatives import Ranking
from jaxretr.models.text_encoder import TextEncoder
from jaxretr.runtime.errors import UsageError, UserError

# Questions searched at a time.
_BLOCK = 1024


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
      model: the model.
      questions: B questions.
      positives: corpus rows of each question's positives.
      own: the row that is the question itself, -1 where none is, [B].
      corpus: the passages.
      depth: passages to rank.

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
        raise UserError(
            f"model: {name_of(encoder)} is a sparse encoder, which is not mined with in one call; jaxretr encode and search "
            "with it, and give the run"
        )
    passages, asked = encode_texts(encoder, corpus, None), encode_texts(encoder, questions, None)
    index = ExactIndex(passages, corpus.ids)
    # One more passage is ranked in place of a question that is one itself.
    deeper = min(len(corpus), depth + bool((own >= 0).any()))

    def rankings() -> Iterator[Ranking]:
        for start in range(0, len(questions), _BLOCK):
            block = slice(start, start + _BLOCK)
            found = without_own_rows(*index.search_rows(asked[block], deeper), own[block], depth)
            for scores, rows, question, of_one in zip(*found, asked[block], positives[block], strict=True):
                yield Ranking(rows, scores, passages[list(of_one)] @ question)

    return rankings(), f"{name_of(encoder)}, {model_fingerprint(encoder)}"
