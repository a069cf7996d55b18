"""Searches: from a request to its answer, over the queue of the encoder, an index, and the re-ranker."""

import math
import re
import time
from functools import partial

import numpy as np

from jaxretr.indexes.index import Findings, Index, SearchOptions
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.serve import answers
from jaxretr.serve.embedding import Embedding, Model
from jaxretr.serve.indexes import Indexes
from jaxretr.serve.metrics import Metrics
from jaxretr.serve.problems import Invalid
from jaxretr.serve.requests import Rerank, SearchRequest
from jaxretr.serve.reranker import Reranker
from jaxretr.serve.search_content import AnswerHits, part_weights, question_texts, question_vectors, search_options
from jaxretr.serve.sharing import Kind, SharedSearches
from jaxretr.serve.threads import Threads


class Searching:
    """Answers requests to search an index.

    Args:
      embedding: the encoders, which make vectors of questions.
      reranker: the re-ranker; None: there is none.
      threads: the pools in which indexes are called.
    """

    def __init__(
        self, embedding: Embedding, indexes: Indexes, reranker: Reranker | None, threads: Threads, metrics: Metrics
    ):
        self._embedding, self._indexes, self._reranker = embedding, indexes, reranker
        self._threads, self._metrics = threads, metrics
        self._shared = SharedSearches()

    async def search(self, name: str, request: SearchRequest) -> answers.SearchAnswer:
        """Search an index once; see `Service.search`.

        Raises:
          ModelChanged: the index was moved to another model while the question was embedded.
        """
        depth, began = self._depth(request), time.monotonic()
        async with self._indexes.used(name) as index:
            model = self._embedding.of(index.standing)
            questions, vectors, cut = await self._questions(request, index, model)
            usage: answers.SearchUsage = {"truncated": cut}
            encoded = time.monotonic()
            answer_hits = AnswerHits(model.encoder, request)
            kind = Kind(
                index,
                depth or request.k,
                request.exact,
                request.target_recall,
                model.fingerprint if questions is not None and isinstance(index, LiveIndex) else None,
                with_documents=bool(request.fields) or depth is not None,
                with_vectors=answer_hits.has_parts,
            )
            findings = await self._find(kind, vectors, search_options(request))
            _check_finite(findings, "vector" if questions is None else None)
            searched = time.monotonic()
            results = await self._threads.search(answer_hits.results, findings, vectors)
            if depth is not None:
                scores, usage["truncated_pairs"] = await self._scores(questions or [], findings)
                results = answer_hits.rerank(results, scores)
            done = time.monotonic()
        self._metrics.searched(name, searched - encoded)
        answer: answers.SearchAnswer = {
            "index": name,
            "model": findings.standing.model or model.name,
            "results": results,
            "took": {
                "encode_ms": _ms(encoded - began),
                "search_ms": _ms(searched - encoded),
                "rerank_ms": _ms(done - searched) if depth is not None else 0.0,
                "total_ms": _ms(done - began),
            },
            "exact": findings.exact,
            "usage": usage,
        }
        if findings.standing.sequence is not None:
            answer["sequence"] = findings.standing.sequence
        return answer

    async def _find(self, kind: Kind, vectors: np.ndarray, options: SearchOptions) -> Findings:
        """Search for each question, in a pass over the index that other searches may share."""
        model_option = {} if kind.model_fingerprint is None else {"model_fingerprint": kind.model_fingerprint}
        read = {"with_documents": kind.with_documents, "with_vectors": kind.with_vectors}

        async def search(vectors: np.ndarray) -> Findings:
            try:
                return await self._threads.search(
                    partial(kind.index.find, vectors, kind.k, options, **read, **model_option)
                )
            except Invalid as problem:  # An index begins its message with the option that it does not accept.
                named = re.match(r"\w*", str(problem))
                problem.param = named[0] if named and named[0] in SearchRequest.model_fields else problem.param
                raise

        return await self._shared.run(kind, vectors, options, search)

    async def _questions(
        self, request: SearchRequest, index: Index, model: Model
    ) -> tuple[list[str] | None, np.ndarray, int]:
        """The texts of a search, None where vectors are given; the vectors to search with; the number of texts cut."""
        texts, weights = question_texts(request), part_weights(model.encoder, request)
        if texts is None:
            return None, question_vectors(request, index.dim), 0
        if index.dim != model.encoder.dim:
            raise Invalid(
                f"the index has {index.dim} dimensions, the model {model.encoder.dim}; give vector, not query", "query"
            )
        result = await self._embedding.embed("question", texts, weights=weights, model=model)
        return texts, result.vectors, result.cut

    def _depth(self, request: SearchRequest) -> int | None:
        """Hits of a question that are re-ranked; None: none are."""
        if request.rerank is False:
            return None
        if self._reranker is None:
            raise Invalid(
                "no re-ranker is loaded; start the service with --reranker MODEL, or leave rerank out", "rerank"
            )
        if request.query is None:
            raise Invalid("re-ranking reads the question: give query, not vector", "rerank")
        return request.rerank.depth if isinstance(request.rerank, Rerank) else max(Rerank().depth, request.k)

    async def _scores(self, questions: list[str], findings: Findings) -> tuple[np.ndarray, int]:
        """The re-ranker's scores of all hits, float32 [n], and the number of pairs that it cut."""
        assert self._reranker is not None
        pairs = [
            (q, findings.documents[hit.id]) for q, hits in zip(questions, findings.hits, strict=True) for hit in hits
        ]
        if pairs and not any(document.title or document.text for _, document in pairs):
            raise Invalid(
                "the index has no texts to re-rank; start the service with --corpus, or leave rerank out", "rerank"
            )
        return await self._reranker.score([q for q, _ in pairs], [document for _, document in pairs])


def _check_finite(findings: Findings, param: str | None) -> None:
    """Refuse scores that float32, and so JSON, cannot hold: of hits in the order of scores the first or the last one."""
    ends = (hit for hits in findings.hits for hit in (*hits[:1], *hits[-1:]))
    if not all(math.isfinite(hit.score) for hit in ends):
        what = "vector: its" if param else "the"
        raise Invalid(
            f"{what} scores with the index's vectors are too large for float32; scale the vectors down", param
        )


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
