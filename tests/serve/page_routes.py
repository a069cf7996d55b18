"""A service of made-up answers for the search page: what a real one gives too seldom to test, such as errors and odd passages."""

import json
import re
from collections.abc import Callable
from typing import Any

from jaxretr.serve.page import PAGE, read_page

ORIGIN = "http://localhost:8"
"""Where the page believes to be; requests never leave the browser."""

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]


def facts(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "engine": "live", "passages": 3, "dim": 8, "writable": True, "fields": [], **more}


def hit(id: str, score: float, title: str = "", text: str = "", **more: Any) -> dict[str, Any]:
    return {"id": id, "score": score, "title": title, "text": text, "metadata": {}, **more}


def found(*hits: dict[str, Any], exact: bool = True) -> Answer:
    """A search's answer."""
    took = {"encode_ms": 3.2, "search_ms": 1.1, "rerank_ms": 0.0, "total_ms": 4.5}
    return 200, {"index": "", "model": "tiny", "results": [{"hits": list(hits)}], "took": took, "exact": exact}


def error(status: int, message: str, **headers: str) -> Answer:
    return status, {"error": {"message": message, "type": "internal", "param": None}}, headers


class Routes:
    """Answers a browser page's requests.

    Attributes:
      indexes: what GET /v1/indexes gives, unless `list` is replaced.
      info: what GET /info gives.
      search: from (index, body) to the answer; tests replace it.
      write: from (index, documents) to the answer.
      document: what GET .../doc/ID gives.
      seen: (method, path, body, headers) of every request but the page's own.
    """

    def __init__(self, browser_page: Any):
        self.indexes = [facts("news")]
        self.info: dict[str, Any] = {"model": {"name": "tiny"}, "reranker": None}
        self.search: Callable[[str, Any], Answer] = lambda index, body: found()
        self.write: Callable[[str, Any], Answer] = lambda index, documents: (
            200,
            {"sequence": 1, "added": len(documents), "replaced": 0},
        )
        self.list: Callable[[], Answer] = lambda: (200, {"indexes": self.indexes})
        self.document: Any = None
        self.seen: list[tuple[str, str, Any, dict[str, str]]] = []
        browser_page.route(f"{ORIGIN}/**", self._fulfil)

    def _fulfil(self, route: Any) -> None:
        request = route.request
        path = request.url.removeprefix(ORIGIN)
        if path == "/":
            content, headers = read_page(PAGE)
            route.fulfill(status=200, headers=headers, body=content)
            return
        body = json.loads(request.post_data) if request.post_data else None
        self.seen.append((request.method, path, body, request.headers))
        status, answer, *headers = self._answer(request.method, path, body)
        route.fulfill(status=status, json=answer, headers={"Content-Type": "application/json", **(headers or [{}])[0]})

    def _answer(self, method: str, path: str, body: Any) -> Answer:
        if path == "/v1/indexes":
            return self.list()
        if path == "/info":
            return 200, self.info
        if named := re.fullmatch(r"/v1/indexes/([^/]+)", path):
            self.indexes = [*self.indexes, facts(named[1], passages=0)]
            return 201, self.indexes[-1]
        if named := re.fullmatch(r"/v1/([^/]+)/search", path):
            return self.search(named[1], body)
        if named := re.fullmatch(r"/v1/([^/]+)/upsert", path):
            return self.write(named[1], body["documents"])
        if "/doc?id=" in path and self.document:
            return 200, self.document
        return error(404, f"no such path: {method} {path}")
