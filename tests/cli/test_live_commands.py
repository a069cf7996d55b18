"""export --to live, verify and reindex, as a user types them."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from processes import last_error as error_line
from tiny import DATA

from jaxretr import DualEncoder, cli
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.indexes.index import Document, SearchOptions
from jaxretr.indexes.live.index import LiveIndex


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


@pytest.fixture(scope="module")
def made(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with fields, its store, and a second model, `mean`."""
    folder = tmp_path_factory.mktemp("made")
    rows = [json.loads(line) for line in (DATA / "corpus.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row["metadata"] = {"year": 1990 + number % 3, "tags": ["a"]}
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = tiny_models / "encoder"
    assert run("encode", model, "--corpus", folder / "corpus.jsonl", "--out", folder / "store") == 0
    DualEncoder.from_pretrained(model, pooling="mean").save(folder / "mean")
    return folder


def export(made: Path, model: Path, out: Path, corpus: str = "corpus.jsonl") -> int:
    return run("export", model, "--to", "live", "--index", made / "store", "--corpus", made / corpus, "--out", out)


def test_an_exported_store_is_a_live_index_with_its_passages(
    made: Path, tiny_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert export(made, tiny_models / "encoder", tmp_path / "live") == 0
    assert "fields that are neither texts nor numbers were left out: tags" in caplog.text
    store = EmbeddingStore.open(made / "store")
    ids, vectors = store.read_ids(), np.concatenate(list(store.blocks()))
    capsys.readouterr()
    assert run("verify", tmp_path / "live") == 0
    assert f"a live index of {len(ids)} passages" in capsys.readouterr().out
    encoder = DualEncoder.from_pretrained(tiny_models / "encoder")
    known = {"model": "encoder", "model_fingerprint": model_fingerprint(encoder), "dim": vectors.shape[1]}
    index = LiveIndex.open(tmp_path / "live", **known, background=False)
    np.testing.assert_array_equal(index.vectors(ids), vectors)
    facts = index.facts()
    assert facts["snapshot_rows"] == facts["passages"] == len(ids) and facts["tail_rows"] == 0
    assert facts["fields"] == ["year"]
    row = json.loads((made / "corpus.jsonl").read_text().splitlines()[4])
    assert index.documents([ids[4]]) == [Document(ids[4], row.get("title") or "", row["text"], {"year": 1991})]
    found = index.search(vectors[:1], 100, SearchOptions(where={"year": 1991}))[0]
    assert {hit.id for hit in found} == {*ids[1::3]}
    index.close()


def test_what_cannot_be_exported_is_said_in_one_line(
    made: Path, tiny_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_models / "encoder"
    assert run("export", model, "--to", "live", "--index", made / "store", "--out", tmp_path / "live") == 2
    assert "give --corpus, the file" in error_line(capsys.readouterr().err)
    lines = (made / "corpus.jsonl").read_text().splitlines(keepends=True)
    for name, content, message in (
        ("shorter.jsonl", lines[:-1], f"ends after {len(lines) - 1} passages"),
        (
            "longer.jsonl",
            [*lines, '{"_id": "more", "text": "more"}\n'],
            f"has more passages than the store's {len(lines)}",
        ),
        ("other.jsonl", [lines[1], lines[0], *lines[2:]], "is where the store has"),
        (
            "texts.jsonl",
            [lines[0].replace('"text": "', '"text": "not '), *lines[1:]],
            "has other passages or texts than",
        ),
    ):
        (made / name).write_text("".join(content))
        words = ("--index", made / "store", "--corpus", made / name, "--out", tmp_path / "live")
        for to in ("live", "pyserini"):
            assert run("export", model, "--to", to, *words) == 1
            assert message in error_line(capsys.readouterr().err)
            assert not (tmp_path / "live").exists()


def test_an_index_of_a_model_with_options_is_updated_by_an_export_with_them(
    made: Path, tiny_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, own, new = tmp_path / "live", tmp_path / "own", tmp_path / "new.jsonl"
    options, corpus = ("--truncate-dim", 4, "--passage-prompt", "p: "), made / "corpus.jsonl"
    model, store = tiny_models / "encoder", ("--index", tmp_path / "store", "--corpus", corpus)
    new.write_text('{"_id": "n1", "text": "new"}\n')
    assert run("encode", model, "--corpus", corpus, "--out", tmp_path / "store", *options) == 0
    assert run("export", model, "--to", "live", *store, "--out", folder, *options) == 0
    assert run("export", model, "--to", "jaxretr", "--out", own, *options) == 0
    capsys.readouterr()
    assert run("update", folder, "--add", new) == 1
    assert "as jaxretr export --to jaxretr writes it with these" in error_line(capsys.readouterr().err)
    assert run("update", folder, "--add", new, "--model", own) == 0
    assert run("reindex", folder, "--to", model) == 0
    new.write_text('{"_id": "n2", "text": "newer"}\n')
    assert run("update", folder, "--add", new) == 0
    capsys.readouterr()
    assert run("reindex", folder, "--rollback") == 1
    assert "as jaxretr export --to jaxretr writes it with these" in error_line(capsys.readouterr().err)
    assert run("reindex", folder, "--to", own) == 0
    assert "1 of them encoded now" in capsys.readouterr().out and run("verify", folder) == 0


def test_reindex_to_another_model_and_back(
    made: Path, tiny_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, old, new = tmp_path / "live", tiny_models / "encoder", made / "mean"
    assert export(made, old, folder) == 0
    capsys.readouterr()
    assert run("reindex", folder) == 2
    assert "needs one of --to MODEL, --rollback and --forget" in error_line(capsys.readouterr().err)
    assert run("reindex", folder, "--rollback") == 1
    assert "nothing to roll back to" in error_line(capsys.readouterr().err)
    assert run("reindex", folder, "--to", new, "--compute", "float32") == 0
    assert f"are searched with {new}" in capsys.readouterr().out

    passages = [Document("late", "", "written after the switch")]
    encoder = DualEncoder.from_pretrained(new)
    index = LiveIndex.open(folder, background=False)
    corpus = index.documents(EmbeddingStore.open(made / "store").read_ids())
    assert index.facts()["model_fingerprint"] == model_fingerprint(encoder)
    wanted = encoder.encode_passages(corpus)
    np.testing.assert_allclose(index.vectors([each.id for each in corpus if each]), wanted, atol=1e-6)  # other batches
    index.upsert(passages, encoder.encode_passages(passages))
    assert run("reindex", folder, "--forget") == 1
    assert "is writing this live index" in error_line(capsys.readouterr().err)
    index.close()

    assert run("reindex", folder, "--rollback", "--compute", "float32") == 0
    assert "1 of them encoded now" in capsys.readouterr().out
    index = LiveIndex.open(folder, background=False)
    assert index.facts()["model"] == str(old)
    encoder = DualEncoder.from_pretrained(old)
    np.testing.assert_allclose(index.vectors(["late"]), encoder.encode_passages(passages), atol=1e-6)
    index.close()
    assert run("reindex", folder, "--forget") == 0
    assert f"those of {new} were removed" in capsys.readouterr().out
    assert run("verify", folder) == 0


def test_update_adds_replaces_and_deletes_passages_that_no_service_has_open(
    made: Path, tiny_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = tmp_path / "live", tiny_models / "encoder"
    assert export(made, model, folder) == 0
    ids = EmbeddingStore.open(made / "store").read_ids()
    new, gone = tmp_path / "new.jsonl", tmp_path / "gone.txt"
    rows = [{"_id": "n1", "text": "first new"}, {"_id": ids[0], "text": "replaced", "metadata": {"year": 2001}}]
    rows.append({"_id": ids[4], "text": "deleted and added"})
    new.write_text("".join(json.dumps(row) + "\n" for row in rows))
    gone.write_text(f"{ids[3]}\n{ids[4]}\n")
    (tmp_path / "twice.jsonl").write_text(new.read_text() * 2)
    for words, message in (
        (["--add", tmp_path / "twice.jsonl"], "twice.jsonl:4: passage 'n1' is at"),
        (["--add", made / "store"], "give --add the file of the passages"),
        (["--add", new, "--model", made / "mean"], "makes others; name the model of the index"),
        (["--add", tmp_path / "none.jsonl"], "none.jsonl"),
    ):
        assert run("update", folder, *words) in (1, 2)
        assert message in error_line(capsys.readouterr().err)
    update = ("update", folder, "--add", new, "--delete", gone, "--compute", "float32")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt  # No signal: a shell's background jobs ignore it.

    with monkeypatch.context() as patch:
        patch.setattr(LiveIndex, "upsert", interrupted)
        assert run(*update) == 130
    assert run(*update) == 0  # An update that was interrupted is repeated.
    assert f"2 added, 1 replaced, 2 deleted; {len(ids)} passages" in capsys.readouterr().out
    assert run("update", folder, "--delete", gone) == 1
    assert "is not in the index" in error_line(capsys.readouterr().err)
    # A document that became shorter leaves none of its passages behind.
    for text, message in (
        ("One. Two. Three.", "3 added, 0 replaced, 0"),
        ("One. Two.", "0 added, 2 replaced, 1"),
        ("One.", "0 added, 1 replaced, 1"),
    ):
        (tmp_path / "notes").mkdir(exist_ok=True)
        (tmp_path / "notes/a.txt").write_text(text)
        assert run("update", folder, "--add", f"files:{tmp_path / 'notes'}[words=1]", "--compute", "float32") == 0
        assert f"{message} deleted" in capsys.readouterr().out
    index = LiveIndex.open(folder, background=False)
    assert index.documents(["a.txt#1"]) == [Document("a.txt#1", "a", "One.", {"document": "a.txt"})]
    index.close()
    # Nor does one that is whole now leave its passages, or one that is cut now the whole.
    (tmp_path / "notes/a.txt").write_text("One. Two. Three.")
    for form, message in (
        ("[words=1]", "2 added, 1 replaced, 0"),
        ("", "1 added, 0 replaced, 3"),
        ("[words=1]", "3 added, 0 replaced, 1"),
    ):
        assert run("update", folder, "--add", f"files:{tmp_path / 'notes'}{form}", "--compute", "float32") == 0
        assert f"{message} deleted" in capsys.readouterr().out
    for deleted, count in (("a.txt#1", 1), ("a.txt", 2)):  # also behind a passage that is not there
        gone.write_text(f"{deleted}\n")
        assert run("update", folder, "--delete", gone) == 0
        assert f"{count} deleted" in capsys.readouterr().out
    # A table's own column of that name cuts nothing.
    table = tmp_path / "t.csv"
    for rows in ("b#1,b,x\nb#2,b,y\nc#1,,z\nc#2,c#1,z\nc#1#1,c#1,z\n", "b#1,b,z\n"):
        table.write_text(f"id,document,text\n{rows}")
        assert run("update", folder, "--add", f"files:{table}", "--compute", "float32") == 0
        assert ", 0 deleted" in capsys.readouterr().out
    gone.write_text("c\n")
    assert run("update", folder, "--delete", gone) == 1
    assert "'c' is not in the index" in error_line(capsys.readouterr().err)
    # One that was cut is deleted by its own id.
    (tmp_path / "notes/a.txt").write_text("One. Two.")
    assert run("update", folder, "--add", f"files:{tmp_path / 'notes'}[words=1]", "--compute", "float32") == 0
    gone.write_bytes(gzip.compress(b"\xef\xbb\xbfa.txt\nb\nc#1\n"))  # c#1 alone: it is a passage, not only a document
    assert run("update", folder, "--delete", gone) == 0
    assert "5 deleted" in capsys.readouterr().out
    gone.write_bytes(b"c#2\n\xff\n")
    assert run("update", folder, "--delete", gone) == 1
    assert "gone.txt:2: not valid UTF-8" in error_line(capsys.readouterr().err)
    gone.write_text("c#2\nc#1#1\n")
    assert run("update", folder, "--delete", gone) == 0
    assert run("update", folder, "--rebalance") == 0
    index = LiveIndex.open(folder, background=False)
    assert index.facts()["snapshot_rows"] == len(index) == len(ids)
    documents = [Document("n1", "", "first new"), Document(ids[0], "", "replaced", {"year": 2001})]
    assert index.documents(["n1", ids[0], ids[3]]) == [*documents, None]
    wanted = DualEncoder.from_pretrained(model).encode_passages(documents)
    np.testing.assert_allclose(index.vectors(["n1", ids[0]]), wanted, atol=1e-6)
    assert run("update", folder, "--add", new) == 1
    assert "over HTTP" in error_line(capsys.readouterr().err)
    index.close()
    assert run("verify", folder) == 0
