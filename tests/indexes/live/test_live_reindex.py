"""Moving a live index to another model: dual writes, the switch, rollback, and no search over vectors of two models."""

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from live_folders import DIM, QUESTIONS, assert_searches_equal, document, encode, in_sqlite, model, open_live, put

from jaxretr.indexes.index import Document, SearchOptions
from jaxretr.indexes.live import reindex, snapshots
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.reindex import Model, Reindexing, Stopped, forget, rollback
from jaxretr.indexes.live.verifying import verify
from jaxretr.indexes.live.writes import ModelChanged
from jaxretr.runtime.errors import UserError
from jaxretr.serve import moves


@pytest.fixture
def index(tmp_path: Path):
    made = open_live(tmp_path / "live")
    put(made, [document(f"d{n}") for n in range(30)])
    made.upkeep.compact()
    yield made
    made.close()


def small(documents: Sequence[Document]) -> np.ndarray:
    return encode("small", documents)


def test_to_another_model_and_back(index: LiveIndex) -> None:
    states = []

    def switched() -> None:
        states.append(move.state())

    move = Reindexing(index, model("large"), old=small, switched=switched)
    assert move.state() == {"to": "large", "phase": "waiting", "filled": 0, "lacking": 30}
    assert move.run() == 30
    assert states[0]["lacking"] == 0 and move.state()["phase"] == "switched"
    assert index.facts()["model"] == "large" and index.facts()["snapshot_rows"] == 30
    assert_searches_equal(index, index.folder)
    put(index, [document("d5", 1), document("new")])  # in both spaces, so that the way back needs no model
    index.delete(["d6"])
    rollback(index)
    assert index.facts()["model"] == "small"
    assert_searches_equal(index, index.folder)
    verify(index.folder)
    with pytest.raises(UserError, match=r"already has the vectors of small"):
        Reindexing(index, model("small"))
    with pytest.raises(UserError, match=r"keeps the vectors of large.*jaxretr reindex .* --forget"):
        Reindexing(index, model("third"))
    assert forget(index) is not None and forget(index) is None
    assert in_sqlite(index.folder)[0] == "small"
    with pytest.raises(UserError, match="nothing to roll back to"):
        rollback(index)


def test_a_rollback_without_the_old_model_asks_for_it_if_it_is_needed(index: LiveIndex) -> None:
    Reindexing(index, model("large")).run()
    put(index, [document("d5", 1)])
    with pytest.raises(UserError, match=r"1 documents were written since it left small.*--to small"):
        rollback(index)
    assert index.view.space.model == "large"
    rollback(index, small)
    assert index.view.space.model == "small"
    assert_searches_equal(index, index.folder)


def test_a_move_that_was_stopped_goes_on(index: LiveIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reindex, "BATCH", 8)
    encoded: list[str] = []

    def slow(documents: Sequence[Document]) -> np.ndarray:
        encoded.extend(each.id for each in documents)
        if len(encoded) == 16:
            move.stop()
        return encode("large", documents)

    to = Model("large", "fingerprint of large", DIM, slow)
    move = Reindexing(index, to)
    with pytest.raises(Stopped, match="to large again to resume"):
        move.run()
    assert index.view.space.model == "small" and len(encoded) == 16
    with pytest.raises(UserError, match="has begun to move to large"):
        Reindexing(index, model("third"))
    index.close()
    again = open_live(index.folder)
    assert Reindexing(again, to).run() == 14
    assert sorted(encoded) == sorted(f"d{n}" for n in range(30)), "each once"
    assert_searches_equal(again, again.folder)
    again.close()


def test_writes_and_searches_go_on_while_it_moves_and_never_mix(
    index: LiveIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers and two readers, each with the model that it knows; the vectors of the models differ in their sign."""
    monkeypatch.setattr(reindex, "BATCH", 4)
    sign = {"fingerprint of small": 1.0, "fingerprint of large": -1.0}
    index.upsert([document(f"d{n}") for n in range(30)], np.full((30, DIM), 1, np.float32))
    done, problems, refused = threading.Event(), [], []

    def vectors(fingerprint: str, count: int) -> np.ndarray:
        return np.full((count, DIM), sign[fingerprint], np.float32)

    def write(writer: int) -> None:
        count = 0
        while not done.is_set() or count < 5:
            count += 1
            fingerprint = index.view.space.fingerprint
            documents = [document(f"w{writer}-{count % 7}", count), document(f"d{count % 30}", count)]
            try:
                index.upsert(documents, vectors(fingerprint, 2), model_fingerprint=fingerprint)
            except ModelChanged:
                refused.append(count)
            if count % 5 == 0:
                index.delete([f"w{writer}-{count % 7}"])

    def read() -> None:
        while not done.is_set():
            fingerprint = index.view.space.fingerprint
            try:
                hits = index.search(vectors(fingerprint, 1), 60, SearchOptions(), model_fingerprint=fingerprint)[0]
            except ModelChanged:
                continue
            if {hit.score for hit in hits} != {float(DIM)}:
                problems.append({hit.score for hit in hits})

    def large(documents: Sequence[Document]) -> np.ndarray:
        return vectors("fingerprint of large", len(documents))

    threads = [threading.Thread(target=write, args=[n]) for n in range(2)]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    move = Reindexing(
        index, Model("large", "fingerprint of large", DIM, large), old=lambda d: vectors("fingerprint of small", len(d))
    )
    try:
        move.run()
        rollback(index)
        Reindexing(index, Model("large", "fingerprint of large", DIM, large)).run()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not problems, problems[:3]
    _, _, found = in_sqlite(index.folder)
    np.testing.assert_array_equal(found, np.full_like(found, -1))
    verify(index.folder)


def test_a_model_that_fails_on_a_write_stops_neither_the_write_nor_the_move(
    index: LiveIndex, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[str] = []

    def large(documents: Sequence[Document]) -> np.ndarray:
        if len(documents) == 30:
            put(index, [document("written meanwhile")])
        elif not failed:
            failed.append(documents[0].id)
            raise RuntimeError("out of memory")
        return encode("large", documents)

    Reindexing(index, Model("large", "fingerprint of large", DIM, large)).run()
    assert failed == ["written meanwhile"] and "1 documents have no vectors yet" in caplog.text
    assert index.view.space.model == "large" and len(index) == 31
    assert_searches_equal(index, index.folder)


def test_a_service_that_stops_leaves_a_move_behind_that_makes_its_snapshot(
    index: LiveIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    def write(*_: object) -> None:
        begun.set()
        assert go.wait(30)
        raise UserError("no snapshot")

    monkeypatch.setattr(snapshots, "write", write)
    monkeypatch.setattr(moves, "_STOPPING_SECONDS", 0.1)
    service = moves.Moves(None)  # pyright: ignore[reportArgumentType]
    move = Reindexing(index, model("large"))
    thread = threading.Thread(target=service._run, args=("x", move))
    service._moves["x"] = move, thread
    thread.start()
    assert begun.wait(10)
    service.stop()
    assert thread.is_alive()
    go.set()
    thread.join()


def test_questions_of_the_old_model_are_refused_after_the_switch(index: LiveIndex) -> None:
    Reindexing(index, model("large")).run()
    with pytest.raises(ModelChanged, match="not those of large"):
        index.search(QUESTIONS, 3, SearchOptions(), model_fingerprint="fingerprint of small")
    with pytest.raises(ModelChanged, match="not those of large"):
        index.upsert([document("a")], small([document("a")]), model_fingerprint="fingerprint of small")
    index.close()
    with pytest.raises(UserError, match="vectors of large, not of small"):
        open_live(index.folder, "small")
