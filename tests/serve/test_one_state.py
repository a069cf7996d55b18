"""An answer is made from one state of the index, whatever is written while it is made."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from live_folders import vector
from mcp import Client as McpClient
from running import running
from serving import SMALL

from jaxretr.clients.local import Local
from jaxretr.indexes.index import Document
from jaxretr.indexes.live import fault_points
from jaxretr.indexes.live import index as live_index
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.reindex import Model, Reindexing, rollback
from jaxretr.indexes.opening import open_index
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.serve.app import create_app
from jaxretr.serve.embedding import Embedded
from jaxretr.serve.mcp_tools import make_server
from jaxretr.serve.requests import SearchRequest
from jaxretr.serve.reranker import Reranker
from jaxretr.serve.service import Service

State = dict[str, Document]


class Watched:
    """A service over one live index `notes`, whose states are all known.

    Texts have vectors of small whole numbers, so that sums are exact; no model computes anything.

    Attributes:
      states: by the number of their last write.
      at: what to do at a step of the search.
      steps: how many the last search came to.
    """

    def __init__(self, encoder: CombinedEncoder, other: CombinedEncoder, folder: Path):
        self.encoder = encoder
        self.dim = encoder.config.embedding_size
        self.service = Service(encoder, {}, name="first")
        embedding = self.service.embedding
        self.models = {each.name: each for each in (embedding.model, embedding.add(other, "second"))}
        self.index = LiveIndex.open(
            folder,
            name="notes",
            model="first",
            model_fingerprint=embedding.model.fingerprint,
            dim=self.dim,
            background=False,
        )
        self.service.indexes._indexes["notes"] = self.index
        self.service.state = "ok"
        self.states: dict[int, State] = {0: {}}
        self.at: dict[int, Callable[[], None]] = {}
        self.steps, self.moved = 0, False
        self.scored: list[str] = []
        self._last = self._inside = 0

    def vectors(self, model: str, texts: Sequence[str]) -> np.ndarray:
        return np.stack([vector(model, text, self.dim) for text in texts])

    def step(self, *_: Any) -> None:
        if self._inside:
            return
        self._inside += 1
        try:
            self.at.get(self.steps, lambda: None)()
        finally:
            self._inside -= 1
        self.steps += 1

    def put(self, *documents: Document) -> None:
        model = self.index.view.space.model
        written = self.index.upsert(documents, self.vectors(model, [each.text for each in documents]))
        self._next(written.sequence, {each.id: each for each in documents}, ())

    def delete(self, *ids: str) -> None:
        self._next(self.index.delete(ids).sequence, {}, ids)

    def _next(self, sequence: int, added: State, removed: Sequence[str]) -> None:
        before = self.states[self._last]
        kept = {id: each for id, each in before.items() if id not in removed and id not in added}
        self.states[sequence], self._last = kept | added, sequence

    def move(self) -> None:
        """To the other model, or back."""
        name = "second" if self.index.view.space.model == "first" else "first"

        def encode(documents: Sequence[Document]) -> np.ndarray:
            return self.vectors(name, [each.text for each in documents])

        if not self.moved:
            Reindexing(self.index, Model(name, self.models[name].fingerprint, self.dim, encode)).run()
            self.moved = True
        else:
            rollback(self.index, encode)

    def search(self, **request: Any) -> Any:
        self.steps, self.scored = 0, []
        return asyncio.run(self.service.search("notes", SearchRequest(**request)))

    def hits(self, state: State, model: str, question: np.ndarray, where: dict[str, str]) -> list[tuple[Any, ...]]:
        """What is right: id, score, text and metadata of every document that may be found, best first."""
        found = [each for each in state.values() if where.items() <= each.metadata.items()]
        scores = [float(vector(model, each.text, self.dim) @ question) for each in found]
        best = sorted(range(len(found)), key=lambda n: -scores[n])[:K]
        return [(found[n].id, scores[n], found[n].text, dict(found[n].metadata)) for n in best]


K = 5


@pytest.fixture
def watched(combined: CombinedEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    other = CombinedEncoder(combined.parts[::-1], [0.5, 1.0], names=["dense", "lexical"])
    made = Watched(combined, other, tmp_path / "notes")
    monkeypatch.setattr(fault_points, "hook", lambda name: made.step() if name.startswith("search") else None)
    searching, threads = made.service._searching, made.service._threads

    async def embed(side: Any, texts: Sequence[str], *, model: Any, **_: Any) -> Embedded:
        vectors = made.vectors(model.name, texts)
        made.step()
        return Embedded(vectors, 1, 0)

    class Scores(Reranker):
        def __init__(self) -> None:
            pass

        async def score(self, questions: Sequence[str], documents: Sequence[Document]) -> tuple[np.ndarray, int]:
            made.step()
            made.scored = [each.text for each in documents]
            return np.array([len(each.text) for each in documents], np.float32), 0

    called = threads.search

    async def between(*call: Any) -> Any:
        made.step()
        answer = await called(*call)
        made.step()
        return answer

    monkeypatch.setattr(made.service.embedding, "embed", embed)
    monkeypatch.setattr(searching, "_reranker", Scores())
    monkeypatch.setattr(threads, "search", between)
    yield made
    made.service.close()


def text_of(number: int, version: str) -> str:
    return f"{version} text of {number}" + " long" * number


def documents(tenant: str, version: str) -> list[Document]:
    return [Document(f"d{n}", "", text_of(n, version), {"tenant": tenant}) for n in range(12)]


WRITES: dict[str, Callable[[Watched], None]] = {
    "another tenant's": lambda w: w.put(*documents("b", "secret")),
    "deleted": lambda w: w.delete(*[f"d{n}" for n in range(0, 12, 2)]),
    "deleted and added again": lambda w: (w.delete("d1", "d2", "d3", "d4"), w.put(*documents("a", "third")[1:5]))[0],
    "a snapshot": lambda w: (w.put(*documents("b", "secret")[:6]), w.index.upkeep.compact())[0],
    "another model": lambda w: (w.put(*documents("b", "secret")[:6]), w.move())[0],
}

SEARCHES: dict[str, dict[str, Any]] = {
    "text": {"query": "one"},
    "filtered": {"query": "one", "where": {"tenant": "a"}},
    "texts": {"query": ["one", "two"], "where": {"tenant": "a"}},
    "vector": {"vector": [1.0] * 32, "where": {"tenant": "a"}},
    "ids alone": {"query": "one", "fields": []},
    "weighted": {"query": "one", "lexical_weight": 0.5},
    "re-ranked": {"query": "one", "where": {"tenant": "a"}, "rerank": {"depth": K}},
}


def check(watched: Watched, request: dict[str, Any], answer: Any) -> None:
    state, model = watched.states[answer["sequence"]], answer["model"]
    queries = request.get("query", [None])
    for query, result in zip([queries] if isinstance(queries, str) else queries, answer["results"], strict=True):
        question = np.ones(watched.dim, np.float32) if query is None else vector(model, query, watched.dim)
        right = watched.hits(state, model, question, request.get("where", {}))
        found = result["hits"]
        if "rerank" in request:
            assert sorted(watched.scored) == sorted(text for _, _, text, _ in right)
            assert [hit["score"] for hit in found] == [float(len(hit["text"])) for hit in found]
            found = sorted(found, key=lambda hit: [each[0] for each in right].index(hit["id"]))
        if request.get("fields") == []:
            right = [each[:2] for each in right]
            assert [(hit["id"], hit["score"]) for hit in found] == right
        else:
            shown = [(hit["id"], hit.get("first_score", hit["score"]), hit["text"], hit["metadata"]) for hit in found]
            assert shown == right
        for hit, score in zip(found, [each[1] for each in right], strict=True):
            assert ("parts" in hit) == (query is not None)
            assert query is None or sum(hit["parts"].values()) == score


@pytest.mark.parametrize("write", WRITES)
def test_a_write_between_any_two_steps_of_a_search(watched: Watched, write: str) -> None:
    for name, request in SEARCHES.items():
        for number in steps_of(watched, write):
            answer = watched.search(**{"k": K, **request})
            try:
                check(watched, request, answer)
            except Exception as error:
                raise AssertionError(f"{name}, {write} at step {number} of {watched.steps}") from error


def steps_of(watched: Watched, write: str) -> Iterator[int]:
    """Yields each step of a search that the caller makes then, where the write happens."""
    number, most = 0, 1
    while number <= most:
        watched.at = {}
        watched.put(*documents("a", "first"))
        watched.at, watched.steps = {number: lambda: WRITES[write](watched)}, 0
        yield number
        # A search may be repeated, so the steps are those of the longest one.
        number, most = number + 1, max(most, watched.steps)
    assert most >= 3, "the search has steps"


@pytest.mark.parametrize("write", ["another tenant's", "another model"])
def test_a_search_that_meets_no_moment_between_two_commits_waits_for_one(
    watched: Watched, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_index, "_TRIES", 0)
    for _ in steps_of(watched, write):
        check(watched, SEARCHES["filtered"], watched.search(k=K, **SEARCHES["filtered"]))


@pytest.mark.parametrize("write", WRITES)
def test_an_agent_and_a_program_without_a_service_get_one_state(watched: Watched, write: str) -> None:
    server, where = make_server(watched.service), {"tenant": "a"}
    ones = np.ones(watched.dim, np.float32)

    async def asked() -> Any:
        async with McpClient(server) as agent:
            for number in steps_of(watched, write):
                result = await agent.call_tool("search", {"query": "one", "k": K, "where": where})
                assert not result.is_error
                found = [(h["id"], h["score"], h["text"], h["metadata"]) for h in result.structured_content["results"]]
                assert found in right("one"), f"{write} at step {number}"

    def right(query: str | None) -> list[list[tuple[Any, ...]]]:
        questions = {model: ones if query is None else vector(model, query, watched.dim) for model in watched.models}
        return [
            watched.hits(state, model, question, where)
            for state in list(watched.states.values())[-4:]
            for model, question in questions.items()
        ]

    asyncio.run(asked())
    local = Local(watched.encoder, watched.index)
    for number in steps_of(watched, write):
        hits = local.search(ones.tolist(), k=K, where=where)
        assert [(h.id, h.score, h.text, dict(h.metadata)) for h in hits] in right(None), f"{write} at step {number}"


def test_searches_under_writes_from_other_threads(watched: Watched) -> None:
    """Filtered, combined and re-ranked searches while a thread replaces, deletes and adds, and another makes snapshots."""
    done, writes, snapshots = threading.Event(), 0, 0
    watched.put(*documents("a", "first"))

    def write() -> None:
        nonlocal writes
        while not done.is_set():
            for name in ("another tenant's", "deleted", "deleted and added again"):
                WRITES[name](watched)
                watched.put(*documents("a", f"version {writes} of the"))
                writes += 1

    def snapshot() -> None:
        nonlocal snapshots
        while not done.is_set():
            snapshots += watched.index.upkeep.compact()

    threads = [threading.Thread(target=each) for each in (write, snapshot)]
    for each in threads:
        each.start()
    seen, end = [], time.monotonic() + 2
    try:
        while time.monotonic() < end:
            for request in SEARCHES.values():
                seen.append((request, watched.search(**{"k": K, **request}), watched.scored))
    finally:
        done.set()
        for each in threads:
            each.join()
    for request, answer, scored in seen:
        watched.scored = scored
        check(watched, request, answer)
    states = {answer["sequence"] for _, answer, _ in seen}
    assert len(states) > 10 and writes > 10 and snapshots, "searches and writes took turns"


def test_three_thousand_searches_over_http_under_writes(encoder: DualEncoder, tmp_path: Path) -> None:
    """One client searches for English passages, and another moves all of them to German and back, and deletes them."""
    service = Service(encoder, {"notes": open_index(str(tmp_path / "notes"), encoder)}, settings=SMALL)
    service.start()
    done, versions = threading.Event(), 0

    def passages(lang: str) -> dict[str, Any]:
        text = f"about planets, version {versions} in {lang}"
        return {"documents": [{"id": f"d{n}", "text": f"{n} {text}", "metadata": {"lang": lang}} for n in range(20)]}

    def write() -> None:
        nonlocal versions
        with httpx.Client(base_url=url, timeout=60) as client:
            while not done.is_set():
                versions += 1
                if versions % 4 == 3:
                    ids = [f"d{n}" for n in range(20)]
                    client.post("/v1/notes/delete", json={"ids": ids}).raise_for_status()
                body = passages("de" if versions % 2 else "en")
                client.post("/v1/notes/upsert", json=body).raise_for_status()

    hits = 0
    with running(create_app(service)) as url, httpx.Client(base_url=url, timeout=60) as client:
        client.post("/v1/notes/upsert", json=passages("en")).raise_for_status()
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(3000):
                answer = client.post("/v1/notes/search", json={"query": "planets", "where": {"lang": "en"}})
                assert answer.status_code == 200, answer.text
                found = answer.json()["results"][0]["hits"]
                assert {hit["metadata"]["lang"] for hit in found} <= {"en"}
                assert len({hit["text"].split("version")[1] for hit in found}) <= 1, "of one write"
                hits += len(found)
        finally:
            done.set()
            writer.join()
    assert hits > 100 and versions > 20
