"""A typed client of the service's HTTP interface, with httpx."""

import base64
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any
from urllib.parse import quote

import numpy as np

from jaxretr.clients.source import ScoredDocument, Side
from jaxretr.indexes.index import Document, Written
from jaxretr.runtime.errors import UsageError, UserError, check_list, check_rows, import_package

# The most that the service accepts in a request, see jaxretr/serve/requests.py.
_TEXTS, _DOCUMENTS, _IDS, _QUERIES, _HITS = 256, 512, 10_000, 64, 10_000

# The longest wait that a response may ask for.
_LONGEST_WAIT = 60.0


class ServiceError(UserError):
    """An error: the service refused a request, or cannot be reached.

    Attributes:
      status: the HTTP status; 0 if there was no response.
      type: the service's name for the kind of problem.
      param: the field that is wrong, if it is one.
    """

    def __init__(self, message: str, status: int = 0, type: str = "unavailable", param: str | None = None):
        super().__init__(message)
        self.status, self.type, self.param = status, type, param


class Client:
    """A connection to `jaxretr serve`; may be used from several threads, and closed by `with` or `close`.

    Args:
      url: the service's address, such as "http://127.0.0.1:8080".
      key: an API key; None: that of the variable JAXRETR_KEY, if there is one.
      timeout: seconds for connecting, and for each wait for data.
      retries: the most times that a request answered with 429 is sent again, each time after the seconds that the
        response asks for (Retry-After).
    """

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 30.0, retries: int = 4):
        self._httpx: Any = import_package("httpx", "httpx")
        key = os.environ.get("JAXRETR_KEY") if key is None else key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.url, self.timeout, self.retries = url.rstrip("/"), timeout, retries
        self._only: str | None = None  # the service's only index, used where none is named
        self._most_bytes: int | None = None  # of a request's body, once the service was asked
        self._client = self._httpx.Client(base_url=self.url, headers=headers, timeout=timeout)

    def __repr__(self) -> str:
        return f"Client({self.url!r})"  # The key is a secret.

    def search(
        self, query: str | Sequence[float] | Mapping[str, Any], *, index: str | None = None, k: int = 10, **options: Any
    ) -> list[ScoredDocument]:
        """Find the best documents for a question, or for its vector.

        Args:
          query: the text, or its vector [D]; a sparse one as {"indices": [...], "values": [...]}.
          index: the index's name; None: the service's only index.
          k: the number of hits.
          options: further fields of a request to search: where, allow, deny, exact, target_recall, lexical_weight, rerank,
            fields, max_chars.

        Raises:
          ServiceError: the service refuses it, or cannot be reached.
        """
        if isinstance(query, str):
            what: dict[str, Any] = {"query": query}
        else:
            what = {"vector": query if isinstance(query, Mapping) else [float(value) for value in query]}
        answer = self._post(f"/v1/{self._index(index)}/search", _json({**what, "k": k, **options}))
        return [_scored_document(hit) for hit in answer["results"][0]["hits"]]

    def search_batch(
        self, queries: Sequence[str], *, index: str | None = None, k: int = 10, **options: Any
    ) -> list[list[ScoredDocument]]:
        """Find the best documents for each question, in as many requests as needed."""
        path = f"/v1/{self._index(index)}/search"
        rerank = options.get("rerank")
        hits = (rerank.get("depth") or k) if isinstance(rerank, Mapping) else k
        most = max(1, min(_QUERIES, _HITS // max(1, hits)))
        done = self._in_parts(path, "query", queries, most, {"k": k, **options})
        return [[_scored_document(hit) for hit in result["hits"]] for answer in done for result in answer["results"]]

    def embed(self, texts: Sequence[str], side: Side = "document") -> np.ndarray:
        """Embed texts as questions or as documents; float32 [n, D]."""
        more = {"input_type": side, "encoding_format": "base64"}
        done = self._in_parts("/v1/embeddings", "input", texts, _TEXTS, more)
        rows = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for each in done for row in each["data"]]
        return np.stack(rows) if rows else np.zeros((0, 0), np.float32)

    def doc(self, id: str, *, index: str | None = None) -> Document | None:
        """Return the document with an id, None if there is none."""
        name = self._index(index)
        try:
            answer = self._send(
                "GET", f"/v1/{name}/doc", params={"id": id}
            )  # A parameter, because httpx would resolve "./" and "../" in a path.
        except ServiceError as error:
            # A missing index is the caller's error.
            if error.status == 404 and name in self.indexes():
                return None
            raise
        return Document(answer["id"], answer["title"], answer["text"], answer["metadata"])

    def rerank(self, query: str, documents: Sequence[str], *, top_n: int | None = None) -> list[tuple[int, float]]:
        """Score texts with the service's re-ranker; return (place in `documents`, score), best first."""
        if top_n is not None and top_n < 1:
            raise UsageError(f"top_n={top_n}: give at least 1, or leave it out")
        scored: list[tuple[int, float]] = []
        for answer in self._in_parts("/v1/rerank", "documents", documents, _DOCUMENTS, {"query": query}):
            first = len(scored)
            scored += [(first + result["index"], result["relevance_score"]) for result in answer["results"]]
        return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:top_n]

    def upsert(self, documents: Sequence[Document], *, index: str | None = None) -> Written:
        """Add documents or replace those with the same ids, in as many requests as needed; each is durable on return.

        Raises:
          ServiceError: a document is larger than a request may be, so that nothing was sent; or a request was refused, and
            those before it remain in effect.
        """
        total = Written(0)
        for done in self._in_parts(f"/v1/{self._index(index)}/upsert", "documents", documents, _DOCUMENTS):
            total = Written(
                done["sequence"],
                total.added + done["added"],
                total.replaced + done["replaced"],
                truncated=total.truncated + done.get("truncated", 0),
            )
        return total

    def delete(self, ids: Sequence[str], *, index: str | None = None) -> Written:
        """Remove documents; ids that are not there are not counted."""
        total = Written(0)
        check_list("ids", ids)  # The letters of a single id may be ids themselves.
        for done in self._in_parts(f"/v1/{self._index(index)}/delete", "ids", list(ids), _IDS):
            total = Written(done["sequence"], deleted=total.deleted + done["deleted"])
        return total

    def indexes(self) -> dict[str, Mapping[str, Any]]:
        """Return the facts of each index, by name."""
        return {facts["name"]: facts for facts in self._send("GET", "/v1/indexes")["indexes"]}

    def close(self) -> None:
        """Close the connections."""
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

    def _post(self, path: str, body: bytes) -> Any:
        return self._send("POST", path, content=body, headers={"Content-Type": "application/json"})

    def _in_parts(
        self, path: str, field: str, rows: Iterable[Any], most: int, more: Mapping[str, Any] | None = None
    ) -> Iterator[Any]:
        """Yield the answers to a request whose field has any number of rows, in as many requests as needed.

        Args:
          field: the field whose value is a list.
          most: the most items of one request.
          more: further fields of each request.

        Raises:
          ServiceError: a row alone is larger than the service accepts; then nothing was sent.
          UsageError: one text in place of a list, or rows without an order; likewise.
        """
        check_rows(field, rows)
        head = b'{"%s":[' % field.encode()
        tail = b"]}" if not more else b"]," + _json(more)[1:]
        rows = list(rows)
        if not rows:
            return
        room = self._room() - len(head) - len(tail)
        for number, row in enumerate(rows):
            if (size := len(_json(row))) > room:
                raise ServiceError(
                    f"{field}.{number}: {size} bytes, where a request to {self.url} has {max(0, room)} for it; shorten it, or "
                    "start the service with a larger --max-body",
                    413,
                    "too_large",
                    f"{field}.{number}",
                )
        part: list[bytes] = []
        size = 0
        for piece in map(_json, rows):
            if len(part) == most or size + len(piece) > room:
                yield self._post(path, head + b",".join(part) + tail)
                part, size = [], 0
            part.append(piece)
            size += len(piece) + 1  # with the comma
        if part:
            yield self._post(path, head + b",".join(part) + tail)

    def _room(self) -> int:
        """The most bytes of a request's body that the service accepts."""
        if self._most_bytes is None:
            self._most_bytes = int(self._send("GET", "/info")["limits"]["body_bytes"])
        return self._most_bytes

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


def _scored_document(hit: Mapping[str, Any]) -> ScoredDocument:
    return ScoredDocument(
        hit["id"],
        hit["score"],
        hit.get("title", ""),
        hit.get("text", ""),
        hit.get("metadata", {}),
        hit.get("truncated", False),
    )


def _seconds(header: str | None) -> float:
    """The seconds of a Retry-After header; a date, which the service never sends, counts as one second."""
    return min(float(header), _LONGEST_WAIT) if header and header.isascii() and header.isdigit() else 1.0


def _json(value: Any) -> bytes:
    """Serialise a value as JSON, including NumPy's arrays and numbers.

    Raises:
      UserError: JSON cannot represent it, for instance NaN or half a surrogate pair.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise UserError(f"a request cannot contain this: {error}; correct it") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Document):
        return {"id": value.id, "title": value.title, "text": value.text, "metadata": value.metadata}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return list(value)
    raise TypeError(f"a {type(value).__name__}")


def _quoted(name: str) -> str:
    """Quote an index's name as a part of a path."""
    return quote(name, safe="")
