"""Re-ranking: the first hits of each question in the order of a model that reads question and passage together."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from jaxretr.data.pairs import Pair
from jaxretr.data.questions import Question
from jaxretr.data.runs import Corpus, Hits, joined, strictly_decreasing
from jaxretr.embeddings.kept_chunks import KeptChunks
from jaxretr.embeddings.pair_scores import CHUNK, Pairs, kept_scores, score_pairs
from jaxretr.models.any_scorer import Scorer, load_scorer
from jaxretr.runtime.errors import UsageError, at_least
from jaxretr.runtime.parallel.hosts import agree

log = logging.getLogger(__name__)

AnyScorer = Scorer | str | Path | Callable[[], Scorer]
"""A scorer, what `load_scorer` takes, or a function that loads one."""


def loaded_scorer(scorer: AnyScorer) -> Scorer:
    """The scorer, the one loaded from a path or hub name, or what a function returns that loads it."""
    if isinstance(scorer, str | Path):
        return load_scorer(scorer)
    if isinstance(scorer, Scorer):
        return scorer
    if not callable(scorer):
        raise UsageError(
            f"a {type(scorer).__name__} is no scorer; give what load_scorer returns, or its path or hub name"
        )
    return scorer()


def name_of_scorer(scorer: Scorer) -> str:
    """The name of a scorer in messages: the place it was loaded from."""
    return scorer.source or "a scorer that was not loaded from a folder"


def rerank_hits(
    scorer: AnyScorer,
    hits: Sequence[Hits],
    *,
    questions: Sequence[Question],
    corpus: Corpus,
    depth: int | None = 100,
    chunk: int = CHUNK,
    batch_size: int | None = None,
    out: Path | None = None,
) -> tuple[list[Hits], KeptChunks | None]:
    """Score the first hits of each question, and order them by these scores.

    With several processes, each scores its share; all must call this, and all get all hits.

    Args:
      scorer: the model; it is loaded once all hits are known to be in the corpus.
      hits: the hits of each question, best first.
      questions: at least those of `hits`.
      corpus: at least the passages among the first `depth` hits.
      depth: hits of a question that are scored. Those behind them are dropped, since their scores are of another kind.
        None: all.
      chunk: pairs at a time.
      batch_size: pairs per batch; None: chosen for the device.
      out: the file that will be written; scores of finished chunks are kept next to it. None: they are not kept.

    Returns:
      The hits of each question, best first; equal scores keep their earlier order. The scores are the scorer's raw ones,
      but each that is not below the one before it is lowered by the least that float32 allows, so that every reader of the
      run sees this order. And the kept scores, to be removed once the file is written.

    Raises:
      UserError: a question or a passage is unknown, or a score is not a finite number.
    """
    at_least(1, depth=depth)
    first = [
        Hits(question_hits.question_id, question_hits.ids[:depth], question_hits.scores[:depth])
        for question_hits in hits
    ]
    known = list(joined(questions, corpus, first))
    count = sum(len(question_hits.ids) for question_hits in first)

    def pairs() -> Iterator[Pair]:
        for _, question, rows in known:
            for row in rows:
                yield Pair(question.text, corpus.titles[row], corpus.texts[row])

    scorer = loaded_scorer(scorer)
    kept = None
    if out is not None:
        kept = kept_scores(out, scorer, Pairs.of(pairs()), chunk, batch_size)
    elif jax.process_count() > 1:
        agree("re-ranking", {"scorer": scorer.fingerprint(), "pairs": Pairs.of(pairs()).fingerprint})
    began = time.monotonic()
    scores = score_pairs(scorer, pairs(), count, chunk=chunk, batch_size=batch_size, kept=kept)
    seconds = time.monotonic() - began
    log.info("re-ranked %d hits of %d questions, %.3g questions/s", count, len(first), len(first) / max(seconds, 1e-9))
    ordered, start = [], 0
    for question_hits in first:
        stop = start + len(question_hits.ids)
        ordered.append(_ordered(question_hits, scores[start:stop]))
        start = stop
    return ordered, kept


def _ordered(hits: Hits, scores: np.ndarray) -> Hits:
    order = np.argsort(-scores, kind="stable")
    return Hits(hits.question_id, [hits.ids[place] for place in order], strictly_decreasing(scores[order]))
