"""The client of the HTTP interface, against the app on a socket."""

import http.server
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import openai
import pytest
from running import running

from jaxretr.clients.http import Client, ServiceError
from jaxretr.clients.local import Local
from jaxretr.clients.source import ScoredDocument
from jaxretr.indexes.index import Document
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime import errors
from jaxretr.runtime.errors import UserError
from jaxretr.serve.app import create_app
from jaxretr.serve.keys import Keys
from jaxretr.serve.service import Service
from jaxretr.serve.settings import Settings

QUESTION = "what is a glacier cave"
# Embeddings that were computed in batches of other shapes, in float32.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def expected(encoder: DualEncoder, documents: list[Document], k: int) -> list[tuple[str, float]]:
    texts = [{"title": each.title, "text": each.text} for each in documents]
    scores = encoder.encode_passages(texts) @ encoder.encode_queries([QUESTION])[0]
    return [(documents[row].id, float(scores[row])) for row in np.argsort(-scores)[:k]]


def test_a_search_finds_what_the_encoder_finds(client: Client, encoder: DualEncoder, documents: list[Document]) -> None:
    hits = client.search(QUESTION, index="wiki", k=5)
    wanted = expected(encoder, documents, 5)
    assert [hit.id for hit in hits] == [id for id, _ in wanted]
    np.testing.assert_allclose([hit.score for hit in hits], [score for _, score in wanted], **CLOSE)
    first = next(document for document in documents if document.id == hits[0].id)
    assert (hits[0].title, hits[0].text, hits[0].metadata) == (first.title, first.text, first.metadata)

    by_vector = client.search(encoder.encode_queries([QUESTION])[0].tolist(), index="wiki", k=5)
    assert [hit.id for hit in by_vector] == [hit.id for hit in hits]
    batch = client.search_batch([QUESTION, "who wrote it"], index="wiki", k=3)
    assert [len(found) for found in batch] == [3, 3] and [hit.id for hit in batch[0]] == [hit.id for hit in hits[:3]]
    many = client.search_batch([QUESTION] * 11, index="wiki", k=1000)  # more hits than one request gets
    assert [len(found) for found in many] == [len(documents)] * 11
    deep = client.search_batch([QUESTION] * 11, index="wiki", k=2, rerank={"depth": 1000})
    assert [len(found) for found in deep] == [2] * 11


def test_options_of_a_search_arrive(client: Client, documents: list[Document]) -> None:
    second = {document.id for document in documents if document.metadata.get("half") == "second"}
    hits = client.search(QUESTION, index="wiki", k=50, where={"half": "second"}, max_chars=10)
    assert {hit.id for hit in hits} == second
    assert all(len(hit.text) <= 10 for hit in hits) and any(hit.truncated for hit in hits)
    reranked = client.search(QUESTION, index="wiki", k=2, rerank={"depth": 8})
    scores = dict(client.rerank(QUESTION, [hit.text for hit in reranked]))
    assert len(reranked) == 2 and set(scores) == {0, 1}


def test_embeddings_in_parts_are_the_encoders(client: Client, encoder: DualEncoder) -> None:
    texts = [f"text number {number}" for number in range(300)]  # more than one request takes
    np.testing.assert_allclose(client.embed(texts), encoder.encode_passages(texts), **CLOSE)
    np.testing.assert_allclose(client.embed([QUESTION], "query"), encoder.encode_queries([QUESTION]), **CLOSE)
    assert client.embed([]).shape == (0, 0)


def test_openais_client_works_as_it_is(address: str, key: tuple[Path, str], encoder: DualEncoder) -> None:
    answer = openai.OpenAI(base_url=f"{address}/v1", api_key=key[1]).embeddings.create(
        model="any", input=["a text", "another one"]
    )
    np.testing.assert_allclose(
        [row.embedding for row in answer.data], encoder.encode_passages(["a text", "another one"]), **CLOSE
    )


def test_documents_are_written_read_and_deleted(client: Client) -> None:
    many = [Document(f"d/{number}", "A title", f"text number {number}", {"n": number}) for number in range(600)]
    written = client.upsert(many, index="notes")  # two requests
    assert (written.added, written.replaced) == (600, 0)
    assert client.doc("d/7", index="notes") == many[7]
    assert client.upsert([Document("d/7", "", "another", {})], index="notes").replaced == 1
    assert client.delete(["d/7", "d/8", "unknown"], index="notes").deleted == 2
    assert client.doc("d/7", index="notes") is None
    assert client.indexes()["notes"]["passages"] == 598
    client.delete([each.id for each in many], index="notes")


@pytest.fixture
def small(service: Service, key: tuple[Path, str]) -> Iterator[Client]:
    """A client of the same service behind a limit of 2,000 bytes a request."""
    app = create_app(service, Settings(max_body=2000), keys=Keys.read(key[0]))
    with (
        patch.object(service, "settings", Settings(max_body=2000)),
        running(app) as address,
        Client(address, key=key[1]) as client,
    ):
        yield client


def test_requests_are_split_by_bytes(small: Client, client: Client, encoder: DualEncoder) -> None:
    # Three or more bytes a character, and characters that JSON escapes.
    texts = [f"{number} " + "日" * 300 + '"\n' * 100 for number in range(5)]
    np.testing.assert_allclose(small.embed(texts), encoder.encode_passages(texts), **CLOSE)
    scores = client.rerank("日", texts)
    assert dict(small.rerank("日", texts)) == pytest.approx(dict(scores), rel=1e-3)
    assert small.rerank("日", texts, top_n=2) == small.rerank("日", texts)[:2]
    batch = small.search_batch(texts, index="wiki", k=2)
    assert [[hit.id for hit in found] for found in batch] == [
        [hit.id for hit in client.search(text, index="wiki", k=2)] for text in texts
    ]
    # The metadata and the ids count too.
    documents = [Document(f"{n}" + "é" * 200, "", "text", {"field": "x" * 700}) for n in range(20)]
    assert small.upsert(documents, index="notes").added == 20
    assert small.doc(documents[3].id, index="notes") == documents[3]
    assert small.delete([each.id for each in documents], index="notes").deleted == 20


def test_what_no_request_can_hold_is_refused_before_anything_is_sent(small: Client) -> None:
    fits = Document("fits", "", "x", {})
    for document in (Document("a", "", "é" * 1000, {}), Document("a", "", "a", {"field": "x" * 2000})):
        with pytest.raises(ServiceError, match=r"documents\.1: \d+ bytes") as caught:
            small.upsert([fits, document], index="notes")
        assert (caught.value.status, caught.value.type, caught.value.param) == (413, "too_large", "documents.1")
        assert small.doc("fits", index="notes") is None
    with pytest.raises(ServiceError, match=r"input\.0: "):
        small.embed(["x" * 2000])


def test_a_single_text_is_no_list_of_its_letters(client: Client, encoder: DualEncoder) -> None:
    """embed("who") gave three vectors, and delete("12") removed the documents 1 and 2."""
    client.upsert([Document("1", "", "a", {}), Document("2", "", "b", {})], index="notes")
    for call, name in (
        (lambda: client.embed("12"), "input"),
        (lambda: Local(encoder).embed("12"), "passages"),
        (lambda: client.search_batch("12", index="wiki"), "query"),
        (lambda: client.rerank("12", "12"), "documents"),
        (lambda: client.delete("12", index="notes"), "ids"),
    ):
        with pytest.raises(UserError, match=f"^{name}(='12': is a single one; give|: a list is expected)"):
            call()
    with pytest.raises(UserError, match="input: a set has no order; give a list"):
        client.embed({"1", "2"})
    assert client.doc("1", index="notes") and client.doc("2", index="notes")
    assert client.delete({"1", "2"}, index="notes").deleted == 2


@pytest.mark.parametrize(
    "id", ["./docs/a.md", "../a", "a/../docs/a.md", "a//b", ".", "..", "a\nb", "a\n", "%2F", "a?b#c", "日"]
)
def test_ids_that_look_like_paths(client: Client, id: str) -> None:
    others = [Document(name, "", "other", {}) for name in ("docs/a.md", "a.md", "a/b", "a", "/")]
    client.upsert(others, index="notes")
    try:
        assert client.doc(id, index="notes") is None
        written = Document(id, "", "its text", {})
        client.upsert([written], index="notes")
        assert client.doc(id, index="notes") == written
        assert client.delete([id], index="notes").deleted == 1
    finally:
        assert client.delete([each.id for each in others], index="notes").deleted == len(others)


def test_numpys_values_are_sent_as_json(client: Client, documents: list[Document]) -> None:
    ids = np.array([documents[0].id, documents[1].id])
    hits = client.search(QUESTION, index="wiki", k=np.int64(5), where={"half": np.array(["first"])}, allow=ids)  # pyright: ignore
    assert {hit.id for hit in hits} == set(ids.tolist())
    assert client.upsert([Document("n", "", "x", {"n": np.int64(3)})], index="notes").added == 1  # pyright: ignore
    assert client.delete(np.array(["n"]), index="notes").deleted == 1  # pyright: ignore
    for wrong in (float("nan"), object(), "\ud800"):
        with pytest.raises(UserError, match="correct it"):
            client.search(QUESTION, index="wiki", where={"half": wrong})


def test_refusals_are_the_services_own_line(address: str, client: Client) -> None:
    with pytest.raises(ServiceError, match="no index 'wikis'; did you mean 'wiki'") as caught:
        client.search(QUESTION, index="wikis")
    assert (caught.value.status, caught.value.type, caught.value.param) == (404, "not_found", "index")
    with pytest.raises(ServiceError, match="no index 'wikis'"):
        client.doc("1", index="wikis")
    with pytest.raises(ServiceError, match=r"has 2 indexes \(wiki, notes\); name one"):
        client.search(QUESTION)
    with pytest.raises(ServiceError, match="the key is not known") as caught, Client(address, key="wrong") as other:
        other.search(QUESTION, index="wiki")
    assert caught.value.status == 401 and "wrong" not in repr(other)
    assert isinstance(caught.value, UserError) and "\n" not in str(caught.value)


def test_the_key_may_come_from_the_environment(address: str, key: tuple[Path, str], monkeypatch: Any) -> None:
    monkeypatch.setenv("JAXRETR_KEY", key[1])
    with Client(address) as client:
        assert set(client.indexes()) == {"wiki", "notes"}


# ---- a service that is busy, or none ---------------------------------------------------------------------------------


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[float], list[Any]]]:
    """A server that gives the answers of a list, in turn -> its address, the waits of the client, that list."""
    answers: list[Any] = []
    waits: list[float] = []
    monkeypatch.setattr("jaxretr.clients.http.time.sleep", waits.append)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answers.pop(0)
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", waits, answers
    server.shutdown()
    server.server_close()


OVERLOADED = {"error": {"message": "the queue is full", "type": "overloaded", "param": None}}


def test_a_busy_service_is_asked_again_when_it_says(busy: Any) -> None:
    url, waits, answers = busy
    answers += [(429, {"Retry-After": "7"}, OVERLOADED), (429, {"Retry-After": "900"}, OVERLOADED)]
    answers += [(200, {}, {"indexes": []})]
    assert Client(url).indexes() == {}
    assert waits == [7.0, 60.0]

    answers += [(429, {"Retry-After": "1"}, OVERLOADED)] * 3
    with pytest.raises(ServiceError, match="the queue is full") as caught:
        Client(url, retries=2).indexes()
    assert caught.value.status == 429 and not answers


def test_what_is_no_service_is_said_to_be_none(busy: Any) -> None:
    url, _, answers = busy
    answers += [(502, {}, b"<html>Bad gateway</html>"), (200, {}, b"<html>It works!</html>")]
    for status in (502, 200):
        with pytest.raises(ServiceError, match=f"status {status} without JSON of jaxretr; check the URL"):
            Client(url).indexes()
    with pytest.raises(ServiceError, match=r"cannot be reached .*; is `jaxretr serve` running\?"):
        Client("http://127.0.0.1:1").indexes()


def test_a_service_that_does_not_answer_is_given_up() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ServiceError, match=r"no answer within 0\.2 s; raise timeout="),
    ):
        Client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2).indexes()


def test_nothing_optional_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, jaxretr, jaxretr.clients, jaxretr.clients.source, jaxretr.clients.http;"
        "print([name for name in ('httpx', 'langchain_core', 'llama_index', 'haystack', 'jax') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(errors.importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"^httpx is not installed .*; run: pip install httpx$"):
        Client("http://127.0.0.1:1")


def test_an_index_without_texts_and_without_a_name(busy: Any) -> None:
    url, _, answers = busy
    found = {"results": [{"hits": [{"id": "a", "score": 1.0}]}]}
    answers += [(200, {}, {"indexes": [{"name": "only"}]}), (200, {}, found), (200, {}, found)]
    client = Client(url)
    assert client.search("?") == client.search("?") == [ScoredDocument("a", 1.0)]  # The name is asked for once.
    assert not answers
