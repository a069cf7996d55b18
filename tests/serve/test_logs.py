"""What the log and the headers say, and what they never say."""

import io
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from serving import caller

from jaxretr.serve.app import create_app
from jaxretr.serve.keys import Keys, add_key
from jaxretr.serve.logs import JsonLines, RequestLog
from jaxretr.serve.service import Service
from jaxretr.serve.settings import Settings

SECRET = "the prime minister's diary"
DOCUMENT = {
    "id": "minutes",
    "title": "the board's plan",
    "text": "sell everything",
    "metadata": {"owner": "the chairman"},
}


def all_requests(call: Callable[..., Any], key: str) -> None:
    """Requests with texts, vectors and a key, right ones and wrong ones."""
    headers = {"Authorization": f"Bearer {key}"}
    for method, path, body in (
        ("POST", "/v1/embeddings", {"input": SECRET}),
        ("POST", "/v1/embeddings", {"input": [SECRET, 7]}),
        ("POST", "/v1/embeddings", {"input": SECRET, "encoding_format": SECRET}),
        ("POST", "/v1/notes/search", {"query": SECRET}),
        ("POST", "/v1/notes/search", {"query": SECRET, "k": SECRET}),
        ("POST", "/v1/notes/search", {"vector": [0.123456789] * 16}),
        ("POST", "/v1/notes/search", {"vector": [0.123456789] * 15}),
        ("POST", "/v1/notes/upsert", {"documents": [DOCUMENT]}),
        ("POST", "/v1/notes/upsert", {"documents": [DOCUMENT, DOCUMENT]}),
        ("POST", "/v1/notes/delete", {"ids": ["minutes"]}),
        ("POST", "/v1/rerank", {"query": SECRET, "documents": ["sell everything"]}),
        ("GET", "/v1/notes/search", None),
        ("GET", f"/v1/{SECRET}/search?q={SECRET}", None),
        ("GET", f"/v1/notes/doc/{SECRET}", None),
    ):
        call(method, path, json=body, headers=headers)
        call(method, path, json=body, headers={"Authorization": f"Bearer {key}x"})


def logged(service: Service, tmp_path: Any, settings: Settings) -> tuple[str, str]:
    """What is logged of `all_requests`, the library's own records among it, and the key."""
    key = add_key(tmp_path / "keys", "tester", ["admin"])
    stream = io.StringIO()
    lines = RequestLog(settings.log_texts, stream)
    handler = JsonLines(lines)
    logging.getLogger().addHandler(handler)
    try:
        all_requests(caller(create_app(service, settings, Keys.read(tmp_path / "keys"), lines)), key)
    finally:
        logging.getLogger().removeHandler(handler)
    return stream.getvalue(), key


class _Parts(io.StringIO):
    """A stream that keeps what each write gave it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def write(self, text: str) -> int:
        self.parts.append(text)
        return super().write(text)


def test_a_line_is_written_in_one_piece() -> None:
    # Two threads' lines shared one, where a line and its end were two writes.
    stream = _Parts()
    RequestLog(stream=stream).event("ready")
    (line,) = filter(None, stream.parts)
    assert line.endswith("\n") and json.loads(line)["message"] == "ready"


def test_no_text_vector_or_key_is_logged(started: Service, tmp_path: Any) -> None:
    log, key = logged(started, tmp_path, Settings())
    for secret in (
        "prime minister",
        "prime%20minister",
        "board's plan",
        "sell everything",
        "chairman",
        "0.12345",
        key,
        "minutes",
    ):
        assert secret not in log
    lines = [json.loads(line) for line in log.splitlines()]
    asked = [line for line in lines if "route" in line]
    assert len(asked) == 28
    for line in asked:
        assert {"time", "request", "method", "route", "status", "ms"} <= set(line)
    assert {line.get("key") for line in asked} == {"tester", None}
    assert {line["route"] for line in asked} >= {"/v1/embeddings", "/v1/{index}/search", "/v1/{index}/doc/{id:id}"}
    assert any(line.get("tokens", 0) > 5 for line in asked)


def test_refused_requests_are_logged_under_their_routes(started: Service, tmp_path: Any) -> None:
    add_key(tmp_path / "keys", "tester", ["read"])
    stream = io.StringIO()
    settings = Settings(max_body=100, allow_origins=("https://example.org",))
    call = caller(create_app(started, settings, Keys.read(tmp_path / "keys"), RequestLog(stream=stream)))
    preflight = {"origin": "https://example.org", "access-control-request-method": "POST"}
    for method, path, headers in (
        ("POST", "/v1/notes/upsert", {}),
        ("POST", "/v1/embeddings", {"content-encoding": "gzip"}),
        ("OPTIONS", "/v1/notes/search", preflight),
        ("OPTIONS", "/mcp", {**preflight, "origin": "https://evil.example"}),
        ("GET", "/mcp", {}),
        ("HEAD", "/info", {}),
        ("GET", "/v1/notes/nothing", {}),
    ):
        assert call(method, path, headers=headers).status_code != 500
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["method"], line["route"]) for line in lines] == [
        ("POST", "/v1/{index}/upsert"),
        ("POST", "/v1/embeddings"),
        ("OPTIONS", "/v1/{index}/search"),
        ("OPTIONS", "/mcp"),
        ("GET", "/mcp"),
        ("HEAD", "/info"),
        ("GET", "unknown"),
    ]
    assert 'route="/v1/{index}/upsert",status="401"' in started.metrics.text().decode()


def test_queries_are_logged_if_asked_for(started: Service, tmp_path: Any) -> None:
    log, key = logged(started, tmp_path, Settings(log_texts=True))
    assert SECRET in log
    assert key not in log


def test_headers_of_every_answer(started: Service) -> None:
    call = caller(create_app(started))
    for method, path in (
        ("GET", "/health"),
        ("GET", "/nope"),
        ("POST", "/v1/embeddings"),
        ("GET", "/docs"),
        ("PUT", "/health"),
    ):
        headers = call(method, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "server" not in headers
        assert "access-control-allow-origin" not in headers
    page = call("GET", "/docs")
    assert "sha256-" in page.headers["content-security-policy"]
    for elsewhere in ("http://", "https://", "//cdn"):
        assert elsewhere not in page.text


@pytest.mark.parametrize(
    "host", ["localhost:80", "127.0.0.1", "[::1]:8080", "[::1]", "10.0.0.1:80", "jaxretr", "a.localhost."]
)
def test_a_local_service_has_many_names(started: Service, host: str) -> None:
    assert caller(create_app(started))("GET", "http://127.0.0.1/info", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(("origin", "allowed"), [("https://example.org", True), ("https://evil.example", False)])
def test_other_origins_only_if_they_are_named(started: Service, origin: str, allowed: bool) -> None:
    call = caller(create_app(started, Settings(allow_origins=("https://example.org",))))
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os,x-stainless-retry-count",
    }
    asked = call("OPTIONS", "/v1/embeddings", headers=headers)
    assert (asked.headers.get("access-control-allow-origin") == origin) is allowed
    assert (asked.status_code == 200) is allowed
    # Clients have headers of their own; those of MCP are also read.
    for names in ("mcp-protocol-version,mcp-session-id,last-event-id", "x-of-a-client-to-come"):
        asked = call("OPTIONS", "/mcp", headers={**headers, "access-control-request-headers": names})
        assert (asked.status_code == 200) is allowed
        assert asked.headers.get("access-control-allow-headers") == names
    assert "x-request-id" in asked.headers
    # Browsers send a POST without a body at once, whatever page asks for it.
    answer = call("POST", "/v1/notes/reindex/rollback", headers={"origin": origin, "sec-fetch-site": "cross-site"})
    assert (answer.status_code != 403) is allowed
    # A page whose host's name has come to lead here is of the same site for a browser.
    asked = call("GET", "http://127.0.0.1/info", headers={"host": f"{origin.partition('://')[2]}:8080"})
    assert (asked.status_code, asked.json().get("error", {}).get("type")) == (
        (200, None) if allowed else (403, "permission")
    )
    answer = call("GET", "/health", headers={"origin": origin})
    assert "mcp-session-id" in answer.headers["access-control-expose-headers"]
    assert (answer.headers.get("access-control-allow-origin") == origin) is allowed
