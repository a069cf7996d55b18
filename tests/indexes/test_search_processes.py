"""`jaxretr search` by several processes finds what one finds, each reading its own shards; differences are named."""

import json
import shutil
from pathlib import Path

import numpy as np
import processes
import pytest
import tiny

from jaxretr import cli
from jaxretr.data.run_reading import read_trec
from jaxretr.data.tokens import load_tokenizer
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.indexes.exact import ExactIndex
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, init_params

CORPUS = tiny.DATA / "corpus.jsonl"
QUERIES = tiny.DATA / "queries.jsonl"
K = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny.write_models(folder)
    config = DualEncoderConfig(tiny.BERT, max_question_length=16, max_passage_length=48)
    params = tiny.lively(init_params(config, 0), 3)
    DualEncoder(config, params, load_tokenizer(folder / "encoder_tokenizer")).save(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module", params=["float32", "int8"])
def store(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 passages in seven shards, the last of which is not full: no number of processes divides them."""
    folder = tmp_path_factory.mktemp(request.param) / "store"
    words = ["encode", model, "--corpus", CORPUS, "--out", folder, "--shard-rows", 3, "--dtype", request.param]
    assert cli.main([str(word) for word in words]) == 0
    assert EmbeddingStore.open(folder).meta.shards == 7
    return folder


def search(model: Path, index: Path, out: Path, count: int, *more: object) -> dict[str, dict[str, float]]:
    words = ["-m", "jaxretr", "search", model, "--index", index, "--queries", QUERIES, "--out", out, *more]
    outputs = processes.finish(processes.start([str(word) for word in words], count, 8 // count))
    assert [" hits of " in output for output, _ in outputs] == [True] + [False] * (count - 1)
    return read_trec(out)


def same(found: dict[str, dict[str, float]], expected: dict[str, dict[str, float]]) -> None:
    assert {name: list(hits) for name, hits in found.items()} == {name: list(hits) for name, hits in expected.items()}
    for name, hits in expected.items():
        np.testing.assert_allclose(list(found[name].values()), list(hits.values()), rtol=1e-6)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_find_what_one_finds(model: Path, store: Path, tmp_path: Path, count: int) -> None:
    expected = search(model, store, tmp_path / "one.trec", 1, "-k", K)
    assert all(len(hits) == K for hits in expected.values())
    same(search(model, store, tmp_path / "run.trec", count, "-k", K), expected)


def test_more_processes_than_shards_and_more_hits_than_passages(model: Path, tmp_path: Path) -> None:
    """With a filter that leaves passages of one shard alone."""
    folder = tmp_path / "store"
    words = ["encode", model, "--corpus", CORPUS, "--out", folder, "--shard-rows", 10]
    assert cli.main([str(word) for word in words]) == 0
    allowed = EmbeddingStore.open(folder).read_ids()[11:15]
    (tmp_path / "allow").write_text("\n".join(allowed))
    for more, there in ([], 20), (["--allow", tmp_path / "allow"], 4):
        expected = search(model, folder, tmp_path / "one.trec", 1, "-k", 50, *more)
        assert {len(hits) for hits in expected.values()} == {there}
        same(search(model, folder, tmp_path / "run.trec", 4, "-k", 50, *more), expected)


def test_an_exact_index_lies_on_the_devices_of_all_processes(model: Path, tmp_path: Path) -> None:
    encoder = DualEncoder.from_pretrained(model)
    rows = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    ExactIndex(encoder.encode_passages(rows), [row["_id"] for row in rows]).save(tmp_path / "index")
    expected = search(model, tmp_path / "index", tmp_path / "one.trec", 1, "-k", K)
    same(search(model, tmp_path / "index", tmp_path / "run.trec", 2, "-k", K), expected)


def test_no_process_reads_shards_of_another(model: Path, store: Path, tmp_path: Path) -> None:
    """Those that are not its own are taken away before each of them opens the store's arrays."""
    program = """
import os, sys
from jaxretr import cli
from jaxretr.embeddings.embedding_store import EmbeddingStore
arrays, process = EmbeddingStore._arrays, int(os.environ["JAX_PROCESS_ID"])
opened = EmbeddingStore.open.__func__
looked = set()
EmbeddingStore._arrays = lambda store, shard: (looked.add(shard), arrays(store, shard))[1]
def opening(kind, folder):
    store = opened(kind, folder)  # looks at the headers of all
    looked.clear()
    return store
EmbeddingStore.open = classmethod(opening)
code = cli.main(sys.argv[1:])
print(process, sorted(looked))
sys.exit(code)
"""
    words = ["-c", program, "search", model, "--index", store, "--queries", QUERIES, "--out", tmp_path / "run"]
    outputs = processes.finish(processes.start([str(word) for word in words], 2, 1))
    assert [output.splitlines()[-1] for output, _ in outputs] == ["0 [0, 2, 4, 6]", "1 [1, 3, 5]"]


def test_another_store_on_one_host_is_named(model: Path, tmp_path: Path) -> None:
    """Each host has a folder of that name, on its own disk."""
    lines = CORPUS.read_text().splitlines(keepends=True)
    for host, count in enumerate((len(lines), len(lines) - 1)):
        folder = tmp_path / str(host)
        folder.mkdir()
        (folder / "corpus.jsonl").write_text("".join(lines[:count]))
        words = ["encode", model, "--corpus", folder / "corpus.jsonl", "--out", folder / "store"]
        assert cli.main([str(word) for word in words]) == 0
    # The same command line everywhere.
    program = "import os, sys; from jaxretr import cli; os.chdir(os.environ['JAX_PROCESS_ID']); sys.exit(cli.main(sys.argv[1:]))"
    words = ["-c", program, "search", str(model), "--index", "store", "--queries", str(QUERIES), "--out", "run"]
    run = processes.start(words, 2, 1, cwd=tmp_path)
    for code, errors in processes.ended(run):
        assert code == 1 and "the search: process 1" in processes.last_error(errors), errors
        assert "another index than the rest" in processes.last_error(errors)


def test_a_missing_shard_ends_all(model: Path, store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "store")
    gone = next((tmp_path / "store").glob("embeddings-00003-of-*.npy"))
    gone.unlink()
    words = ["-m", "jaxretr", "search", model, "--index", tmp_path / "store", "--queries", QUERIES]
    run = processes.start([*map(str, words), "--out", str(tmp_path / "run")], 2, 1)
    for code, errors in processes.ended(run):
        assert code == 1 and gone.name in processes.last_error(errors), errors
        assert "run the same `jaxretr encode` command again" in processes.last_error(errors)
