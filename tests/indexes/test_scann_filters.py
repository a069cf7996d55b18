"""Filtered searches of a `ScannIndex`: nothing else is found, nothing is missing, and the recall is the one certified."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from test_scann import DIM, IDS, LEAVES, PASSAGES, QUESTIONS, N, needs_scann, vectors

from jaxretr import ScannIndex
from jaxretr.config import EngineName
from jaxretr.indexes.certified import filtering
from jaxretr.indexes.certified.searcher import Searcher
from jaxretr.indexes.certified.upkeep import verify
from jaxretr.indexes.recall import table
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage import manifest

TARGET = 0.9

# The last 200 are the first 200: each score of theirs is there twice.
TWICE = np.concatenate([PASSAGES[:-200], PASSAGES[:200]])


@pytest.fixture(scope="module", params=[pytest.param("scann", marks=needs_scann), "faiss"])
def index(request: pytest.FixtureRequest) -> Iterator[ScannIndex]:
    """An index that is never searched exactly for speed: so few passages always would be."""
    if request.param == "faiss":
        pytest.importorskip("faiss")
    with pytest.MonkeyPatch.context() as patch:
        yield build(patch, request.param)


def build(patch: pytest.MonkeyPatch, engine: EngineName = "faiss", **patches: object) -> ScannIndex:
    for name, value in {"LEAST_ROWS": N, "_exact_seconds": lambda index, cases: 1e9, **patches}.items():
        patch.setattr(filtering, name, value)
    return ScannIndex.build(
        TWICE, IDS, target_recall=TARGET, questions=QUESTIONS, num_leaves=LEAVES, k=5, engine=engine
    )


def filters() -> dict[str, np.ndarray]:
    """Filters of several sizes: random rows, rows near a passage, and rows far from everything else."""
    rng = np.random.default_rng(8)
    near = TWICE @ TWICE[11]
    return {
        "half": rng.random(N) < 0.5,
        "third": rng.random(N) < 0.3,
        "tenth": rng.random(N) < 0.1,
        "near": near > np.quantile(near, 0.8),
        "far": near < np.quantile(near, 0.15),
        "all but two": np.arange(N) > 1,
        "seven": np.isin(np.arange(N), [3, 50, 199, 2000, N - 2, N - 1, 777]),
        "one": np.arange(N) == 9,
    }


def exact(allowed: np.ndarray, questions: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows by their definition."""
    scores = np.where(allowed, questions.astype(np.float64) @ TWICE.T.astype(np.float64), -np.inf)
    rows = np.argsort(-scores, axis=1, kind="stable")[:, : min(k, np.count_nonzero(allowed))]
    return np.take_along_axis(scores, rows, axis=1), rows


@pytest.mark.parametrize("name", filters())
def test_only_allowed_passages_are_found_and_as_many_as_there_are(index: ScannIndex, name: str) -> None:
    allowed, questions = filters()[name], vectors(60, 40)
    for k in (1, 5, 40):
        best, _ = exact(allowed, questions, k)
        for some in (questions, questions[:1], questions[:0]):
            scores, rows = index.search_rows(some, k, allowed=allowed, threads=2)
            assert scores.shape == rows.shape == (len(some), best.shape[1])
            assert allowed[rows].all() and all(len(set(found)) == len(found) for found in rows.tolist())
            # Exact scores (sums of 16 float32 products), the best first, and equal ones by row.
            np.testing.assert_allclose(scores, np.einsum("bd,bkd->bk", some, TWICE[rows]), rtol=1e-5, atol=1e-6)
            assert ((np.diff(scores) < 0) | ((np.diff(scores) == 0) & (np.diff(rows) > 0))).all()
        if np.count_nonzero(allowed) < 30:
            np.testing.assert_allclose(scores if len(some) else best, best, rtol=1e-5, atol=1e-6)


def found_share(index: ScannIndex, allowed: np.ndarray, questions: np.ndarray) -> float:
    """The recall by score, since half of a pair is as good as the other."""
    scores, _ = index.search_rows(questions, 5, allowed=allowed)
    return float((scores >= exact(allowed, questions, 5)[0][:, -1:] - 1e-5).mean())


@pytest.mark.parametrize("name", ["half", "third", "tenth"])
def test_the_target_is_reached_with_filters_that_nothing_was_tuned_on(index: ScannIndex, name: str) -> None:
    # Of 400 questions a mean has a standard error of about .01.
    assert found_share(index, filters()[name], vectors(400, 77)) >= TARGET - 0.02


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_the_target_is_reached_where_the_filter_allows_what_is_near_a_passage(index: ScannIndex, share: float) -> None:
    rows = np.random.default_rng(12).integers(N, size=12)
    scores = TWICE @ TWICE[rows].T
    shares = [found_share(index, near > np.quantile(near, 1 - share), vectors(60, 78)) for near in scores.T]
    # Of 12 filters, whose recalls differ, the mean has a standard error of about .01.
    assert np.mean(shares) >= TARGET - 0.02


def test_the_engine_is_asked_where_its_recall_is_certain(index: ScannIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = index.facts.settings[0]
    shares = [each.share for each in setting.filters if each.approximate]
    assert shares[:2] == [1 / 2, 1 / 10], "3,000 passages are enough for these"
    assert all(each.certain >= TARGET for each in setting.filters if each.approximate)
    asked: list[str] = []
    for name in ("exact", "search_allowed"):
        method = getattr(Searcher, name)
        monkeypatch.setattr(
            Searcher, name, lambda self, *given, name=name, method=method: (asked.append(name), method(self, *given))[1]
        )
    for share, first in ((0.5, "search_allowed"), (0.2, "search_allowed"), (0.002, "exact")):
        asked.clear()
        index.search_rows(QUESTIONS[:1], 5, allowed=np.random.default_rng(1).permutation(N) < share * N)
        assert asked[0] == first, share


def test_where_the_leaves_hold_too_few_that_are_allowed_all_of_them_are_scored(index: ScannIndex) -> None:
    """One leaf of forty, and candidates that are mostly forbidden."""
    questions = vectors(60, 41)
    for name in ("far", "tenth"):
        allowed = filters()[name]
        scores, rows = index.searcher.search_allowed(questions, 5, allowed, leaves=1, candidates=150, threads=2)
        assert allowed[rows].all() and (rows >= 0).all()
        # As many as 150 of these 300 to 450 rows are in no leaf, and hardly in four.
        assert (scores >= exact(allowed, questions, 5)[0][:, -1:] - 1e-5).mean() > 0.99


def test_the_certificate_states_the_recall_with_filters(index: ScannIndex, tmp_path: Path) -> None:
    assert index.certificate is not None
    lines = index.certificate.filters
    assert [line.share for line in lines] == [
        each.share for each in index.facts.settings[0].filters if each.approximate
    ]
    for line in lines:
        # 400 questions that were not tuned on: as above.
        assert min(found.recall for found in line.recalls) >= TARGET - 0.02
    assert "| 50.0% |" in table(index.certificate)
    index.save(tmp_path / "index")
    assert "as certified" in verify(tmp_path / "index")
    again = ScannIndex.load(tmp_path / "index")
    assert again.facts == index.facts and again.certificate == index.certificate


def test_filters_by_id_follow_changes(index: ScannIndex, tmp_path: Path) -> None:
    index.save(tmp_path / "index")
    index = ScannIndex.load(tmp_path / "index")
    some = [name for row, name in enumerate(IDS) if row % 2]
    _, found = index.search(QUESTIONS[:20], 5, allow=some)
    gone = sorted({name for names in found for name in names})
    index.delete(gone)
    index.add(vectors(50, 6) * 2, [f"new{row}" for row in range(50)])
    allow = [*(name for name in some if name not in gone), *(f"new{row}" for row in range(50))]
    _, found = index.search(QUESTIONS[:20], 5, allow=allow, deny=["new0"])
    names = {name for each in found for name in each}
    assert names <= {*allow} - {"new0"} and any(name.startswith("new") for name in names)
    with pytest.raises(UserError, match="no id 'nobody'"):
        index.search(QUESTIONS[:1], 5, deny=["nobody"])
    assert index.search(QUESTIONS[:2], 5, allow=[])[1] == [[], []]


@pytest.mark.parametrize(("name", "value"), [("_exact_seconds", 0.0), ("certain_recall", 0.0)])
def test_what_is_slower_or_not_certain_is_searched_exactly(
    name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    index = build(monkeypatch, **{name: lambda *given: value})
    assert [each.approximate for each in index.facts.settings[0].filters] == [False]
    assert index.certificate is not None and not index.certificate.filters
    assert "With a filter every allowed passage is scored." in table(index.certificate)
    allowed = filters()["half"]
    scores, _ = index.search_rows(QUESTIONS, 5, allowed=allowed)
    np.testing.assert_allclose(scores, exact(allowed, QUESTIONS, 5)[0], rtol=1e-5, atol=1e-6)


@needs_scann
def test_a_folder_of_an_older_version_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which knew neither engines nor filters."""
    build(monkeypatch, "scann").save(tmp_path / "index")
    content = manifest.read(tmp_path / "index")
    del content.facts["engine"]
    for setting in content.facts["settings"]:
        del setting["filters"]
    path = tmp_path / "index" / "certificate.json"
    certificate = json.loads(path.read_text())
    path.write_text(
        json.dumps({name: value for name, value in certificate.items() if name not in ("engine", "filters")})
    )
    manifest.write(tmp_path / "index", content.kind, content.facts)
    index = ScannIndex.load(tmp_path / "index")
    allowed = filters()["half"]
    scores, _ = index.search_rows(QUESTIONS, 5, allowed=allowed)
    np.testing.assert_allclose(scores, exact(allowed, QUESTIONS, 5)[0], rtol=1e-5, atol=1e-6)
    assert index.facts.engine == "scann" and index.facts.dim == DIM
    verify(tmp_path / "index")
