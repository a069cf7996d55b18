"""Requests that nobody sends by accident: none crashes the service, changes anything, or gets an answer of 500."""

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from memory_index import MemoryIndex
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from serving import caller

from jaxretr.serve.app import create_app
from jaxretr.serve.service import Service
from jaxretr.serve.settings import Settings

JSON = {"content-type": "application/json"}
PATHS = (
    "/v1/embeddings",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/notes/search",
    "/v1/notes/upsert",
    "/v1/notes/delete",
    "/v1/notes/reindex",
)


@pytest.fixture(scope="module")
def app(started: Service) -> FastAPI:
    return create_app(started, Settings(max_body=100_000, body_seconds=0.3))


@pytest.fixture
def call(app: FastAPI) -> Callable[..., httpx.Response]:
    return caller(app)


@pytest.fixture(autouse=True)
def nothing_changes(started: Service, request: pytest.FixtureRequest) -> Any:
    index = started.indexes.get("notes")
    assert isinstance(index, MemoryIndex)
    before = index._sequence, started.indexes.names
    yield
    if "fuzzed" not in request.node.name:
        assert (index._sequence, started.indexes.names) == before


def check(answer: httpx.Response, *statuses: int) -> None:
    """A problem in the shape that all have, in one line."""
    assert answer.status_code in statuses, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param"}
    assert "\n" not in error["message"]
    assert len(error["message"]) <= 500


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("content", "statuses"),
    [
        (b"", (422,)),
        (b"{", (400,)),
        (b"null", (422,)),
        (b"[]", (422,)),
        (b'"text"', (422,)),
        (b"[" * 50_000, (400,)),
        (b'{"a":' * 15_000, (400,)),
        (b"[" * 40_000 + b"]" * 40_000, (400,)),
        (b'{"input": "\xff\xfe"}', (400,)),
        ('{"input": "ä"}'.encode("utf-16"), (400,)),
        ('{"input": "ä"}'.encode("latin-1"), (400,)),
        (b'\xef\xbb\xbf{"input": "a"}', (400,)),
        (b'{"input": "\\ud800", "query": "\\ud800"}', (400,)),
        (b'{"input": NaN}', (400,)),
        (b'{"vector": [Infinity]}', (400,)),
        (b'{"k": 1' + b"0" * 5000 + b"}", (400, 422)),
        (b'{"k": 1e400, "input": 1e400, "query": 1e400}', (400, 422)),
        (b'{"k": -1, "input": {}, "query": {}, "documents": -1, "ids": -1, "to": -1}', (422,)),
        (b"\x00", (400,)),
        (b'{"a": 1} trailing', (400,)),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, bytes) else "",
)
def test_bodies(call: Callable[..., Any], path: str, content: bytes, statuses: tuple[int, ...]) -> None:
    check(call("POST", path, content=content, headers=JSON), *statuses)


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/xml", "multipart/form-data; boundary=x", "application/jsonx", "é"]
)
def test_other_content_types(call: Callable[..., Any], kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind.encode("latin-1")}
    check(call("POST", "/v1/embeddings", content=b'{"input": "a"}', headers=headers), 415)


def test_compressed_bodies_are_not_unpacked(call: Callable[..., Any]) -> None:
    for encoding in ("gzip", "br", "identity, gzip"):
        check(call("POST", "/v1/embeddings", content=b"\x1f\x8b", headers={**JSON, "content-encoding": encoding}), 415)


def test_a_body_that_is_too_large(call: Callable[..., Any]) -> None:
    large = json.dumps({"input": "a" * 200_000}).encode()
    check(call("POST", "/v1/embeddings", content=large, headers=JSON), 413)

    async def pieces() -> Any:  # without a length in advance
        for _ in range(100):
            yield b"a" * 10_000

    check(call("POST", "/v1/embeddings", content=pieces(), headers=JSON), 413)
    for length in ("9" * 30, "1000000"):
        check(call("POST", "/v1/embeddings", content=b"{}", headers={**JSON, "content-length": length}), 413)
    check(call("POST", "/v1/embeddings", content=b"{}", headers={**JSON, "content-length": "-1"}), 400)


def test_a_body_that_does_not_come(call: Callable[..., Any]) -> None:
    async def slow() -> Any:
        yield b'{"input": '
        await asyncio.sleep(5)
        yield b'"a"}'

    answer = call("POST", "/v1/embeddings", content=slow(), headers=JSON)
    check(answer, 408)
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    "body",
    [
        {"k": 10**9},
        {"k": 0},
        {"k": True},
        {"k": 2.5},
        {"k": "10"},
        {"query": ""},
        {"query": []},
        {"query": ["a"] * 65},
        {"query": [["a"]]},
        {"vector": []},
        {"vector": [[]]},
        {"vector": [1.0, None]},
        {"vector": [[1.0], "a"]},
        {"where": {"a": {"b": 1}}},
        {"where": {"a": [[1]]}},
        {"where": {"": 1}},
        {"where": {str(n): 1 for n in range(33)}},
        {"allow": [1]},
        {"deny": "a"},
        {"rerank": {"depth": 0}},
        {"rerank": "yes"},
        {"lexical_weight": -1},
        {"target_recall": 2},
        {"fields": ["vector"]},
        {"max_chars": 0},
        {"__class__": "x"},
    ],
    ids=str,
)
def test_values_of_a_search(call: Callable[..., Any], body: dict[str, Any]) -> None:
    whole = body if {"query", "vector"} & set(body) else {"query": "a", **body}
    check(call("POST", "/v1/notes/search", json=whole), 422)


@pytest.mark.parametrize(
    "query",
    ["k=0", "k=99999999999999999999", "k=abc", "k=1.5", "exact=perhaps", "max_chars=-1", "q=", "k=%00", "k=NaN"],
)
def test_values_in_the_url(call: Callable[..., Any], query: str) -> None:
    check(call("GET", f"/v1/notes/search?q=a&{query}" if "q=" not in query else f"/v1/notes/search?{query}"), 422)


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "%2e%2e",
        "..%2f..%2fetc%2fpasswd",
        "a%00b",
        "A",
        "-a",
        "a" * 65,
        "indexes",
        "models",
        "%ff",
        "a%0a",
        "ä",
        "live.sqlite",
    ],
)
def test_names_of_indexes(started: Service, tmp_path: Any, name: str) -> None:
    # With a folder for new indexes, so that nothing but the name is refused.
    indexes = started.indexes
    before = indexes._data, indexes._make
    indexes._data, indexes._make = tmp_path / "data", lambda folder, name: pytest.fail(f"made {folder}")
    try:
        call = caller(create_app(started))
        check(call("PUT", f"/v1/indexes/{name}"), 404, 405, 422)
        check(call("DELETE", f"/v1/indexes/{name}"), 404, 405)
        check(call("GET", f"/v1/{name}/search?q=a"), 404, 422)  # /v1/models/search would be a model.
        check(call("POST", f"/v1/{name}/upsert", json={"documents": [{"id": "a", "text": "b"}]}), 404, 405)
    finally:
        indexes._data, indexes._make = before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "id", ["..", "../../etc/passwd", "%2e%2e%2f", "%00", "a" * 5000, "%ff%fe", "%ed%a0%80", "'; drop table"]
)
def test_ids(call: Callable[..., Any], id: str) -> None:
    check(call("GET", f"/v1/wiki/doc/{id}"), 404, 405)
    check(call("DELETE", f"/v1/wiki/doc/{id}"), 404, 405)


def test_methods_and_headers(call: Callable[..., Any]) -> None:
    for method in ("PATCH", "TRACE", "CONNECT", "NONSENSE", "OPTIONS"):
        check(call(method, "/v1/embeddings"), 404, 405)
    for id in ("a\tb", "x" * 500, "a;b"):
        answer = call("GET", "/health", headers={"x-request-id": id})
        assert answer.status_code == 200
        assert answer.headers["x-request-id"] != id
    assert call("GET", "/health", headers={"x-request-id": "my-id.1"}).headers["x-request-id"] == "my-id.1"


# ---- at random, from the service's own description -------------------------------------------------------------------

FEW, MANY = 12, 10_000

# A schema cannot say all that makes a request right, so that a right one by the schema may be refused: with 4xx, and in the
# answer's own schema.
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]


def fuzz(app: FastAPI, number: int, start: int) -> dict[int, int]:
    """Sends requests that schemathesis makes of /openapi.json, right ones and wrong ones; how many had which status."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    operations = [result.ok() for result in schema.get_all_operations()]
    modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
    found: dict[int, int] = {}
    # Paths without parameters have few requests: the others get more in the next round.
    for drawn in itertools.count(start):
        for operation, mode in itertools.product(operations, modes):
            many = max(1, number // (2 * len(operations)))
            with contextlib.suppress(Unsatisfiable):  # Nothing about it can be wrong.
                send_some(operation, mode, many, drawn, found)
        if sum(found.values()) >= number:
            return found
    raise AssertionError("unreachable")


def send_some(operation: Any, mode: Any, many: int, start: int, found: dict[int, int]) -> None:
    """Sends requests of one operation, and counts their statuses in `found`."""

    @seed(start)
    @settings(
        max_examples=many,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case: Any) -> None:
        answer = case.call()
        found[answer.status_code] = found.get(answer.status_code, 0) + 1
        if answer.status_code >= 400 and case.path not in ("/health", "/ready"):
            assert set(answer.json()["error"]) == {"message", "type", "param"}
        case.validate_response(answer, checks=CHECKS)

    one()


def test_fuzzed_requests_from_the_openapi_document(started: Service, record_property: Any) -> None:
    start = 20261125
    found = fuzz(create_app(started), FEW * 38, start)
    record_property("fuzzed requests", f"{found}, seed {start}")
    assert found[200] > 20
    assert found[422] > 50


def test_ten_thousand_fuzzed_requests(started: Service, record_property: Any) -> None:
    start = random.randrange(10**6)
    found = fuzz(create_app(started), MANY, start)
    record_property("fuzzed requests", f"{found}, seed {start}")
    assert sum(found.values()) >= MANY
    assert max(found) < 500
