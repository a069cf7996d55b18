"""The service without HTTP, which REST, MCP and tests call."""

import asyncio
import logging
import secrets
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np

from jaxretr.embeddings.encoding import Encoder
from jaxretr.indexes.exact import search_blocks
from jaxretr.indexes.index import Document, Index, SearchOptions
from jaxretr.indexes.live.writes import ModelChanged
from jaxretr.models.any_scorer import Scorer
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.embed import Side
from jaxretr.runtime.parallel import memory
from jaxretr.serve import answers
from jaxretr.serve.batching import Batcher
from jaxretr.serve.embedding import Embedded, Embedding
from jaxretr.serve.encoding import BatchEncoder
from jaxretr.serve.indexes import Indexes
from jaxretr.serve.metrics import Metrics
from jaxretr.serve.moves import Moves
from jaxretr.serve.problems import NotFound, Overloaded, Unavailable
from jaxretr.serve.requests import DocumentIn, RerankRequest, SearchRequest
from jaxretr.serve.reranker import Reranker
from jaxretr.serve.searching import Searching
from jaxretr.serve.settings import Settings
from jaxretr.serve.threads import Threads
from jaxretr.serve.writing import Writing
from jaxretr.version import __version__

log = logging.getLogger(__name__)

State = Literal["starting", "ok", "stopping"]

# Bytes that libraries, threads and the requests under way hold, measured under load with 16 connections.
_REQUESTS_BYTES = 128 << 20

# Changes of an index's model that a request survives.
_MOVES = 3

T = TypeVar("T")


class Service:
    """A model, indexes of its passages, and perhaps a re-ranker, with their queues and threads.

    Args:
      encoder: the model.
      indexes: the indexes to search, by name.
      reranker: the model that scores the first hits; None: there is none.
      settings: the limits.
      data: the folder of indexes that requests make; None: they make none.
      make: a function that opens a new, empty index, given its folder and name.
      name: the model's name in answers; by default the place it was loaded from.

    Attributes:
      state: "starting" until `start` is done.
      metrics: the counts and times that /metrics shows.
    """

    def __init__(
        self,
        encoder: Encoder,
        indexes: Mapping[str, Index],
        *,
        reranker: Scorer | None = None,
        settings: Settings | None = None,
        data: Path | None = None,
        make: Callable[[Path, str], Index] | None = None,
        name: str | None = None,
    ):
        self.settings = settings or Settings()
        self.state: State = "starting"
        self.metrics = Metrics()
        self._threads = Threads()
        tokenising = self._threads.tokenising
        self.indexes = Indexes(indexes, data, make, self._threads.writing)
        self.embedding = Embedding(encoder, name, self.settings, self.metrics, tokenising)
        self.moves = Moves(self.embedding)
        self.reranker = None if reranker is None else Reranker(reranker, self.settings, tokenising, self.metrics)
        queues = {"encode": self.batcher, **({} if self.reranker is None else {"rerank": self.reranker.batcher})}
        self.metrics.watch(queues, self.indexes)
        self._searching = Searching(self.embedding, self.indexes, self.reranker, self._threads, self.metrics)
        self._writing = Writing(self.embedding, self.indexes, self._threads)
        self._compiling = threading.Thread(target=self._compile_rest, name="compile")

    @property
    def name(self) -> str:
        """The model's name in answers."""
        return self.embedding.model.name

    @property
    def encoder(self) -> BatchEncoder:
        """The encoder of the service's model."""
        return self.embedding.model.encoder

    @property
    def batcher(self) -> Batcher:
        """The queue of texts to embed."""
        return self.embedding.batcher

    def start(self) -> None:
        """Compile the programs that a first request needs; blocks. The service answers afterwards.

        A thread compiles the others, for other lengths and batches, until the service is stopped.
        """
        memory.announce(
            f"compiled programs of {self.name}, and requests", self.encoder.program_bytes() + _REQUESTS_BYTES
        )
        self.encoder.compile(first=True)
        if self.reranker is not None:
            self.reranker.compile()
        # A first search reads or compiles what it needs, of an index that is empty now as well.
        vector = np.ones((1, self.encoder.dim), np.float32)
        search_blocks(iter([vector]), vector, 1)
        for name in self.indexes.names:
            index = self.indexes.get(name)
            if len(index):
                index.search(np.ones((1, index.dim), np.float32), 1, SearchOptions())
        self.state = "ok"
        self._compiling.start()

    def _compile_rest(self) -> None:
        try:
            self.encoder.compile(stopped=lambda: self.state == "stopping")
            if self.state != "stopping":
                log.info("all programs are compiled")
        except Exception as error:
            log.error("programs of larger batches were not compiled: %s; texts are computed one at a time", error)

    def stop(self) -> None:
        """Make the service answer that it is stopping; accepted requests are finished."""
        self.state = "stopping"

    def close(self) -> None:
        """End threads and close indexes; blocks."""
        self.state = "stopping"
        self.moves.stop()
        if self._compiling.ident is not None:
            self._compiling.join()
        self.batcher.close()
        if self.reranker is not None:
            self.reranker.batcher.close()
        self._threads.close()
        self.indexes.close()

    def check_started(self) -> None:
        """Raise Unavailable before `start` is done, when nothing can be computed yet."""
        if self.state == "starting":
            raise Unavailable("the service is starting; ask /ready, and try again")

    # ---- embedding ---------------------------------------------------------------------------------------------------

    async def embed(
        self,
        side: Side,
        texts: Sequence[Any],
        *,
        prompt: str | None = None,
        weights: Sequence[float] | None = None,
        tokenised: bool = False,
    ) -> Embedded:
        """Embed texts with the service's model; see `Embedding.embed`."""
        self.check_started()
        return await self.embedding.embed(side, texts, prompt=prompt, weights=weights, tokenised=tokenised)

    # ---- searching ---------------------------------------------------------------------------------------------------

    async def search(self, index: str, request: SearchRequest) -> answers.SearchAnswer:
        """Find the best documents of an index for questions.

        Args:
          index: the index's name.
          request: the questions and the options of the search.

        Raises:
          NotFound: there is no such index.
          Invalid: the request asks for what the index or the model cannot do.
          Overloaded: a queue is full.
        """
        self.check_started()
        return await _of_one_model(lambda: self._searching.search(index, request))

    async def document(self, index: str, id: str) -> answers.DocumentAnswer:
        """Read a document of an index by its id.

        Raises:
          NotFound: there is none of this id, or no such index.
        """
        async with self.indexes.used(index) as opened:
            [document] = await self._threads.search(opened.documents, [id])
        if document is None:
            raise NotFound(f"no document {id[:80]!r} in the index {index!r}", "id")
        return {"id": document.id, "title": document.title, "text": document.text, "metadata": dict(document.metadata)}

    async def rerank(self, request: RerankRequest) -> answers.RerankAnswer:
        """Score documents for a question, best first.

        Raises:
          NotFound: no re-ranker is loaded.
          Overloaded: its queue is full.
        """
        self.check_started()
        if self.reranker is None:
            raise NotFound("no re-ranker is loaded; start the service with --reranker MODEL")
        documents = [
            Document("", "", each, {}) if isinstance(each, str) else Document("", each.title, each.text, {})
            for each in request.documents
        ]
        try:
            scores, cut = await self.reranker.score([request.query] * len(documents), documents)
        except Overloaded:
            self.metrics.refused("rerank")
            raise
        results: list[answers.RerankResult] = []
        for place in np.argsort(-scores, kind="stable")[: request.top_n].tolist():
            result: answers.RerankResult = {"index": place, "relevance_score": float(scores[place])}
            if request.return_documents:
                document = documents[place]
                result["document"] = {"text": document.text} | ({"title": document.title} if document.title else {})
            results.append(result)
        return {
            "id": secrets.token_hex(8),
            "results": results,
            "meta": {"model": self.reranker.name, "scores": "raw", "truncated": cut},
        }

    # ---- writing -----------------------------------------------------------------------------------------------------

    async def upsert(
        self, index: str, documents: Sequence[DocumentIn], vectors: Sequence[Sequence[float]] | None = None
    ) -> answers.UpsertAnswer:
        """Add documents, or replace those of the same ids; return once they are on disk.

        Args:
          index: the index's name.
          documents: documents of different ids.
          vectors: the documents' vectors; None: they are computed.

        Raises:
          NotFound, ReadOnly: there is no such index, or it cannot be written.
          Invalid: ids repeat, a document is empty, or vectors do not fit.
          Overloaded: the queue is full.
          DiskFull: nothing was written.
        """
        self.check_started()
        written = await _of_one_model(lambda: self._writing.upsert(index, documents, vectors))
        return {
            "sequence": written.sequence,
            "added": written.added,
            "replaced": written.replaced,
            "truncated": written.truncated,
        }

    async def delete(self, index: str, ids: Sequence[str]) -> answers.DeleteAnswer:
        """Remove documents; ids that are not there are ignored. Returns once that is on disk."""
        self.check_started()
        written = await self._writing.delete(index, ids)
        return {"sequence": written.sequence, "deleted": written.deleted}

    async def create(self, name: str) -> answers.IndexFacts:
        """Make an empty index; see `Indexes.create`."""
        index = await _to_its_end(self.indexes.create(name))
        facts = await self._threads.ask(index.facts)
        return cast(answers.IndexFacts, {"name": name, **facts})

    async def drop(self, name: str) -> None:
        """Remove an index that a request made, after its move to another model has ended; see `Indexes.drop`."""
        await _to_its_end(self.indexes.drop(name, self.moves.end))

    async def reindex(self, index: str, to: str) -> dict[str, Any]:
        """Begin to move an index to another model; see `Moves.begin`."""
        return await self._move(index, lambda opened: self.moves.begin(opened, to))

    async def reindexing(self, index: str) -> dict[str, Any]:
        """The progress of an index's move to another model; see `Moves.state`."""
        async with self.indexes.used(index) as opened:
            return await self._threads.ask(lambda: self.moves.state(opened))

    async def rollback(self, index: str) -> dict[str, Any]:
        """Move an index back to the model before; see `Moves.rollback`."""
        return await self._move(index, self.moves.rollback)

    async def _move(self, index: str, call: Callable[[Index], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Wait for a call about an index, which goes on when the client leaves: a model is loaded for minutes."""
        self.check_started()

        async def work() -> dict[str, Any]:
            async with self.indexes.used(index) as opened:
                return await call(opened)

        return await _to_its_end(work())

    # ---- what it is --------------------------------------------------------------------------------------------------

    async def counts(self) -> bytes:
        """Counts and times in Prometheus' format; an index may ask its database how many passages it has."""
        return await self._threads.ask(self.metrics.text)

    async def describe(self) -> answers.InfoAnswer:
        """The service, its model, its indexes and its limits."""
        encoder, config = self.encoder, self.encoder.encoder.config
        model: dict[str, Any] = {
            "name": self.name,
            "dim": encoder.dim,
            "max_query_tokens": config.max_question_length,
            "max_document_tokens": config.max_passage_length,
            "batch_tokens": encoder.budget,
        }
        if isinstance(encoder.encoder, CombinedEncoder):
            names, weights = encoder.encoder.names, encoder.weights
            model |= {"parts": dict(zip(names, weights, strict=True)), "combined_by": encoder.encoder.config.how}
        settings = self.settings
        return {
            "version": __version__,
            "status": self.state,
            "model": model,
            "reranker": None if self.reranker is None else {"name": self.reranker.name},
            "indexes": cast(list[answers.IndexFacts], await self._threads.ask(self.indexes.facts)),
            "limits": {
                "body_bytes": settings.max_body,
                "queue_requests": settings.max_queue,
                "queue_tokens": settings.max_queue_tokens,
                "rate": settings.rate,
            },
        }


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work that goes on when the client leaves: nothing is half done."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # Nobody may be left to hear of it.
    return await asyncio.shield(task)


async def _of_one_model(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call that an index refuses because it was moved to another model after the vectors were computed."""
    for _ in range(_MOVES):
        try:
            return await call()
        except ModelChanged:
            continue
    raise Unavailable("the index is changing its model; try again")
