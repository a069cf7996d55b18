"""`jaxretr.rerank`: a run in the order of a cross-encoder or another scorer."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.data.readers import read_corpus
from jaxretr.data.run_reading import read_run
from jaxretr.data.runs import Hits, Queries, SearchRun, questions_of, ranked_ids
from jaxretr.evaluate.measuring import Run
from jaxretr.indexes.reranking import AnyScorer, rerank_hits

Path_ = str | Path


def rerank(
    scorer: AnyScorer,
    run: Run | Path_,
    *,
    queries: Queries,
    corpus: Corpus | Path_,
    depth: int | None = 100,
    batch_size: int | None = None,
) -> SearchRun:
    """Score the first hits of each question with a model that reads question and passage together, and order them.

    With several processes, each scores its share; all must call this, and all return the same run.

    Args:
      scorer: a `CrossEncoder`, `CausalScorer` or `QuestionScorer`, what `load_scorer` takes, or a function that loads one.
      run: a run that `jaxretr.search` returned, a run's file, or {question id: {passage id: score}}.
      queries: the questions, or their file; texts alone have the ids "0", "1", ...
      corpus: the passages, or their file.
      depth: hits of a question that are scored; those behind them are dropped. None: all.
      batch_size: pairs per batch; None: chosen for the device.

    Returns:
      The run, best first, with the scorer's raw scores (of a cross-encoder logits, without a sigmoid). Equal scores keep
      their earlier order: those after the first are lowered by the least that float32 allows.

    Raises:
      UserError: bad input, or hits of an unknown question or passage.
    """
    questions = questions_of(queries)
    hits = hits_of(read_run(run, questions=questions) if isinstance(run, str | Path) else run)
    passages = read_corpus(corpus) if isinstance(corpus, str | Path) else corpus
    ranking, _ = rerank_hits(scorer, hits, questions=questions, corpus=passages, depth=depth, batch_size=batch_size)
    return SearchRun(ranking, questions)


def hits_of(run: Run) -> Sequence[Hits]:
    """The hits of each question of a run, best first: in a search's own order, else as trec_eval ranks them."""
    if isinstance(run, SearchRun):
        return run.hits
    hits = []
    for question_id, scores in run.items():
        ids = ranked_ids(scores, len(scores))
        hits.append(Hits(question_id, ids, np.array([scores[id] for id in ids], np.float32)))
    return hits
