"""Indexes for other libraries: Vertex's files, Pyserini's lines, FAISS; what changed since; and bad input."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from export_checks import assert_each_byte_counts
from given_vectors import store_vectors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_export import make
from tiny import DATA

from jaxretr import cli
from jaxretr.data.readers import read_corpus
from jaxretr.data.tokens import load_tokenizer
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.exports.exporting import verify
from jaxretr.indexes import golden_hits
from jaxretr.indexes.interchange import vertex
from jaxretr.indexes.interchange.vertex_schema import Checker, row_problem
from jaxretr.indexes.passage_fields import VertexFields
from jaxretr.indexes.source import IndexSource, rebatched
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.storage import manifest

# As Google documents a line of a data file; written down here once more, so that our own check is checked.
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["id", "embedding"],
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "embedding": {"type": "array", "items": {"type": "number"}, "minItems": 16, "maxItems": 16},
        "crowding_tag": {"type": "string"},
        "restricts": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["namespace"],
                "properties": {
                    "namespace": {"type": "string"},
                    "allow": {"type": "array", "items": {"type": "string"}},
                    "deny": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
        "numeric_restricts": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["namespace"],
                "minProperties": 2,
                "maxProperties": 2,
                "properties": {
                    "namespace": {"type": "string"},
                    "value_int": {"type": "integer"},
                    "value_double": {"type": "number"},
                },
            },
        },
    },
}


@pytest.fixture(scope="module")
def encoder(tiny_models: Path) -> DualEncoder:
    return make(load_tokenizer(tiny_models / "encoder_tokenizer"))


@pytest.fixture(scope="module")
def encoded(encoder: DualEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a corpus with fields, and its store of three shards."""
    folder = tmp_path_factory.mktemp("encoded")
    encoder.save(folder / "model")
    rows = [json.loads(line) for line in (DATA / "corpus.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row |= {
            "lang": "en" if number % 2 else "de",
            "metadata": {"year": 1990 + number, "tags": ["a", "b"][: number % 3]},
        }
        if number == 3:
            row["lang"] = None
    rows[0]["_id"] = 'an id with spaces, "quotes" and 東京'
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["encode", folder / "model", "--corpus", folder / "corpus.jsonl", "--out", folder / "store"]
    assert cli.main([*map(str, words), "--shard-rows", "8"]) == 0
    return folder


def write_store(folder: Path, encoder: DualEncoder, ids: Sequence[str], vectors: np.ndarray, rows: int = 5) -> None:
    """A store of given vectors, as if the model had made them."""
    fingerprints = {"model_fingerprint": model_fingerprint(encoder), "texts_fingerprint": "of no text"}
    store_vectors(folder, vectors, ids, model="tiny", **fingerprints, shard_rows=rows)


def source_of(folder: Path) -> IndexSource:
    return IndexSource.open(EmbeddingStore.open(folder))


def store_of(folder: Path) -> tuple[list[str], np.ndarray]:
    store = EmbeddingStore.open(folder)
    return store.read_ids(), np.concatenate([np.asarray(block, np.float32) for block in store.blocks()])


def vertex_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of the files, read as Vertex would: in no order of the files."""
    files = sorted((folder / "data").glob("*.json"), reverse=True)
    return [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def deleted_ids(folder: Path) -> list[str]:
    return [name for path in (folder / "data").glob("delete/*") for name in path.read_text().split("\n")[:-1]]


def words(encoded: Path, to: str, out: Path, *more: object) -> list[str]:
    return [
        str(word)
        for word in ("export", encoded / "model", "--to", to, "--index", encoded / "store", "--out", out, *more)
    ]


# ---- Vertex ----------------------------------------------------------------------------------------------------------


def test_vertex_files(
    encoded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="it checks the files")
    monkeypatch.setattr(vertex, "FILE_BYTES", 2000)
    out, corpus = tmp_path / "out", encoded / "corpus.jsonl"
    more = ["--corpus", corpus, "--restricts", "lang", "year", "tags", "--crowding", "lang"]
    assert cli.main(words(encoded, "vertex", out, *more)) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{out}: 20 rows and 0 ids to delete as Vertex takes them, in ")
    assert "20 passages for Vertex: about " in captured.err and " of disk (" in captured.err
    files = sorted((out / "data").iterdir())
    assert len(files) > 3 and all(path.suffix == ".json" and path.stat().st_size <= 2000 for path in files)
    found = {row["id"]: row for row in vertex_rows(out)}
    ids, vectors = store_of(encoded / "store")
    assert sorted(found) == sorted(ids)
    for name, vector in zip(ids, vectors, strict=True):
        jsonschema.validate(found[name], SCHEMA)
        np.testing.assert_array_equal(np.array(found[name]["embedding"], np.float32), vector)
    rows = [found[name] for name in ids]
    assert rows[2]["restricts"] == [{"namespace": "lang", "allow": ["de"]}, {"namespace": "tags", "allow": ["a", "b"]}]
    assert rows[2]["numeric_restricts"] == [{"namespace": "year", "value_int": 1992}]
    assert rows[2]["crowding_tag"] == "de"
    # Neither a field that is null nor an empty list says anything.
    assert "restricts" not in rows[3] and "crowding_tag" not in rows[3]
    readme = (out / "README.md").read_text()
    assert "gcloud storage cp --recursive out/data " in readme and "restricts: lang, year, tags" in readme
    assert cli.main(["verify", str(out)]) == 0
    shutil.move(out, tmp_path / "moved")
    assert_each_byte_counts(tmp_path / "moved")


def apply(index: dict[str, dict[str, Any]], export: Path) -> dict[str, dict[str, Any]]:
    """What an index holds after an update with the folder."""
    rows, gone = {row["id"]: row for row in vertex_rows(export)}, deleted_ids(export)
    assert not rows.keys() & set(gone) and set(gone) <= index.keys()
    kept = {name: row for name, row in index.items() if name not in gone}
    return {**kept, **rows}


@settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    st.lists(
        st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1),
        min_size=2,
        max_size=3,
    )
)
def test_deltas_one_after_the_other_give_the_whole(
    encoder: DualEncoder, tmp_path_factory: pytest.TempPathFactory, states: list[dict[int, tuple[int, int]]]
) -> None:
    """Rows come, go, come back, get other vectors or other fields alone, and stand in other orders."""
    folder = tmp_path_factory.mktemp("deltas")
    pool = np.random.default_rng(5).normal(size=(3, 10, 16)).astype(np.float32)
    index: dict[str, dict[str, Any]] = {}
    for number, state in enumerate(states):
        ids = [f"p{key}" for key in state]
        vectors = np.array([pool[version, key] for key, (version, _) in state.items()])
        write_store(folder / f"store{number}", encoder, ids, vectors)
        lines = [
            {"_id": name, "text": "", "class": f"c{field}"}
            for name, (_, field) in zip(ids, state.values(), strict=True)
        ]
        corpus = folder / f"corpus{number}.jsonl"
        corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))

        def export(out: str, since: Path | None) -> Path:
            fields = VertexFields(["class"], None)
            source = source_of(folder / f"store{number}")  # noqa: B023
            vertex.export(source, encoder, folder / out, corpus=corpus, fields=fields, since=since)  # noqa: B023
            return folder / out

        whole = {row["id"]: row for row in vertex_rows(export(f"whole{number}", None))}
        delta = export(f"delta{number}", folder / f"delta{number - 1}" if number else None)
        before, index = index, apply(index, delta)
        assert index == whole, "a delta must lead to what a whole export holds"
        assert all(before.get(row["id"]) != row for row in vertex_rows(delta)), "an unchanged row was written"


def test_a_delta_of_nothing_and_of_deletions_alone(encoder: DualEncoder, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(7, 16)).astype(np.float32)
    ids = [f"p{number}" for number in range(7)]
    for name, kept in (("first", 7), ("same", 7), ("fewer", 5)):
        write_store(tmp_path / f"{name}_store", encoder, ids[:kept], vectors[:kept])
    vertex.export(source_of(tmp_path / "first_store"), encoder, tmp_path / "first")
    vertex.export(source_of(tmp_path / "same_store"), encoder, tmp_path / "same", since=tmp_path / "first")
    assert vertex_rows(tmp_path / "same") == [] and deleted_ids(tmp_path / "same") == []
    said = vertex.export(source_of(tmp_path / "fewer_store"), encoder, tmp_path / "fewer", since=tmp_path / "same")
    assert said.startswith("0 rows and 2 ids to delete")
    assert deleted_ids(tmp_path / "fewer") == ["p5", "p6"] and vertex_rows(tmp_path / "fewer") == []
    assert "isCompleteOverwrite` false" in (tmp_path / "fewer/README.md").read_text()
    assert_each_byte_counts(tmp_path / "fewer")


def test_an_earlier_export_that_cannot_be_trusted(encoder: DualEncoder, encoded: Path, tmp_path: Path) -> None:
    write_store(tmp_path / "store", encoder, ["a"], np.ones((1, 16), np.float32))
    source = source_of(tmp_path / "store")
    with pytest.raises(UserError, match=r"has no manifest.json; give the folder of an earlier export as since="):
        vertex.export(source, encoder, tmp_path / "out", since=encoded)
    vertex.export(source, encoder, tmp_path / "first")
    digests = np.load(tmp_path / "first/rows/digests.npy")
    np.save(tmp_path / "first/rows/digests.npy", digests + np.uint64(1))
    with pytest.raises(UserError, match=r"rows/digests.npy was changed; leave since= out"):
        vertex.export(source, encoder, tmp_path / "out", since=tmp_path / "first")
    write_store(tmp_path / "wide", encoder, ["a"], np.ones((1, 24), np.float32))
    np.save(tmp_path / "first/rows/digests.npy", digests)
    with pytest.raises(UserError, match=r"holds vectors of 16 dimensions, the store 24"):
        vertex.export(source_of(tmp_path / "wide"), encoder, tmp_path / "out", since=tmp_path / "first")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("value", "tokens"),
    [("", None), (None, None), ([], None), ([""], None), (["a", "", "a"], ["a"]), (" ", [" "]), (False, ["false"])],
)
def test_an_empty_text_restricts_nothing(value: Any, tokens: list[str] | None) -> None:
    found = VertexFields(["tag"], None).of("c.jsonl:1", {"metadata": {"tag": value}})
    assert found == ({} if tokens is None else {"restricts": [{"namespace": "tag", "allow": tokens}]})
    assert VertexFields([], "tag").of("c.jsonl:1", {"tag": ""}) == {}


def test_what_vertex_would_refuse_is_found(tmp_path: Path) -> None:
    good = {"id": "a", "embedding": [1, 2.5]}
    number = {"namespace": "year", "value_int": 3}
    bad: list[tuple[str, dict[str, Any]]] = [
        ("an unknown key 'vector'", {"id": "a", "vector": [1, 2]}),
        ("its id is not text", {**good, "id": 3}),
        ("its id is not text", {**good, "id": ""}),
        ("not a list of 2 numbers", {**good, "embedding": [1]}),
        ("not a float32", {**good, "embedding": [1, "2"]}),
        ("not a float32", {**good, "embedding": [1, True]}),
        ("not a float32", {**good, "embedding": [1, float("nan")]}),
        ("not a float32", {**good, "embedding": [1, 1e39]}),
        ("its crowding_tag is not text", {**good, "crowding_tag": 3}),
        ("its restricts are not a list", {**good, "restricts": {}}),
        ("one of its restricts has no namespace", {**good, "restricts": [{"allow": ["x"]}]}),
        ("must have allow or deny", {**good, "restricts": [{"namespace": "c"}]}),
        ("not text", {**good, "restricts": [{"namespace": "c", "allow": [1]}]}),
        ("name a namespace twice", {**good, "restricts": [{"namespace": "c", "allow": ["x"]}] * 2}),
        ("value_int or value_double", {**good, "numeric_restricts": [{**number, "op": "LESS"}]}),
        ("'year' is no int", {**good, "numeric_restricts": [{"namespace": "year", "value_int": 3.5}]}),
        ("'year' is no int", {**good, "numeric_restricts": [{"namespace": "year", "value_int": 1 << 63}]}),
        (
            "a value_double here and a value_int in earlier rows",
            {**good, "numeric_restricts": [{"namespace": "month", "value_double": 3.5}]},
        ),
    ]
    for problem, row in bad:
        assert problem in row_problem(row, 2, {"month": "value_int"}), row
    assert row_problem({**good, "numeric_restricts": [number]}, 2, {}) == ""
    data = tmp_path / "data"
    (data / "delete").mkdir(parents=True)
    (data / "more").mkdir()
    (data / "one.json").write_text('{"id": "a", "embedding": [1, 2]}\n\n[]\n{"id": "b", "id": "c"}\n')
    (data / "two.json").write_text('{"id": "a", "embedding": [1, 2]}\n')
    (data / "three.jsonl").write_text("")
    (data / "delete/ids.txt").write_text("a\n\nz\nz\n")
    checker = Checker(data, 2)
    assert [name for name, _, _ in checker.rows()] == ["a"]
    assert [problem.split(" (")[0] for problem in checker.problems] == [
        "data/more: does not belong there: only .json files and delete/ do",
        "data/three.jsonl: does not belong there: only .json files and delete/ do",
        "data/one.json:2: no JSON",
        "data/one.json:3: no JSON object",
        "data/one.json:4: no JSON",
        "data/two.json:1: the id 'a' occurs here a second time",
        "data/delete/ids.txt:1: the id 'a' is among the rows as well",
        "data/delete/ids.txt:2: an empty line where an id is expected",
        "data/delete/ids.txt:4: the id 'z' occurs here a second time",
    ]


def test_rows_that_are_not_the_stores_are_found(encoder: DualEncoder, tmp_path: Path) -> None:
    """Whoever changes a file and its hash as well is found out by the rows' digests and by the golden questions."""
    write_store(tmp_path / "store", encoder, ["a", "b"], np.eye(2, 16, dtype=np.float32))
    vertex.export(source_of(tmp_path / "store"), encoder, tmp_path / "out")
    path = tmp_path / "out/data/part-00000.json"
    path.write_text(path.read_text().replace('"embedding": [1,', '"embedding": [2,', 1))
    stated = manifest.read(tmp_path / "out")
    manifest.write(tmp_path / "out", stated.kind, stated.facts)
    with pytest.raises(UserError, match=r"golden questions find other .*; 1 rows are not those of rows/digests.npy"):
        verify(tmp_path / "out")


# ---- Pyserini --------------------------------------------------------------------------------------------------------


def test_pyserini_lines(encoded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(words(encoded, "pyserini", out, "--corpus", encoded / "corpus.jsonl")) == 0
    assert capsys.readouterr().out.startswith(f"{out}: 20 rows for Pyserini; ")
    # Pyserini takes every file of the folder for lines of vectors.
    assert [path.name for path in (out / "embeddings").iterdir()] == ["embeddings.jsonl"]
    rows = [json.loads(line) for line in (out / "embeddings/embeddings.jsonl").read_text().split("\n")[:-1]]
    ids, vectors = store_of(encoded / "store")
    assert [row["id"] for row in rows] == ids
    np.testing.assert_array_equal(np.array([row["vector"] for row in rows], np.float32), vectors)
    passages = list(read_corpus(encoded / "corpus.jsonl"))
    assert [row["contents"] for row in rows] == [f"{one.title}\n{one.text}" for one in passages]
    assert_each_byte_counts(out)
    assert cli.main(words(encoded, "pyserini", tmp_path / "bare")) == 0
    assert json.loads((tmp_path / "bare/embeddings/embeddings.jsonl").read_text().split("\n")[0])["contents"] == ""


# ---- FAISS -----------------------------------------------------------------------------------------------------------


def faiss_ids(folder: Path) -> list[str]:
    return (folder / "docid").read_text(encoding="utf-8").split("\n")[:-1]


@pytest.mark.parametrize("kind", ["flat", "hnsw", "int8", "binary", "IVF2,Flat"])
def test_faiss_reads_its_index_back(
    encoder: DualEncoder, encoded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    faiss = pytest.importorskip("faiss", reason="it reads the export")
    out = tmp_path / "out"
    more = ["--faiss-kind", kind, "--queries", DATA / "queries.jsonl", "-k", 5]
    assert cli.main(words(encoded, "faiss", out, *more)) == 0
    assert f"20 rows in a FAISS index ({kind}), recall@5 " in capsys.readouterr().out
    ids, vectors = store_of(encoded / "store")
    assert faiss_ids(out) == ids
    facts = manifest.read(out).facts
    questions = encoder.encode_queries([json.loads(line)["text"] for line in (DATA / "queries.jsonl").open()])
    best = np.argsort(-(questions @ vectors.T), axis=1, kind="stable")[:, :5]
    if kind == "binary":
        _, found = faiss.read_index_binary(str(out / "index")).search(np.packbits(questions > 0, axis=1), 5)
    else:
        index = faiss.read_index(str(out / "index"))
        assert index.metric_type == faiss.METRIC_INNER_PRODUCT
        _, found = index.search(questions, 5)
    recall = np.mean([len(set(one) & set(other)) / 5 for one, other in zip(found, best, strict=True)])
    assert facts["recall"] == pytest.approx(recall, abs=1e-6)
    assert facts["asked"] == f"{len(questions)} questions"
    # Signs alone say little of the vectors of a random model.
    assert facts["recall"] >= {"flat": 1, "hnsw": 1, "int8": 0.8, "binary": 0, "IVF2,Flat": 0.2}[kind]
    assert f"{facts['recall']:.3f}" in (out / "README.md").read_text()
    assert_each_byte_counts(out)


@pytest.mark.parametrize("kind", ["PCA8,IVF48,Flat", "OPQ2,IVF48,PQ2x4", "IVF48,PQ2x4,RFlat"])
def test_faiss_searches_as_many_clusters_behind_a_transformation(
    encoder: DualEncoder, tmp_path: Path, kind: str
) -> None:
    """Searched in one cluster, PCA64,IVF64,Flat found .52 of the neighbours where IVF64,Flat finds .88."""
    faiss = pytest.importorskip("faiss", reason="it reads the export")
    from jaxretr.indexes.interchange import faiss_index

    vectors = np.random.default_rng(0).normal(size=(2000, 16)).astype(np.float32)
    write_store(tmp_path / "store", encoder, [str(row) for row in range(len(vectors))], vectors)
    source = source_of(tmp_path / "store")
    faiss_index.export(source, encoder, tmp_path / "plain", "IVF48,Flat")
    faiss_index.export(source, encoder, tmp_path / "out", kind)
    plain, facts = (manifest.read(tmp_path / name).facts for name in ("plain", "out"))
    index = faiss.extract_index_ivf(faiss.read_index(str(tmp_path / "out" / "index")))
    assert index.nprobe == facts["nprobe"] == plain["nprobe"] == 3


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("HNSW0", r"FAISS crashes on an index 'HNSW0' of 16 dimensions \(SIG\w+\); check its numbers"),
        ("PQ4x0", r"FAISS crashes on an index 'PQ4x0' of 16 dimensions \(SIG\w+\); check its numbers"),
        ("IVF0,Flat", r"FAISS cannot search 'IVF0,Flat' \(.*\); use another kind"),
        ("IDMap,Flat", r"FAISS cannot add passages to 'IDMap,Flat' \(.*\); use another kind"),
        ("PQ0", r"FAISS cannot make an index 'PQ0' of 16 dimensions \(.*\); give flat"),
    ],
)
def test_a_factory_string_that_faiss_cannot_bear_is_an_error_and_no_crash(
    encoder: DualEncoder, tmp_path: Path, kind: str, message: str
) -> None:
    pytest.importorskip("faiss", reason="it crashes")
    from jaxretr.indexes.interchange import faiss_index

    vectors = np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32)
    write_store(tmp_path / "store", encoder, [str(row) for row in range(len(vectors))], vectors)
    with pytest.raises(UserError, match=message):
        faiss_index.export(source_of(tmp_path / "store"), encoder, tmp_path / "out", kind)
    assert not (tmp_path / "out").exists()


def test_faiss_ivfpq(encoder: DualEncoder, tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="it writes the export")
    from jaxretr.indexes.interchange import faiss_index

    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(50, 1, 16)) + 0.2 * rng.normal(size=(50, 200, 16))).reshape(-1, 16).astype(np.float32)
    write_store(tmp_path / "store", encoder, [str(row) for row in range(len(vectors))], vectors, rows=3000)
    said = faiss_index.export(source_of(tmp_path / "store"), encoder, tmp_path / "out", "ivfpq")
    facts = manifest.read(tmp_path / "out").facts
    # Two bytes a passage lose much; a search that ignored the clusters or the codes would find next to nothing.
    assert facts["recall"] > 0.2 and facts["nprobe"] > 1 and "passages of the index, which find themselves" in said
    write_store(tmp_path / "few", encoder, ["a"], vectors[:1])
    with pytest.raises(UserError, match="1 passages are too few to train ivfpq on, which needs 9984; use flat"):
        faiss_index.export(source_of(tmp_path / "few"), encoder, tmp_path / "no", "ivfpq")
    with pytest.raises(UserError, match="FAISS cannot make an index 'hsnw' of 16 dimensions"):
        faiss_index.export(source_of(tmp_path / "few"), encoder, tmp_path / "no", "hsnw")
    write_store(tmp_path / "odd", encoder, ["a"], np.ones((1, 12), np.float32))
    with pytest.raises(UserError, match="packs 8 signs into a byte, but the vectors have 12 dimensions; use int8"):
        faiss_index.export(source_of(tmp_path / "odd"), encoder, tmp_path / "no", "binary")


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["scann", "vertex", "pyserini", "faiss", "onnx", "stablehlo"])
@pytest.mark.parametrize("facts", [{}, {"dim": "x"}, {"towers": 5, "texts": [], "how": None}, {"rows": 10**400}])
def test_a_manifest_that_was_written_over_is_one_line(tmp_path: Path, kind: str, facts: dict) -> None:
    manifest.write(tmp_path, kind, facts)
    with pytest.raises(UserError) as caught:
        verify(tmp_path)
    assert str(caught.value).startswith(str(tmp_path)) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["onnx", "stablehlo"])
def test_a_tower_outside_of_the_export_is_not_read(tmp_path: Path, kind: str) -> None:
    facts = {"towers": [{"folder": "../outside", "side": "question", "weight": 1.0}], "texts": {"question": ["a"]}}
    manifest.write(tmp_path, kind, facts)
    with pytest.raises(UserError, match=r"'\.\./outside' is not a tower's folder"):
        verify(tmp_path)


def test_ids_that_a_file_of_lines_cannot_hold(encoder: DualEncoder, tmp_path: Path) -> None:
    from jaxretr.indexes.interchange import faiss_index, pyserini

    for number, name in enumerate(("two\nlines", " leading", "trailing\t", "", "a\rb")):
        write_store(tmp_path / str(number), encoder, ["good", name], np.eye(2, 16, dtype=np.float32))
        source = source_of(tmp_path / str(number))
        message = f"the id {name!r} of row 1 is empty, has a line break, or white space at an end"
        for export in (
            lambda: vertex.export(source, encoder, tmp_path / "out"),  # noqa: B023
            lambda: pyserini.export(source, encoder, tmp_path / "out"),  # noqa: B023
            lambda: faiss_index.export(source, encoder, tmp_path / "out", "flat"),  # noqa: B023
        ):
            with pytest.raises(UserError) as caught:
                export()
            assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_bad_stores(encoder: DualEncoder, encoded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_store(tmp_path / "twice", encoder, ["a", "b", "a"], np.ones((3, 16), np.float32))
    with pytest.raises(UserError, match=r"'a' is at rows 0 and 2; ids must differ"):
        source_of(tmp_path / "twice")
    write_store(tmp_path / "nan", encoder, [str(row) for row in range(7)], np.ones((7, 16), np.float32))
    shard = next((tmp_path / "nan").glob("*-00001-of-*"))
    values = np.load(shard)
    values[1, 3] = np.nan
    np.save(shard, values)
    with pytest.raises(UserError, match="row 6 contains NaN"):
        vertex.export(source_of(tmp_path / "nan"), encoder, tmp_path / "out")
    make(encoder.tokenizer, seed=2).save(tmp_path / "other")
    given = words(encoded, "vertex", tmp_path / "out")
    given[1] = str(tmp_path / "other")
    assert cli.main(given) == 1
    assert "was encoded with another model" in capsys.readouterr().err
    questions = ["encode", encoded / "model", "--corpus", DATA / "queries.jsonl", "--side", "question"]
    assert cli.main([*map(str, questions), "--out", str(tmp_path / "questions")]) == 0
    given = words(encoded, "pyserini", tmp_path / "out")
    given[given.index("--index") + 1] = str(tmp_path / "questions")
    capsys.readouterr()
    assert cli.main(given) == 1
    assert "contains embeddings of questions" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_corpora_that_are_not_the_stores(encoded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (encoded / "corpus.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    changed = {
        "ends after 19 passages of the store's 20": lines[:-1],
        "has more passages than the store's 20": [*lines, '{"_id": "new", "text": "", "year": 3}'],
        "is where the store has": lines[::-1],
        "corpus.jsonl:2: broken JSON": [lines[0], "{"],
        "corpus.jsonl:1: 'year' is a number with a point here": None,
        "'lang' is neither a text, a number nor a list of texts": [
            json.dumps({**row, "lang": {"a": 1}}) for row in rows
        ],
    }
    for number, (message, content) in enumerate(changed.items()):
        if content is None:
            content = [json.dumps({**row, "year": 3.5 if at else 3}) for at, row in enumerate(rows)]
            message = "corpus.jsonl:2: 'year' is a number with a point here and a whole number in earlier rows"
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "corpus.jsonl").write_text("".join(f"{line}\n" for line in content))
        more = ["--corpus", folder / "corpus.jsonl", "--restricts", "lang", "year"]
        assert cli.main(words(encoded, "vertex", tmp_path / "out", *more)) == 1
        assert message in capsys.readouterr().err
    more = ["--corpus", encoded / "corpus.jsonl", "--restricts", "langg"]
    assert cli.main(words(encoded, "vertex", tmp_path / "out", *more)) == 1
    assert "no passage has a field 'langg'; did you mean 'lang'?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["--to", "onnx", "--index", "store"],
            "--index is for --to scann or vertex or pyserini or faiss or live or pgvector or lance, not for",
        ),
        (["--to", "vertex"], "--to vertex writes the vectors of a corpus: give --index, an embedding store"),
        (["--to", "faiss", "--index", "s", "--since", "x"], "--since is for --to vertex, not for --to faiss"),
        (["--to", "faiss", "--index", "s", "--side", "both"], "--side is for --to onnx or stablehlo, not for"),
        (
            ["--to", "vertex", "--index", "s", "-k", "3"],
            "-k is for --to scann or faiss or pgvector or lance, not for --to vertex",
        ),
        (
            ["--to", "vertex", "--index", "s", "--restricts", "x"],
            "name fields of the rows of --corpus; give both, or neither",
        ),
        (
            ["--to", "vertex", "--index", "s", "--corpus", "x"],
            "name fields of the rows of --corpus; give both, or neither",
        ),
        (["--to", "vertex", "--index", "s", "--license", "mit"], "--license is for --to huggingface or sentence"),
        (["--to", "scann", "--index", "s", "--target-recall", "x"], "'x' is not a list of recalls; give for instance"),
        (
            ["--to", "faiss", "--index", "s", "--engine", "faiss"],
            "--engine is for --to scann or live, not for --to faiss",
        ),
        (["--to", "verteks"], "invalid choice"),
    ],
)
def test_options_of_other_targets(capsys: pytest.CaptureFixture[str], given: list[str], message: str) -> None:
    assert cli.main(["export", "model", "--out", "out", *given]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_scann_gets_its_options(encoded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `jaxretr export --to scann` passes on, given or not."""
    seen: list[Any] = []
    names = ("k", "seed", "target_recall", "train_size", "engine", "questions")

    def build(store: object, **given: Any) -> None:
        seen.append(tuple(given[name] for name in names))
        raise UserError("built")

    monkeypatch.setattr("jaxretr.indexes.certified.index.ScannIndex.build", build)
    for options in ([], ["--target-recall", "0.9,.95", "-k", "100"], ["--engine", "faiss", "--seed", "3"]):
        assert cli.main(words(encoded, "scann", tmp_path / "out", *options)) == 1
    assert seen == [
        (10, 0, (0.95,), None, "scann", None),
        (100, 0, (0.9, 0.95), None, "scann", None),
        (10, 3, (0.95,), None, "faiss", None),
    ]


def test_a_live_index_gets_its_engine(encoded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "jaxretr.indexes.live.build.export", lambda *given, settings, **more: seen.append(settings.engine) or ""
    )
    for engine in ([], ["--engine", "faiss"]):
        more = ["--corpus", encoded / "corpus.jsonl", *engine]
        assert cli.main(words(encoded, "live", tmp_path / "out", *more)) == 0
    assert seen == [None, "faiss"]


def test_a_missing_faiss_names_the_extra(
    encoded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert cli.main(words(encoded, "faiss", tmp_path / "out")) == 1
    assert "faiss is not installed" in (error := capsys.readouterr().err) and "'jaxretr[export]'" in error


def test_a_kind_of_the_future(encoder: DualEncoder, tmp_path: Path) -> None:
    manifest.write(tmp_path, "vertx", {})
    with pytest.raises(UserError, match="of an unknown kind 'vertx'; did you mean 'vertex'"):
        verify(tmp_path)
    with pytest.raises(UsageError, match="which transformers does not read; leave library= out"):
        verify(tmp_path, "transformers")


# ---- parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_stores_of_any_type_are_written_as_float32(encoder: DualEncoder, tmp_path: Path, dtype: str) -> None:
    """bfloat16 shards come from `blocks` as arrays of ml_dtypes."""
    vectors = np.random.default_rng(1).normal(size=(6, 16)).astype(np.float32)
    write_store(tmp_path / "store", encoder, [str(row) for row in range(6)], vectors)
    source = source_of(tmp_path / "store")
    stored = vectors.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    source.store.blocks = lambda: iter([stored[:4], stored[4:]])  # pyright: ignore[reportAttributeAccessIssue]
    vertex.export(source, encoder, tmp_path / "out")
    found = np.array([row["embedding"] for row in vertex_rows(tmp_path / "out")], np.float32)
    np.testing.assert_array_equal(found, stored.astype(np.float32))


def test_rebatched() -> None:
    rows = np.arange(23 * 2).reshape(23, 2)
    cuts = np.split(rows, [1, 2, 2, 15])
    found = list(rebatched(cuts, 5))
    assert [len(one) for one in found] == [5, 5, 5, 5, 3]
    np.testing.assert_array_equal(np.concatenate(found), rows)
    assert list(rebatched([], 5)) == []


def test_golden_hits_may_exchange_passages_of_equal_scores() -> None:
    expected = golden_hits.Hits([["a", "b", "c"]], [[3.0, 2.0, 2.0]])

    def found(ids: str, *scores: float) -> str:
        return golden_hits.difference(golden_hits.Hits([list(ids)], [list(scores)]), expected)

    assert not found("abc", 3.0, 2.0, 2.0) and not found("acd", 3.00001, 2.0, 2.0)
    assert found("abc", 3.0, 2.0, 1.9) and found("xbc", 3.0, 2.0, 2.0) and found("ab", 3.0, 2.0)
    assert found("abc", 3.0, 2.0, float("nan"))
