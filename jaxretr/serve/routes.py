"""The paths of the service, each one call of `Service`."""

import asyncio
import base64
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import Receive

from jaxretr.serve import answers
from jaxretr.serve.answer_json import Answer
from jaxretr.serve.problems import (
    Conflict,
    DiskFull,
    Forbidden,
    Invalid,
    Malformed,
    NotFound,
    Overloaded,
    Problem,
    ReadOnly,
    Timeout,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WrongMediaType,
    no_such,
)
from jaxretr.serve.requests import (
    MAX_CHARACTERS,
    MAX_K,
    DeleteRequest,
    EmbeddingsRequest,
    Lenient,
    ReindexRequest,
    RerankRequest,
    SearchRequest,
    TokenEmbeddingsRequest,
    UpsertRequest,
)
from jaxretr.serve.service import Embedded, Service

T = TypeVar("T", bound=Callable[..., Any])


class Departed(Problem):
    """An error: the client left before the answer; nobody reads it."""

    status = 499


class JsonRequest(Request):
    """A request whose body is JSON as RFC 8259 has it: UTF-8, no NaN, no infinity, no half of a surrogate pair."""

    async def json(self) -> Any:
        """The parsed body."""
        try:
            return from_json(await self.body(), allow_inf_nan=False, cache_strings="none")
        except ValueError as error:
            raise HTTPException(400, f"the body is not JSON: {error}") from None


class IdConvertor(Convertor[str]):
    """The rest of a path, whatever it contains: Starlette's `path` ends at a line break, and `a%0A` would be `a`."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("id", IdConvertor())


class ServedRoute(APIRoute):
    """Refuses unknown parameters, reads a body as strict JSON, and cancels the work when its client leaves."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Override FastAPI's method."""
        handler = super().get_route_handler()
        body = None if self.body_field is None else self.body_field.field_info.annotation
        known = [field.alias for field in self.dependant.query_params]
        lenient = isinstance(body, type) and issubclass(body, Lenient)

        async def handle(request: Request) -> Response:
            request = JsonRequest(request.scope, request.receive)
            names = [name for name, _ in request.query_params.multi_items()]
            for name in () if lenient else names:
                if name not in known:
                    raise no_such("parameter", name, known)
                if names.count(name) > 1:
                    raise Invalid(f"{name}: given twice; give it once", name)
            if await request.body() and body is not None:
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != "application/json":
                    raise WrongMediaType("the body's type is not JSON; send Content-Type: application/json")
            work = asyncio.ensure_future(handler(request))
            departure = asyncio.ensure_future(_client_departure(request.receive))
            try:
                await asyncio.wait({work, departure}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    raise Departed("the client left")
                return work.result()
            finally:
                work.cancel()
                departure.cancel()

        return handle


async def _client_departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _errors(*problems: type[Problem]) -> dict[int | str, dict[str, Any]]:
    """The responses with a status from 400 for the OpenAPI document: these problems', and those of every path."""
    everywhere = (
        *(Malformed, Unauthenticated, Forbidden, Timeout, TooLarge),
        *(WrongMediaType, Invalid, Overloaded, Unavailable),
    )
    return {
        problem.status: {"description": problem.__doc__, "model": answers.ErrorAnswer}
        for problem in sorted({*everywhere, *problems}, key=lambda problem: problem.status)
    }


def _add_facts(request: Request, **facts: Any) -> None:
    """Add facts to the request's line in the log."""
    request.state.facts.update(facts)


def make_routes(service: Service) -> APIRouter:
    """The routes of /v1, and the state of the service."""
    routes = APIRouter(route_class=ServedRoute, default_response_class=Answer)

    def route(
        method: str, path: str, answer: type, tag: str, *problems: type[Problem], status: int | None = None
    ) -> Callable[[T], T]:
        """Serve a path by the function below, whose answer the OpenAPI document describes."""
        return routes.api_route(
            path,
            methods=[method],
            status_code=status,
            response_model=answer,
            responses=_errors(*problems),
            tags=[tag],
        )

    @route("POST", "/v1/embeddings", answers.EmbeddingsAnswer, "OpenAI")
    async def embeddings(request: Request, body: EmbeddingsRequest) -> Any:
        """Embed texts, as OpenAI's API does."""
        texts = [body.input] if isinstance(body.input, str) else body.input
        _add_facts(request, texts=texts)
        _check_form(body, service)
        result = await service.embed(body.side, texts, prompt=body.prompt)
        _add_facts(request, tokens=result.tokens, count=len(texts))
        return Answer(_embeddings(body, result, service))

    @route("POST", "/v1/embeddings/tokens", answers.EmbeddingsAnswer, "OpenAI")
    async def embeddings_of_tokens(request: Request, body: TokenEmbeddingsRequest) -> Any:
        """Embed texts that the client has tokenised with the model's own tokenizer."""
        _check_form(body, service)
        result = await service.embed(body.side, body.input, tokenised=True)
        _add_facts(request, tokens=result.tokens, count=len(body.input))
        return Answer(_embeddings(body, result, service))

    def named() -> list[str]:
        return [service.name, *([] if service.reranker is None else [service.reranker.name])]

    @route("GET", "/v1/models", answers.ModelsAnswer, "OpenAI")
    async def models() -> Any:
        """The model, and the re-ranker if there is one."""
        return Answer({"object": "list", "data": [_model(name) for name in named()]})

    @route("GET", "/v1/models/{id:id}", answers.ModelFacts, "OpenAI", NotFound)
    async def model(id: str) -> Any:
        """One of the models."""
        if id not in named():
            raise NotFound(f"no model {id[:200]!r}; there are {', '.join(named())}", "id")
        return Answer(_model(id))

    @route("POST", "/v1/rerank", answers.RerankAnswer, "Cohere", NotFound)
    @route("POST", "/v2/rerank", answers.RerankAnswer, "Cohere", NotFound)
    async def rerank(request: Request, body: RerankRequest) -> Any:
        """Score documents for a query, as Cohere's API does; scores are the re-ranker's raw ones."""
        _add_facts(request, texts=[body.query], count=len(body.documents))
        return Answer(await service.rerank(body))

    @route("GET", "/v1/indexes", answers.IndexesAnswer, "Indexes")
    async def indexes() -> Any:
        """All indexes."""
        return Answer({"indexes": (await service.describe())["indexes"]})

    @route("PUT", "/v1/indexes/{name}", answers.IndexFacts, "Indexes", NotFound, Conflict, DiskFull, status=201)
    async def create(name: str) -> Any:
        """Create an empty index."""
        return Answer(await service.create(name), 201)

    @route("DELETE", "/v1/indexes/{name}", answers.DroppedAnswer, "Indexes", NotFound)
    async def drop(name: str) -> Any:
        """Remove an index that a request created, and all that it contains."""
        await service.drop(name)
        return Answer({"dropped": name})

    @route("POST", "/v1/{index}/search", answers.SearchAnswer, "Search", NotFound)
    async def search(request: Request, index: str, body: SearchRequest) -> Any:
        """Find documents by texts or by vectors."""
        return await _searched(request, index, body)

    @route("GET", "/v1/{index}/search", answers.SearchAnswer, "Search", NotFound)
    async def search_by_url(
        request: Request,
        index: str,
        q: Annotated[str, Query(min_length=1, max_length=MAX_CHARACTERS)],
        k: Annotated[int, Query(ge=1, le=MAX_K)] = 10,
        exact: bool = False,
        rerank: bool = False,
        max_chars: Annotated[int | None, Query(ge=1, le=MAX_CHARACTERS)] = None,
    ) -> Any:
        """Find documents by a text."""
        body = SearchRequest(query=q, k=k, exact=exact, rerank=rerank, max_chars=max_chars)
        return await _searched(request, index, body)

    async def _searched(request: Request, index: str, body: SearchRequest) -> Answer:
        texts = [body.query] if isinstance(body.query, str) else body.query
        _add_facts(request, texts=texts, index=index if index in service.indexes.names else None)
        return Answer(await service.search(index, body))

    # Clients and proxies change an id in a path that looks like a path: "./a", "a//b". A parameter arrives unchanged.

    @route("GET", "/v1/{index}/doc", answers.DocumentAnswer, "Documents", NotFound)
    @route("GET", "/v1/{index}/doc/{id:id}", answers.DocumentAnswer, "Documents", NotFound)
    async def document(index: str, id: str) -> Any:
        """A document; give an id that looks like a path as a parameter, `?id=`."""
        return Answer(await service.document(index, id))

    @route("DELETE", "/v1/{index}/doc", answers.DeleteAnswer, "Documents", NotFound, ReadOnly, DiskFull)
    @route("DELETE", "/v1/{index}/doc/{id:id}", answers.DeleteAnswer, "Documents", NotFound, ReadOnly, DiskFull)
    async def delete_one(index: str, id: str) -> Any:
        """Remove a document; one that is not there is not counted. Give an id that looks like a path as `?id=`."""
        if not id:
            raise Invalid("id: empty; give the document's, as ?id= where it looks like a path", "id")
        return Answer(await service.delete(index, [id]))

    @route("POST", "/v1/{index}/upsert", answers.UpsertAnswer, "Documents", NotFound, ReadOnly, DiskFull)
    async def upsert(request: Request, index: str, body: UpsertRequest) -> Any:
        """Add documents, or replace those with the same ids; answer once that is on disk."""
        _add_facts(request, count=len(body.documents))
        return Answer(await service.upsert(index, body.documents, body.vectors))

    @route("POST", "/v1/{index}/delete", answers.DeleteAnswer, "Documents", NotFound, ReadOnly, DiskFull)
    async def delete(request: Request, index: str, body: DeleteRequest) -> Any:
        """Remove documents; ids that are not there are not counted. Answers once that is on disk."""
        _add_facts(request, count=len(body.ids))
        return Answer(await service.delete(index, body.ids))

    @route("POST", "/v1/{index}/reindex", answers.MoveAnswer, "Indexes", NotFound, Conflict, DiskFull, status=202)
    async def reindex(index: str, body: ReindexRequest) -> Any:
        """Begin to move a live index to another model; it is searched and written meanwhile."""
        return Answer(await service.reindex(index, body.to), 202)

    @route("GET", "/v1/{index}/reindex", answers.MoveAnswer, "Indexes", NotFound)
    async def reindexing(index: str) -> Any:
        """Report the progress of an index's last move to another model."""
        return Answer(await service.reindexing(index))

    @route("POST", "/v1/{index}/reindex/rollback", answers.MoveAnswer, "Indexes", NotFound, Conflict, DiskFull)
    async def rollback(index: str) -> Any:
        """Return a live index to its previous model."""
        return Answer(await service.rollback(index))

    # ---- the state of the service ------------------------------------------------------------------------------------

    not_ok = {**_errors(), 503: {"description": "Not ready.", "model": answers.StatusAnswer}}

    @routes.get("/health", response_model=answers.StatusAnswer, responses=not_ok, tags=["Service"])
    async def health() -> Any:
        """Whether the service answers at all."""
        return Answer({"status": service.state}, 200 if service.state == "ok" else 503)

    @routes.get("/ready", response_model=answers.StatusAnswer, responses=not_ok, tags=["Service"])
    async def ready() -> Any:
        """Whether a request would be accepted now."""
        state = "full" if service.state == "ok" and service.batcher.full else service.state
        return Answer({"status": state}, 200 if state == "ok" else 503)

    @route("GET", "/info", answers.InfoAnswer, "Service")
    async def info() -> Any:
        """The model, the indexes and the limits."""
        return Answer(await service.describe())

    @routes.get("/metrics", response_class=PlainTextResponse, responses=_errors(), tags=["Service"])
    async def metrics() -> Any:
        """Counts and times, for Prometheus."""
        return PlainTextResponse(await service.counts(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "jaxretr"}


def _check_form(body: EmbeddingsRequest | TokenEmbeddingsRequest, service: Service) -> None:
    """Refuse a form of the vectors that the model does not have."""
    encoder, dimensions = service.encoder, body.dimensions
    if body.encoding_format == "sparse" and not all(part.config.sparse for part in encoder.parts):
        raise Invalid("encoding_format: the model's vectors are not sparse; ask for float or base64", "encoding_format")
    if dimensions is None or dimensions == encoder.dim:
        return
    if dimensions > encoder.dim:
        raise Invalid(f"the model has {encoder.dim} dimensions; ask for no more", "dimensions")
    if len(encoder.parts) > 1:
        raise Invalid("a combined model's vectors cannot be cut; leave dimensions out", "dimensions")
    if any(part.config.sparse for part in encoder.parts):
        raise Invalid(
            "a sparse model's dimensions are its vocabulary and cannot be cut; leave dimensions out", "dimensions"
        )


def _embeddings(body: EmbeddingsRequest | TokenEmbeddingsRequest, result: Embedded, service: Service) -> dict[str, Any]:
    vectors = result.vectors if body.dimensions is None else _first(result.vectors, body.dimensions, service)
    if body.encoding_format == "base64":
        rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
    elif body.encoding_format == "sparse":
        found = ((row, np.flatnonzero(row)) for row in vectors)
        rows = [{"indices": entries.tolist(), "values": row[entries].tolist()} for row, entries in found]
    else:
        rows = vectors.tolist()
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": n, "embedding": row} for n, row in enumerate(rows)],
        "model": body.model or service.name,
        "usage": {"prompt_tokens": result.tokens, "total_tokens": result.tokens, "truncated": result.cut},
    }


def _first(vectors: np.ndarray, dimensions: int, service: Service) -> np.ndarray:
    """The first dimensions, rescaled to length 1 if the model's vectors have length 1, as OpenAI does."""
    cut = vectors[:, :dimensions]
    if dimensions == vectors.shape[1] or not service.encoder.unit_length:
        return cut
    return cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), np.float32(1e-12))
