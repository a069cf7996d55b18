"""The FastAPI app: routes, pages, headers and errors around a `Service`."""

import importlib.util
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException

from jaxretr.runtime.errors import UsageError
from jaxretr.serve.answer_json import Answer
from jaxretr.serve.edge import Edge, Gate
from jaxretr.serve.keys import Keys
from jaxretr.serve.logs import RequestLog
from jaxretr.serve.mcp_tools import mount
from jaxretr.serve.page import PAGE, answer_page
from jaxretr.serve.problems import Problem, Type, body_of, invalid
from jaxretr.serve.rates import Rates
from jaxretr.serve.routes import make_routes
from jaxretr.serve.service import Service
from jaxretr.serve.settings import Settings
from jaxretr.version import __version__

_TYPES: dict[int, Type] = {404: "not_found", 405: "invalid_request", 413: "too_large"}


def create_app(
    service: Service, settings: Settings | None = None, keys: Keys | None = None, lines: RequestLog | None = None
) -> FastAPI:
    """Make the FastAPI app of a service.

    Args:
      service: answers the requests; the caller starts and closes it.
      settings: limits; by default the service's.
      keys: API keys with their scopes; None: everything is open.
      lines: the request log; by default on stderr.
    """
    settings = settings or service.settings
    lines = lines or RequestLog(settings.log_texts)
    app = FastAPI(
        title="jaxretr",
        version=__version__,
        description="Embeddings, search and re-ranking over indexes of one model.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    routes = make_routes(service)
    app.include_router(routes)
    _add_pages(app)
    if importlib.util.find_spec("mcp") is not None:
        app.router.lifespan_context = mount(app, service)
    _add_errors(app)

    def stopping() -> bool:
        return service.state == "stopping"

    app.add_middleware(Gate, keys=keys, rates=Rates(settings.rate), settings=settings, stopping=stopping)
    if settings.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allow_origins),
            allow_methods=["GET", "HEAD", "POST", "PUT", "DELETE"],
            allow_headers=["*"],  # Each client has some of its own, such as x-stainless-os and mcp-protocol-version.
            expose_headers=[
                "x-request-id",
                "retry-after",
                "www-authenticate",
                "mcp-session-id",
                "mcp-protocol-version",
            ],
            allow_private_network=True,  # A page that is allowed may call a service in its user's network.
        )
    paths = [*routes.routes, *app.routes]
    app.add_middleware(Edge, metrics=service.metrics, lines=lines, stopping=stopping, routes=paths)
    _describe_keys(app)
    return app


def __getattr__(name: str) -> Any:
    """Explain why gunicorn and `uvicorn --workers` find no app to import."""
    if name in ("app", "application"):
        raise UsageError(
            "jaxretr.serve.app has no app to import, since a single process serves: it owns the model, the queue and the "
            "writable indexes; run: jaxretr serve MODEL"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _add_pages(app: FastAPI) -> None:
    """Add the search page, and the API's documentation."""
    for path, file in (("/", PAGE), ("/docs", PAGE.with_name("docs.html"))):
        answer = partial(answer_page, file)
        app.add_api_route(path, answer, methods=["GET"], include_in_schema=False, response_class=Response)


def _add_errors(app: FastAPI) -> None:
    async def problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return Answer.of(error)

    async def wrong(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        errors = error.errors()
        part = errors[0]["loc"][0]  # A request has other parts than its body: the path and the parameters.
        value = {"path": request.path_params, "query": dict(request.query_params)}.get(part, error.body)
        return Answer.of(
            invalid([{**each, "loc": each["loc"][1:]} for each in errors if each["loc"][0] == part], value)
        )

    async def other(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        type = _TYPES.get(error.status_code, "invalid_request" if error.status_code < 500 else "internal")
        messages = {404: "there is no such path; see /docs", 405: "this path does not allow the method; see /docs"}
        message = messages.get(error.status_code, str(error.detail))
        return Answer(body_of(type, message), error.status_code, headers=dict(error.headers or {}))

    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(RequestValidationError, wrong)
    app.add_exception_handler(HTTPException, other)


def _describe_keys(app: FastAPI) -> None:
    """State in the OpenAPI document that requests may need a key."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = plain()
            document.setdefault("components", {})["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"key": []}, {}]
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi
