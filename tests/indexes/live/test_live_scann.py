"""The approximate index of a live folder: what was removed is not found, what was added is, and the certificate says when."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxretr.indexes.certified import filtering
from jaxretr.indexes.certified.process import scann_problem
from jaxretr.indexes.certified.searcher import Searcher
from jaxretr.indexes.index import Document, SearchOptions
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.settings import LiveSettings
from jaxretr.runtime.errors import UserError

needs_scann = pytest.mark.skipif(scann_problem() is not None, reason="ScaNN does not work here")

N, DIM = 2500, 16


def vectors(count: int, seed: int) -> np.ndarray:
    found = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def documents(names: str, count: int) -> list[Document]:
    return [Document(f"{names}{n}", "", f"passage {n}", {"even": n % 2 == 0}) for n in range(count)]


@pytest.fixture(scope="module", params=[pytest.param("scann", marks=needs_scann), "faiss"])
def index(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest):
    settings = LiveSettings(scann_from=N, certify_share=0.01, least_questions=64, engine=request.param)
    folder = tmp_path_factory.mktemp("live")
    made = LiveIndex.open(
        folder, model="m", model_fingerprint="f", dim=DIM, settings=settings, background=False, name="index"
    )
    made.upsert(documents("d", N), vectors(N, 0))
    made.search(vectors(80, 1), 10, SearchOptions())
    with pytest.MonkeyPatch.context() as patch:
        # Of so few passages all would be scored for any filter.
        patch.setattr(filtering, "LEAST_ROWS", N)
        patch.setattr(filtering, "_exact_seconds", lambda index, cases: 1e9)
        made.upkeep.compact()
    yield made
    made.close()


def ids(index: LiveIndex, questions: np.ndarray, k: int, **options) -> list[list[str]]:
    return [[hit.id for hit in hits] for hits in index.search(questions, k, SearchOptions(**options))]


def test_the_snapshot_is_tuned_on_questions_that_were_asked(index: LiveIndex) -> None:
    facts = index.facts()
    assert facts["approximate"] and facts["targets"] == [0.95] and facts["snapshot_engine"] == index.settings.engine
    certificate = facts["certificate"]
    assert certificate["engine"] == index.settings.engine
    assert certificate["of"] == "questions" and certificate["questions"] == 40, "half of the 80 tune it"
    assert not certificate["stale"] and certificate["changes_since"] == 0
    with pytest.raises(UserError, match=r"target_recall=0\.5.*0\.95"):
        index.search(vectors(1, 2), 1, SearchOptions(target_recall=0.5))


def test_removed_passages_are_never_found_and_new_ones_always(index: LiveIndex) -> None:
    questions = vectors(20, 3)

    def recall(found: list[list[str]]) -> float:
        exact = ids(index, questions, 50, exact=True)
        return float(np.mean([len({*a} & {*b}) / 50 for a, b in zip(found, exact, strict=True)]))

    before = ids(index, questions, 50)
    assert recall(before) > 0.9
    gone = {name for found in before for name in found}
    index.delete(sorted(gone))
    index.upsert(documents("new", 5), questions[:5] * 3)
    after = ids(index, questions, 50)
    assert all(len(found) == 50 and not gone & {*found} for found in after)
    assert recall(after) > 0.9, "around what was removed as well"
    assert [found[0] for found in after[:5]] == [f"new{n}" for n in range(5)]
    # Scores are those of exact search, to the bit.
    exact = {(hit.id, hit.score) for hits in index.search(questions, N, SearchOptions(exact=True)) for hit in hits}
    assert {(hit.id, hit.score) for hits in index.search(questions, 50, SearchOptions()) for hit in hits} <= exact
    assert len(ids(index, questions[:1], N)[0]) == len(index), "more than there are: all of them"


def test_filters_ask_the_snapshot_and_obey(index: LiveIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    search = Searcher.search_allowed
    monkeypatch.setattr(Searcher, "search_allowed", lambda *given: (asked.append(1), search(*given))[1])
    questions = vectors(40, 8)
    index.upsert(documents("late", 4), questions[:4] * 3)
    index.delete(["late1", *(f"d{n}" for n in range(100, 120))])
    options = {"where": {"even": True}, "deny": ["d6"]}
    assert not index.is_exact(SearchOptions(**options))
    found = ids(index, questions, 50, **options)
    assert asked, "the approximate index"
    exact = ids(index, questions, 50, **options, exact=True)
    gone = {"d6", *(f"d{n}" for n in range(100, 120))}
    assert all(len(names) == len({*names}) == 50 and not gone & {*names} for names in found)
    assert all(int(name.strip("dlatenwmor")) % 2 == 0 for names in found for name in names)
    assert (found[0][0], found[2][0]) == ("late0", "late2"), "the tail as well"
    assert np.mean([len({*a} & {*b}) / 50 for a, b in zip(found, exact, strict=True)]) > 0.85
    hits = {(hit.id, hit.score) for each in index.search(questions, 50, SearchOptions(**options)) for hit in each}
    assert hits <= {
        (hit.id, hit.score) for each in index.search(questions, N, SearchOptions(**options, exact=True)) for hit in each
    }
    # Few that are allowed: all of them are scored.
    asked.clear()
    few = {"allow": ["d1", "d2", "late0", "nobody"]}
    assert ids(index, questions, 5, **few) == ids(index, questions, 5, **few, exact=True) and not asked


def test_the_certificate_is_measured_again_after_so_many_changes(index: LiveIndex) -> None:
    index.upsert(documents("more", 100), vectors(100, 4))
    changes = index.view.changes
    certificate = index.facts()["certificate"]
    assert (
        certificate["stale"] and certificate["changes_since"] == changes and certificate["changes_when_measured"] == 0
    )
    index.upkeep.certify()
    certificate = index.facts()["certificate"]
    assert not certificate["stale"] and certificate["changes_when_measured"] == changes
    assert certificate["sequence"] == index.view.sequence and certificate["rows"] == len(index)
    assert certificate["lines"][0]["recalls"][0]["recall"] > 0.8
    settings, folder = index.settings, index.folder
    index.close()
    again = LiveIndex.open(folder, settings=settings, background=False)
    noted = again.facts()["certificate"]
    assert (noted["measured"], noted["sequence"]) == (certificate["measured"], certificate["sequence"])
    again.close()


@needs_scann
def test_another_engine_is_used_from_the_next_start_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(**settings) -> LiveIndex:
        given = LiveSettings(scann_from=1000, **settings)
        return LiveIndex.open(
            tmp_path / "live", model="m", model_fingerprint="f", dim=DIM, settings=given, background=bool(settings)
        )

    def waited(index: LiveIndex) -> str:
        until = time.monotonic() + 60
        while index.facts()["snapshot_engine"] != "faiss" and time.monotonic() < until:
            time.sleep(0.02)
        return index.facts()["snapshot_engine"]

    index = opened()
    index.upsert(documents("d", 1200), vectors(1200, 0))
    index.upkeep.compact()
    assert index.facts()["snapshot_engine"] == "scann", "which is the first to be tried"
    index.close()
    index = opened(engine="faiss")
    assert waited(index) == "faiss"
    index.close()
    # And where no engine works, all is found as well.
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr("jaxretr.indexes.certified.process.scann_problem", lambda: "it is not installed")
    index = opened()
    questions = vectors(20, 3)
    assert ids(index, questions, 50) == ids(index, questions, 50, exact=True)
    index.close()
