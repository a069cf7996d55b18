"""Evaluation of a model over a whole corpus."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.runs import strictly_decreasing
from jaxretr.evaluate import metrics
from jaxretr.evaluate.answers import accuracy
from jaxretr.indexes.exact import ExactIndex
from jaxretr.models.dual_encoder import DualEncoder

Retriever = Callable[[list[str], int], tuple[np.ndarray, np.ndarray]]
"""A search for the k best passages of B questions: scores float32 [B, k] and corpus rows int [B, k], best first."""


def dense_retriever(model: DualEncoder, corpus: Corpus) -> Retriever:
    """Encode the corpus; the returned function searches it exactly."""
    index = ExactIndex(model.encode_passages(list(corpus)), ids=corpus.ids)
    return lambda questions, k: index.search_rows(model.encode_queries(questions), k)


def retrieval_metrics(
    corpus: Corpus,
    questions: Sequence[Question],
    qrels: Mapping[str, Mapping[str, int]] | None,
    scores: np.ndarray,
    rows: np.ndarray,
    measures: Sequence[str] = ("recall@5", "recall@20", "recall@100", "mrr@10", "ndcg@10"),
) -> dict[str, float]:
    """Compute the metrics of the corpus rows that a search returned.

    Args:
      corpus: the corpus that was searched.
      questions: B questions, in the order of the results' rows.
      qrels: the judgements of these questions; None to match answers only.
      scores: float32 [B, k], descending.
      rows: corpus rows, int [B, k]; -1 is not a passage.
      measures: the measures to compute from the judgements.

    Returns:
      The measures, and acc@1, acc@5, acc@20 and acc@100 over all questions where any of them has answers.
    """
    values: dict[str, float] = {}
    if qrels is not None:
        run = {
            question.id: {
                corpus.ids[row]: float(score)
                for row, score in zip(found, strictly_decreasing(of_one), strict=True)
                if row >= 0
            }
            for question, found, of_one in zip(questions, rows, scores, strict=True)
        }
        judged = {question.id: dict(qrels[question.id]) for question in questions}
        values |= metrics.evaluate(judged, run, list(measures))
    if any(question.answers for question in questions):
        passages = ([corpus.texts[row] for row in question_rows if row >= 0] for question_rows in rows)
        values |= accuracy([question.answers for question in questions], passages, ks=(1, 5, 20, 100))
    return values
