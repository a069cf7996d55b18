"""Every route of the service, over HTTP in this process."""

import asyncio
import base64
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import openai
import pytest
from fastapi import FastAPI
from memory_index import MemoryIndex
from serving import caller, client_of
from tiny import DATA

from jaxretr.data.readers import read_corpus
from jaxretr.models.any_scorer import load_scorer
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UserError
from jaxretr.serve.app import create_app
from jaxretr.serve.keys import needed_scope
from jaxretr.serve.requests import EmbeddingsRequest, RerankRequest, SearchRequest
from jaxretr.serve.service import Service

QUERIES = ["who lives there?", "when did the oil crisis begin in october and why did it go on"]


@pytest.fixture(scope="module")
def app(started: Service) -> FastAPI:
    return create_app(started)


@pytest.fixture
def call(app: FastAPI) -> Callable[..., httpx.Response]:
    return caller(app)


def notes_of(service: Service) -> MemoryIndex:
    index = service.indexes.get("notes")
    assert isinstance(index, MemoryIndex)
    return index


# ---- embeddings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("input_type", ["query", "search_query", "document", "search_document", "passage"])
def test_vectors_are_the_encoders(call: Callable[..., Any], encoder: DualEncoder, input_type: str) -> None:
    answer = call("POST", "/v1/embeddings", json={"input": QUERIES, "input_type": input_type, "model": "any"}).json()
    found = np.array([row["embedding"] for row in answer["data"]])
    expected = (encoder.encode_queries if "query" in input_type else encoder.encode_passages)(QUERIES)
    # Of another batch: sums in another order.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert answer["model"] == "any"
    assert answer["usage"]["total_tokens"] > len(QUERIES)


def test_many_texts_of_many_lengths_are_the_encoders(call: Callable[..., Any], encoder: DualEncoder) -> None:
    texts = [passage.text[: 3 + 11 * n] for n, passage in enumerate(read_corpus(DATA))]
    answer = call("POST", "/v1/embeddings", json={"input": texts}).json()
    found = np.array([row["embedding"] for row in answer["data"]])
    np.testing.assert_allclose(found, encoder.encode_passages(texts), rtol=1e-5, atol=1e-5)


def test_base64_is_the_same_numbers(call: Callable[..., Any]) -> None:
    body = {"input": QUERIES[0]}
    plain = call("POST", "/v1/embeddings", json=body).json()["data"][0]["embedding"]
    packed = call("POST", "/v1/embeddings", json={**body, "encoding_format": "base64"}).json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == plain


def _batches(metrics: str) -> list[str]:
    return [line for line in metrics.splitlines() if line.startswith("jaxretr_batch_texts")]


def test_first_dimensions(call: Callable[..., Any]) -> None:
    whole = call("POST", "/v1/embeddings", json={"input": "a"}).json()["data"][0]["embedding"]
    # This model's vectors have other lengths than 1: nothing is scaled.
    assert (
        call("POST", "/v1/embeddings", json={"input": "a", "dimensions": 5}).json()["data"][0]["embedding"] == whole[:5]
    )
    embedded = call("GET", "/metrics").text
    problem = call("POST", "/v1/embeddings", json={"input": "a", "dimensions": 17})
    assert problem.status_code == 422
    assert problem.json()["error"]["param"] == "dimensions"
    assert _batches(call("GET", "/metrics").text) == _batches(embedded) != [], "nothing is embedded for it"


def test_token_ids_are_refused_with_the_remedy(call: Callable[..., Any]) -> None:
    for ids in ([1, 2], [[1, 2], [3]]):
        problem = call("POST", "/v1/embeddings", json={"input": ids})
        assert problem.status_code == 422
        assert "give texts" in problem.json()["error"]["message"]


def test_the_models_own_token_ids_have_their_texts_vectors(call: Callable[..., Any], encoder: DualEncoder) -> None:
    rows, _ = encoder.tokenise("question", QUERIES)
    body = {"input": rows, "input_type": "query"}
    answer = call("POST", "/v1/embeddings/tokens", json=body).json()
    texts = call("POST", "/v1/embeddings", json={**body, "input": QUERIES}).json()
    assert answer["data"] == texts["data"]
    assert answer["usage"]["total_tokens"] == texts["usage"]["total_tokens"]
    longest, vocabulary = encoder.config.max_question_length, encoder.config.backbone.vocab_size
    for wrong, message in (
        ([[1], [2] * (longest + 1)], f"text 1 has {longest + 1} ids, and the model reads {longest}"),
        ([[vocabulary]], f"text 0 has the id {vocabulary}"),
        ([["a"]], "give an integer"),
        ([[]], "at least 1"),
    ):
        problem = call("POST", "/v1/embeddings/tokens", json={**body, "input": wrong})
        error = problem.json()["error"]
        assert problem.status_code == 422 and message in error["message"], error
        assert error["param"].startswith("input")


def test_a_prompt_by_name(call: Callable[..., Any], encoder: DualEncoder) -> None:
    found = call("POST", "/v1/embeddings", json={"input": "a", "prompt": "query"}).json()["data"][0]["embedding"]
    np.testing.assert_allclose(found, encoder.encode_passages(["a"])[0], rtol=1e-5, atol=1e-5)  # it is empty
    problem = call("POST", "/v1/embeddings", json={"input": "a", "prompt": "nope"})
    assert (problem.status_code, problem.json()["error"]["param"]) == (422, "prompt")


def test_the_openai_client_works_as_it_is(app: FastAPI, encoder: DualEncoder) -> None:
    import asyncio

    async def embedded() -> Any:
        transport = httpx.ASGITransport(app)  # pyright: ignore[reportArgumentType]
        async with httpx.AsyncClient(transport=transport) as http:
            client = openai.AsyncOpenAI(base_url="http://test/v1", api_key="any", http_client=http)
            models = [model.id async for model in await client.models.list()]
            found = [(await client.models.retrieve(id)).id for id in models]
            return models, await client.embeddings.create(model=models[0], input=QUERIES), found

    models, answer, found = asyncio.run(embedded())
    assert len(models) == 2  # and the re-ranker
    assert found == models
    assert all("/" in id for id in models)
    np.testing.assert_allclose(
        [row.embedding for row in answer.data], encoder.encode_passages(QUERIES), rtol=1e-5, atol=1e-5
    )


# ---- search ----------------------------------------------------------------------------------------------------------


def test_a_search_finds_what_the_vectors_say(call: Callable[..., Any], encoder: DualEncoder) -> None:
    corpus = read_corpus(DATA)
    answer = call("POST", "/v1/wiki/search", json={"query": QUERIES, "k": 4}).json()
    scores = encoder.encode_queries(QUERIES) @ encoder.encode_passages(list(corpus)).T
    for row, result in zip(scores, answer["results"], strict=True):
        best = np.argsort(-row)[:4]
        assert [hit["id"] for hit in result["hits"]] == [corpus.ids[n] for n in best]
        np.testing.assert_allclose([hit["score"] for hit in result["hits"]], row[best], rtol=1e-5)
        assert [hit["text"] for hit in result["hits"]] == [corpus.texts[n] for n in best]
    assert answer["exact"] is True
    assert answer["took"]["total_ms"] >= answer["took"]["encode_ms"] > 0


def test_the_same_by_url_by_vector_and_alone(call: Callable[..., Any], encoder: DualEncoder) -> None:
    asked = call("POST", "/v1/wiki/search", json={"query": QUERIES[0], "k": 3}).json()["results"]
    assert call("GET", "/v1/wiki/search", params={"q": QUERIES[0], "k": 3}).json()["results"] == asked
    vector = encoder.encode_queries(QUERIES[:1])[0].tolist()
    by_vector = call("POST", "/v1/wiki/search", json={"vector": vector, "k": 3}).json()["results"]
    assert [hit["id"] for hit in by_vector[0]["hits"]] == [hit["id"] for hit in asked[0]["hits"]]
    two = call("POST", "/v1/wiki/search", json={"vector": [vector, vector], "k": 3}).json()["results"]
    assert two == by_vector * 2


def test_fields_and_cut_texts(call: Callable[..., Any]) -> None:
    body = {"query": "who", "k": 2, "fields": ["text"], "max_chars": 7}
    for hit in call("POST", "/v1/wiki/search", json=body).json()["results"][0]["hits"]:
        assert set(hit) == {"id", "score", "text", "truncated"}
        assert len(hit["text"]) == 7
    [hit] = call("POST", "/v1/wiki/search", json={"query": "who", "k": 1, "fields": []}).json()["results"][0]["hits"]
    assert set(hit) == {"id", "score"}


def test_allow_and_deny(call: Callable[..., Any]) -> None:
    ids = read_corpus(DATA).ids
    body = {"query": "who", "k": 30, "allow": [ids[1], ids[2], "unknown"], "deny": [ids[2], "other"]}
    [result] = call("POST", "/v1/wiki/search", json=body).json()["results"]
    assert [hit["id"] for hit in result["hits"]] == [ids[1]]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "query"),
        ({"query": "a", "vector": [0.0] * 16}, "query"),
        ({"vector": [0.0] * 15}, "vector"),
        ({"vector": [1e39] * 16}, "vector"),
        ({"query": ["a"] * 11, "k": 1000}, "k"),
        ({"query": ["a"] * 11, "rerank": {"depth": 1000}}, "rerank.depth"),
        ({"query": "a", "lexical_weight": 1.0}, "lexical_weight"),
        ({"vector": [0.0] * 16, "rerank": True}, "rerank"),
        ({"query": "a", "target_recall": 0.9}, "target_recall"),
        ({"query": "a", "where": {"nope": 1}}, "where"),
        ({"query": "a", "where": {"nope": {}}}, "where"),
        ({"query": "a", "unknown": 1}, "unknown"),
    ],
)
def test_what_cannot_be_searched_is_said(call: Callable[..., Any], body: dict[str, Any], param: str) -> None:
    problem = call("POST", "/v1/wiki/search", json=body)
    assert problem.status_code == 422
    assert problem.json()["error"]["type"] == "invalid_request"
    assert problem.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("embeddings", {"input": ["a"] * 257}, "input", "at most 256"),
        ("embeddings", {"input": []}, "input", "at least 1"),
        ("embeddings", {"input": ["a", ""]}, "input.1", "at least 1"),
        ("embeddings", {"input": ["a", 5]}, "input.1", "give a string"),
        ("embeddings", {"input": {}}, "input", "a string or a list"),
        ("embeddings", {"input": None}, "input", "null is not"),
        ("embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format", "'base64'"),
        ("embeddings", {"input": "a", "encoding_format": "sparse"}, "encoding_format", "not sparse"),
        ("embeddings", {}, "input", "missing"),
        ("wiki/search", {"query": ""}, "query", "at least 1"),
        ("wiki/search", {"query": ["a"] * 65}, "query", "at most 64"),
        ("wiki/search", {"query": [["a"]]}, "query.0", "give a string"),
        ("wiki/search", {"vector": [1.0, "a"]}, "vector.1", "a number"),
        ("wiki/search", {"vector": [[1.0], [1.0, "a"]]}, "vector.1.1", "a number"),
        ("wiki/search", {"query": "a", "where": {"n": {"gte": True}}}, "where.n.gte", "a boolean is not"),
        ("wiki/search", {"query": "a", "where": {"n": {"ge": 1}}}, "where.n.ge", "there is no such field"),
        ("wiki/search", {"query": "a", "where": {"n": [{"gte": 1}]}}, "where.n.0", "an object is not"),
        ("wiki/search", {"query": "a", "where": {"n": ["a", ["b"]]}}, "where.n.1", "a list is not"),
        ("wiki/search", {"query": "a", "where": {"n": "x" * 5000}}, "where.n", "at most 4096"),
        ("wiki/search", {"query": "a", "where": {"": 1}}, "where", "at least 1"),
        ("wiki/search", {"query": "a", "rerank": {"depth": 0}}, "rerank.depth", "at least 1"),
        ("wiki/search", {"query": "a", "rerank": {"query": 1}}, "rerank.query", "no such field"),
        ("wiki/search", {"query": "a", "rerank": "yes"}, "rerank", "a boolean or an object"),
        ("wiki/search", {"query": "a", "fields": ["vector"]}, "fields.0", "'metadata'"),
        ("wiki/search", {"query": "a", "body": None}, "body", "no such field"),
        ("wiki/search", {"query": "a", "k": True}, "k", "an integer"),
        ("wiki/search", [], None, "the body: a list is not"),
        ("rerank", {"query": "", "documents": ["a"]}, "query", "at least 1"),
        ("rerank", {"query": "a", "documents": ["a", 5]}, "documents.1", "a string or an object"),
        ("rerank", {"query": "a", "documents": [{"text": 5}]}, "documents.0.text", "give a string"),
        ("rerank", {"query": "a", "documents": ["a", {"body": "b"}]}, "documents.1", "neither title nor text"),
        ("notes/upsert", {"documents": [{"id": "a", "metadata": {"tags": ["b"]}}]}, "documents.0.metadata.tags", "a list"),
        ("notes/upsert", {"documents": [{"query": "a"}]}, "documents.0.id", "missing"),
        ("notes/upsert", {"documents": [{"id": "a"}]}, "documents.0", "title"),
        ("notes/delete", {"ids": ["a", None]}, "ids.1", "null is not"),
        ("wiki/search?query=a", {"query": "a"}, "query", "no such parameter"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_value_is_named_by_its_path(
    call: Callable[..., Any], path: str, body: Any, param: str | None, words: str
) -> None:
    problem = call("POST", f"/v1/{path}", json=body)
    assert problem.status_code == 422
    error = problem.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert error["message"].startswith(param or "the body")


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/v1/wiki/search?q=a&lang=en", "lang"),
        ("/v1/wiki/search?q=a&where=%7B%7D", "where"),
        ("/v1/wiki/search?q=a&k=1&k=2", "k"),
        ("/v1/wiki/search?q=a&k=x", "k"),
        ("/v1/wiki/search?query=a", "query"),
        ("/v1/wiki/search", "q"),
        ("/v1/indexes?limit=1", "limit"),
        ("/v1/models?limit=1", "limit"),
        ("/v1/wiki/doc/a?index=b", "index"),
        ("/v1/wiki/doc", "id"),
        ("/health?a=b", "a"),
        ("/metrics?a=", "a"),
    ],
)
def test_a_wrong_parameter_is_named(call: Callable[..., Any], path: str, names: str) -> None:
    problem = call("GET", path)
    assert problem.status_code == 422
    assert problem.json()["error"]["param"] == names
    assert problem.json()["error"]["message"].startswith(f"{names}: ")


def test_null_is_as_if_left_out(call: Callable[..., Any]) -> None:
    nulls = dict.fromkeys(SearchRequest.model_fields)
    plain = call("POST", "/v1/wiki/search", json={"query": "who", "k": 2}).json()["results"]
    assert call("POST", "/v1/wiki/search", json={**nulls, "query": "who", "k": 2}).json()["results"] == plain
    ten = call("POST", "/v1/wiki/search", json={**nulls, "query": "who", "rerank": {"depth": None}}).json()
    assert len(ten["results"][0]["hits"]) == 10
    nulls = dict.fromkeys(EmbeddingsRequest.model_fields)
    assert (
        call("POST", "/v1/embeddings", json={**nulls, "input": "a"}).json()["data"]
        == call("POST", "/v1/embeddings", json={"input": "a"}).json()["data"]
    )
    nulls = dict.fromkeys(RerankRequest.model_fields)
    documents = ["a", {"title": None, "text": "b"}]
    answer = call("POST", "/v1/rerank", json={**nulls, "query": "a", "documents": documents}).json()
    assert len(answer["results"]) == 2
    document = {"id": "null", "text": "a", "title": None, "metadata": None}
    assert call("POST", "/v1/notes/upsert", json={"documents": [document], "vectors": None}).status_code == 200
    # A value in a document's own fields stays what it is.
    document = {"id": "null", "title": "", "text": "a", "metadata": {"lang": None}}
    call("POST", "/v1/notes/upsert", json={"documents": [document]}).raise_for_status()
    assert call("GET", "/v1/notes/doc/null").json() == document
    call("DELETE", "/v1/notes/doc/null")


def test_scores_that_json_cannot_hold_are_refused(call: Callable[..., Any]) -> None:
    """They were answered as Infinity, which is not JSON."""
    document = {"id": "far", "text": "a"}
    body = {"documents": [document], "vectors": [[3e38] * 16]}
    call("POST", "/v1/notes/upsert", json=body).raise_for_status()
    problem = call("POST", "/v1/notes/search", json={"vector": [3e38] * 16, "allow": ["far"]})
    assert (problem.status_code, problem.json()["error"]["param"]) == (422, "vector")
    call("POST", "/v1/notes/delete", json={"ids": ["far"]}).raise_for_status()


def test_an_integer_beyond_64_bits_stays_what_it_is(call: Callable[..., Any]) -> None:
    numbers = [2**63 + 1, 2**63, -(10**400)]
    documents = [{"id": str(n), "title": "", "text": "a", "metadata": {"hash": n}} for n in numbers]
    call("POST", "/v1/notes/upsert", json={"documents": documents}).raise_for_status()
    assert call("GET", f"/v1/notes/doc/{2**63 + 1}").json() == documents[0]
    for where, found in (
        (numbers[0], {numbers[0]}),
        ({"not_in": numbers[0]}, set(numbers[1:])),
        ({"gt": numbers[1]}, {numbers[0]}),
        (numbers[2], {numbers[2]}),
    ):
        request = {"query": "a", "where": {"hash": where}, "allow": list(map(str, numbers)), "fields": []}
        [result] = call("POST", "/v1/notes/search", json=request).json()["results"]
        assert {int(hit["id"]) for hit in result["hits"]} == found, where
    call("POST", "/v1/notes/delete", json={"ids": list(map(str, numbers))}).raise_for_status()


def test_reranked_hits_have_the_scorers_scores(
    call: Callable[..., Any], started: Service, tiny_cross_encoder: Any
) -> None:
    plain = call("POST", "/v1/wiki/search", json={"query": QUERIES, "k": 6}).json()["results"]
    body = {"query": QUERIES, "k": 3, "rerank": {"depth": 6}}
    answer = call("POST", "/v1/wiki/search", json=body).json()
    scorer = load_scorer(tiny_cross_encoder)
    for query, before, after in zip(QUERIES, plain, answer["results"], strict=True):
        raw = scorer.score([query] * 6, [{"title": hit["title"], "text": hit["text"]} for hit in before["hits"]])
        best = np.argsort(-raw, kind="stable")[:3]
        assert [hit["id"] for hit in after["hits"]] == [before["hits"][n]["id"] for n in best]
        np.testing.assert_allclose([hit["score"] for hit in after["hits"]], raw[best], rtol=1e-4, atol=1e-5)
        assert [hit["first_score"] for hit in after["hits"]] == [before["hits"][n]["score"] for n in best]
    assert answer["took"]["rerank_ms"] > 0


def test_as_many_hits_are_reranked_as_are_asked_for(call: Callable[..., Any]) -> None:
    documents = [{"id": f"re{n}", "text": "a town"} for n in range(101)]
    call("POST", "/v1/notes/upsert", json={"documents": documents, "vectors": [[1.0] * 16] * 101}).raise_for_status()
    answer = call("GET", "/v1/notes/search?q=a&k=101&rerank=true").json()
    assert len(answer["results"][0]["hits"]) == 101
    call("POST", "/v1/notes/delete", json={"ids": [each["id"] for each in documents]})


def test_an_index_without_texts_cannot_be_reranked(
    call: Callable[..., Any], started: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    wiki = started.indexes.get("wiki")
    monkeypatch.setattr(wiki, "_corpus", None)
    problem = call("POST", "/v1/wiki/search", json={"query": "a", "rerank": True}).json()["error"]
    assert problem["param"] == "rerank" and "no texts" in problem["message"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_rerank_in_coheres_shape(call: Callable[..., Any], tiny_cross_encoder: Any, path: str) -> None:
    documents = ["It is a town.", {"title": "Town", "text": "Nobody lives there."}, "no"]
    body = {"query": QUERIES[0], "documents": documents, "top_n": 2, "return_documents": True}
    answer = call("POST", path, json=body).json()
    passages = [{"text": "It is a town."}, {"title": "Town", "text": "Nobody lives there."}, {"text": "no"}]
    raw = load_scorer(tiny_cross_encoder).score([QUERIES[0]] * 3, passages)
    best = np.argsort(-raw)[:2]
    assert [result["index"] for result in answer["results"]] == best.tolist()
    np.testing.assert_allclose(
        [result["relevance_score"] for result in answer["results"]], raw[best], rtol=1e-4, atol=1e-5
    )
    assert answer["results"][0]["document"] == passages[best[0]]


LONG = "who lives there " * 40


def test_what_the_models_do_not_read_is_said(call: Callable[..., Any]) -> None:
    def usage(path: str, **body: Any) -> Any:
        answer = call("POST", path, json=body).json()
        return answer["meta"]["truncated"] if "meta" in answer else answer.get("usage", answer)

    assert usage("/v1/embeddings", input=["short", LONG, LONG])["truncated"] == 2
    assert usage("/v1/embeddings", input=["short"])["truncated"] == 0
    assert usage("/v1/wiki/search", query=["short", LONG]) == {"truncated": 1}
    assert usage("/v1/wiki/search", vector=[0.0] * 16) == {"truncated": 0}
    assert usage("/v1/rerank", query="who", documents=["short", LONG, {"text": LONG}]) == 2
    reranked = usage("/v1/wiki/search", query="who", k=3, allow=read_corpus(DATA).ids[:3], rerank=True)
    assert set(reranked) == {"truncated", "truncated_pairs"}
    documents = [{"id": "a", "text": "short"}, {"id": "b", "text": LONG}]
    assert usage("/v1/notes/upsert", documents=documents)["truncated"] == 1
    call("POST", "/v1/notes/delete", json={"ids": ["a", "b"]})


# ---- documents -------------------------------------------------------------------------------------------------------


def test_documents_come_are_replaced_and_go(call: Callable[..., Any], started: Service) -> None:
    documents = [
        {"id": "a/b?c", "title": "T", "text": "Hello", "metadata": {"lang": "en", "year": 2019}},
        {"id": "2", "text": "World", "metadata": {"lang": "de"}},
    ]
    written = call("POST", "/v1/notes/upsert", json={"documents": documents}).json()
    assert (written["added"], written["replaced"]) == (2, 0)
    assert call("GET", "/v1/notes/doc/a%2Fb%3Fc").json() == documents[0]
    for where in (
        {"lang": ["en", "fr"]},
        {"year": {"gte": 2019, "lt": 2019.5}},
        {"lang": {"in": ["en", "de"], "gt": "de"}},
    ):
        found = call("POST", "/v1/notes/search", json={"query": "hello", "where": where}).json()
        assert [hit["id"] for hit in found["results"][0]["hits"]] == ["a/b?c"], where
    again = call("POST", "/v1/notes/upsert", json={"documents": [{"id": "2", "text": "Moon"}]}).json()
    assert (again["added"], again["replaced"]) == (0, 1)
    assert again["sequence"] > written["sequence"]
    assert call("GET", "/v1/notes/doc/2").json()["text"] == "Moon"
    assert call("DELETE", "/v1/notes/doc/2").json()["deleted"] == 1
    assert call("POST", "/v1/notes/delete", json={"ids": ["a/b?c", "a/b?c", "nope"]}).json()["deleted"] == 1
    assert call("GET", "/v1/notes/doc/2").status_code == 404
    assert len(notes_of(started)) == 0


PATHS = [
    "./docs/a.md",
    "../docs/a.md",
    "docs/../a.md",
    "a//b",
    "/a",
    "a/",
    ".",
    "..",
    "a\nb",
    "a\n",
    "a\r\n",
    "\n",
    "%2F",
    "%2e",
]
PATHS += ["a?b=c", "a#b", "a&id=b", "a+b", "a b", " a", "é/日本", "\u2028", "a\\b", "search", "a;b", "\0"]


@pytest.mark.parametrize("as_parameter", [True, False])
def test_ids_that_look_like_paths_name_their_own_documents(
    call: Callable[..., Any], started: Service, as_parameter: bool
) -> None:
    # These are the documents that a changed path would name.
    others = ["a", "b", "docs/a.md", "a.md", "a/b", "docs", "/", "2F", "id", "é"]
    every = [{"id": id, "title": "", "text": f"text {n}", "metadata": {}} for n, id in enumerate(PATHS + others)]
    call("POST", "/v1/notes/upsert", json={"documents": every}).raise_for_status()
    try:
        for document in every:
            quoted = quote(document["id"], safe="")
            if not as_parameter and quoted in (".", ".."):
                continue  # Any client resolves these.
            url = f"/v1/notes/doc?id={quoted}" if as_parameter else f"/v1/notes/doc/{quoted}"
            assert call("GET", url).json() == document
            assert call("DELETE", url).json()["deleted"] == 1
            assert call("GET", url).status_code == 404
            call("POST", "/v1/notes/upsert", json={"documents": [document]})
        assert len(notes_of(started)) == len(every)
        for url in ("/v1/notes/doc?id=", "/v1/notes/doc/", "/v1/notes/doc"):
            assert call("GET", url).status_code in (404, 422)
            assert call("DELETE", url).status_code == 422
    finally:
        call("POST", "/v1/notes/delete", json={"ids": [document["id"] for document in every]})


def test_given_vectors_are_kept(call: Callable[..., Any], started: Service) -> None:
    vectors = [[float(n)] * 16 for n in (1, 2)]
    documents = [{"id": "x", "text": "a"}, {"id": "y", "text": "b"}]
    call("POST", "/v1/notes/upsert", json={"documents": documents, "vectors": vectors}).raise_for_status()
    assert notes_of(started).vectors(["x", "y"]).tolist() == vectors
    call("POST", "/v1/notes/delete", json={"ids": ["x", "y"]})


@pytest.mark.parametrize(
    "body",
    [
        {"documents": [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]},
        {"documents": [{"id": "a"}]},
        {"documents": [{"id": "", "text": "x"}]},
        {"documents": []},
        {"documents": [{"id": "a", "text": "x", "metadata": {"f": [1]}}]},
        {"documents": [{"id": "a", "text": "x"}], "vectors": []},
        {"documents": [{"id": "a", "text": "x"}], "vectors": [[1.0]]},
    ],
)
def test_bad_documents_change_nothing(call: Callable[..., Any], started: Service, body: dict[str, Any]) -> None:
    assert call("POST", "/v1/notes/upsert", json=body).status_code == 422
    assert len(notes_of(started)) == 0


def test_what_is_read_only_is_not_written(call: Callable[..., Any]) -> None:
    for method, path, body in (
        ("POST", "/v1/wiki/upsert", {"documents": [{"id": "a", "text": "x"}]}),
        ("POST", "/v1/wiki/delete", {"ids": ["a"]}),
        ("DELETE", "/v1/wiki/doc/a", None),
    ):
        problem = call(method, path, json=body)
        assert (problem.status_code, problem.json()["error"]["type"]) == (405, "read_only")
        assert "--to live" in problem.json()["error"]["message"]


def test_a_full_disk_refuses_writes_and_goes_on_reading(call: Callable[..., Any], started: Service) -> None:
    index = notes_of(started)
    index.full = True
    try:
        problem = call("POST", "/v1/notes/upsert", json={"documents": [{"id": "a", "text": "x"}]})
        assert (problem.status_code, problem.json()["error"]["type"]) == (507, "unavailable")
        assert call("GET", "/v1/notes/search?q=a").status_code == 200
    finally:
        index.full = False


def test_a_database_that_is_away_is_503_for_its_index_alone(call: Callable[..., Any], started: Service) -> None:
    index = notes_of(started)
    index.away = True
    try:
        problem = call("GET", "/v1/notes/search?q=a")
        assert (problem.status_code, problem.json()["error"]["type"]) == (503, "unavailable")
        assert "the database cannot be reached" in problem.json()["error"]["message"]
        assert call("GET", "/v1/wiki/search?q=a").status_code == 200
        listed = {each["name"]: each for each in call("GET", "/v1/indexes").json()["indexes"]}
        assert listed["notes"]["engine"] == "unavailable" and "cannot be reached" in listed["notes"]["problem"]
        metrics = call("GET", "/metrics").text
        assert 'jaxretr_index_passages{index="wiki"}' in metrics
        assert 'jaxretr_index_passages{index="notes"}' not in metrics
    finally:
        index.away = False
    assert call("GET", "/v1/notes/search?q=a").status_code == 200


def test_an_index_that_does_not_answer_keeps_nobody_else_waiting(
    app: FastAPI, started: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    monkeypatch.setattr(notes_of(started), "_reach", lambda: go.wait(10))

    async def main() -> None:
        async with client_of(app) as client:
            asking = [asyncio.ensure_future(client.get(path)) for path in ("/metrics", "/info", "/v1/indexes") * 3]
            try:
                await asyncio.sleep(0.05)
                for path in ("/health", "/ready", "/v1/models", "/v1/wiki/search?q=a", "/v1/wiki/doc/0"):
                    assert (await client.get(path)).status_code in (200, 404)
                assert not any(each.done() for each in asking)
            finally:
                go.set()
            assert [(await each).status_code for each in asking] == [200] * 9

    asyncio.run(main())

    def refuses() -> None:
        raise UserError("there is no such table")

    monkeypatch.setattr(notes_of(started), "_reach", refuses)
    call = caller(app)
    assert 'jaxretr_index_passages{index="wiki"}' in call("GET", "/metrics").text
    assert {"no such table" in each.get("problem", "") for each in call("GET", "/info").json()["indexes"]} == {
        True,
        False,
    }


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_state_facts_and_metrics(call: Callable[..., Any], started: Service) -> None:
    assert call("GET", "/health").json() == {"status": "ok"}
    assert call("GET", "/ready").json() == {"status": "ok"}
    info = call("GET", "/info").json()
    assert info["model"]["dim"] == 16
    assert {index["name"]: index["passages"] for index in info["indexes"]} == {"wiki": 20, "notes": 0}
    assert call("GET", "/v1/indexes").json()["indexes"] == info["indexes"]
    call("GET", "/v1/wiki/search?q=a")
    text = call("GET", "/metrics").text
    assert 'jaxretr_requests_total{method="GET",route="/v1/{index}/search",status="200"}' in text
    assert 'jaxretr_index_passages{index="wiki"} 20.0' in text
    for name in ("queue_seconds", "batch_seconds", "batch_texts", "search_seconds"):
        assert f"jaxretr_{name}_bucket" in text


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/openapi.json", "/health", "/ready", "/info", "/v1/models", "/v1/wiki/search?q=a"]
)
def test_head_is_answered_as_get_without_the_body(call: Callable[..., Any], path: str) -> None:
    head, get = call("HEAD", path), call("GET", path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert call("HEAD", "/v1/embeddings").status_code == 405
    assert 'method="HEAD"' in call("GET", "/metrics").text


@pytest.mark.parametrize(
    "path", ["/v1/nope/search?q=a", "/v1/nope/doc/a", "/nope", "/v1/wiki/doc/nope", "/v1/wiki/doc/"]
)
def test_what_is_not_there(call: Callable[..., Any], path: str) -> None:
    problem = call("GET", path)
    assert (problem.status_code, problem.json()["error"]["type"]) == (404, "not_found")


def test_no_index_is_made_without_a_folder(call: Callable[..., Any]) -> None:
    problem = call("PUT", "/v1/indexes/new")
    assert problem.status_code == 403
    assert "--data" in problem.json()["error"]["message"]
    assert call("DELETE", "/v1/indexes/wiki").status_code == 403


def test_an_unexpected_error_is_told_apart_and_says_nothing(
    started: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("with a secret text")

    monkeypatch.setattr(notes_of(started), "search", broken)
    answer = caller(create_app(started))("GET", "/v1/notes/search?q=a")
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "internal")
    assert answer.headers["x-request-id"] in answer.json()["error"]["message"]
    assert "secret" not in answer.text + caplog.text
    assert "test_app.py" in caplog.text  # where it happened


def test_every_path_has_a_scope_on_purpose(call: Callable[..., Any]) -> None:
    # Names and ids that look like the ends of other paths.
    found = {
        (method.upper(), path): needed_scope(method.upper(), path.format(index="wiki", name="search", id="a/search"))
        for path, methods in call("GET", "/openapi.json").json()["paths"].items()
        for method in methods
    }
    assert found == {
        ("POST", "/v1/embeddings"): "read",
        ("POST", "/v1/embeddings/tokens"): "read",
        ("GET", "/v1/models"): "read",
        ("GET", "/v1/models/{id}"): "read",
        ("POST", "/v1/rerank"): "read",
        ("POST", "/v2/rerank"): "read",
        ("GET", "/v1/indexes"): "read",
        ("PUT", "/v1/indexes/{name}"): "write",
        ("DELETE", "/v1/indexes/{name}"): "admin",
        ("POST", "/v1/{index}/search"): "read",
        ("GET", "/v1/{index}/search"): "read",
        ("GET", "/v1/{index}/doc"): "read",
        ("DELETE", "/v1/{index}/doc"): "write",
        ("GET", "/v1/{index}/doc/{id}"): "read",
        ("DELETE", "/v1/{index}/doc/{id}"): "write",
        ("POST", "/v1/{index}/upsert"): "write",
        ("POST", "/v1/{index}/delete"): "write",
        ("POST", "/v1/{index}/reindex"): "admin",
        ("GET", "/v1/{index}/reindex"): "read",
        ("POST", "/v1/{index}/reindex/rollback"): "admin",
        ("GET", "/health"): None,
        ("GET", "/ready"): None,
        ("GET", "/info"): "read",
        ("GET", "/metrics"): "read",
    }
