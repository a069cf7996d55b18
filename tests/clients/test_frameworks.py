"""LangChain, LlamaIndex and Haystack with the service on a socket, and with an encoder and an index in this process."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.runnables import RunnableLambda
from llama_index.core.schema import QueryBundle
from memory_index import MemoryIndex

from jaxretr.clients.http import Client
from jaxretr.clients.local import Local
from jaxretr.clients.source import ScoredDocument
from jaxretr.indexes.index import Document
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError, UserError

QUESTION = "what is a glacier cave"


@pytest.fixture(params=["service", "same process"])
def source(request: pytest.FixtureRequest, client: Client, encoder: DualEncoder, filled: MemoryIndex) -> Any:
    return client if request.param == "service" else Local(encoder, filled)


def test_langchain(source: Any, client: Client, documents: list[Document], encoder: DualEncoder) -> None:
    from jaxretr.clients.langchain import JaxretrEmbeddings, JaxretrRetriever

    retriever = JaxretrRetriever(source=source, index="wiki", k=3, options={"where": {"half": "first"}})
    # As a step of a chain, as LangChain's users write it.
    chain = retriever | RunnableLambda(lambda found: [each.id for each in found])
    hits = client.search(QUESTION, index="wiki", k=3, where={"half": "first"})
    assert chain.invoke(QUESTION) == [hit.id for hit in hits] == asyncio.run(chain.ainvoke(QUESTION))
    (found, *_) = retriever.invoke(QUESTION)
    document = next(each for each in documents if each.id == found.id)
    assert found.page_content == document.text
    assert found.metadata == {"half": "first", "title": document.title, "score": pytest.approx(hits[0].score, rel=1e-4)}

    embeddings = JaxretrEmbeddings(source)
    np.testing.assert_allclose(
        embeddings.embed_query(QUESTION), encoder.encode_queries([QUESTION])[0], rtol=1e-4, atol=1e-5
    )
    vectors = embeddings.embed_documents(["one", "two"])
    np.testing.assert_allclose(vectors, encoder.encode_passages(["one", "two"]), rtol=1e-4, atol=1e-5)


def test_llama_index(source: Any, client: Client, documents: list[Document], encoder: DualEncoder) -> None:
    from jaxretr.clients.llama_index import JaxretrRetriever

    retriever = JaxretrRetriever(source, index="wiki", k=4)
    hits = client.search(QUESTION, index="wiki", k=4)
    nodes = retriever.retrieve(QUESTION)
    assert [node.node_id for node in nodes] == [hit.id for hit in hits]
    assert [node.score for node in nodes] == pytest.approx([hit.score for hit in hits], rel=1e-4)
    assert [node.get_content() for node in nodes] == [hit.text or hit.title for hit in hits]
    assert "score" not in nodes[0].metadata  # It would be put before a language model.
    assert [node.node_id for node in asyncio.run(retriever.aretrieve(QUESTION))] == [hit.id for hit in hits]
    vector = encoder.encode_queries(["who wrote it"])[0].tolist()
    by_vector = retriever.retrieve(QueryBundle(QUESTION, embedding=vector))
    assert [node.node_id for node in by_vector] == [hit.id for hit in client.search("who wrote it", index="wiki", k=4)]


def test_haystack(source: Any, client: Client, encoder: DualEncoder) -> None:
    from haystack import Pipeline

    from jaxretr.clients.haystack import JaxretrRetriever, JaxretrTextEmbedder

    pipeline = Pipeline()
    pipeline.add_component("retriever", JaxretrRetriever(source, index="wiki", k=10))
    pipeline.add_component("embedder", JaxretrTextEmbedder(source))
    filters = {"operator": "AND", "conditions": [{"field": "meta.half", "operator": "in", "value": ["second"]}]}
    done = pipeline.run(
        {"retriever": {"query": QUESTION, "filters": filters, "top_k": 3}, "embedder": {"text": QUESTION}}
    )
    hits = client.search(QUESTION, index="wiki", k=3, where={"half": "second"})
    found = done["retriever"]["documents"]
    assert [each.id for each in found] == [hit.id for hit in hits]
    assert [each.content for each in found] == [hit.text or hit.title for hit in hits]
    assert [each.score for each in found] == pytest.approx([hit.score for hit in hits], rel=1e-4)
    assert found[0].meta["half"] == "second" and "score" not in found[0].meta
    np.testing.assert_allclose(
        done["embedder"]["embedding"], encoder.encode_queries([QUESTION])[0], rtol=1e-4, atol=1e-5
    )


OWN = {"id": "7", "score": 4.5, "title": "own", "text": "own", "content": "own", "meta": None, "jaxretr_title": "mine"}


class Fixed:
    """A source that finds one document, which has fields of names that frameworks and we use."""

    def __init__(self, metadata: Mapping[str, Any]):
        self.metadata = metadata

    def search(self, query: Any, **options: Any) -> list[ScoredDocument]:
        return [ScoredDocument("r1", 0.5, "Review", "Good coffee.", self.metadata)]


@pytest.mark.parametrize("metadata", [OWN, {}, {"title": "Review", "score": 0.5}], ids=["own", "none", "equal"])
def test_a_documents_own_fields_are_kept(metadata: dict[str, Any]) -> None:
    from jaxretr.clients import haystack, langchain, llama_index

    source: Any = Fixed(metadata)
    [first] = haystack.JaxretrRetriever(source).run("coffee")["documents"]
    [second] = llama_index.JaxretrRetriever(source).retrieve("coffee")
    [third] = langchain.JaxretrRetriever(source=source).invoke("coffee")
    titles = {"jaxretr_jaxretr_title": "Review"} if metadata is OWN else {"title": "Review"}
    scores = {"score": 4.5, "jaxretr_score": 0.5} if metadata is OWN else {"score": 0.5}
    assert first.meta == second.node.metadata == {**metadata, **titles}
    assert third.metadata == {**metadata, **titles, **scores}
    assert (first.id, first.content, first.score) == ("r1", "Good coffee.", 0.5)
    assert (second.node_id, second.get_content(), second.score) == ("r1", "Good coffee.", 0.5)
    assert (third.id, third.page_content) == ("r1", "Good coffee.")


def test_no_document_at_all_is_refused_as_a_wish(source: Any) -> None:
    from jaxretr.clients import haystack, langchain

    for k in (0, -1):
        with pytest.raises(UserError, match="at least 1"):
            haystack.JaxretrRetriever(source, index="wiki").run(QUESTION, top_k=k)
        with pytest.raises(UserError, match="at least 1"):
            langchain.JaxretrRetriever(source=source, index="wiki", k=k).invoke(QUESTION)


def test_a_haystack_pipeline_in_a_file_has_no_key(
    client: Client, key: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from haystack import Pipeline

    from jaxretr.clients.haystack import JaxretrRetriever

    pipeline = Pipeline()
    pipeline.add_component("retriever", JaxretrRetriever(client, index="wiki", k=2))
    text = pipeline.dumps()
    assert key[1] not in text and client.url in text
    monkeypatch.setenv("JAXRETR_KEY", key[1])
    read = Pipeline.loads(text, allowed_modules=["jaxretr.clients.haystack"])
    again = read.run({"retriever": {"query": QUESTION}})["retriever"]["documents"]
    assert [each.id for each in again] == [hit.id for hit in client.search(QUESTION, index="wiki", k=2)]


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"field": "meta.n", "operator": "~", "value": 3}, "operator '~' is not supported; use ==, in, !=, .* and AND"),
        ({"operator": "OR", "conditions": []}, "operator 'OR'"),
        (
            {"operator": "AND", "conditions": [{"field": "a", "operator": "==", "value": v} for v in (1, 2)]},
            "a is named twice",
        ),
        ({"field": "meta.a", "operator": "=="}, "lacks its 'value'"),
        ({"operator": "in", "value": [1]}, "lacks its 'field'"),
        ({"operator": "AND"}, "lacks its 'conditions'"),
        (
            {"operator": "AND", "conditions": [{"field": "a", "operator": "<", "value": v} for v in (1, 2)]},
            "a is named twice",
        ),
        ({"field": "meta.a", "operator": "not in", "value": "ab"}, "a: 'not in' takes a list"),
        ({"field": "meta.a", "operator": ">", "value": [1]}, "a: > takes a single value"),
        ({"field": "meta.a", "operator": ">", "value": None}, "a: > takes a number or a text"),
        ({"field": "meta.a", "operator": "==", "value": {"gte": 5}}, "a: == takes a number or a text"),
        ({"operator": "AND", "conditions": ["a"]}, "a str is no condition"),
        ({"field": "meta.a", "operator": "in", "value": "ab"}, "a: 'in' takes a list"),
        ({"field": "meta.a", "operator": "==", "value": ["ab"]}, "a: == takes a single value"),
    ],
)
def test_haystacks_filters_that_cannot_be_searched_with_are_refused(filters: dict[str, Any], said: str) -> None:
    from jaxretr.clients.haystack import where_of

    with pytest.raises(UsageError, match=said):
        where_of(filters)


def test_haystacks_filters_become_conditions() -> None:
    from jaxretr.clients.haystack import where_of

    conditions = [("year", ">=", 2020), ("lang", "in", ["en"]), ("year", "<", 2024), ("year", "not in", [2021])]
    filters = [{"field": f"meta.{name}", "operator": sign, "value": value} for name, sign, value in conditions]
    assert where_of({"operator": "AND", "conditions": filters}) == {
        "year": {"gte": 2020, "lt": 2024, "not_in": [2021]},
        "lang": ["en"],
    }


def test_what_a_source_in_the_same_process_lacks_is_said(encoder: DualEncoder, filled: MemoryIndex) -> None:
    with pytest.raises(UsageError, match="this source has no index"):
        Local(encoder).search(QUESTION)
    with pytest.raises(UsageError, match="has the index 'wiki'"):
        Local(encoder, filled).search(QUESTION, index="other")
    with pytest.raises(UsageError, match=r"unexpected keyword argument 'rerank'; in the same process .*exact"):
        Local(encoder, filled).search(QUESTION, rerank=True)
