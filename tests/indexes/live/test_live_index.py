"""A live index: what is written is found, as an exact index would find it; filters, bad input, and many threads."""

import sqlite3
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_folders import DIM, QUESTIONS, assert_searches_equal, document, encode, in_sqlite, open_live, put, texts_of

from jaxretr.indexes.index import Document, SearchOptions, Writable, Written
from jaxretr.indexes.live.writes import ModelChanged
from jaxretr.runtime.errors import UserError


def test_what_is_written_is_found_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    index = open_live(Path("new/folder"))
    monkeypatch.chdir("/")
    assert isinstance(index, Writable)
    assert put(index, [document(f"d{n}") for n in range(5)]) == Written(1, added=5)
    assert put(index, [document("d1", 1), document("d9")]) == Written(2, added=1, replaced=1)
    assert index.delete(["d0", "never there", "d0"]) == Written(3, deleted=1)
    assert index.documents(["d1", "d0"]) == [document("d1", 1), None]
    assert_searches_equal(index, index.folder)
    assert index.facts()["sequence"] == 3 and index.facts()["passages"] == len(index) == 5
    index.close()
    again = open_live(index.folder)
    assert_searches_equal(again, index.folder)
    again.close()


def test_a_single_id_is_no_list_of_its_letters(tmp_path: Path) -> None:
    """delete("12") removed the passages 1 and 2."""
    index = open_live(tmp_path / "index")
    put(index, [document("1"), document("2"), document("12")])
    for call in (index.delete, index.documents, index.vectors):
        with pytest.raises(UserError, match="ids='12': is a single one; give a list"):
            call("12")
    with pytest.raises(UserError, match="ids: a set has no order; give a list"):
        index.vectors({"1", "2"})
    assert len(index) == 3
    assert index.delete({"1", "2"}) == Written(2, deleted=2)
    index.close()


def test_a_filter_finds_nothing_once_the_last_document_with_its_field_is_gone(tmp_path: Path) -> None:
    """A snapshot or a restart made it an error: a service's client failed at a time that nobody chose."""
    draft = SearchOptions(where={"draft": True}, exact=True)
    index = open_live(tmp_path)
    put(index, [document("d0", draft=True), document("d1", year=1), document("d2", draft=None)])
    put(index, [document("d0", year=2)])
    index.delete(["d2"])
    for _ in ("before and after a snapshot", "after a restart"):
        assert index.search(QUESTIONS[:1], 3, draft) == [[]]
        index.upkeep.compact()
        assert index.search(QUESTIONS[:1], 3, draft) == [[]]
        assert index.facts()["fields"] == ["draft", "year"]
        index.close()
        index = open_live(tmp_path)
    with pytest.raises(UserError, match="no field 'darft' in the index; did you mean 'draft'"):
        index.search(QUESTIONS[:1], 3, SearchOptions(where={"darft": True}))
    index.close()
    # A folder of an earlier version has no record of them.
    with sqlite3.connect(tmp_path / "live.sqlite") as connection:
        connection.execute("DROP TABLE fields")
    index = open_live(tmp_path)
    assert index.facts()["fields"] == ["year"]
    put(index, [document("d3", draft=False)])
    index.delete(["d3"])
    index.close()
    index = open_live(tmp_path)
    assert index.facts()["fields"] == ["draft", "year"]
    index.close()


OPERATIONS = st.one_of(
    st.tuples(st.just("put"), st.lists(st.integers(0, 12), min_size=1, max_size=8, unique=True)),
    st.tuples(st.just("delete"), st.lists(st.integers(0, 12), min_size=1, max_size=6)),
    st.tuples(st.sampled_from(["snapshot", "reopen"]), st.just([])),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(OPERATIONS, max_size=14))
def test_any_sequence_of_writes_snapshots_and_restarts_is_what_a_dictionary_holds(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, list[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("live")
    index, expected = open_live(folder), {}
    for version, (what, numbers) in enumerate(operations):
        names = [f"d{number}" for number in numbers]
        if what == "put":
            documents = [document(name, version) for name in names]
            written = put(index, documents)
            assert (written.added, written.replaced) == (
                len(set(names) - expected.keys()),
                len(expected.keys() & set(names)),
            )
            for each in documents:
                expected.pop(each.id, None)  # A replaced document comes last.
                expected[each.id] = each
        elif what == "delete":
            assert index.delete(names).deleted == len(expected.keys() & set(names))
            expected = {name: each for name, each in expected.items() if name not in names}
        elif what == "snapshot":
            assert index.upkeep.compact() == bool(expected)
        else:
            index.close()
            index = open_live(folder)
        parities = SearchOptions(where={"parity": version % 2}, exact=True)
        # A field is known from its first document on, also when the last one that has it is gone.
        ever_put = any(what == "put" for what, _ in operations[: version + 1])
        found = index.search(QUESTIONS[:1], 20, parities)[0] if ever_put else []
        wanted = {name for name, each in expected.items() if each.metadata["parity"] == version % 2}
        assert {hit.id for hit in found} == wanted
    assert list(in_sqlite(folder)[1].items()) == list(texts_of(expected).items())
    assert_searches_equal(index, folder)
    index.close()


def test_filters_find_the_best_of_what_passes_in_base_and_tail(tmp_path: Path) -> None:
    index = open_live(tmp_path)
    put(index, [document(f"d{n}", n, lang="en" if n % 3 else "de", year=n) for n in range(12)])
    index.upkeep.compact()
    put(index, [document(f"d{n}", n + 50, lang="fr", top=True) for n in range(10, 15)])

    def ids(**options) -> set[str]:
        return {hit.id for hit in index.search(QUESTIONS[:1], 50, SearchOptions(**options))[0]}

    assert ids(where={"lang": "de"}) == {"d0", "d3", "d6", "d9"}
    assert ids(where={"lang": ["de", "fr"], "top": True}) == {f"d{n}" for n in range(10, 15)}
    assert ids(where={"top": None}) == {f"d{n}" for n in range(10)}
    assert ids(where={"year": {"gte": 8}}) == {"d8", "d9"}
    assert ids(where={"top": {"not_in": True}, "year": {"lt": 2}}) == {"d0", "d1"}
    assert ids(where={"year": 11}) == set(), "d11 was replaced by a passage without a year"
    assert ids(allow=["d1", "d11", "unknown"]) == {"d1", "d11"}
    assert ids(allow=["d1", "d11"], deny=["d11", "unknown"]) == {"d1"}
    assert ids(where={"lang": "never"}) == set()
    with pytest.raises(UserError, match=r"no field 'lagn' in the index; did you mean 'lang'\?"):
        ids(where={"lagn": "de"})
    index.close()


BAD = {
    "an id twice": ([document("a"), document("b"), document("a")], r"documents\[2\].*'a'.*documents\[0\]"),
    "no id": ([Document("", "t", "x")], r"documents\[0\].*id is empty"),
    "no text": ([Document("a", "", "")], "neither title nor text"),
    "half a pair": ([Document("a", "", "x\ud800")], "not valid Unicode"),
    "a list in a field": ([Document("a", "", "x", {"f": [1]})], "field 'f' is a list"),  # pyright: ignore
    "NaN in a field": ([Document("a", "", "x", {"f": float("nan")})], "field 'f' is nan"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_document_is_refused_and_nothing_is_written(case: str, tmp_path: Path) -> None:
    documents, message = BAD[case]
    index = open_live(tmp_path)
    with pytest.raises(UserError, match=message):
        index.upsert(documents, np.zeros((len(documents), DIM), np.float32))
    assert len(index) == 0 and in_sqlite(tmp_path)[1] == {}
    index.close()


def test_bad_vectors_and_questions_are_refused(tmp_path: Path) -> None:
    index = open_live(tmp_path)
    documents = [document("a")]
    for vectors, message in (
        (np.zeros((2, DIM)), "2 for 1 documents"),
        (np.zeros((1, DIM + 1)), f"{DIM + 1} columns"),
        (np.full((1, DIM), np.inf), "NaN, infinity"),
    ):
        with pytest.raises(UserError, match=message):
            index.upsert(documents, vectors)
    with pytest.raises(UserError, match="k=0"):
        index.search(QUESTIONS, 0, SearchOptions())
    with pytest.raises(UserError, match="no such passage"):
        index.vectors(["a"])
    with pytest.raises(ModelChanged, match=r"vectors are not those of small"):
        index.search(QUESTIONS, 1, SearchOptions(), model_fingerprint="another")
    index.close()
    with pytest.raises(UserError, match="is closed"):
        put(index, documents)


def test_a_folder_of_another_model_is_refused_with_both_names_and_the_remedy(tmp_path: Path) -> None:
    open_live(tmp_path).close()
    with pytest.raises(UserError, match=r"vectors of small, not of large.*jaxretr reindex .* --to large"):
        open_live(tmp_path, "large")
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes\.txt but no live index"):
        open_live(other)
    with pytest.raises(UserError, match="holds no live index"):
        open_live(tmp_path / "missing", None)


def test_writers_and_readers_at_once_see_whole_batches_and_their_own_writes(tmp_path: Path) -> None:
    """Each batch replaces two passages by ones with its number as their score: they must never differ in a search."""
    index = open_live(tmp_path, background=True, compact_rows=20, compact_share=0.5)
    question = np.eye(1, DIM, dtype=np.float32)
    until, problems, counts = time.monotonic() + 3, [], [0] * 4

    def scores(writer: int) -> list[float]:
        return [hit.score for hit in index.search(question, 5, SearchOptions(allow=[f"{writer}a", f"{writer}b"]))[0]]

    def write(writer: int) -> None:
        while time.monotonic() < until or counts[writer] < 3:  # Beside other work a write may take a second.
            counts[writer] += 1
            documents = [document(f"{writer}{side}", counts[writer]) for side in "ab"]
            index.upsert(documents, np.repeat(question * counts[writer], 2, axis=0))
            if scores(writer) != [counts[writer]] * 2:
                problems.append(f"writer {writer} wrote {counts[writer]} and found {scores(writer)}")

    def read(reader: int) -> None:
        last = 0.0
        while time.monotonic() < until:
            found = scores(reader)
            if len(set(found)) > 1 or len(found) not in (0, 2) or (found and found[0] < last):
                problems.append(f"after {last}: {found}")
            last = found[0] if found else last

    threads = [threading.Thread(target=each, args=[n]) for each in (write, read) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[:3]
    assert min(counts) > 2
    assert {name: each.text for name in in_sqlite(tmp_path)[1] for each in index.documents([name]) if each} == {
        f"{writer}{side}": document(f"{writer}{side}", count).text
        for writer, count in enumerate(counts)
        for side in "ab"
    }
    deadline = time.monotonic() + 60
    while not index.facts()["snapshot_sequence"] and time.monotonic() < deadline:
        time.sleep(0.05)
    facts = index.facts()
    assert facts["snapshot_sequence"] > 0 and facts["sequence"] == sum(counts), "no snapshot in the background"
    index.close()


def test_a_search_that_began_before_a_write_sees_the_state_before(tmp_path: Path) -> None:
    index = open_live(tmp_path)
    put(index, [document(f"d{n}") for n in range(100)])
    index.upkeep.compact()
    before = index.view
    hits = before.hits(*before.found(QUESTIONS, 10, SearchOptions()))
    put(index, [document(f"d{n}", 1) for n in range(0, 150, 2)])
    index.delete(["d1", "d3"])
    assert before.hits(*before.found(QUESTIONS, 10, SearchOptions())) == hits
    assert before.sequence == 1 and index.view.sequence == 3
    np.testing.assert_array_equal(before.vectors(["d1"]), encode("small", [document("d1")]))
    index.close()
