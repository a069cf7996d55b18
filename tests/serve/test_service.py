"""The service in this process: combined models, departed clients, and live indexes that come, go and change their model."""

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import SMALL, caller, client_of
from tiny import DATA

from jaxretr.data.readers import read_corpus
from jaxretr.embeddings.encoding import encode
from jaxretr.indexes.index import StorageFull
from jaxretr.indexes.opening import open_index
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.engine_choice import ENGINE_VARIABLE
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.programs import programs
from jaxretr.serve.app import create_app
from jaxretr.serve.encoding import BatchEncoder
from jaxretr.serve.problems import Invalid
from jaxretr.serve.requests import SearchRequest
from jaxretr.serve.service import Service


@pytest.fixture(scope="module")
def both(combined: CombinedEncoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("combined")
    encode(combined, corpus=DATA, out=folder / "store")
    service = Service(combined, {"wiki": open_index(str(folder / "store"), combined, name="wiki")}, settings=SMALL)
    service.start()
    yield service
    service.close()


@pytest.mark.parametrize("weight", [None, 0.0, 2.5])
def test_a_combined_models_weight_and_parts(both: Service, combined: CombinedEncoder, weight: float | None) -> None:
    request = SearchRequest(query="who lives there?", k=5, lexical_weight=weight)
    answer = asyncio.run(both.search("wiki", request))
    weighted = combined if weight is None else combined.with_weights([1.0, weight])
    corpus = read_corpus(DATA)
    [scores] = weighted.encode_queries(["who lives there?"]) @ weighted.encode_passages(list(corpus)).T
    hits = answer["results"][0]["hits"]
    assert [hit["id"] for hit in hits] == [corpus.ids[n] for n in np.argsort(-scores)[:5]]
    for hit in hits:
        assert set(hit["parts"]) == {"dense", "lexical"}  # pyright: ignore[reportTypedDictNotRequiredAccess]
        # Rounded sums in another order.
        assert sum(hit["parts"].values()) == pytest.approx(hit["score"], rel=1e-5)  # pyright: ignore
        if weight == 0.0:
            assert hit["parts"]["lexical"] == 0.0  # pyright: ignore[reportTypedDictNotRequiredAccess]


def test_a_combined_models_embeddings_are_its_own(both: Service, combined: CombinedEncoder) -> None:
    texts = ["who", "when did it begin, and where was that"]
    for side, expected in (("question", combined.encode_queries(texts)), ("passage", combined.encode_passages(texts))):
        found = asyncio.run(both.embed(side, texts))  # pyright: ignore[reportArgumentType]
        np.testing.assert_allclose(found.vectors, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(Invalid, match="prompts of their own"):
        asyncio.run(both.embed("question", texts, prompt="query"))


def test_the_work_of_a_client_that_leaves_is_dropped(started: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(started)
    lane = started.batcher._lanes["passage"]
    go, computed = threading.Event(), []

    def held(rows: Any) -> Any:
        assert go.wait(20)
        computed.append(len(rows))
        return lane.compute(rows)

    monkeypatch.setitem(started.batcher._lanes, "passage", type(lane)(lane.name, held, lane.budget, lane.pads))

    async def main() -> None:
        left = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if not left.is_set() and not sent:
                sent.append(True)
                return {"type": "http.request", "body": b'{"input": ["' + b'a", "'.join([b"a"] * 100) + b'"]}'}
            await left.wait()
            return {"type": "http.disconnect"}

        sent: list[bool] = []
        headers = [(b"content-type", b"application/json")]
        scope = {
            **{"type": "http", "method": "POST", "path": "/v1/embeddings", "raw_path": b"", "query_string": b""},
            **{"headers": headers, "scheme": "http", "server": ("x", 1), "client": ("y", 1), "http_version": "1.1"},
        }

        async def send(message: Any) -> None:
            pass

        leaving = asyncio.ensure_future(app(scope, receive, send))
        while not started.batcher.tokens:
            await asyncio.sleep(0.01)
        left.set()
        await leaving
        assert started.batcher.tokens == 0
        assert started.batcher.requests == 0
        go.set()
        async with client_of(app) as client:
            assert (await client.post("/v1/embeddings", json={"input": "b"})).status_code == 200

    asyncio.run(main())
    assert sum(computed) < 100


def test_a_service_that_has_not_started_says_so(encoder: DualEncoder) -> None:
    service = Service(encoder, {}, settings=SMALL)
    call = caller(create_app(service))
    assert (call("GET", "/health").status_code, call("GET", "/health").json()) == (503, {"status": "starting"})
    assert call("POST", "/v1/embeddings", json={"input": "a"}).status_code == 503
    service.stop()
    assert call("GET", "/health").json() == {"status": "stopping"}
    answer = call("POST", "/v1/embeddings", json={"input": "a"})
    assert (answer.status_code, answer.headers["connection"]) == (503, "close")
    service.close()


@pytest.fixture
def with_data(encoder: DualEncoder, tmp_path: Path) -> Iterator[Service]:
    service = Service(
        encoder,
        {},
        settings=SMALL,
        data=tmp_path / "data",
        make=lambda folder, name: open_index(str(folder), encoder, name=name),
    )
    service.start()
    yield service
    service.close()


def test_live_indexes_come_and_go(with_data: Service, tmp_path: Path) -> None:
    call = caller(create_app(with_data))
    made = call("PUT", "/v1/indexes/drafts")
    assert (made.status_code, made.json()["engine"], made.json()["passages"]) == (201, "live", 0)
    assert call("PUT", "/v1/indexes/drafts").status_code == 409
    documents = [{"id": str(n), "text": f"text {n}", "metadata": {"even": n % 2 == 0}} for n in range(6)]
    assert call("POST", "/v1/drafts/upsert", json={"documents": documents}).json()["added"] == 6
    found = call("POST", "/v1/drafts/search", json={"query": "text 3", "where": {"even": False}}).json()
    assert {hit["id"] for hit in found["results"][0]["hits"]} == {"1", "3", "5"}
    assert found["sequence"] >= 1
    assert call("DELETE", "/v1/indexes/drafts").json() == {"dropped": "drafts"}
    assert call("GET", "/v1/drafts/doc/1").status_code == 404
    assert not (tmp_path / "data/drafts").exists()


def test_an_index_that_could_not_be_made_leaves_nothing(
    with_data: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, real = caller(create_app(with_data)), with_data.indexes._make
    for error, status in ((StorageFull("the disk is full"), 507), (UserError("it cannot be written"), 422)):

        def half(folder: Path, name: str, error: Exception = error) -> Any:
            folder.mkdir(parents=True)
            (folder / "live.sqlite").touch()
            raise error

        monkeypatch.setattr(with_data.indexes, "_make", half)
        problem = call("PUT", "/v1/indexes/half")
        assert (problem.status_code, problem.json()["error"]["message"]) == (status, str(error))
        assert not (tmp_path / "data/half").exists()
    monkeypatch.setattr(with_data.indexes, "_make", real)
    assert call("PUT", "/v1/indexes/half").status_code == 201


def test_an_index_is_not_closed_under_a_search(with_data: Service) -> None:
    async def main() -> None:
        await with_data.create("busy")
        async with with_data.indexes.used("busy") as index:
            dropping = asyncio.ensure_future(with_data.drop("busy"))
            await asyncio.sleep(0.05)
            assert not dropping.done()
            assert len(index) == 0
        await dropping

    asyncio.run(main())


def test_an_index_moves_to_another_model_and_back(
    with_data: Service, encoder: DualEncoder, tiny_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_models / "moved_to"
    config = {"max_question_length": 16, "max_passage_length": 32}
    DualEncoder.from_pretrained(tiny_models / "encoder", pooling="cls", shared=True, **config).save(folder)
    other = DualEncoder.from_pretrained(folder)
    app = create_app(with_data)
    passages = list(read_corpus(DATA))
    documents = [{"id": p.id, "title": p.title, "text": p.text} for p in passages]

    def best(model: DualEncoder) -> list[str]:
        [scores] = model.encode_queries(["who"]) @ model.encode_passages(passages).T
        return [passages[n].id for n in np.argsort(-scores)[:5]]

    async def main() -> None:
        async with client_of(app) as client:

            async def found() -> tuple[list[str], str]:
                answer = (await client.post("/v1/moving/search", json={"query": "who", "k": 5})).json()
                return [hit["id"] for hit in answer["results"][0]["hits"]], answer["model"]

            (await client.put("/v1/indexes/moving")).raise_for_status()
            (await client.post("/v1/moving/upsert", json={"documents": documents})).raise_for_status()
            before = await found()
            assert before[0] == best(encoder)
            assert (await client.get("/v1/moving/reindex")).json()["phase"] == "none"
            assert (await client.post("/v1/moving/reindex", json={"to": str(tiny_models / "nope")})).status_code == 422
            begun = await client.post("/v1/moving/reindex", json={"to": str(folder)})
            assert begun.status_code == 202, begun.text
            end = time.monotonic() + 60
            while (state := (await client.get("/v1/moving/reindex")).json())["phase"] not in ("switched", "failed"):
                assert (await found())[0] in (best(encoder), best(other))  # never a mixture
                assert time.monotonic() < end
            assert (state["phase"], state["filled"], state["model"]) == ("switched", 20, str(folder))
            assert await found() == (best(other), str(folder))
            back = await client.post("/v1/moving/reindex/rollback")
            assert back.status_code == 200, back.text
            assert await found() == before

            # A client that leaves while the model is loaded has begun the move all the same, and once.
            returned.set()
            asking = asyncio.ensure_future(with_data.reindex("moving", str(folder)))
            await asyncio.to_thread(loading.wait, 60)
            asking.cancel()
            again = await client.post("/v1/moving/reindex", json={"to": str(folder)})
            assert again.status_code == 409, again.text
            leave.set()
            while await found() != (best(other), str(folder)):
                assert time.monotonic() < end + 60

            # Another index of the same name has nothing to do with a move of the first, be it done or under way.
            for _ in range(2):
                (await client.delete("/v1/indexes/moving")).raise_for_status()
                (await client.put("/v1/indexes/moving")).raise_for_status()
                assert (await client.get("/v1/moving/reindex")).json()["phase"] == "none"
                (await client.post("/v1/moving/upsert", json={"documents": documents})).raise_for_status()
                begun = await client.post("/v1/moving/reindex", json={"to": str(folder)})
                assert begun.status_code == 202, begun.text

    real = with_data.moves._loaded
    returned, loading, leave = (threading.Event() for _ in range(3))

    def loaded(to: str) -> Any:
        if returned.is_set():
            loading.set()
            leave.wait(60)
        return real(to)

    monkeypatch.setattr(with_data.moves, "_loaded", loaded)
    asyncio.run(main())


@pytest.mark.parametrize(("engine", "batch_tokens"), [("padded", 64), ("packed", 2048)])
def test_texts_are_computed_with_the_first_programs_until_all_are_compiled(
    encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch, engine: str, batch_tokens: int
) -> None:
    monkeypatch.setenv(ENGINE_VARIABLE, engine)
    config = dataclasses.replace(encoder.config, max_question_length=32)  # No other test has compiled its programs.
    model = DualEncoder(config, encoder.params, encoder.tokenizer)
    served, shapes = BatchEncoder(model, batch_tokens), model.engine("passage").few_shapes(32, batch_tokens).every()
    texts = [" ".join(["rome"] * count) for count in range(1, 50)]
    rows, expected = served.tokenise("passage", texts).rows, encoder.encode_passages(texts)

    def needed(call: Callable[[], Any]) -> int:
        before = programs()
        call()
        news = programs() - before
        return news.compiled + news.cached

    def check() -> None:
        np.testing.assert_allclose(served.compute("passage", rows), expected, rtol=0, atol=1e-5)

    first = needed(lambda: served.compile(first=True))
    assert needed(check) == 0
    assert needed(lambda: served.compile(stopped=lambda: True)) == needed(check) == 0
    rest = needed(lambda: served.compile(stopped=lambda: False))
    assert 0 < first < first + rest == len(shapes)
    assert needed(check) == 0


def test_a_service_answers_while_further_programs_are_compiled_and_closing_ends_that(
    encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[bool] = []

    def held(self: BatchEncoder, *, first: bool = False, stopped: Callable[[], bool] | None = None) -> None:
        while stopped is not None and not stopped():
            time.sleep(0.01)
        compiled.append(first)

    monkeypatch.setattr(BatchEncoder, "compile", held)
    service = Service(encoder, {}, settings=SMALL)
    service.start()
    assert service.state == "ok" and compiled == [True]
    service.close()
    assert compiled == [True, False]
