"""export --to scann with either engine, search, verify and update, as a user types them."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import DATA

from jaxretr import ScannIndex, cli
from jaxretr.data.readers import read_corpus
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.indexes.certified import upkeep
from jaxretr.indexes.certified.process import scann_problem

ENGINES = [
    pytest.param("scann", marks=pytest.mark.skipif(scann_problem() is not None, reason=f"ScaNN: {scann_problem()}")),
    "faiss",
]

QUERIES = DATA / "queries.jsonl"


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


def write(path: Path, rows: list[tuple[str, list[str]]]) -> None:
    lines = [{"_id": name, "title": "", "text": " ".join(words)} for name, words in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def encoded(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """store (the corpus) and new (three other passages, one with a known id)."""
    folder = tmp_path_factory.mktemp("made")
    model = tiny_models / "encoder"
    texts = [f"{passage.title} {passage.text}".split() for passage in read_corpus(DATA)]
    # As many as are not simply scored all: halves of two passages each.
    pairs = [(row % len(texts), (7 * row + row // len(texts)) % len(texts)) for row in range(1100)]
    rows = [(f"p{row}", texts[one][::2] + texts[other][1::2]) for row, (one, other) in enumerate(pairs)]
    write(folder / "corpus.jsonl", rows)
    assert run("encode", model, "--corpus", folder / "corpus.jsonl", "--out", folder / "store") == 0
    write(folder / "new.jsonl", [(name, ["quite", "another", name]) for name in ("n1", "n2", "p0")])
    assert run("encode", model, "--corpus", folder / "new.jsonl", "--out", folder / "new") == 0
    return folder


@pytest.fixture(scope="module", params=ENGINES)
def made(encoded: Path, tiny_models: Path, request: pytest.FixtureRequest) -> Path:
    """These, and an index, made of the store with one of the engines."""
    words = ["--index", encoded / "store", "--queries", QUERIES, "--target-recall", "0.5,0.8"]
    words += ["--engine", request.param, "--out", encoded / "index"]
    assert run("export", tiny_models / "encoder", "--to", "scann", *words) == 0
    assert ScannIndex.load(encoded / "index").facts.engine == request.param
    return encoded


def test_export_writes_an_index_that_verifies(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = EmbeddingStore.open(made / "store")
    index = ScannIndex.load(made / "index")
    assert index.rows.ids == store.read_ids() and index.facts.kind == "flat"
    assert [setting.target for setting in index.facts.settings] == [0.5, 0.8]
    assert index.facts.model_fingerprint == store.meta.model_fingerprint
    assert index.certificate is not None and index.certificate.model == store.meta.model
    np.testing.assert_array_equal(index.rows.base.vectors, np.concatenate(list(store.blocks())))
    capsys.readouterr()
    assert run("verify", made / "index") == 0
    assert "questions as certified" in capsys.readouterr().out


def test_update_adds_replaces_and_deletes(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = EmbeddingStore.open(made / "store").read_ids()
    gone = made / "gone.txt"
    gone.write_text(f"{before[3]}\n{before[4]}\r\n\n", encoding="utf-8")
    assert run("update", made / "index", "--add", made / "new", "--delete", gone) == 0
    out = capsys.readouterr().out
    assert f"2 added, 1 replaced, 2 deleted; {len(before)} passages" in out and "Recall certificate" in out
    index = ScannIndex.load(made / "index")
    assert set(index.rows.ids) == {*before, "n1", "n2"} - {before[3], before[4]}
    new = np.concatenate(list(EmbeddingStore.open(made / "new").blocks()))
    np.testing.assert_array_equal(index.rows.base.vectors[index.rows.row_of()[before[0]]], new[2])
    assert run("verify", made / "index") == 0
    # Twice is once too often, and nothing happens.
    assert run("update", made / "index", "--delete", gone) == 1
    assert "is not in the index" in capsys.readouterr().err
    assert ScannIndex.load(made / "index").rows.ids == index.rows.ids


def test_update_rebalances_after_many_changes(
    made: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    index = ScannIndex.load(made / "index")
    monkeypatch.setattr(upkeep, "_REBALANCE_FROM", index.changed_share + 1e-6)
    gone = made / "one.txt"
    gone.write_text(index.rows.ids[7])
    with caplog.at_level(logging.INFO, logger="jaxretr"):
        assert run("update", made / "index", "--delete", gone) == 0
    assert "rebalancing" in caplog.text
    after = ScannIndex.load(made / "index")
    assert after.facts.changed == 0 and len(after) == len(index) - 1
    assert run("verify", made / "index") == 0


def test_wrong_use_is_said_in_a_line(made: Path, tiny_models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, index = tiny_models / "encoder", made / "index"
    (made / "twice.txt").write_text("a\na\n")
    (made / "latin.txt").write_bytes("Käse\n".encode("latin-1"))
    if not (made / "asked").exists():
        assert run("encode", model, "--corpus", QUERIES, "--side", "question", "--out", made / "asked") == 0
    export = ["export", model, "--to", "scann", "--out"]
    for words, message in [
        (["update", index, "--delete", made / "twice.txt"], "'a' is on line 1 as well"),
        (["update", index, "--delete", made / "latin.txt"], "latin.txt:1: not valid UTF-8"),
        (["update", index, "--delete", made / "none.txt"], "none.txt: no such file"),
        (["update", index, "--add", made / "asked"], "contains embeddings of questions"),
        (["update", made / "store"], "cannot be read"),
        ([*export, made / "store", "--index", made / "store"], "holds something else than a ScaNN index"),
        ([*export, made / "out", "--index", made / "asked"], "contains embeddings of questions"),
        ([*export, made / "out", "--index", made / "store", "--train-size", 10**9], "--train-size 1000000000 must be"),
    ]:
        capsys.readouterr()
        assert run(*words) == 1, words
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1, said
    assert not (made / "out").exists()


def test_another_models_passages_are_refused(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = EmbeddingStore.open(made / "new").meta
    other = EmbeddingStore.begin(
        tmp_path / "other", replace(meta, model="bert", model_fingerprint="0" * 64), ["n1"] * meta.rows
    )
    other.write(0, np.ones((meta.rows, meta.dim), np.float32), 0)
    capsys.readouterr()
    assert run("update", made / "index", "--add", tmp_path / "other") == 1
    assert "was encoded with another model (bert)" in capsys.readouterr().err
