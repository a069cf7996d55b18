"""The layers around every request: its id, headers, key, the limits of its body, its line in the log."""

import asyncio
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxretr.serve.answer_json import Answer
from jaxretr.serve.keys import Keys, needed_scope
from jaxretr.serve.logs import RequestLog, failure
from jaxretr.serve.metrics import Metrics
from jaxretr.serve.problems import (
    Forbidden,
    Malformed,
    Problem,
    Timeout,
    TooLarge,
    Unavailable,
    WrongMediaType,
    body_of,
)
from jaxretr.serve.rates import Rates
from jaxretr.serve.settings import Settings

log = logging.getLogger(__name__)

# Ids that a client may choose for its requests, to find them in the log.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

# Pages of other origins cannot read answers, nothing is cached, and browsers guess no content types.
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
}


class Edge:
    """The outermost layer: whatever happens inside, a request gets an answer, headers, a count and a line in the log.

    Args:
      stopping: whether the service is stopping; responses then close their connections.
      routes: the app's routes, whose paths the log and the metrics name.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        lines: RequestLog,
        stopping: Callable[[], bool],
        routes: Sequence[BaseRoute] = (),
    ):
        self.app, self.metrics, self.lines, self.stopping, self.routes = app, metrics, lines, stopping, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        header = Headers(scope=scope).get("x-request-id", "")
        id = header if _REQUEST_ID.fullmatch(header) else secrets.token_hex(8)
        facts: dict[str, Any] = {}
        scope.setdefault("state", {})["facts"] = facts
        began, status, method = time.monotonic(), 0, _method(scope)
        if method == "HEAD":  # Answered as GET is, without the body.
            scope = {**scope, "method": "GET"}

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = id
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if self.stopping():
                    headers["connection"] = "close"
            elif method == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        try:
            await self.app(scope, receive, answer)
        except ClientDisconnect:  # Before its request was complete: nobody reads an answer.
            pass
        except Exception as error:
            log.error("request %s: %s", id, failure(error, self.lines.texts))
            if not status:
                content = body_of("internal", f"internal error; the service's log has it under the request id {id}")
                await Answer(content, 500)(scope, receive, answer)
        finally:
            route = self._route(scope)
            seconds = time.monotonic() - began
            self.metrics.requests.labels(method, route, status or 499).inc()
            self.metrics.request_seconds.labels(route).observe(seconds)
            self.lines.write(id=id, method=method, route=route, status=status or 499, seconds=seconds, facts=facts)

    def _route(self, scope: Scope) -> str:
        """The path's template, also of a request that was refused before it reached its route."""
        match = next((route for route in self.routes if route.matches(scope)[0] is not Match.NONE), None)
        return getattr(match, "path", "unknown")


def _is_local(scope: Scope) -> bool:
    """Whether a request came in by an address that only this machine has."""
    try:
        return ipaddress.ip_address((scope.get("server") or ("",))[0]).is_loopback
    except ValueError:
        return False


def _is_public(host: str) -> bool:
    """Whether a host may be anybody's: a name with a dot."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        name = host.rstrip(".")
        return "." in name and not name.endswith(".localhost")
    return False


def _method(scope: Scope) -> str:
    known = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
    return scope["method"] if scope["method"] in known else "other"


class Gate:
    """Admits a request if its key has the scope, and its body is neither too large nor too slow.

    Args:
      keys: the API keys; None: everything is open.
      rates: the limits of the requests that a key may send.
      stopping: whether the service is stopping; it then admits nothing.
    """

    def __init__(self, app: ASGIApp, keys: Keys | None, rates: Rates, settings: Settings, stopping: Callable[[], bool]):
        self.app, self.keys, self.rates, self.settings, self.stopping = app, keys, rates, settings, stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # The service has none.
            return await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            self._admit(scope)
        except Problem as problem:
            return await Answer.of(problem)(scope, receive, send)
        await self.app(scope, self._limited(receive), send)

    def _admit(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        scope_needed = needed_scope(scope["method"], scope["path"])
        who = (scope.get("client") or ("unknown", 0))[0]
        if self.keys is not None and scope_needed is not None:
            key = self.keys.check(headers, scope_needed)
            scope["state"]["facts"]["key"] = who = key.name
        if self.keys is None and "*" not in self.settings.allow_origins:
            self._check_page(scope, headers)
        if scope_needed is not None:
            if self.stopping():
                raise Unavailable("the service is stopping; ask another one")
            self.rates.check(who)
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise WrongMediaType("the body is compressed; send it uncompressed, without Content-Encoding")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdecimal():
            raise Malformed("Content-Length is not a number; correct it")
        if len(length) > 18 or int(length) > self.settings.max_body:
            raise self._too_large()

    def _check_page(self, scope: Scope, headers: Headers) -> None:
        """Refuse what another site's page may ask for: browsers send its POST without a body, and withhold the answer alone.

        They withhold nothing where the page's host has become a name of this machine (DNS rebinding).
        """
        allowed = self.settings.allow_origins
        of_other_site = headers.get("sec-fetch-site") == "cross-site" and headers.get("origin") not in allowed
        if scope["method"] == "POST" and of_other_site:
            raise Forbidden("pages of this site may send no POST; start the service with --allow-origin ORIGIN")
        name = headers.get("host", "").lower()
        host = name if name.endswith("]") else re.sub(r":\d*$", "", name)
        named = {origin.partition("://")[2].lower() for origin in allowed}
        if _is_local(scope) and _is_public(host) and not {name, host} & named:
            raise Forbidden("Host is no name of this machine; start the service with --keys, or --allow-origin ORIGIN")

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body has more than {self.settings.max_body} bytes; send fewer texts at a time")

    def _limited(self, receive: Receive) -> Receive:
        """Read a body within its limits; raise Problem at the first message that exceeds them."""
        size, more = 0, True
        deadline: float | None = None

        async def read() -> Message:
            nonlocal size, more, deadline
            if not more:
                return await receive()
            if deadline is None:
                deadline = time.monotonic() + self.settings.body_seconds
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise Timeout(
                    f"the body did not arrive within {self.settings.body_seconds:g} s; send it without pauses"
                ) from None
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                more = message.get("more_body", False)
                if size > self.settings.max_body:
                    raise self._too_large()
            return message

        return read
