"""`jaxretr search` with filters, over a ScaNN folder, and with an index that is not right."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from test_cli import CORPUS, QUERIES, run, train_once

from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.data.run_reading import read_trec
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.indexes.certified.index import ScannIndex
from jaxretr.indexes.exact import ExactIndex
from jaxretr.models.dual_encoder import DualEncoder

K = 6


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_once(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def store(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search") / "store"
    assert run("encode", trained / "run", "--corpus", CORPUS, "--out", folder, "--shard-rows", 8) == 0
    return folder


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus with a year in each row, and a language in its object "metadata"."""
    path = tmp_path_factory.mktemp("fields") / "corpus.jsonl"
    rows = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["year"] = 2000 + number % 3
        row["metadata"] = {"language": ("en", "de")[number % 2]}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def scores(trained: Path) -> tuple[list[str], np.ndarray]:
    """ids of the passages, and all scores [B, N]."""
    encoder, corpus = DualEncoder.from_pretrained(trained / "run"), read_corpus(CORPUS)
    q = encoder.encode_queries([question.text for question in read_questions(QUERIES)])
    return corpus.ids, q @ encoder.encode_passages(list(corpus)).T


def the_error(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line that a command said; before it stands what it needs of memory."""
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("jaxretr: error: ") and "Traceback" not in "".join(lines), lines
    return lines[-1].removeprefix("jaxretr: error: ")


def best(scores: tuple[list[str], np.ndarray], passes: list[bool]) -> list[list[str]]:
    """The first K ids of each question among the passages that pass."""
    ids, values = scores
    masked = np.where(passes, values, -np.inf)
    order = np.argsort(-masked, axis=1, kind="stable")[:, : min(K, sum(passes))]
    return [[ids[row] for row in found] for found in order]


def test_filters_of_a_store_find_the_best_of_what_passes(trained, store, fields, scores, tmp_path):
    ids = scores[0]
    (tmp_path / "allow").write_text("\n".join(ids[:20]) + "\n")
    (tmp_path / "deny").write_text("\n".join(ids[4:7]))
    out = tmp_path / "run.trec"
    words = ["search", trained / "run", "--index", store, "--queries", QUERIES, "-k", K, "--out", out]
    in_both = [row < 20 and not 4 <= row < 7 for row in range(len(ids))]
    cases = [
        (["--allow", tmp_path / "allow", "--deny", tmp_path / "deny"], in_both),
        (["--corpus", fields, "--where", "year=2001"], [row % 3 == 1 for row in range(len(ids))]),
        (
            ["--corpus", fields, "--where", "year=2001", "--where", "year=2000", "--where", "language=de"],
            [row % 3 < 2 and row % 2 == 1 for row in range(len(ids))],
        ),
        (
            ["--corpus", fields, "--where", "year>2000", "--where", "year<=2001", "--where", "language!=de"],
            [row % 3 == 1 and row % 2 == 0 for row in range(len(ids))],
        ),
    ]
    for options, passes in cases:
        assert run(*words, *options) == 0
        assert [list(hits) for hits in read_trec(out).values()] == best(scores, passes), options


def test_fewer_passages_than_k_are_all_found(trained, store, scores, tmp_path):
    (tmp_path / "allow").write_text("\n".join(scores[0][:2]))
    out = tmp_path / "run.trec"
    words = ["search", trained / "run", "--index", store, "--queries", QUERIES, "-k", K, "--out", out]
    assert run(*words, "--allow", tmp_path / "allow") == 0
    assert [len(hits) for hits in read_trec(out).values()] == [2] * len(scores[1])


def test_filters_of_a_saved_index_use_its_own_metadata(trained, scores, tmp_path):
    encoder, corpus = DualEncoder.from_pretrained(trained / "run"), read_corpus(CORPUS)
    flags = [row % 4 == 0 for row in range(len(corpus))]
    index = ExactIndex(encoder.encode_passages(list(corpus)), corpus.ids, metadata={"kept": flags})
    index.save(tmp_path / "index")
    out = tmp_path / "run.trec"
    words = ["search", trained / "run", "--index", tmp_path / "index", "--queries", QUERIES, "-k", K, "--out", out]
    assert run(*words, "--where", "kept=true") == 0
    assert [list(hits) for hits in read_trec(out).values()] == best(scores, flags)


def test_what_a_search_needs_is_said_before(trained, store, tmp_path, caplog):
    words = ["search", trained / "run", "--index", store, "--queries", QUERIES, "--out", tmp_path / "r"]
    with caplog.at_level("INFO", logger="jaxretr.runtime.parallel.memory"):
        assert run(*words) == 0
    assert "the search of" in caplog.text and "of memory in addition to the" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--allow", "{ids}"], "ids:2: {store} has no passage 'nobody'"),
        (["--deny", "{missing}"], "missing: no such file"),
        (["--where", "language=en"], "where language: the index has no such field; give the corpus, JSON lines"),
        (["--where", "langage=en", "--corpus", "{fields}"], "has such a field; did you mean 'language'?"),
        (["--where", "language=eng", "--corpus", "{fields}"], "no passage has this value; did you mean 'en'?"),
        (["--where", "language", "--corpus", "{fields}"], "'language' is not FIELD=VALUE"),
        (["--where", "year>1", "--where", "year>2", "--corpus", "{fields}"], "--where: two bounds gt of year"),
        (["--where", "year>x", "--corpus", "{fields}"], "where year: gt is 'x', but the field has numbers"),
        (["--where", "year=2000", "--deny", "{all}", "--corpus", "{fields}"], "no passage passes the filters"),
    ],
)
def test_filters_that_are_wrong(trained, store, fields, scores, tmp_path, capsys, options, message):
    files = {name: tmp_path / name for name in ("ids", "missing", "all")}
    files["ids"].write_text(f"{scores[0][0]}\nnobody\n")
    files["all"].write_text("\n".join(scores[0]))
    names = {**files, "store": store, "fields": fields}
    words = ["search", trained / "run", "--index", store, "--queries", QUERIES, "--out", tmp_path / "r"]
    assert run(*words, *(option.format(**names) for option in options)) in (1, 2)
    assert message.format(**names) in the_error(capsys)
    assert not (tmp_path / "r").exists()


def copy(store: Path, folder: Path, ids: list[str], vectors: np.ndarray) -> Path:
    """A store of the same model with other ids and vectors."""
    import dataclasses

    meta = dataclasses.replace(EmbeddingStore.open(store).meta, texts_fingerprint="0" * 64, shard_rows=len(ids))
    made = EmbeddingStore.begin(folder, dataclasses.replace(meta, rows=len(ids), dim=vectors.shape[1]), ids)
    made.write(0, vectors, 0)
    return folder


def test_ids_that_a_trec_run_cannot_hold(trained, store, tmp_path, capsys):
    dim = EmbeddingStore.open(store).meta.dim
    words = ["search", trained / "run", "--queries", QUERIES, "--out", tmp_path / "r"]
    for number, name in enumerate(("two words", "a\ttab", "a\nline", "")):
        folder = copy(store, tmp_path / f"s{number}", ["fine", name], np.ones((2, dim), np.float32))
        assert run(*words, "--index", folder) == 1
        error = the_error(capsys)
        assert f"passage 2: the id {name!r}" in error and "--format jsonl" in error
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"_id": "q 1", "text": "who"}\n')
    assert run(*words[:2], "--queries", questions, "--out", tmp_path / "r", "--index", store) == 1
    assert "q.jsonl:1: the id 'q 1' contains white space" in the_error(capsys)


def test_jsonl_holds_ids_with_spaces(trained, store, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "two words", "text": "a"}\n{"_id": "b", "text": "b"}\n')
    dim = EmbeddingStore.open(store).meta.dim
    folder = copy(store, tmp_path / "s", ["two words", "b"], np.ones((2, dim), np.float32))
    words = ["search", trained / "run", "--index", folder, "--queries", QUERIES, "--out", tmp_path / "r"]
    assert run(*words, "--format", "jsonl", "--corpus", corpus) == 0
    first = json.loads((tmp_path / "r").read_text().splitlines()[0])
    assert [hit["id"] for hit in first["hits"]] == ["two words", "b"]


def test_vectors_of_another_prompt_are_refused(trained, store, tmp_path, capsys):
    words = ["search", trained / "run", "--index", store, "--queries", QUERIES, "--out", tmp_path / "r", "-k", K]
    assert run(*words, "--passage-prompt", "as read: ") == 1
    assert "or with another --passage-prompt" in the_error(capsys)
    # A question's prompt is put before it, and asks nothing of the store.
    assert run(*words, "--query-prompt", "the question is ") == 0
    encoder = DualEncoder.from_pretrained(trained / "run", query_prompt="the question is ")
    questions = read_questions(QUERIES)
    corpus = read_corpus(CORPUS)
    index = ExactIndex(encoder.encode_passages(list(corpus)), corpus.ids)
    expected = index.search(encoder.encode_queries([one.text for one in questions]), K)[1]
    found = read_trec(tmp_path / "r")
    assert [list(found[one.id]) for one in questions] == expected
    bare = DualEncoder.from_pretrained(trained / "run").encode_queries([questions[0].text])
    prompted = ["the question is " + questions[0].text]
    np.testing.assert_array_equal(
        encoder.encode_queries([questions[0].text]),
        DualEncoder.from_pretrained(trained / "run").encode_queries(prompted),
    )
    assert np.abs(bare - encoder.encode_queries([questions[0].text])).max() > 1e-3


def test_indexes_that_are_wrong(trained, store, tmp_path, capsys):
    dim = EmbeddingStore.open(store).meta.dim
    words = ["search", trained / "run", "--queries", QUERIES, "--out", tmp_path / "r", "--index"]

    twice = copy(store, tmp_path / "twice", ["a", "b", "a"], np.ones((3, dim), np.float32))
    assert run(*words, twice) == 1
    assert "twice: 'a' is at rows 0 and 2; ids must differ" in the_error(capsys)

    broken = copy(store, tmp_path / "nan", ["a", "b"], np.ones((2, dim), np.float32))
    path = next(broken.glob("embeddings-*.npy"))
    values = np.load(path)
    values[1, 0] = np.nan
    np.save(path, values)
    assert run(*words, broken) == 1
    assert "nan: embeddings-00000-of-00001.npy was changed; run the same `jaxretr encode`" in the_error(capsys)

    ExactIndex(np.ones((3, dim + 1), np.float32), ["a", "b", "c"]).save(tmp_path / "wide")
    assert run(*words, tmp_path / "wide") == 1
    assert f"wide: contains embeddings of {dim + 1} dimensions, but {trained / 'run'} gives {dim}" in the_error(capsys)

    latin = tmp_path / "latin.tsv"
    latin.write_bytes("1\tcafé\n".encode("latin-1"))
    assert run("search", trained / "run", "--queries", latin, "--out", tmp_path / "r", "--index", store) == 1
    assert "latin.tsv:1:" in (error := the_error(capsys)) and "UTF-8" in error


def test_a_scann_folder_is_searched_if_the_model_made_it(trained, store, scores, tmp_path, capsys):
    words = ["search", trained / "run", "--queries", QUERIES, "--out", tmp_path / "r", "-k", K, "--index"]
    index = ScannIndex.build(EmbeddingStore.open(store), workdir=tmp_path)
    index.save(tmp_path / "good")
    assert run(*words, tmp_path / "good") == 0
    assert [list(hits) for hits in read_trec(tmp_path / "r").values()] == best(scores, [True] * len(scores[0]))
    (tmp_path / "denied").write_text(f"{scores[0][3]}\n")
    assert run(*words, tmp_path / "good", "--deny", tmp_path / "denied") == 0
    there = [row != 3 for row in range(len(scores[0]))]
    assert [list(hits) for hits in read_trec(tmp_path / "r").values()] == best(scores, there)
    (tmp_path / "denied").write_text("nobody\n")
    assert run(*words, tmp_path / "good", "--deny", tmp_path / "denied") == 1
    assert "'nobody'" in the_error(capsys)
    index.facts = dataclasses.replace(index.facts, model="another", model_fingerprint="0")
    index.save(tmp_path / "other")
    assert run(*words, tmp_path / "other") == 1
    assert "was encoded with another model (another)" in the_error(capsys)
    dim = EmbeddingStore.open(store).meta.dim + 1
    wide = ScannIndex.build(np.ones((3, dim), np.float32), ["a", "b", "c"], workdir=tmp_path)
    wide.save(tmp_path / "wide")
    assert run(*words, tmp_path / "wide") == 1
    assert f"contains embeddings of {dim} dimensions" in the_error(capsys)
