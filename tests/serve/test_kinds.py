"""Every kind of index, one of this file among them, is used alike: by `jaxretr search`, evaluations, a service and clients."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_index import MemoryIndex
from serving import SMALL
from tiny import DATA

import jaxretr
from jaxretr import cli
from jaxretr.clients.local import Local
from jaxretr.data.readers import read_corpus
from jaxretr.data.run_reading import read_trec
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.indexes.exact import ExactIndex
from jaxretr.indexes.index import Document, Opening
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.opening import KINDS, IndexKind, open_index
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.serve.loading import Parts
from jaxretr.serve.requests import SearchRequest

PLACES = ["store", "exact", "scann", "live", "lance:lance", "toy:toy"]
WITH_TEXTS = ["live", "lance:lance", "toy:toy"]


def open(place: str, opening: Opening) -> MemoryIndex:
    """The kind "toy": a file of documents, next to a file of their vectors."""
    rows = [json.loads(line) for line in Path(place, "rows.jsonl").read_text().splitlines()]
    vectors = np.load(Path(place, "vectors.npy"))
    index = MemoryIndex(opening.name, vectors.shape[1])
    index.upsert([Document(**row) for row in rows], vectors)
    return index


def verify(place: str) -> str:
    if not Path(place, "rows.jsonl").is_file():
        raise UserError(f"{place}: lacks rows.jsonl; write it again")
    return "toys"


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "toy", IndexKind(__name__, "a toy", has_texts=True))


@pytest.fixture(scope="module")
def root(encoder: DualEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same passages, each with a year, as an index of each kind."""
    folder = tmp_path_factory.mktemp("kinds")
    lines = [json.loads(line) for line in (DATA / "corpus.jsonl").read_text().splitlines()]
    corpus = folder / "corpus.jsonl"
    corpus.write_text(
        "".join(json.dumps({**row, "metadata": {"year": 1990 + n % 3}}) + "\n" for n, row in enumerate(lines))
    )
    store = jaxretr.encode(encoder, corpus=corpus, out=folder / "store")
    for kind in ("scann", "live", "lance"):
        if kind != "lance" or _lance():
            given = {} if kind == "scann" else {"corpus": corpus}
            jaxretr.export(encoder, to=kind, out=folder / kind, index=store, **given)  # pyright: ignore[reportArgumentType]
    rows, years = store.rows(0, len(lines)), [1990 + n % 3 for n in range(len(lines))]
    ExactIndex(rows, store.read_ids(), metadata={"year": years}).save(folder / "exact")
    (folder / "toy").mkdir()
    np.save(folder / "toy/vectors.npy", rows)
    passages = [
        Document(each.id, each.title, each.text, {"year": y})
        for each, y in zip(read_corpus(corpus), years, strict=True)
    ]
    toys = [{"id": p.id, "title": p.title, "text": p.text, "metadata": p.metadata} for p in passages]
    (folder / "toy/rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in toys))
    return folder


def _lance() -> bool:
    try:
        import lancedb  # noqa: F401
    except ImportError:
        return False
    return True


@pytest.fixture
def found(root: Path, tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What runs `jaxretr search` in the folder of the indexes, and returns the exit status and the run's file."""
    monkeypatch.chdir(root)

    def search(place: str, *options: object) -> tuple[int, Path]:
        if place.startswith("lance"):
            pytest.importorskip("lancedb")
        out = tmp_path / "run"
        words = ["search", tiny_models / "served", "--index", place, "--queries", DATA / "queries.jsonl", "--out", out]
        return cli.main([str(word) for word in (*words, "-k", 5, *options)]), out

    yield search


def same(run: dict[str, dict[str, float]], expected: dict[str, dict[str, float]]) -> None:
    assert {name: list(hits) for name, hits in run.items()} == {name: list(hits) for name, hits in expected.items()}
    for name, hits in expected.items():
        np.testing.assert_allclose(list(run[name].values()), list(hits.values()), rtol=1e-5)


@pytest.mark.parametrize("place", PLACES[1:])
def test_search_finds_the_same_in_every_kind(place: str, root: Path, found: Any) -> None:
    (root / "deny").write_text(read_corpus(DATA).ids[1] + "\n")
    for options in (
        [],
        ["--where", "year=1991", "--where", "year=1990", "--deny", "deny"],
        ["--where", "year>=1991", "--where", "year!=1992"],
    ):
        # A store and a ScaNN folder have no fields; live folders and databases take no corpus, but may be given one.
        corpus = ["--corpus", "corpus.jsonl"] if options else []
        status, out = found("store", *options, *corpus)
        assert status == 0
        expected = read_trec(out)
        status, out = found(place, *options, *(corpus if place == "scann" else []))
        assert status == 0
        same(read_trec(out), expected)


@pytest.mark.parametrize("place", WITH_TEXTS)
def test_titles_and_texts_come_from_the_index(place: str, found: Any, encoder: DualEncoder, root: Path) -> None:
    """Of the hits, for other formats and for re-ranking; scores of the kinds may differ in the last bits."""
    assert found("store", "--format", "dpr", "--corpus", "corpus.jsonl")[0] == 0
    written = found("store", "--format", "dpr", "--corpus", "corpus.jsonl")[1].read_text()
    status, out = found(place, "--format", "dpr")
    assert status == 0
    for one, other in zip(json.loads(out.read_text()), json.loads(written), strict=True):
        of = [[(hit["id"], hit["title"], hit["text"]) for hit in each["ctxs"]] for each in (one, other)]
        assert of[0] == of[1]


def test_another_corpus_than_the_store_s_is_said(found: Any, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert found("store", "--format", "dpr", "--corpus", "corpus.jsonl")[0] == 0
    assert "has other passages or texts" not in caplog.text
    rows = (root / "corpus.jsonl").read_text()
    (root / "other.jsonl").write_text(rows.replace('"text": "', '"text": "not ', 1))
    assert found("store", "--format", "dpr", "--corpus", "other.jsonl")[0] == 0
    assert "other.jsonl: has other passages or texts than" in caplog.text
    caplog.clear()
    open_index("store", corpus=root / "corpus.jsonl").close()
    assert "has other passages or texts" not in caplog.text
    open_index("store", corpus=root / "other.jsonl").close()
    assert "other.jsonl: has other passages or texts than store was encoded from" in caplog.text


@pytest.mark.parametrize("place", ["live", "toy:toy"])
def test_reranking_reads_the_texts_of_the_index(
    place: str, encoder: DualEncoder, root: Path, tiny_cross_encoder: Path
) -> None:
    scorer = jaxretr.load_scorer(tiny_cross_encoder)
    places = [str(root / "store"), place.replace("toy:", f"toy:{root}/") if ":" in place else str(root / place)]
    asked: dict[str, Any] = {"queries": ["who lives there?"], "k": 6, "rerank": scorer, "depth": 4}
    expected = jaxretr.search(encoder, places[0], **asked, corpus=root / "corpus.jsonl")
    same(dict(jaxretr.search(encoder, places[1], **asked)), dict(expected))
    with pytest.raises(UsageError, match="corpus"):
        jaxretr.search(encoder, places[0], **asked)


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("live", ["--where", "yeer=1990"], "where yeer: the index has no such field; did you mean 'year'?"),
        ("live", ["--where", "year=2000"], "where year=2000: no passage has this value"),
        ("toy:toy", ["--allow", "unknown"], "unknown:1: toy:toy has no passage 'nobody'"),
        ("store", ["--format", "dpr"], "give --corpus FILE as well"),
        ("new", [], "new: no index; give a live folder"),
        ("pgvector:postgresql://me:geheim@127.0.0.1:1/db", [], "postgresql://me@127.0.0.1:1/db"),
    ],
)
def test_what_is_wrong_is_one_line(
    place: str, options: list[str], message: str, found: Any, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if place.startswith("pgvector"):
        pytest.importorskip("psycopg")
    (root / "unknown").write_text("nobody\n")
    assert found(place, *options)[0] in (1, 2)
    said = capsys.readouterr().err.splitlines()
    assert message in said[-1] and "Traceback" not in "".join(said) and "geheim" not in "".join(said)
    assert not (root / "new").exists()


def test_a_live_folder_of_another_model_or_in_use_is_refused(
    encoder: DualEncoder, root: Path, tiny_models: Path
) -> None:
    other = DualEncoder.from_pretrained(tiny_models / "encoder", pooling="cls", shared=True)
    with pytest.raises(UserError, match="encoded with another model"):
        jaxretr.search(other, root / "live", queries=["who"])
    index = LiveIndex.open(root / "live", background=False)
    # An index that is open already is searched as it is, and stays open.
    assert len(jaxretr.search(encoder, index, queries=["who"], k=3)["0"]) == 3
    assert len(index.documents(["nobody"])) == 1
    index.close()


@pytest.mark.parametrize("place", ["scann", "live", "toy:toy"])
def test_a_model_is_evaluated_by_an_index_of_any_kind(
    place: str, encoder: DualEncoder, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    asked: dict[str, Any] = {"beir": DATA, "split": "train", "metrics": ["ndcg@10"]}
    expected = jaxretr.evaluate_model(encoder, **asked, index="store").table()
    assert jaxretr.evaluate_model(encoder, **asked, index=place).table() == expected


def test_an_index_of_other_passages_is_no_index_of_the_corpus(encoder: DualEncoder, tmp_path: Path) -> None:
    index = open_index(str(tmp_path / "live"), encoder)
    with pytest.raises(UserError, match="other passages"):
        jaxretr.evaluate_model(encoder, beir=DATA, split="train", index=index)
    index.close()


def test_a_service_and_clients_use_a_kind_of_ones_own(
    encoder: DualEncoder, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = list(jaxretr.search(encoder, root / "store", queries=["who lives there?"], k=3)["0"])
    service = Parts(lambda: encoder, [f"own=toy:{root / 'toy'}"], settings=SMALL).load()
    service.state = "ok"  # Without compiling every program first.
    request = SearchRequest(query="who lives there?", k=3, fields=["title", "metadata"])
    answer = asyncio.run(service.search("own", request))
    assert [hit["id"] for hit in answer["results"][0]["hits"]] == expected
    service.close()
    local = Local(encoder, open_index(f"own=toy:{root / 'toy'}", encoder))
    hits = local.search("who lives there?", k=3)
    assert [hit.id for hit in hits] == expected
    assert [hit.text for hit in hits] == [read_corpus(DATA)[read_corpus(DATA).row(id)].text for id in expected]
    assert cli.main(["verify", f"toy:{root / 'toy'}"]) == 0
    assert "toys" in capsys.readouterr().out
    assert cli.main(["verify", f"toy:{root}"]) == 1
    assert "lacks rows.jsonl" in capsys.readouterr().err


def test_vectors_of_all_passages_are_read_in_their_order(encoder: DualEncoder, root: Path) -> None:
    """As for tuning weights; of an index in memory, of one that is streamed, and of some in any order."""
    store = EmbeddingStore.open(root / "store")
    ids, rows = store.read_ids(), store.rows(0, store.meta.rows)
    for place in ("store", "exact", "scann", "live"):
        index = open_index(str(root / place), encoder, name="x")
        parts = [index.vectors(ids[start : start + 7]) for start in range(0, len(ids), 7)] * 2
        np.testing.assert_array_equal(np.concatenate(parts), np.concatenate([rows, rows]))
        np.testing.assert_array_equal(index.vectors([ids[9], ids[2], ids[3]]), rows[[9, 2, 3]])
        index.close()
