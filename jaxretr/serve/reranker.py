"""A scorer as the service runs it: a queue of pairs with a worker of its own."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jaxretr.indexes.index import Document
from jaxretr.indexes.reranking import name_of_scorer
from jaxretr.models.any_scorer import Scorer
from jaxretr.models.pair_scorer import PairScorer
from jaxretr.serve.batching import Batcher, Lane, Observer
from jaxretr.serve.settings import Settings

# Characters that count as a token of a pair, where the scorer tokenises it itself.
_CHARACTERS_A_TOKEN = 4


class Reranker:
    """Scores pairs of question and document.

    Args:
      scorer: any scorer; `compile` compiles its programs in advance.
      settings: the queue's limits.
      threads: threads that tokenise.
      observer: is told what the worker does.
    """

    def __init__(
        self, scorer: Scorer, settings: Settings, threads: ThreadPoolExecutor, observer: Observer | None = None
    ):
        self.scorer, self.name, self._threads = scorer, name_of_scorer(scorer), threads
        if isinstance(scorer, PairScorer):
            engine = scorer.engine()
            budget = settings.max_batch_tokens or engine.batch_tokens
            shapes = engine.few_shapes(scorer.texts.frame.max_length, budget)
            self.compile = lambda: engine.compile(shapes)
            lane = Lane(
                "rerank",
                lambda rows: engine.embed_rows(rows, 1, shapes)[:, 0],
                engine.devices * budget,
                pads=engine.pads,
                padded=shapes.length,
            )
        else:
            of_t5 = scorer.few_shapes()
            self.compile = lambda: scorer.compile(of_t5)
            lane = Lane(
                "rerank",
                lambda pairs: scorer.score(
                    [question for question, _ in pairs], [passage for _, passage in pairs], shapes=of_t5
                ),
                of_t5.rows[-1] * scorer.max_length,
            )
        self.batcher = Batcher(
            [lane], max_requests=settings.max_queue, max_tokens=settings.max_queue_tokens, observer=observer
        )

    async def score(self, questions: Sequence[str], documents: Sequence[Document]) -> tuple[np.ndarray, int]:
        """Score question i against document i.

        Returns:
          float32 [n], raw: logits, or mean log-likelihoods; and how many pairs were longer than the scorer reads.

        Raises:
          Overloaded: the queue is full.
        """
        passages = [{"title": document.title, "text": document.text} for document in documents]
        with self.batcher.accepted():
            pairs, lengths, cut = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._prepared, questions, passages
            )
            return np.array(await self.batcher.run("rerank", pairs, lengths), np.float32), cut

    def _prepared(
        self, questions: Sequence[str], passages: Sequence[dict[str, str]]
    ) -> tuple[list[Any], list[int], int]:
        """Make the lane's inputs of pairs; return them, the tokens of each, and the number of pairs that are cut."""
        if isinstance(self.scorer, PairScorer):
            rows, cut = self.scorer.marked_rows(questions, passages)
            return list(rows), [max(1, len(row)) for row in rows], cut
        pairs = list(zip(questions, passages, strict=True))
        sizes = [len(question) + len(passage["text"]) for question, passage in pairs]
        lengths = [1 + min(size // _CHARACTERS_A_TOKEN, self.scorer.max_length) for size in sizes]
        return list(pairs), lengths, self.scorer.rows(questions, passages)[2]
