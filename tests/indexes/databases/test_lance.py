"""The service's index in a LanceDB folder: recall, exact results, filters, hostile input, damage."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brute_force import brute_force
from engine_corpora import Encoded, clustered, export_with, metadata, write_corpus, write_with_equal_scores

from jaxretr.indexes.index import Document, Opening, SearchOptions, Writable
from jaxretr.runtime.errors import UserError

pytest.importorskip("lancedb", reason="it holds the table")
from jaxretr.indexes.lance import build as exporting
from jaxretr.indexes.lance import index as lance
from jaxretr.indexes.lance.index import LanceIndex

ROWS, DIM = 240, 24
EVERY, EXACT = SearchOptions(), SearchOptions(exact=True)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Encoded:
    return write_with_equal_scores(tmp_path_factory.mktemp("lance"), ROWS, DIM)


@pytest.fixture(scope="module")
def folder(encoded: Encoded) -> Path:
    export_with(exporting, encoded, encoded.folder / "out")
    return encoded.folder / "out"


@pytest.fixture(scope="module")
def index(folder: Path) -> LanceIndex:
    return lance.open(str(folder), Opening("served"))


def questions(count: int = 20) -> np.ndarray:
    return clustered(count, DIM, seed=1)


def test_exact_search_is_ours_to_the_bit(encoded: Encoded, index: LanceIndex) -> None:
    """Scores, ids, and the order of equal scores, also at the end of the list."""
    asked = np.concatenate([questions(), encoded.vectors[:10]])
    for k in (1, 2, 25):
        scores, ids = encoded.exact.search(asked, k)
        found = index.search(asked, k, EXACT)
        assert [[hit.id for hit in one] for one in found] == ids
        assert [[hit.score for hit in one] for one in found] == scores.tolist()


def test_more_equal_scores_than_were_asked_for(tmp_path: Path) -> None:
    """100 rows are the same: the first rows win."""
    vectors = clustered(120, DIM)
    vectors[10:110] = vectors[10]
    export_with(exporting, write_corpus(tmp_path, None, vectors), tmp_path / "out")
    found = lance.open(str(tmp_path / "out"), Opening("x")).search(vectors[10:11], 5, EXACT)
    assert [hit.id for hit in found[0]] == [f"p{row}" for row in range(10, 15)]


def test_recall_at_the_defaults(encoded: Encoded, index: LanceIndex) -> None:
    asked = questions(60)
    worst = brute_force(asked, encoded.vectors, 10)[0][:, -1]
    for target in (None, 0.95):
        found = index.search(asked, 10, SearchOptions(target_recall=target))
        assert np.mean([[hit.score >= least for hit in one] for one, least in zip(found, worst, strict=True)]) >= 0.95
    with pytest.raises(UserError, match=r"target_recall=0\.5: .* was built for 0\.95; choose one"):
        index.search(asked, 10, SearchOptions(target_recall=0.5))
    assert len(index.search(asked[:1], 1000, EVERY)[0]) == ROWS


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    "where",
    [
        {"lang": "en"},
        {"lang": ["de", "fr"], "good": True},
        {"lang": None},
        {"year": [1991, 1992.0, "1993"]},
        {"good": 1},
        {"rare": 'it\'s "so" \\ 東京'},
        {"rare": [None], "good": False},
        {"year": {"gte": 1991, "lt": 1994.5, "not_in": [1992.0, None]}},
        {"rare": {"gt": "it"}},
        {"lang": {"gte": "de", "lte": "eo", "in": ["en", "de", None]}, "good": {"not_in": True}},
        {"lang": {"not_in": None}, "year": {"lt": "a"}},
        {"year": []},
    ],
)
def test_filters_find_what_looking_at_every_row_finds(
    encoded: Encoded, index: LanceIndex, exact: bool, where: dict[str, Any]
) -> None:
    several = [f"p{row}" for row in range(0, ROWS, 3)]
    for ids in ({}, {"allow": several}, {"deny": several, "allow": [*several[:9], "p1"]}):
        scores, _ = encoded.exact.search(questions(4), 10, where=where, **ids)
        found = index.search(questions(4), 10, SearchOptions(exact=exact, where=where, **ids))
        assert [[hit.score for hit in one] for one in found] == scores.tolist()


@pytest.mark.parametrize("text", ["' OR 1=1 --", "x') OR (true", '"', "field_0", "nul\x00", "\ud800", ""])
def test_hostile_ids_fields_and_values_are_data(index: LanceIndex, text: str) -> None:
    asked = questions(1)
    assert index.search(asked, 5, SearchOptions(allow=[text])) == [[]]
    assert len(index.search(asked, 5, SearchOptions(deny=[text]))[0]) == 5
    assert index.search(asked, 5, SearchOptions(where={"lang": text})) == [[]]
    with pytest.raises(UserError, match="where: no field"):
        index.search(asked, 5, SearchOptions(where={text: "en"}))
    assert index.documents([text]) == [None]


def test_documents_vectors_and_facts(encoded: Encoded, index: LanceIndex) -> None:
    assert not isinstance(index, Writable) and len(index) == ROWS
    assert index.documents(["p7", "none"]) == [Document("p7", "Title 7", "text of 7: 東京 'quoted'", metadata(7)), None]
    np.testing.assert_array_equal(index.vectors(["p9", "p1"]), encoded.vectors[[9, 1]])
    facts = index.facts()
    assert facts["engine"] == "lance" and not facts["writable"] and facts["targets"] == [0.95]
    assert facts["fields"] == ["good", "lang", "rare", "year"]
    json.dumps(facts)


def test_bad_folders_are_refused_in_one_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder, tmp_path / "broken")
    shutil.rmtree(tmp_path / "broken" / "passages.lance")
    for text, problem in (
        (str(tmp_path / "none"), "give a folder of"),
        (f"{tmp_path / 'broken'}", "export again"),
    ):
        with pytest.raises(UserError, match=problem) as caught:
            lance.open(text, Opening("x"))
        assert "\n" not in str(caught.value)


def test_a_folder_that_another_program_changes_stays_as_it_was_opened(
    encoded: Encoded, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    index = lance.open(str(tmp_path / "copy"), Opening("served"))
    before = index.find(questions(), 3, EVERY, with_documents=True, with_vectors=True)
    table = lance.LanceTable(tmp_path / "copy", [], DIM).table
    table.update(values={"text": "of others"})
    table.delete("row < 200")
    found = index.find(questions(), 3, EVERY, with_documents=True, with_vectors=True)
    assert found.hits == before.hits and found.documents == before.documents
    assert set(found.vectors) == set(found.documents) and "of others" not in str(found.documents)
