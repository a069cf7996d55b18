"""Moving a live index that is large enough for ScaNN to another model, while it is searched and written."""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxretr.indexes.certified.process import scann_problem
from jaxretr.indexes.index import Document, SearchOptions
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.reindex import Model, Reindexing, rollback
from jaxretr.indexes.live.settings import LiveSettings
from jaxretr.indexes.live.verifying import verify
from jaxretr.indexes.live.writes import ModelChanged

pytestmark = pytest.mark.skipif(scann_problem() is not None, reason="ScaNN does not work here")

ROWS, DIM, TEXTS = LiveSettings().scann_from, 16, 30_000


def unit_vectors(count: int, seed: int) -> np.ndarray:
    """Around 200 centres, as passages of some topics are."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((200, DIM))
    found = centres[rng.integers(200, size=count)] + 0.5 * rng.standard_normal((count, DIM))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


# Model -> the vector of each text, which is a number. The two models have nothing in common.
VECTORS = {"small": unit_vectors(TEXTS, 1), "large": unit_vectors(TEXTS, 2)}


def encode(model: str, documents: Sequence[Document]) -> np.ndarray:
    return VECTORS[model][[int(document.text) for document in documents]]


def model(name: str) -> Model:
    return Model(name, f"fingerprint of {name}", DIM, lambda documents: encode(name, documents))


class Traffic:
    """One writer and two readers, each with the model that the index has when it asks.

    Attributes:
      texts: the numbers of all texts that each document ever had.
      searches: how many were answered, by model.
      wrong: hits whose score no text of theirs has with the model that the question was encoded with.
    """

    def __init__(self, index: LiveIndex, texts: dict[str, set[int]]):
        self.index, self.texts = index, texts
        self.searches: dict[str, int] = defaultdict(int)
        self.wrong: list[tuple[str, Any]] = []
        self.failures: list[BaseException] = []
        self.removed: set[str] = set()
        self.writes = 0
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._until_done, args=[step]) for step in (self._write, *[self._read] * 2)
        ]

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _until_done(self, step: Any) -> None:
        rng = np.random.default_rng(0)
        while not self._done.is_set():
            try:
                step(rng)
            except ModelChanged:
                continue
            except BaseException as error:
                self.failures.append(error)
                raise

    def _write(self, rng: np.random.Generator) -> None:
        """Adds a document, replaces one and removes another."""
        name, number = self.index.view.space.model, self.writes
        documents = [
            Document(f"new{number}", "", str(rng.integers(ROWS, TEXTS))),
            Document(f"d{2 * number}", "", str(rng.integers(ROWS, TEXTS))),
        ]
        for document in documents:
            self.texts[document.id].add(int(document.text))
        time.sleep(0.02)  # as encoding takes
        self.index.upsert(documents, encode(name, documents), model_fingerprint=f"fingerprint of {name}")
        self.index.delete([f"d{2 * number + 1}"])
        self.removed.add(f"d{2 * number + 1}")
        self.writes += 1

    def _read(self, rng: np.random.Generator) -> None:
        name, gone = self.index.view.space.model, set(self.removed)
        question = VECTORS[name][rng.integers(TEXTS)]
        time.sleep(0.005)  # as encoding takes
        hits = self.index.search(question[None], 10, SearchOptions(), model_fingerprint=f"fingerprint of {name}")[0]
        assert len(hits) == 10
        for hit in hits:
            possible = VECTORS[name][sorted(self.texts[hit.id])] @ question
            # Sums in another order round differently.
            if hit.id in gone or np.abs(possible - hit.score).min() > 1e-5:
                self.wrong.append((name, hit))
        self.searches[name] += 1


def assert_searched_with(index: LiveIndex, name: str) -> None:
    """ScaNN's snapshot of this model is searched, what it finds is as good as its certificate says, and scores are exact."""
    facts = index.facts()
    assert facts["model"] == name and facts["approximate"] and facts["targets"] == [0.95]
    questions = VECTORS[name][-300:]
    exact = index.search(questions, 10, SearchOptions(exact=True))
    found = index.search(questions, 10, SearchOptions())
    recall = np.mean(
        [len({hit.id for hit in a} & {hit.id for hit in b}) / 10 for a, b in zip(exact, found, strict=True)]
    )
    line = facts["certificate"]["lines"][0]
    assert line["reached"] and line["recalls"][0]["recall"] >= 0.95
    # 300 questions of 10 neighbours each: the mean varies by .01 (two standard errors), and passages stood in for questions.
    assert recall >= 0.92
    texts = [each.text for each in index.documents([hits[0].id for hits in exact]) if each is not None]
    best = np.einsum("bd,bd->b", VECTORS[name][list(map(int, texts))], questions)
    np.testing.assert_allclose([hits[0].score for hits in exact], best, atol=1e-5)


def test_a_large_index_moves_and_returns_under_load(tmp_path: Path, record_property: Any) -> None:
    """Searches see one model's vectors at a time, through both switches; each model has its own ScaNN index and certificate."""
    index = LiveIndex.open(tmp_path / "live", model="small", model_fingerprint="fingerprint of small", dim=DIM)
    documents = [Document(f"d{n}", "", str(n)) for n in range(ROWS)]
    index.upsert(documents, encode("small", documents))
    index.upkeep.compact()
    assert_searched_with(index, "small")
    texts: dict[str, set[int]] = defaultdict(set, {f"d{n}": {n} for n in range(ROWS)})
    with Traffic(index, texts) as traffic:
        move = Reindexing(index, model("large"), old=model("small").encode)
        encoded = move.run()
        assert move.state()["phase"] == "switched" and move.state()["lacking"] == 0
        # What was there at the beginning, without what was replaced or removed before its turn.
        assert ROWS - 2 * traffic.writes - 2 <= encoded <= ROWS
        assert_searched_with(index, "large")
        certificate = index.facts()["certificate"]
        assert certificate["model"] is None or certificate["model"] == "large"
        at_switch = dict(traffic.searches)
        wait_for(lambda: traffic.searches["large"] > at_switch.get("large", 0) + 20)
        rollback(index)
        assert index.view.space.model == "small"
        wait_for(lambda: traffic.searches["small"] > at_switch["small"] + 20)
    assert not traffic.failures and not traffic.wrong[:3]
    assert traffic.writes > 20 and min(traffic.searches["small"], traffic.searches["large"]) > 20
    assert_every_vector_is_of(index, "small", sorted(texts.keys() - traffic.removed))
    record_property("searches while the index moved and returned", dict(traffic.searches))
    assert_searched_with(index, "small")
    assert len(index) == ROWS
    assert index.close_within(300)  # Beside other tests a certificate takes longer than a service waits.
    verify(tmp_path / "live")
    again = LiveIndex.open(tmp_path / "live", model="small", model_fingerprint="fingerprint of small", dim=DIM)
    assert_searched_with(again, "small")
    again.close()


def assert_every_vector_is_of(index: LiveIndex, name: str, ids: Sequence[str]) -> None:
    for start in range(0, len(ids), 500):
        some = ids[start : start + 500]
        found = [each for each in index.documents(some) if each is not None]
        np.testing.assert_array_equal(index.vectors(some), encode(name, found))


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
