"""A typed client of the service's HTTP interface, with httpx."""

import base64
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np

from jaxretr.clients.source import Found, Side
from jaxretr.errors import UserError, import_package
from jaxretr.serve.served import Document, Written

# What the service accepts at once, see jaxretr/serve/requests.py.
_TEXTS, _DOCUMENTS, _IDS = 256, 512, 10_000
# Characters of the texts of one request, so that its bytes stay below the service's limit.
_CHARACTERS = 1_000_000

# The longest wait that a response may ask for.
_LONGEST_WAIT = 60.0


class ServiceError(UserError):
    """The service refused a request, or cannot be reached.

    Attributes:
      status: of HTTP; 0 if there was no response.
      type: of the problem, as the service calls it.
      param: the field that is wrong, if it is one.
    """

    def __init__(self, message: str, status: int = 0, type: str = "unavailable", param: str | None = None):
        super().__init__(message)
        self.status, self.type, self.param = status, type, param


class Client:
    """A connection to `jaxretr serve`; may be used from several threads, and closed by `with` or `close`.

    Args:
      url: of the service, such as "http://127.0.0.1:8080".
      key: an API key; None: that of the variable JAXRETR_KEY, if there is one.
      timeout: seconds for connecting, and for each wait for data.
      retries: how often a request that was answered with 429 is sent again, each time after the seconds that the response
        asks for (Retry-After).
    """

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 30.0, retries: int = 4):
        self._httpx: Any = import_package("httpx", "httpx")
        key = os.environ.get("JAXRETR_KEY") if key is None else key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.url, self.timeout, self.retries = url.rstrip("/"), timeout, retries
        self._only: str | None = None  # the service's index, where nobody names one
        self._client = self._httpx.Client(base_url=self.url, headers=headers, timeout=timeout)

    def __repr__(self) -> str:
        return f"Client({self.url!r})"  # Without the key.

    def search(
        self, query: str | Sequence[float], *, index: str | None = None, k: int = 10, **options: Any
    ) -> list[Found]:
        """Finds the best documents for a question, or for its vector.

        Args:
          query: the text, or its vector [D].
          index: its name; None: the service's only one.
          k: hits.
          options: further fields of a request to search: where, allow, deny, exact, target_recall, lexical_weight, rerank,
            fields, max_chars.

        Raises:
          ServiceError: the service refuses it, or cannot be reached.
        """
        what = {"query": query} if isinstance(query, str) else {"vector": [float(value) for value in query]}
        answer = self._post(f"/v1/{self._index(index)}/search", {**what, "k": k, **options})
        return [_found(hit) for hit in answer["results"][0]["hits"]]

    def search_batch(
        self, queries: Sequence[str], *, index: str | None = None, k: int = 10, **options: Any
    ) -> list[list[Found]]:
        """Finds the best documents for each of up to 64 questions, with one request."""
        answer = self._post(f"/v1/{self._index(index)}/search", {"query": list(queries), "k": k, **options})
        return [[_found(hit) for hit in result["hits"]] for result in answer["results"]]

    def embed(self, texts: Sequence[str], side: Side = "document") -> np.ndarray:
        """Embeds texts as questions or as documents -> float32 [n, D]."""
        rows = []
        for part in _parts(list(texts), _TEXTS, len):
            body = {"input": part, "input_type": side, "encoding_format": "base64"}
            data = self._post("/v1/embeddings", body)["data"]
            rows += [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in data]
        return np.stack(rows) if rows else np.zeros((0, 0), np.float32)

    def doc(self, id: str, *, index: str | None = None) -> Document | None:
        """The document with an id, None if there is none."""
        name = self._index(index)
        try:
            found = self._send("GET", f"/v1/{name}/doc/{_quoted(id)}")
        except ServiceError as error:
            # A missing index is the caller's error.
            if error.status == 404 and name in self.indexes():
                return None
            raise
        return Document(found["id"], found["title"], found["text"], found["metadata"])

    def rerank(self, query: str, documents: Sequence[str], *, top_n: int | None = None) -> list[tuple[int, float]]:
        """Scores texts with the service's re-ranker -> (place in `documents`, score), best first."""
        body = {"query": query, "documents": list(documents)} | ({} if top_n is None else {"top_n": top_n})
        return [(found["index"], found["relevance_score"]) for found in self._post("/v1/rerank", body)["results"]]

    def upsert(self, documents: Sequence[Document], *, index: str | None = None) -> Written:
        """Adds documents or replaces those with the same ids, in as many requests as needed; each is durable on return.

        Raises:
          ServiceError: a request was refused; those before it remain in effect.
        """
        total = Written(0)
        for part in _parts(list(documents), _DOCUMENTS, lambda document: len(document.title) + len(document.text)):
            rows = [
                {"id": each.id, "title": each.title, "text": each.text, "metadata": dict(each.metadata)}
                for each in part
            ]
            done = self._post(f"/v1/{self._index(index)}/upsert", {"documents": rows})
            total = Written(done["sequence"], total.added + done["added"], total.replaced + done["replaced"])
        return total

    def delete(self, ids: Sequence[str], *, index: str | None = None) -> Written:
        """Removes documents; ids that are not there are not counted."""
        total = Written(0)
        for part in _parts(list(ids), _IDS, len):
            done = self._post(f"/v1/{self._index(index)}/delete", {"ids": part})
            total = Written(done["sequence"], deleted=total.deleted + done["deleted"])
        return total

    def indexes(self) -> dict[str, Mapping[str, Any]]:
        """Name -> facts of each index."""
        return {facts["name"]: facts for facts in self._send("GET", "/v1/indexes")["indexes"]}

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _index(self, name: str | None) -> str:
        if name is not None:
            return _quoted(name)
        if self._only is None:
            names = list(self.indexes())
            if len(names) != 1:
                raise ServiceError(
                    f"{self.url} has {len(names)} indexes ({', '.join(names)}); name one: index=...", 400
                )
            self._only = names[0]
        return self._only

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._send("POST", path, json=body)

    def _send(self, method: str, path: str, **content: Any) -> Any:
        for attempt in range(self.retries + 1):
            try:
                response = self._client.request(method, path, **content)
            except self._httpx.TimeoutException as error:
                raise ServiceError(f"{self.url}{path}: no answer within {self.timeout:g} s; raise timeout=") from error
            except self._httpx.HTTPError as error:
                raise ServiceError(f"{self.url}: cannot be reached ({error}); is `jaxretr serve` running?") from error
            if response.status_code != 429 or attempt == self.retries:
                break
            time.sleep(_seconds(response.headers.get("Retry-After")))
        return _content(response, f"{self.url}{path}")


def _content(response: Any, where: str) -> Any:
    try:
        content = response.json()
    except ValueError:
        content = None
    if response.status_code < 400 and content is not None:
        return content
    error = content.get("error") if isinstance(content, dict) else None
    if isinstance(error, dict):
        raise ServiceError(
            f"{where}: {error.get('message')}", response.status_code, error.get("type", ""), error.get("param")
        )
    raise ServiceError(
        f"{where}: status {response.status_code} without JSON of jaxretr; check the URL, and proxies before the service",
        response.status_code,
    )


def _found(hit: Mapping[str, Any]) -> Found:
    return Found(
        hit["id"],
        hit["score"],
        hit.get("title", ""),
        hit.get("text", ""),
        hit.get("metadata", {}),
        hit.get("truncated", False),
    )


def _seconds(header: str | None) -> float:
    """Seconds of a Retry-After header; a date, which the service never sends, counts as one second."""
    return min(float(header), _LONGEST_WAIT) if header and header.isascii() and header.isdigit() else 1.0


def _parts(rows: list[Any], most: int, length: Any) -> Iterator[list[Any]]:
    """Consecutive parts of at most so many rows and `_CHARACTERS` characters, and at least one row."""
    part: list[Any] = []
    characters = 0
    for row in rows:
        size = length(row)
        if part and (len(part) == most or characters + size > _CHARACTERS):
            yield part
            part, characters = [], 0
        part.append(row)
        characters += size
    if part:
        yield part


def _quoted(part: str) -> str:
    """A part of a path; the ids of documents may hold slashes."""
    return quote(part, safe="")
