"""Exports to PostgreSQL and LanceDB: what the database holds, what verify finds, and what a failure leaves behind."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_errors import the_error
from engine_corpora import Encoded, Postgres, clustered, write_corpus
from export_checks import assert_each_byte_counts
from test_export import make

from jaxretr import cli
from jaxretr.data.tokens import load_tokenizer
from jaxretr.exports.exporting import export, verify
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError, UserError

psycopg = pytest.importorskip("psycopg", reason="it reads the tables")

ROWS, DIM = 600, 16


@pytest.fixture(scope="module")
def encoder(tiny_models: Path) -> DualEncoder:
    return make(load_tokenizer(tiny_models / "encoder_tokenizer"))


@pytest.fixture(scope="module")
def encoded(encoder: DualEncoder, tmp_path_factory: pytest.TempPathFactory) -> Encoded:
    ids = ['an id with spaces, "quotes" and 東京; DROP TABLE passages;--', *(f"p{row}" for row in range(1, ROWS))]
    return write_corpus(tmp_path_factory.mktemp("engines"), encoder, clustered(ROWS, DIM), ids)


@pytest.fixture(scope="module")
def table(encoded: Encoded, postgres: Postgres) -> str:
    """The address of a table with the corpus."""
    address = f"{postgres.uri}&table=exported"
    assert cli.main(words(encoded, "pgvector", address)) == 0
    return address


def words(encoded: Encoded, to: str, out: object, *more: object) -> list[str]:
    command = ["export", encoded.folder / "model", "--to", to, "--index", encoded.folder / "store", "--out", out]
    return [str(word) for word in (*command, "--corpus", encoded.folder / "corpus.jsonl", *more)]


def sql(address: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(address.replace("&table=exported", ""), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


# ---- PostgreSQL ------------------------------------------------------------------------------------------------------


def test_the_table_holds_the_corpus(encoded: Encoded, table: str) -> None:
    rows = sql(table, "SELECT row, id, title, text, metadata, embedding::text FROM exported ORDER BY row")
    assert [row[0] for row in rows] == list(range(ROWS)) and [row[1] for row in rows] == encoded.ids
    assert rows[5][2:4] == ("Title 5", "text of 5: 東京 'quoted'")
    assert [row[4] for row in rows] == encoded.fields
    np.testing.assert_array_equal(np.array([json.loads(row[5]) for row in rows], np.float32), encoded.vectors)
    kinds = {
        name.split("_")[0]: text
        for name, text in sql(table, "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'exported'")
    }
    assert "vector_ip_ops" in kinds["hnsw"] and "gin (metadata jsonb_path_ops)" in kinds["metadata"]


def test_the_certificate_is_kept_and_verified(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    ((facts,),) = sql(table, "SELECT facts FROM exported_facts")
    line = facts["certificate"]["lines"][0]
    assert line["target"] == 0.95 and line["recalls"][0]["recall"] >= 0.95 and line["reached"]
    assert facts["rows"] == ROWS and facts["model"] == "tiny" and facts["dim"] == DIM
    assert cli.main(["verify", f"pgvector:{table}"]) == 0
    said = capsys.readouterr().out
    assert f"{ROWS} rows in PostgreSQL, of tiny" in said and "4 golden questions find their passages" in said


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE exported SET text = text || '.' WHERE row = 77", "ids, titles or texts were changed"),
        ("UPDATE exported SET embedding = (embedding * embedding) WHERE row = 77", "vectors were changed"),
        ("DELETE FROM exported WHERE row = 77", "it holds 599 rows, not 600"),
        (
            "UPDATE exported_facts SET golden = jsonb_set(golden, '{scores,0,0}', '7')",
            "1 of 4 golden questions find other passages",
        ),
    ],
)
def test_a_change_is_found(encoded: Encoded, table: str, statement: str, problem: str) -> None:
    with psycopg.connect(table.replace("&table=exported", "")) as connection:
        for name in ("exported", "exported_facts"):
            connection.execute(f"CREATE TABLE changed{name[8:]} AS TABLE {name}")
        connection.execute(statement.replace("exported", "changed"))
    try:
        with pytest.raises(UserError, match=problem):
            verify(f"pgvector:{table.replace('exported', 'changed')}")
    finally:
        sql(table, "DROP TABLE changed, changed_facts")


def test_a_second_export_takes_the_place(encoded: Encoded, table: str) -> None:
    before = sql(table, "SELECT generation FROM exported_facts")
    exported = export(
        *(encoded.folder / "model",),
        to="pgvector",
        out=table,
        index=encoded.folder / "store",
        corpus=encoded.folder / "corpus.jsonl",
        target_recall=(0.9, 0.99),
        hnsw_m=8,
        ef_construction=32,
        k=5,
    )
    assert sql(table, "SELECT generation FROM exported_facts") != before
    assert exported.certificate is not None and [line.target for line in exported.certificate.lines] == [0.9, 0.99]
    assert "m 8, ef_construction 32" in str(exported) and exported.certificate.lines[0].tuned_k == 5
    assert sql(table, "SELECT count(*) FROM pg_class WHERE relname ~ '^exported_[0-9a-f]{8}$'") == [(0,)]


@pytest.mark.parametrize("step", ["copy_in", "build_indexes", "exchange"])
def test_an_export_that_dies_leaves_the_old_table(
    encoded: Encoded, table: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks off after a step, as it does when the process is killed."""
    from jaxretr.indexes.pgvector import writing

    before = sql(table, "SELECT generation, sequence FROM exported_facts")
    real = getattr(writing, step)

    def dying(connection: Any, *args: Any, **settings: Any) -> Any:
        real(connection, *args, **settings)
        connection.pgconn.finish()
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, step, dying)
    with pytest.raises((KeyboardInterrupt, UserError)):
        export(
            encoded.folder / "model",
            to="pgvector",
            out=table,
            index=encoded.folder / "store",
            corpus=encoded.folder / "corpus.jsonl",
        )
    monkeypatch.undo()
    assert sql(table, "SELECT generation, sequence FROM exported_facts") == before
    assert sql(table, "SELECT count(*) FROM exported") == [(ROWS,)]
    waiting = "SELECT count(*) FROM pg_tables WHERE tablename ~ '^exported_[0-9a-f]{8}'"
    assert sql(table, waiting) == [(0,)]


def test_somebody_elses_table_is_left_alone(encoded: Encoded, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql(table, "CREATE TABLE theirs (id int)")
    assert cli.main(words(encoded, "pgvector", table.replace("exported", "theirs"))) == 1
    assert "there is a table of this name that no export made; give another --table" in the_error(capsys)
    assert sql(table, "SELECT count(*) FROM theirs") == [(0,)]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("postgresql://me:geheim@127.0.0.1:1/db", "postgresql://me@127.0.0.1:1/db table passages: cannot be reached"),
        ("postgresql://me:gehe im@127.0.0.1:1/db", "the address of the PostgreSQL database cannot be read"),
        (
            "host=127.0.0.1 port=1 password=geheim user=me",
            "postgresql://me@127.0.0.1:1/ table passages: cannot be reached",
        ),
        ("host=127.0.0.1 port=1 password=geheim nonsense=1", "the address of the PostgreSQL database cannot be read"),
        ("postgresql://127.0.0.1:1/db?password=geheim&table=a%22b", "is not a valid table name here"),
        ("geheim", "this is not the address of a PostgreSQL database"),
    ],
)
def test_a_bad_address_does_not_show_the_password(
    encoded: Encoded, address: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words(encoded, "pgvector", address)) == 1
    error = the_error(capsys)
    assert said in error and "geheim" not in error and "gehe im" not in error


def test_a_text_with_nul_is_refused(
    encoder: DualEncoder, postgres: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoded = write_corpus(tmp_path, encoder, clustered(5, DIM), ["a", "b", "c", "d", "e\x00f"])
    assert cli.main(words(encoded, "pgvector", f"{postgres.uri}&table=nul")) == 1
    assert "contains the character NUL, which PostgreSQL cannot store" in the_error(capsys)
    with psycopg.connect(postgres.uri) as connection:
        assert connection.execute("SELECT to_regclass('nul')").fetchone() == (None,)


def test_another_corpus_is_refused(encoded: Encoded, postgres: Postgres, tmp_path: Path) -> None:
    changed = (encoded.folder / "corpus.jsonl").read_text().replace("text of 7:", "text of seven:")
    (tmp_path / "corpus.jsonl").write_text(changed)
    settings: dict[str, Any] = {"index": encoded.folder / "store", "corpus": tmp_path / "corpus.jsonl"}
    for to, out in (("pgvector", postgres.uri), ("lance", tmp_path / "out")):
        with pytest.raises(UserError, match="has other passages or texts than"):
            export(encoded.folder / "model", to=to, out=out, **settings)
    assert not (tmp_path / "out").exists()


def test_options_of_databases() -> None:
    for settings, problem in (
        ({"to": "pgvector", "index": "store"}, "give the encoded passages as corpus="),
        ({"to": "lance", "index": "store", "corpus": "c", "table": "t"}, "table= is for to=pgvector"),
        ({"to": "faiss", "index": "store", "hnsw_m": 4}, "hnsw_m= is for to=pgvector or lance"),
    ):
        with pytest.raises(UsageError, match=problem):
            export("nowhere", out="out", **settings)


# ---- LanceDB ---------------------------------------------------------------------------------------------------------


def test_lance(encoded: Encoded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lancedb = pytest.importorskip("lancedb", reason="it reads the table")
    out = tmp_path / "out"
    assert cli.main(words(encoded, "lance", out)) == 0
    said = capsys.readouterr().out
    assert "LanceDB's IVF_HNSW_SQ, m 20, ef_construction 150" in said and f"{ROWS} rows in LanceDB, of tiny" in said
    table = lancedb.connect(out).open_table("passages").to_arrow().sort_by("row")
    assert table["id"].to_pylist() == encoded.ids and table["title"][5].as_py() == "Title 5"
    assert [json.loads(each) for each in table["metadata"].to_pylist()] == encoded.fields
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), np.float32), encoded.vectors)
    certificate = json.loads((out / "certificate.json").read_text())
    assert all(line["recalls"][0]["recall"] >= 0.95 and line["reached"] for line in certificate["lines"])
    moved = out.rename(tmp_path / "moved")
    assert_each_byte_counts(moved)


def test_a_small_corpus_has_no_certificate(
    encoder: DualEncoder, postgres: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoded = write_corpus(tmp_path, encoder, clustered(3, DIM))
    for to, out in (("pgvector", f"{postgres.uri}&table=small"), ("lance", tmp_path / "out")):
        assert cli.main(words(encoded, to, out)) == 0
        assert "3 rows in " in capsys.readouterr().out
