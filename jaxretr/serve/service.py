"""The service without HTTP: what REST, MCP and tests call."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np

from jaxretr.errors import UserError
from jaxretr.models.any_scorer import Scorer
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.embed import Side
from jaxretr.serve import answers
from jaxretr.serve.batching import Batcher, Lane
from jaxretr.serve.encoding import BatchEncoder
from jaxretr.serve.found import AnswerHits, asked_texts, asked_vectors, asked_weights, search_options
from jaxretr.serve.indexes import Indexes
from jaxretr.serve.metrics import Metrics
from jaxretr.serve.problems import DiskFull, Invalid, NotFound, Overloaded, ReadOnly, Unavailable
from jaxretr.serve.requests import DocumentIn, Rerank, RerankRequest, SearchRequest
from jaxretr.serve.reranker import Reranker
from jaxretr.serve.served import Document, Hit, ServedIndex, StorageFull, WritableIndex, Written
from jaxretr.serve.settings import Settings
from jaxretr.stores.encoding import Encoder, name_of
from jaxretr.stores.fingerprints import model_fingerprint
from jaxretr.version import __version__

State = Literal["starting", "ok", "stopping"]

# Threads that wait for indexes: for their searches, and for the disk, where a group of writes shares a commit.
_SEARCHING, _WRITING, _TOKENISING = 4, 16, 2

T = TypeVar("T")


@dataclass(frozen=True)
class Embedded:
    """Texts as vectors.

    Attributes:
      computed: float32 [n, sum of the parts' D], the parts' vectors without weights.
      vectors: float32 [n, D], the model's.
      tokens: of all texts.
      cut: how many texts were longer than the model reads.
    """

    computed: np.ndarray
    vectors: np.ndarray
    tokens: int
    cut: int


class Service:
    """A model, indexes of its passages, and perhaps a re-ranker, with their queues and threads.

    Args:
      encoder: the model.
      indexes: by name.
      reranker: scores the first hits.
      settings: limits.
      data: the folder of indexes that requests make; None: they make none.
      make: opens a new, empty one, of its folder and name.
      name: what answers call the model; by default where it was loaded from.

    Attributes:
      state: "starting" until `start` is done.
      metrics: what /metrics shows.
    """

    def __init__(
        self,
        encoder: Encoder,
        indexes: Mapping[str, ServedIndex],
        *,
        reranker: Scorer | None = None,
        settings: Settings | None = None,
        data: Path | None = None,
        make: Callable[[Path, str], ServedIndex] | None = None,
        name: str | None = None,
    ):
        self.settings = settings or Settings()
        self.name = name or name_of(encoder)
        self.state: State = "starting"
        self.metrics = Metrics()
        self.encoder = BatchEncoder(encoder, self.settings.max_batch_tokens)
        self._tokenising = ThreadPoolExecutor(_TOKENISING, "tokenise")
        self._searching = ThreadPoolExecutor(_SEARCHING, "search")
        self._writing = ThreadPoolExecutor(_WRITING, "write")
        self.indexes = Indexes(indexes, data, make, self._writing)
        lanes = [self._lane("question"), self._lane("passage")]
        limits = {"max_requests": self.settings.max_queue, "max_tokens": self.settings.max_queue_tokens}
        self.batcher = Batcher(lanes, **limits, observer=self.metrics)
        self.reranker = None if reranker is None else Reranker(reranker, self.settings, self._tokenising, self.metrics)
        queues = {"encode": self.batcher, **({} if self.reranker is None else {"rerank": self.reranker.batcher})}
        self.metrics.watch(queues, self.indexes)

    def _lane(self, side: Side) -> Lane:
        encoder = self.encoder
        return Lane(side, lambda rows: encoder.compute(side, rows), encoder.budget, encoder.pads)

    def start(self) -> None:
        """Compiles every program that a request can need; blocks, and the service answers afterwards."""
        self.fingerprint = model_fingerprint(self.encoder.encoder, "passage")
        self.encoder.compile()
        if self.reranker is not None:
            self.reranker.compile()
        for name in self.indexes.names:
            index = self.indexes.get(name)
            if len(index):  # The first search reads or compiles what it needs.
                index.search(np.ones((1, index.dim), np.float32), 1, search_options(SearchRequest(query="-")))
        self.state = "ok"

    def stop(self) -> None:
        """Says from now on that the service stops; what was accepted is finished."""
        self.state = "stopping"

    def close(self) -> None:
        """Ends threads and closes indexes; blocks."""
        self.state = "stopping"
        self.batcher.close()
        if self.reranker is not None:
            self.reranker.batcher.close()
        for pool in (self._tokenising, self._searching, self._writing):
            pool.shutdown(cancel_futures=True)
        self.indexes.close()

    def check_started(self) -> None:
        """Raises Unavailable before `start` is done, when nothing can be computed yet."""
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
    ) -> Embedded:
        """Embeds texts.

        Args:
          side: of the model.
          texts: questions, or passages as `encode_passages` takes them.
          prompt: the name of a prompt of the model; None: its own of that side.
          weights: of a combined model's parts; None: its own.

        Raises:
          Overloaded: the queue is full.
          Invalid: a text is none, or there is no such prompt.
        """
        self.check_started()
        try:
            text = None if prompt is None else self.encoder.prompt(prompt)
        except UserError as error:
            raise Invalid(str(error), "prompt") from None
        try:
            with self.batcher.accepted():
                tokenised = await self._in(self._tokenising, self.encoder.tokenise, side, texts, text)
                rows = await self.batcher.run(side, tokenised.rows, tokenised.lengths)
        except Overloaded:
            self.metrics.refused("encode")
            raise
        width = self.encoder.slices()[-1].stop
        computed = np.stack(rows) if rows else np.empty((0, width), np.float32)
        vectors = self.encoder.vectors(side, computed, weights)
        return Embedded(computed, vectors, sum(tokenised.lengths), tokenised.cut)

    # ---- searching ---------------------------------------------------------------------------------------------------

    async def search(self, index: str, request: SearchRequest) -> answers.SearchAnswer:
        """Finds documents.

        Args:
          index: its name.
          request: the questions, and how to search.

        Raises:
          NotFound: there is no such index.
          Invalid: the request asks for what the index or the model cannot do.
          Overloaded: a queue is full.
        """
        self.check_started()
        began = time.monotonic()
        async with self.indexes.used(index) as opened:
            facts = await self._in(self._searching, opened.facts)
            questions, computed, vectors = await self._questions(request, opened)
            encoded = time.monotonic()
            depth = self._depth(request)
            answering = AnswerHits(self.encoder, opened, request, rerank=depth is not None)
            options = search_options(request)
            found: list[list[Hit]] = await self._in(
                self._searching, opened.search, vectors, depth or request.k, options
            )
            searched = time.monotonic()
            documents = await self._in(self._searching, answering.documents, found)
            results = await self._in(self._searching, answering.hits, found, documents, computed, vectors)
            if depth is not None:
                assert self.reranker is not None and questions is not None
                pairs = [(q, documents[hit.id]) for q, hits in zip(questions, found, strict=True) for hit in hits]
                scores = await self.reranker.score([q for q, _ in pairs], [document for _, document in pairs])
                results = answering.reranked(results, scores)
            done = time.monotonic()
        self.metrics.searched(index, searched - encoded)
        took: answers.Took = {
            "encode_ms": _ms(encoded - began),
            "search_ms": _ms(searched - encoded),
            "rerank_ms": _ms(done - searched) if depth is not None else 0.0,
            "total_ms": _ms(done - began),
        }
        answer: answers.SearchAnswer = {
            "index": index,
            "model": facts.get("model") or self.name,
            "results": results,
            "took": took,
            "exact": request.exact or not facts.get("targets"),
        }
        if "sequence" in facts:
            answer["sequence"] = facts["sequence"]
        return answer

    async def _questions(
        self, request: SearchRequest, index: ServedIndex
    ) -> tuple[list[str] | None, np.ndarray | None, np.ndarray]:
        """The texts of a search, their parts' vectors without weights, and the vectors to search with.

        The first two are None where vectors are given.
        """
        texts, weights = asked_texts(request), asked_weights(self.encoder, request)
        if texts is None:
            return None, None, asked_vectors(request, index.dim)
        if index.dim != self.encoder.dim:
            raise Invalid(
                f"the index has {index.dim} dimensions, the model {self.encoder.dim}; give vector, not query", "query"
            )
        found = await self.embed("question", texts, weights=weights)
        return texts, found.computed, found.vectors

    def _depth(self, request: SearchRequest) -> int | None:
        """Hits of a question that are re-ranked; None: none are."""
        if request.rerank is False:
            return None
        if self.reranker is None:
            raise Invalid(
                "no re-ranker is loaded; start the service with --reranker MODEL, or leave rerank out", "rerank"
            )
        if request.query is None:
            raise Invalid("re-ranking reads the question: give query, not vector", "rerank")
        return request.rerank.depth if isinstance(request.rerank, Rerank) else Rerank().depth

    async def document(self, index: str, id: str) -> answers.DocumentAnswer:
        """A document.

        Raises:
          NotFound: there is none of this id, or no such index.
        """
        async with self.indexes.used(index) as opened:
            [found] = await self._in(self._searching, opened.documents, [id])
        if found is None:
            raise NotFound(f"no document {id[:80]!r} in the index {index!r}", "id")
        return {"id": found.id, "title": found.title, "text": found.text, "metadata": dict(found.metadata)}

    async def rerank(self, request: RerankRequest) -> answers.RerankAnswer:
        """Scores documents for a question, best first.

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
            scores = await self.reranker.score([request.query] * len(documents), documents)
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
            "meta": {"model": self.reranker.name, "scores": "raw"},
        }

    # ---- writing -----------------------------------------------------------------------------------------------------

    async def upsert(
        self, index: str, documents: Sequence[DocumentIn], vectors: Sequence[Sequence[float]] | None = None
    ) -> answers.UpsertAnswer:
        """Adds documents, or replaces those of the same ids; returns once they are on disk.

        Args:
          index: its name.
          documents: of different ids.
          vectors: theirs; None: they are computed.

        Raises:
          NotFound, ReadOnly: there is no such index, or it cannot be written.
          Invalid: ids repeat, a document is empty, or vectors do not fit.
          Overloaded: the queue is full.
          DiskFull: nothing was written.
        """
        self.check_started()
        async with self.indexes.used(index) as opened:
            target = self._writable(index, opened)
            _check_documents(documents)
            if vectors is None:
                found = await self.embed("passage", [{"title": each.title, "text": each.text} for each in documents])
                matrix = found.vectors
            else:
                matrix = _matrix(vectors, len(documents), opened.dim)
            passages = [Document(each.id, each.title, each.text, each.metadata) for each in documents]
            written = await self._write(partial(target.upsert, passages, matrix))
        return {"sequence": written.sequence, "added": written.added, "replaced": written.replaced}

    async def delete(self, index: str, ids: Sequence[str]) -> answers.DeleteAnswer:
        """Removes documents; ids that are not there are ignored. Returns once that is on disk."""
        async with self.indexes.used(index) as opened:
            target = self._writable(index, opened)
            written = await self._write(partial(target.delete, list(dict.fromkeys(ids))))
        return {"sequence": written.sequence, "deleted": written.deleted}

    async def create(self, name: str) -> answers.IndexFacts:
        """Makes an empty index; see `Indexes.create`."""
        index = await self.indexes.create(name)
        facts = await self._in(self._searching, index.facts)
        return cast(answers.IndexFacts, {"name": name, **facts})

    async def drop(self, name: str) -> None:
        """Removes an index that a request made; see `Indexes.drop`."""
        await self.indexes.drop(name)

    def _writable(self, name: str, index: ServedIndex) -> WritableIndex:
        if not isinstance(index, WritableIndex) or not index.facts().get("writable"):
            raise ReadOnly(
                f"the index {name!r} is read-only; make a live one of it with jaxretr export --to live, and serve that"
            )
        return index

    async def _write(self, write: Callable[[], Written]) -> Written:
        """Runs a write to its end, even if its client leaves: what is begun is not half done."""
        task = asyncio.ensure_future(self._in(self._writing, write))
        try:
            return await asyncio.shield(task)
        except StorageFull as error:
            raise DiskFull(str(error) or "the disk is full; nothing was written, and reading goes on") from None

    # ---- what it is --------------------------------------------------------------------------------------------------

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
            "indexes": cast(list[answers.IndexFacts], await self._in(self._searching, self.indexes.facts)),
            "limits": {
                "body_bytes": settings.max_body,
                "queue_requests": settings.max_queue,
                "queue_tokens": settings.max_queue_tokens,
                "rate": settings.rate,
            },
        }

    async def _in(self, pool: ThreadPoolExecutor, function: Callable[..., T], *arguments: Any) -> T:
        """Calls what blocks in a thread; what it says of a user's mistake is a problem of the request."""
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)
        except UserError as error:
            raise Invalid(str(error)) from None


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _check_documents(documents: Sequence[DocumentIn]) -> None:
    """Refuses ids that repeat, and documents without a word."""
    seen: set[str] = set()
    for number, document in enumerate(documents):
        if document.id in seen:
            raise Invalid(f"documents.{number}.id: {document.id[:80]!r} occurs twice; give each id once", "documents")
        seen.add(document.id)
        if not document.text and not document.title:
            raise Invalid(f"documents.{number}: neither title nor text; give one of them", "documents")


def _matrix(vectors: Sequence[Sequence[float]], count: int, dim: int) -> np.ndarray:
    """Vectors of a request, float32 [count, dim]."""
    if len(vectors) != count:
        raise Invalid(f"{len(vectors)} vectors for {count} documents; give one each", "vectors")
    for number, vector in enumerate(vectors):
        if len(vector) != dim:
            raise Invalid(f"vectors.{number}: {len(vector)} numbers for an index of {dim} dimensions", "vectors")
    with np.errstate(over="ignore"):
        matrix = np.array(vectors, np.float32).reshape(count, dim)
    if not np.isfinite(matrix).all():
        raise Invalid("vectors: a number is too large for float32", "vectors")
    return matrix
