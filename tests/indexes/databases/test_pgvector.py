"""The service's index in PostgreSQL: recall, exact results, filters, writes, hostile input, and a server that goes away."""

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brute_force import brute_force
from engine_corpora import Encoded, Postgres, clustered, export_with, metadata, write_corpus, write_with_equal_scores

from jaxretr.indexes.filters import Filters
from jaxretr.indexes.index import Document, Opening, SearchOptions, StorageFull, Writable
from jaxretr.indexes.opening import opened
from jaxretr.indexes.row_filter import RowFilter
from jaxretr.runtime.errors import UnavailableError, UserError

psycopg = pytest.importorskip("psycopg", reason="it connects to the server")
from jaxretr.indexes.pgvector import build as exporting  # noqa: E402
from jaxretr.indexes.pgvector import index as pgvector  # noqa: E402
from jaxretr.indexes.pgvector import writing  # noqa: E402
from jaxretr.indexes.pgvector.address import Address  # noqa: E402
from jaxretr.indexes.pgvector.index import PgvectorIndex  # noqa: E402

ROWS, DIM = 500, 24
EVERY = SearchOptions()
EXACT = SearchOptions(exact=True)

# PostgreSQL adds up in float32: some roundings of numbers up to 1.
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Encoded:
    return write_with_equal_scores(tmp_path_factory.mktemp("served"), ROWS, DIM)


@pytest.fixture(scope="module")
def address(encoded: Encoded, postgres: Postgres) -> str:
    address = f"pgvector:{postgres.uri}&table=served"
    export_with(exporting, encoded, Address.parse(address), targets=(0.95, 0.99))
    return address


@pytest.fixture(scope="module")
def index(address: str) -> Iterator[PgvectorIndex]:
    """For tests that only read."""
    with_connections = pgvector.open(address, Opening("served"))
    yield with_connections
    with_connections.close()


@pytest.fixture
def copy(address: str, postgres: Postgres) -> Iterator[str]:
    """The address of a copy, for tests that write."""
    with psycopg.connect(postgres.uri, autocommit=True) as connection:
        for name in ("copied", "copied_facts"):
            connection.execute(f"DROP TABLE IF EXISTS {name}")
            of = name.replace("copied", "served")
            connection.execute(f"CREATE TABLE {name} (LIKE {of} INCLUDING ALL)")
            connection.execute(f"INSERT INTO {name} SELECT * FROM {of}")
    yield address.replace("served", "copied")


def questions(count: int = 30) -> np.ndarray:
    return clustered(count, DIM, seed=1)


def pairs(hits: list[list[Any]]) -> list[list[tuple[str, float]]]:
    return [[(hit.id, hit.score) for hit in one] for one in hits]


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_exact_search_is_ours(encoded: Encoded, index: PgvectorIndex) -> None:
    """Scores up to their rounding; ids in the same order, those of equal scores by row."""
    asked = np.concatenate([questions(), encoded.vectors[:20]])
    scores, ids = encoded.exact.search(asked, 25)
    found = index.search(asked, 25, EXACT)
    np.testing.assert_allclose([[hit.score for hit in one] for one in found], scores, atol=TOLERANCE)
    for one, wanted, values in zip(found, ids, scores, strict=True):
        names = [hit.id for hit in one]
        for place in np.flatnonzero(np.array(names) != np.array(wanted)):
            # Another order only where float32 rounds to another order, never of rows that are the same to the bit.
            assert abs(values[place] - values[wanted.index(names[place])]) < TOLERANCE
        assert names == wanted or len(set(values.tolist())) == len(values)
    twins = index.search(encoded.vectors[:20], 2, EXACT)
    assert [[hit.id for hit in one] for one in twins] == [[f"p{row}", f"p{ROWS - 40 + row}"] for row in range(20)]


def test_recall_at_the_defaults(encoded: Encoded, index: PgvectorIndex, postgres: Postgres) -> None:
    asked = questions(100)
    exact = brute_force(asked, encoded.vectors, 10)[0]
    for target in (None, 0.99):
        found = index.search(asked, 10, SearchOptions(target_recall=target))
        reached = [
            [hit.score >= worst - TOLERANCE for hit in one] for one, worst in zip(found, exact[:, -1], strict=True)
        ]
        assert np.mean(reached) >= 0.95
        assert all(one == sorted(one, key=lambda hit: -hit.score) for one in found)
    assert index.facts()["targets"] == [0.95, 0.99]
    with pytest.raises(UserError, match=r"target_recall=0\.5: .* was built for 0\.95, 0\.99; choose one"):
        index.search(asked, 10, SearchOptions(target_recall=0.5))
    index._database.run(lambda connection: connection.execute("SELECT pg_stat_force_next_flush()"))
    with psycopg.connect(postgres.uri) as connection:
        scans = connection.execute("SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname LIKE 'hnsw_served%'")
        assert scans.fetchone()[0] >= 200, "the HNSW index was not used"


def test_more_results_than_the_search_is_wide(encoded: Encoded, index: PgvectorIndex) -> None:
    found = index.search(questions(3), 1000, EVERY)
    assert [len(one) for one in found] == [ROWS] * 3
    assert len({hit.id for hit in found[0]}) == ROWS


WHERE: list[dict[str, Any]] = [
    {"lang": "en"},
    {"lang": ["de", "fr"], "good": True},
    {"lang": None},
    {"lang": [None, "en"], "year": 1996},
    {"year": [1991, 1992.0, "1993"]},
    {"good": 1},
    {"rare": 'it\'s "so" \\ 東京'},
    {"rare": None, "good": False},
    {"year": 7},
    {"year": {"gte": 1991, "lt": 1994.5, "not_in": [1992.0, None]}},
    {"rare": {"gt": "it"}},
    {"lang": {"gte": "de", "lte": "eo", "in": ["en", "de", None]}, "good": {"not_in": True}},
    {"lang": {"not_in": None}, "year": {"lt": "a"}},
    {"year": []},
]


@pytest.mark.parametrize("exact", [True, False])
def test_filters_find_what_looking_at_every_row_finds(encoded: Encoded, index: PgvectorIndex, exact: bool) -> None:
    asked, several = questions(6), [f"p{row}" for row in range(0, ROWS, 3)]
    lists: list[dict[str, Any]] = [
        {},
        {"allow": several},
        {"deny": several},
        {"allow": []},
        {"allow": several, "deny": several[5:]},
    ]
    reached: list[bool] = []
    for where, ids in itertools.chain(
        zip(WHERE, itertools.repeat({})), zip(itertools.repeat({}), lists), [(WHERE[0], lists[1])]
    ):
        scores, _ = encoded.exact.search(asked, 10, where=where, **ids)
        found = index.search(asked, 10, SearchOptions(exact=exact, where=where, **ids))
        assert [len(one) for one in found] == [scores.shape[1]] * len(asked), (where, ids)
        for one, wanted in zip(found, scores, strict=True):
            values = np.array([hit.score for hit in one])
            if exact:
                np.testing.assert_allclose(values, wanted, atol=TOLERANCE, err_msg=str(where))
            reached += (values >= wanted.min(initial=np.inf) - TOLERANCE).tolist()
            for hit in one:
                row = encoded.ids.index(hit.id)
                fields = {name: [metadata(row).get(name)] for name in where}
                assert Filters(1, None, fields).mask(where=where) in (None, [True])
    assert np.mean(reached) >= (1 if exact else 0.95)


def test_documents_and_vectors(encoded: Encoded, index: PgvectorIndex) -> None:
    assert isinstance(index, Writable) and len(index) == ROWS and index.dim == DIM
    found = index.documents(["p7", "none", "p3", "nul\x00", "\ud800"])
    assert found == [
        Document("p7", "Title 7", "text of 7: 東京 'quoted'", metadata(7)),
        None,
        Document("p3", "Title 3", "text of 3: 東京 'quoted'", metadata(3)),
        None,
        None,
    ]
    np.testing.assert_array_equal(index.vectors(["p9", "p1"]), encoded.vectors[[9, 1]])
    with pytest.raises(UserError, match=r"'none' is not in the index \(1 such ids\)"):
        index.vectors(["p9", "none"])


HOSTILE = [
    "'; DROP TABLE served; --",
    '"); DELETE FROM served; --',
    "%s %(q)s {}",
    "\\'; SELECT 1",
    "$1",
    "nul\x00",
    "\ud800",
    "",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_ids_fields_and_values_are_data(index: PgvectorIndex, text: str) -> None:
    asked = questions(1)
    assert index.search(asked, 5, SearchOptions(allow=[text])) == [[]]
    assert len(index.search(asked, 5, SearchOptions(deny=[text]))[0]) == 5
    assert index.search(asked, 5, SearchOptions(where={"lang": text})) == [[]]
    with pytest.raises(UserError, match="where: no field"):
        index.search(asked, 5, SearchOptions(where={text: "en"}))
    assert index.documents([text]) == [None] and len(index) == ROWS


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"$ne": 1}, [[1]], b"x"])
def test_values_that_no_field_holds_are_refused(index: PgvectorIndex, value: Any) -> None:
    if isinstance(value, dict):
        value = [value]
    with pytest.raises(UserError, match="is no value"):
        index.search(questions(1), 5, SearchOptions(where={"lang": value if not isinstance(value, bytes) else [value]}))


def test_bad_questions_are_refused(index: PgvectorIndex) -> None:
    for vectors, k, problem in (
        (np.zeros((1, DIM + 1), np.float32), 5, f"{DIM + 1} columns"),
        (np.full((1, DIM), np.nan, np.float32), 5, "NaN"),
        (questions(1), 0, "k=0"),
    ):
        with pytest.raises(UserError, match=problem):
            index.search(vectors, k, EVERY)


def test_facts(index: PgvectorIndex) -> None:
    facts = index.facts()
    wanted = {
        "engine": "pgvector",
        "passages": ROWS,
        "dim": DIM,
        "model": "tiny",
        "writable": True,
        "durable": True,
        "sequence": 0,
    }
    assert {name: facts[name] for name in wanted} == wanted
    assert facts["fields"] == ["good", "lang", "rare", "year"] and facts["disk_bytes"] > ROWS * DIM * 4
    assert facts["certificate"]["lines"][0]["recalls"][0]["recall"] >= 0.95 and not facts["certificate"]["stale"]


def test_a_table_is_searched_with_the_filters_of_the_command(address: str, encoded: Encoded) -> None:
    asked = questions(3)
    with opened(address, len(asked), 10) as index:
        ids, values = index.listing(["lang", "rare"])
        assert list(ids) == list(encoded.ids)
        assert values == {name: [metadata(row).get(name) for row in range(ROWS)] for name in ("lang", "rare")}
        for where in ({"lang": "en"}, {"year": "1991", "good": ["true", "false"]}, {"lang": None}):
            options = RowFilter(where=where, deny=["p4"]).options(index)
            found = index.search(asked, 10, replace(options, exact=True))
            typed = {name: values if name != "year" else 1991 for name, values in where.items() if name != "good"}
            assert [[hit.id for hit in one] for one in found] == encoded.exact.search(
                asked, 10, where=typed, deny=["p4"]
            )[1]
        for wrong, message in ((RowFilter(where={"lang": "xx"}), "no passage"), (RowFilter(deny=["x"]), "no id 'x'")):
            with pytest.raises(UserError, match=message):
                wrong.options(index)
        assert index.name.startswith("postgresql://")


def test_another_model_is_refused(address: str, tiny_models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxretr.indexes import checks

    class Other:
        source = "runs/other"
        config = type("Config", (), {"embedding_size": DIM})

    monkeypatch.setattr(checks, "name_of", lambda encoder: encoder.source)
    monkeypatch.setattr(checks, "model_fingerprint", lambda encoder: "of another")
    encoder: Any = Other()
    with pytest.raises(UserError, match=r"was encoded with another model \(tiny\) than runs/other"):
        pgvector.open(address, Opening("served", encoder))
    monkeypatch.setattr(checks, "model_fingerprint", lambda encoder: "of no model")
    pgvector.open(address, Opening("served", encoder)).close()


# ---- writing ---------------------------------------------------------------------------------------------------------


def test_upsert_delete_and_reopen(encoded: Encoded, copy: str) -> None:
    index = pgvector.open(copy, Opening("copied"))
    new = clustered(3, DIM, seed=9)
    documents = [
        Document('東京 "id" \'; --', "new", "", {"topic": "x", "year": 2030}),
        Document("p5", "", "replaced", {}),
        Document("p6", "t", "u", {"lang": "en"}),
    ]
    written = index.upsert(documents, new)
    assert (written.sequence, written.added, written.replaced) == (1, 1, 2) and len(index) == ROWS + 1
    for options in (EVERY, EXACT):
        assert [one[0].id for one in index.search(new, 1, options)] == [each.id for each in documents]
    assert index.search(new[:1], 9, SearchOptions(where={"topic": "x"}))[0][0].id == documents[0].id
    assert index.documents(["p5"]) == [documents[1]]
    assert "topic" in index.facts()["fields"] and index.facts()["certificate"]["stale"]
    gone = index.delete(["p6", "nobody", "nul\x00", documents[0].id])
    assert (gone.sequence, gone.deleted) == (2, 2) and len(index) == ROWS - 1
    assert index.delete([]).deleted == 0
    index.close()
    again = pgvector.open(copy, Opening("copied"))
    assert len(again) == ROWS - 1 and again.documents(["p6", "p5"]) == [None, documents[1]]
    assert again.facts()["sequence"] == 3 and again.facts()["changed"] == 5
    # Rows of replaced passages keep their places among equal scores, and new ones come last.
    same = [Document("late", "", "x"), Document("p0", "", "x"), Document("p1", "", "x")]
    again.upsert(same, np.repeat(new[:1], 3, axis=0))
    assert [hit.id for hit in again.search(new[:1], 3, EXACT)[0]] == ["p0", "p1", "late"]
    again.close()
    assert "passages changed since the export" in exporting.verify(Address.parse(copy))


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (Document("a\x00b", "", "x"), "contains the character NUL"),
        (Document("a", "", "x\x00"), "the text of passage 'a' contains the character NUL"),
        (Document("a", "\ud800", "x"), "half of a surrogate pair"),
        (Document("a", "", "x", {"f": "\x00"}), "the field 'f' contains the character NUL"),
        (Document("a", "", "x", {"f\x00": 1}), "the name of a field contains the character NUL"),
        (Document("a" * 3000, "", "x"), "longer than 2000 bytes"),
        (Document("", "", "x"), "is empty"),
        (Document("a", "", "x", {"f": float("nan")}), "the field 'f' is a float or not finite"),
    ],
)
def test_a_document_that_cannot_be_held_changes_nothing(copy: str, document: Document, problem: str) -> None:
    index = pgvector.open(copy, Opening("copied"))
    with pytest.raises(UserError, match=problem) as caught:
        index.upsert([Document("fine", "", "x"), document], clustered(2, DIM))
    assert "\n" not in str(caught.value)
    assert len(index) == ROWS and index.documents(["fine"]) == [None] and index.facts()["sequence"] == 0
    index.close()


def test_bad_vectors_and_repeated_ids_are_refused(copy: str) -> None:
    index = pgvector.open(copy, Opening("copied"))
    one = [Document("a", "", "x")]
    for documents, vectors, problem in (
        (one * 2, clustered(2, DIM), "the id 'a' occurs twice"),
        (one, clustered(2, DIM), "2 for 1 documents"),
        (one, clustered(1, DIM + 1), "columns"),
        (one, np.full((1, DIM), np.inf, np.float32), "infinity"),
    ):
        with pytest.raises(UserError, match=problem):
            index.upsert(documents, vectors)
    assert index.facts()["sequence"] == 0
    index.close()


def test_writers_at_once_get_numbers_of_their_own(copy: str) -> None:
    index = pgvector.open(copy, Opening("copied"), connections=4)
    vectors, got = clustered(8, DIM, seed=3), []

    def write(worker: int) -> None:
        for turn in range(4):
            documents = [Document(f"w{worker}-{turn}", "", "x"), Document("shared", "", f"{worker}")]
            got.append(index.upsert(documents, vectors[:2]).sequence)

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(1, 17)) and len(index) == ROWS + 17
    index.close()


def test_a_full_disk_and_a_server_that_acknowledges_early(copy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    early = pgvector.open(copy.replace("&table", "&options=-c%20synchronous_commit%3Doff&table"), Opening("copied"))
    seen: list[Any] = []
    real = writing.delete

    def watched(connection: Any, *args: Any) -> Any:
        found = real(connection, *args)
        seen.append(connection.execute("SHOW synchronous_commit").fetchone())
        return found

    monkeypatch.setattr(writing, "delete", watched)
    early.delete(["p1"])
    assert seen == [("on",)]

    def full(*args: Any) -> Any:
        raise psycopg.errors.DiskFull("could not extend file")

    monkeypatch.setattr(writing, "upsert", full)
    with pytest.raises(StorageFull, match="the disk is full"):
        early.upsert([Document("a", "", "x")], clustered(1, DIM))
    assert len(early) == ROWS - 1
    early.close()


# ---- exports under a service, and servers that go away ---------------------------------------------------------------


def test_an_export_exchanges_the_table_under_its_readers(encoded: Encoded, copy: str, tmp_path: Path) -> None:
    index = pgvector.open(copy, Opening("copied"))
    half = write_corpus(tmp_path, None, encoded.vectors[:300], [f"n{row}" for row in range(300)])
    asked, failures, sizes, done = questions(2), [], set(), threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                found = index.search(asked, 1000, EXACT)
                # All of one table: never rows of both, nor none.
                sizes.add(len(found[0]))
                assert len({hit.id[0] for hit in found[0]}) == 1
            except Exception as error:
                failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    export_with(exporting, half, Address.parse(copy))
    index.search(asked, 1, EXACT)
    done.set()
    for reader in readers:
        reader.join()
    assert not failures and sizes == {ROWS, 300} and len(index) == 300
    assert index.upsert([Document("n0", "", "x")], clustered(1, DIM)).replaced == 1
    index.close()


def test_a_server_that_starts_again(address: str, postgres: Postgres) -> None:
    index = pgvector.open(address.replace("postgres:@", "postgres:geheim@"), Opening("served"))
    index.search(questions(1), 5, EVERY)
    postgres.stop()
    try:
        for ask in (lambda: index.search(questions(1), 5, EVERY), lambda: index.delete(["p1"]), lambda: len(index)):
            with pytest.raises(UnavailableError) as caught:
                ask()
            assert "\n" not in str(caught.value) and "geheim" not in str(caught.value)
        with pytest.raises(UnavailableError, match="cannot be reached"):
            pgvector.open(address, Opening("served"))
    finally:
        postgres.start()
    assert len(index.search(questions(1), 5, EVERY)[0]) == 5
    index.close()


def test_a_statement_that_takes_too_long(address: str) -> None:
    index = pgvector.open(address, Opening("served"), connections=1, timeout_s=0.2)
    with pytest.raises(UnavailableError, match=r"took longer than 0\.2 s"):
        index._database.run(lambda connection: connection.execute("SELECT pg_sleep(5)"))
    assert len(index) == ROWS
    held = threading.Event()

    def hold(connection: Any) -> None:
        held.set()
        connection.execute("SELECT pg_sleep(0.15)")
        threading.Event().wait(0.5)

    busy = threading.Thread(target=lambda: index._database.run(hold))
    busy.start()
    held.wait()
    with pytest.raises(UnavailableError, match="all connections were busy"):
        len(index)
    busy.join()
    index.close()


# ---- long vectors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "indexed"), [(2100, "halfvec"), (4100, "none")])
def test_long_vectors(postgres: Postgres, tmp_path: Path, dim: int, indexed: str) -> None:
    encoded = write_corpus(tmp_path, None, clustered(120, dim))
    address = f"{postgres.uri}&table=long"
    export_with(exporting, encoded, Address.parse(address))
    index = pgvector.open(address, Opening("long"))
    asked = clustered(10, dim, seed=4)
    _, ids = brute_force(asked, encoded.vectors, 5)
    assert index._known.facts.indexed == indexed
    for options in (EVERY, EXACT):
        found = index.search(asked, 5, options)
        names = [[hit.id for hit in one] for one in found]
        wanted = [[f"p{row}" for row in one] for one in ids.tolist()]
        shares = [len(set(one) & set(true)) / 5 for one, true in zip(names, wanted, strict=True)]
        assert np.mean(shares) >= 0.9 and (names == wanted or (options is EVERY and indexed == "halfvec"))
        # The vectors themselves are kept in float32: only the index rounds.
        for vector, one in zip(asked, found, strict=True):
            true_scores = encoded.vectors[[int(hit.id[1:]) for hit in one]].astype(np.float64) @ vector
            np.testing.assert_allclose([hit.score for hit in one], true_scores, atol=TOLERANCE)
    np.testing.assert_array_equal(index.vectors(["p3"]), encoded.vectors[[3]])
    index.close()


# ---- one state -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["read_state", "search", "_documents", "_vectors"])
@pytest.mark.parametrize("options", [SearchOptions(where={"lang": "en"}), EXACT], ids=["filtered", "exact"])
def test_a_write_between_any_two_statements_of_a_search(
    encoded: Encoded, copy: str, monkeypatch: pytest.MonkeyPatch, step: str, options: SearchOptions
) -> None:
    """All that was found is moved to another language and replaced, or deleted, by another program before a statement."""
    index, other = pgvector.open(copy, Opening("copied")), pgvector.open(copy, Opening("copied"))
    asked = questions(2)
    before = index.find(asked, 4, options, with_documents=True, with_vectors=True)
    place: Any = {"read_state": pgvector.tables, "search": pgvector}.get(step, PgvectorIndex)
    real, ids = getattr(place, step), list(before.documents)
    written: list[int] = []

    def after_a_write(*args: Any) -> Any:
        if not written:
            written.append(0)  # The other program's own statements come here, too.
            documents = [Document(id, "", "of others", {"lang": "xx"}) for id in ids[1:]]
            other.upsert(documents, np.repeat(asked[:1], len(documents), axis=0))
            written.append(other.delete(ids[:1]).sequence)
        return real(*args)

    monkeypatch.setattr(place, step, after_a_write)
    found = index.find(asked, 4, options, with_documents=True, with_vectors=True)
    after = index.find(asked, 4, options, with_documents=True, with_vectors=True)
    assert before.standing.sequence == 0 and after.standing.sequence == written[1] == 2
    right = after if step == "read_state" else before
    assert (found.standing, found.exact, found.hits) == (right.standing, right.exact, right.hits)
    assert found.documents == right.documents and set(found.vectors) == set(right.documents)
    assert all(np.array_equal(found.vectors[id], right.vectors[id]) for id in right.vectors)
    assert "of others" not in str(before.documents) and ids[0] not in after.documents
    other.close()
    index.close()
