"""What --index names: every kind is recognised, searched alike, and refused with a remedy where it does not fit."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import DATA

from jaxretr import cli
from jaxretr.config import EngineName
from jaxretr.data.readers import read_corpus
from jaxretr.indexes.certified.index import ScannIndex
from jaxretr.indexes.exact import ExactIndex
from jaxretr.indexes.index import Document, Hit, Index, SearchOptions, Writable
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.opening import named, open_index
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.serve.loading import Parts


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRETR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def rows(encoder: DualEncoder) -> np.ndarray:
    return encoder.encode_passages(list(read_corpus(DATA)))


def brute_force(rows: np.ndarray, queries: np.ndarray, k: int, allowed: list[int]) -> list[list[str]]:
    ids = read_corpus(DATA).ids
    scores = queries @ rows.T
    return [[ids[n] for n in sorted(allowed, key=lambda n: -row[n])[:k]] for row in scores]


def ids_of(found: list[list[Hit]]) -> list[list[str]]:
    return [[hit.id for hit in hits] for hits in found]


def check(index: Index, encoder: DualEncoder, rows: np.ndarray, *, texts: bool) -> None:
    """What holds for every kind."""
    corpus = read_corpus(DATA)
    queries = encoder.encode_queries(["who lives there?", "when was it"])
    for options in (SearchOptions(), SearchOptions(exact=True)):
        found = index.search(queries, 5, options)
        assert ids_of(found) == brute_force(rows, queries, 5, list(range(20)))
        np.testing.assert_allclose(
            [[hit.score for hit in hits] for hits in found], -np.sort(-(queries @ rows.T))[:, :5], rtol=1e-5
        )
    some = SearchOptions(allow=[*corpus.ids[3:9], "unknown"], deny=[corpus.ids[4], "nobody"])
    assert ids_of(index.search(queries, 100, some)) == brute_force(rows, queries, 100, [3, 5, 6, 7, 8])
    assert index.search(queries, 5, SearchOptions(allow=["unknown"])) == [[], []]
    assert index.search(queries, 5, SearchOptions(allow=[])) == [[], []]
    with pytest.raises(UserError, match="where"):
        index.search(queries, 5, SearchOptions(where={"nope": 1}))
    with pytest.raises(UserError, match="target"):
        index.search(queries, 5, SearchOptions(target_recall=0.123))
    there, missing = index.documents([corpus.ids[2], "unknown"])
    assert missing is None
    expected = corpus[2] if texts else None
    assert there is not None
    assert (there.title, there.text) == (("", "") if expected is None else (expected.title, expected.text))
    np.testing.assert_array_equal(index.vectors([corpus.ids[2], corpus.ids[0]]), rows[[2, 0]])
    with pytest.raises(UserError, match="unknown"):
        index.vectors(["unknown"])
    facts = index.facts()
    assert (facts["passages"], facts["dim"], facts["writable"]) == (20, 16, False)
    assert not isinstance(index, Writable)


@pytest.mark.parametrize("texts", [True, False])
def test_an_embedding_store(encoder: DualEncoder, store: Path, rows: np.ndarray, texts: bool) -> None:
    index = open_index(f"wiki={store}", encoder, DATA if texts else None)
    assert index.name == "wiki"
    check(index, encoder, rows, texts=texts)


def test_an_exact_index_with_its_fields(encoder: DualEncoder, rows: np.ndarray, tmp_path: Path) -> None:
    corpus = read_corpus(DATA)
    metadata = {"even": [n % 2 == 0 for n in range(20)], "year": [2000 + n for n in range(20)]}
    ExactIndex(rows, list(corpus.ids), metadata=metadata).save(tmp_path / "exact")
    index = open_index(str(tmp_path / "exact"), encoder, DATA)
    check(index, encoder, rows, texts=True)
    queries = encoder.encode_queries(["who"])
    found = index.search(queries, 20, SearchOptions(where={"even": True, "year": [2004, 2005, 2006]}))
    assert ids_of(found) == brute_force(rows, queries, 20, [4, 6])
    [document] = index.documents([corpus.ids[4]])
    assert document is not None
    assert document.metadata == {"even": True, "year": 2004}
    assert index.facts()["fields"] == ["even", "year"]


@pytest.mark.parametrize("engine", ["scann", "faiss"])
def test_a_scann_folder(encoder: DualEncoder, rows: np.ndarray, tmp_path: Path, engine: EngineName) -> None:
    ScannIndex.build(rows, list(read_corpus(DATA).ids), workdir=tmp_path, engine=engine).save(tmp_path / "scann")
    index = open_index(f"s={tmp_path / 'scann'}", encoder, DATA)
    check(index, encoder, rows, texts=True)
    assert index.facts()["targets"] == [0.95] and index.facts()["engine"] == engine
    assert index.facts()["certificate"]["questions"] > 0


def test_a_live_folder_is_made_where_there_is_nothing(encoder: DualEncoder, tmp_path: Path) -> None:
    index = open_index(str(tmp_path / "My Notes"), encoder)
    assert isinstance(index, LiveIndex)
    assert (index.name, index.dim, len(index)) == ("my-notes", 16, 0)
    index.upsert([Document("a", "", "x")], np.ones((1, 16), np.float32))
    index.close()
    again = open_index(str(tmp_path / "My Notes"), encoder)
    assert len(again) == 1
    again.close()


def test_what_does_not_fit_is_refused(encoder: DualEncoder, store: Path, rows: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    with pytest.raises(UserError, match="no index; give a live folder"):
        open_index(str(tmp_path / "other"), encoder)
    with pytest.raises(UserError, match="has the texts itself; leave corpus= out"):
        open_index(str(tmp_path / "new"), encoder, DATA)
    few = tmp_path / "few.jsonl"
    few.write_text('{"_id": "squad:0-0", "text": "a"}\n')
    with pytest.raises(UserError, match=r"few.jsonl: lacks 19 of the 20 passages of w; give its corpus"):
        open_index(f"w={store}", encoder, few)
    ExactIndex(rows[:, :8], list(read_corpus(DATA).ids)).save(tmp_path / "small")
    with pytest.raises(UserError, match="8 dimensions"):
        open_index(str(tmp_path / "small"), encoder)


def test_another_models_store_is_refused(tiny_models: Path, store: Path) -> None:
    other = DualEncoder.from_pretrained(tiny_models / "encoder", pooling="cls", shared=True)
    with pytest.raises(UserError, match="encoded with another model"):
        open_index(str(store), other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", ("a", "b")),
        ("a=b=c", ("a", "b=c")),
        ("/x/y=z/Emb.1", ("emb-1", "/x/y=z/Emb.1")),
        ("runs/art/", ("art", "runs/art/")),
        ("pgvector:postgresql://u@h/db?table=t", ("db-table-t", "pgvector:postgresql://u@h/db?table=t")),
        ("p=pgvector:postgresql://u@h/db?table=t", ("p", "pgvector:postgresql://u@h/db?table=t")),
    ],
)
def test_names(text: str, expected: tuple[str, str]) -> None:
    assert named(text) == expected


def test_corpora_belong_to_indexes() -> None:
    def parts(indexes: list[str], corpora: list[str]) -> dict[str, tuple[str, str | None]]:
        return Parts(lambda: pytest.fail("loaded"), indexes, corpora)._named()

    assert parts(["a=x"], ["f.jsonl"]) == {"a": ("x", "f.jsonl")}
    assert parts(["a=x", "b=y"], ["b=f"]) == {"a": ("x", None), "b": ("y", "f")}
    for indexes, corpora in ((["a=x", "b=y"], ["f"]), (["a=x"], ["c=f"]), (["a=x"], ["f", "g"]), ([], ["f"])):
        with pytest.raises(UsageError):
            parts(indexes, corpora)


def test_live_indexes_are_told_their_engine(encoder: DualEncoder, tmp_path: Path) -> None:
    open_index(f"one={tmp_path / 'data/one'}", encoder).close()
    service = Parts(lambda: encoder, [f"two={tmp_path / 'two'}"], data=tmp_path / "data", engine="faiss").load()
    opened = [service.indexes.get(name) for name in ("one", "two")]
    assert all(isinstance(index, LiveIndex) and index.settings.engine == "faiss" for index in opened)
    service.close()


def test_serve_refuses_an_engine_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert cli.main(["serve", "no/model", "--engine", "faiss"]) == 1
    assert "pip install 'jaxretr[export]'" in (said := capsys.readouterr().err) and said.count("\n") == 1


def test_a_folder_of_live_indexes_is_opened_again(encoder: DualEncoder, tmp_path: Path) -> None:
    open_index(f"one={tmp_path / 'data/one'}", encoder).close()
    (tmp_path / "data/rest").mkdir()
    service = Parts(lambda: encoder, data=tmp_path / "data").load()
    assert service.indexes.names == ["one"]
    service.close()
    # An index may be named although it lies there, also one that this makes.
    given = [f"first={tmp_path / 'data/one'}", str(tmp_path / "data/two")]
    service = Parts(lambda: encoder, given, data=tmp_path / "data").load()
    assert service.indexes.names == ["first", "two"]
    service.close()
    with pytest.raises(UserError, match="there is an index one as well"):
        Parts(lambda: encoder, [f"one={tmp_path / 'other'}"], data=tmp_path / "data").load()
    shutil.rmtree(tmp_path / "data")
