"""`jaxretr.search_bm25`: BM25 over a whole corpus, from questions to a run."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_corpus
from jaxretr.data.runs import Hits, Queries, SearchRun, questions_of
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.runtime.progress import Progress

log = logging.getLogger(__name__)

# Questions searched between two updates of the progress bar.
_BLOCK = 256


def search_bm25(
    corpus: Corpus | str | Path,
    *,
    queries: Queries,
    k: int = 100,
    k1: float = 0.9,
    b: float = 0.4,
    stemmer: Literal["english"] | None = "english",
) -> SearchRun:
    """Find the k best passages of each question with BM25, the lexical baseline.

    Args:
      corpus: the passages, as for `jaxretr.encode`. A file or BEIR folder, or a corpus that was read.
      queries: the questions; BEIR jsonl or folder, DPR tsv, id<TAB>text, or .txt lines. Also questions, or their texts,
        whose ids are then "0", "1", ...
      k: passages per question. A question has fewer if fewer passages share a word with it.
      k1: saturation of repeated words: the larger it is, the more repetitions count; at least 0.
      b: length normalisation: the degree to which long passages are penalised, in [0, 1].
      stemmer: "english" (Snowball) or None.

    Returns:
      The hits, {question id: {passage id: score}}; `.save(path)` writes them.

    Raises:
      UserError: the corpus or the questions cannot be read, or the corpus has no passage or no word.
      UsageError: a parameter out of its range.
    """
    questions = questions_of(queries)
    passages = corpus if isinstance(corpus, Corpus) else read_corpus(corpus)
    scores, ids = bm25_searcher(passages, k1=k1, b=b, stemmer=stemmer)(questions, k)
    hits = [
        Hits(question.id, hit_ids, of_question[: len(hit_ids)])
        for question, hit_ids, of_question in zip(questions, ids, scores, strict=True)
    ]
    if without := [each.question_id for each in hits if not each.ids]:
        log.warning(
            "%d of %d questions share no word with any passage and have no hits (%s, ...): evaluate counts them as 0",
            len(without),
            len(hits),
            without[0],
        )
    return SearchRun(hits, questions)


def bm25_searcher(
    corpus: Corpus, **settings: Any
) -> Callable[[Sequence[Question], int], tuple[np.ndarray, list[list[str]]]]:
    """Index a corpus for BM25.

    Args:
      settings: those of `Bm25Index.build`.

    Returns:
      A function that finds the k best passages of B questions: scores float32 [B, min(k, N)], and the ids of each
      question's hits, which may be fewer.
    """
    log.info("indexing %d passages", len(corpus))
    index = Bm25Index.build(corpus, **settings)

    def search(questions: Sequence[Question], k: int) -> tuple[np.ndarray, list[list[str]]]:
        scores, ids = [], []
        with Progress(len(questions), "question", "searched") as progress:
            for start in range(0, len(questions), _BLOCK):
                texts = [question.text for question in questions[start : start + _BLOCK]]
                of_block, rows = index.search(texts, k, threads=os.cpu_count() or 1)
                scores.append(of_block)
                ids += [[corpus.ids[row] for row in question_rows if row >= 0] for question_rows in rows.tolist()]
                progress.advance(len(texts))
        return np.concatenate(scores), ids

    return search
