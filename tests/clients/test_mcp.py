"""The tools of the Model Context Protocol, with the SDK's own client: in this process, and over HTTP with keys."""

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client as McpClient
from mcp.client.streamable_http import streamable_http_client

from jaxretr.clients.http import Client
from jaxretr.indexes.index import Document
from jaxretr.serve import mcp_tools
from jaxretr.serve.app import create_app
from jaxretr.serve.mcp_tools import make_server
from jaxretr.serve.problems import Overloaded
from jaxretr.serve.service import Service

QUESTION = "what is a glacier cave"


def called(place: Any, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """What an agent gets: for each call its result, or its error as a string."""

    async def talk() -> list[Any]:
        async with McpClient(place) as agent:
            results = [await agent.call_tool(name, arguments) for name, arguments in calls]
        return [each.content[0].text if each.is_error else each.structured_content for each in results]

    return asyncio.run(talk())


def test_an_agent_lists_searches_and_reads(service: Service, client: Client, documents: list[Document]) -> None:
    listed, found, rest, end = called(
        make_server(service),
        ("list_indexes", {}),
        ("search", {"query": QUESTION, "index": "wiki", "k": 21, "max_chars": 100}),
        ("fetch", {"id": "notes/a long one", "index": "wiki", "offset": 100, "limit": 150}),
        ("fetch", {"id": "notes/a long one", "index": "wiki", "offset": 250}),
    )
    assert listed["indexes"][0] == {"name": "wiki", "passages": 21, "fields": ["half"]}
    assert [hit["id"] for hit in found["results"]] == [hit.id for hit in client.search(QUESTION, index="wiki", k=21)]
    long = next(hit for hit in found["results"] if hit["id"] == "notes/a long one")
    assert long["truncated"] and long["text"] == ("long " * 60)[:100]
    assert (rest["text"], rest["next_offset"], rest["total_chars"]) == (("long " * 60)[100:250], 250, 300)
    assert (end["text"], end["next_offset"]) == (("long " * 60)[250:], None)


def test_filters_and_limits_of_a_search(service: Service, documents: list[Document]) -> None:
    first = {document.id for document in documents if document.metadata.get("half") == "first"}
    found, too_many, empty = called(
        make_server(service),
        ("search", {"query": QUESTION, "index": "wiki", "k": 50, "where": {"half": ["first"]}}),
        ("search", {"query": QUESTION, "index": "wiki", "k": 51}),
        ("search", {"query": "", "index": "wiki"}),
    )
    assert {hit["id"] for hit in found["results"]} == first
    assert "k: too large; give at most 50" in too_many and "query: too few characters" in empty


def test_arguments_are_read_as_the_service_reads_its_other_requests(service: Service) -> None:
    arguments = {"query": QUESTION, "index": "wiki"}
    plain, nulls, *errors = called(
        make_server(service),
        ("search", arguments),
        ("search", {**arguments, "k": None, "where": None, "max_chars": None}),
        ("search", {**arguments, "top_k": 3}),
        ("search", {**arguments, "top_k": None}),
        ("search", {**arguments, "filters": {"half": "first"}}),
        ("search", {**arguments, "where": {"half": {"gte": [1]}}}),
        ("search", {**arguments, "where": {"half": ["first", ["second"]]}}),
        ("search", {**arguments, "query": None}),
        ("fetch", {"index": "wiki"}),
    )
    assert nulls == plain
    for error, words in zip(
        errors,
        (
            "top_k: no such argument",
            "top_k: no such argument",
            "filters: no such argument",
            "where.half.gte: a list is not",
            "where.half.1: a list is not",
            "query: null is not",
            "id: missing",
        ),
        strict=True,
    ):
        assert words in error
        assert "\n" not in error and "pydantic" not in error


def test_what_is_refused_is_said_to_the_agent_in_a_line(service: Service, monkeypatch: Any, caplog: Any) -> None:
    answers = called(
        make_server(service),
        ("search", {"query": QUESTION, "index": "wikis"}),
        ("search", {"query": QUESTION}),
        ("fetch", {"id": "no such", "index": "wiki"}),
    )
    assert "no index 'wikis'; did you mean 'wiki'" in answers[0]
    assert "there are 2 indexes (wiki, notes); name one" in answers[1]
    assert "no document 'no such' in the index 'wiki'" in answers[2]
    with monkeypatch.context() as patch:
        patch.setattr(type(service.indexes), "names", ())
        assert "there is no index yet" in called(make_server(service), ("search", {"query": QUESTION}))[0]

    async def busy(*_: Any) -> None:
        raise Overloaded("the queue is full", 3)

    async def broken(*_: Any) -> None:
        raise RuntimeError("secret words of a document")

    with monkeypatch.context() as patch, caplog.at_level(logging.DEBUG):
        patch.setattr(service, "search", busy)
        assert (
            "the queue is full; try again in 3 s"
            in called(make_server(service), ("search", {"query": QUESTION, "index": "wiki"}))[0]
        )
        patch.setattr(service, "search", broken)
        (answer,) = called(make_server(service), ("search", {"query": QUESTION, "index": "wiki"}))
    assert "internal error of the service" in answer and "secret words" not in answer
    assert QUESTION not in caplog.text and "secret words" not in caplog.text


def test_all_tools_say_that_they_only_read(service: Service) -> None:
    async def tools() -> Any:
        async with McpClient(make_server(service)) as agent:
            return (await agent.list_tools()).tools

    found = asyncio.run(tools())
    assert {tool.name for tool in found} == {"list_indexes", "search", "fetch"}
    for tool in found:
        assert tool.annotations.read_only_hint and not tool.annotations.destructive_hint
        assert tool.description and tool.output_schema


def test_over_http_an_agent_needs_a_key(address: str, key: tuple[Path, str], client: Client, capfd: Any) -> None:
    async def talk(headers: dict[str, str]) -> Any:
        # The first request imports the SDK, which takes longer than httpx's five seconds on a machine with other work.
        patient = httpx2.AsyncClient(headers=headers, timeout=60)
        async with patient as http, streamable_client(address, http) as agent:
            return (await agent.call_tool("search", {"query": QUESTION, "index": "wiki", "k": 3})).structured_content

    found = asyncio.run(talk({"Authorization": f"Bearer {key[1]}"}))
    assert [hit["id"] for hit in found["results"]] == [hit.id for hit in client.search(QUESTION, index="wiki", k=3)]
    with pytest.raises(BaseException, match=r"401|Unauthorized|unhandled errors"):
        asyncio.run(talk({}))
    assert '"route": "/mcp", "status": 200' in (log := capfd.readouterr().err)
    assert QUESTION not in log and key[1] not in log
    for headers, status in [({}, 401), ({"Authorization": "Bearer wrong"}, 401)]:
        answer = httpx.post(f"{address}/mcp", headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, "authentication")


def streamable_client(address: str, http: httpx2.AsyncClient) -> McpClient:
    return McpClient(streamable_http_client(f"{address}/mcp", http_client=http))


def test_pages_of_other_origins_are_refused(address: str, key: tuple[Path, str]) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    headers = {"Authorization": f"Bearer {key[1]}", "Accept": "application/json, text/event-stream"}
    statuses = {}
    for origin in ("http://evil.example:8080", "http://localhost:3000", "null", "http://[::1"):
        answer = httpx.post(f"{address}/mcp", headers={**headers, "Origin": origin}, json=call)
        statuses[origin] = answer.status_code
    assert statuses.pop("http://localhost:3000") == 200
    assert set(statuses.values()) == {403}


def statuses(app: Any, count: int) -> list[int]:
    """The statuses of `count` simultaneous requests while the app lives, and of one request after that."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    headers = {"Accept": "application/json, text/event-stream"}

    async def talk() -> list[int]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as http:
            async with app.router.lifespan_context(app):
                answers = await asyncio.gather(*(http.post("/mcp", json=call) for _ in range(count)))
            return [answer.status_code for answer in (*answers, await http.post("/mcp", json=call))]

    return asyncio.run(asyncio.wait_for(talk(), 60))


def test_an_app_has_its_tools_whenever_it_lives(service: Service) -> None:
    app = create_app(service)
    assert statuses(app, 0) == [500]
    assert statuses(app, 3) == [200, 200, 200, 500]
    assert statuses(app, 2) == [200, 200, 500]


@pytest.mark.parametrize("server", [None, SimpleNamespace(streamable_http_app=lambda **_: None, session_manager=None)])
def test_a_failure_of_the_sdk_is_answered(server: Any, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tools, "make_server", lambda _: server)
    assert statuses(create_app(service), 2) == [500, 500, 500]


def test_the_sdk_leaves_the_processs_logging_alone(service: Service) -> None:
    root = logging.getLogger()
    before = list(root.handlers), root.level
    handlers, root.handlers[:] = root.handlers[:], []
    try:
        make_server(service)
        assert root.handlers == []
    finally:
        root.handlers[:] = handlers
    assert (list(root.handlers), root.level) == before


def test_a_body_that_is_no_call_is_answered(address: str, key: tuple[Path, str]) -> None:
    headers = {"Authorization": f"Bearer {key[1]}", "Content-Type": "application/json"}
    for body in (b"", b"{", b"[]", json.dumps({"jsonrpc": "2.0", "method": 3}).encode(), b"\xff"):
        answer = httpx.post(f"{address}/mcp", headers={**headers, "Accept": "application/json"}, content=body)
        assert 400 <= answer.status_code < 500
    # No stream that stays open, which would hold up the end of the service.
    assert httpx.get(f"{address}/mcp", headers=headers).status_code == 405
