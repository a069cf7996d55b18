"""Every kind of command on data sets by name: the results are those of the files that the rows came from."""

import json
from pathlib import Path
from typing import Any

import named_sets
import numpy as np
import pytest
import tiny
from test_cli import CORPUS, QRELS, QUERIES, run, train_once

from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.runs.contrastive import ContrastiveRun


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return named_sets.all_names(tmp_path_factory.mktemp("named"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_once(tmp_path_factory.getbasetemp())


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert run(*words) == 0
    return capsys.readouterr().out


def test_training_by_name_is_training_from_the_file(trained: Path, names: dict[str, str], tmp_path: Path) -> None:
    """The same losses and metrics; config.json records the name, with which a finished run is found to be finished."""
    metrics = {}
    for source, name in {"file": str(tiny.DATA), **names}.items():
        folder = tmp_path / source
        words = ["train", trained / "tiny_art.py", "--workdir", folder, "--train.steps", 1, "--train.eval-every", 1]
        data = ["--data", name, "--data.dev-questions", name, "--data.dev-qrels", qrels_of(source, name)]
        assert run(*words, *data) == 0
        config = json.loads((folder / "config.json").read_text())
        assert (config["data"]["corpus"], config["data"]["questions"]) == (name, name)
        metrics[source] = [
            {key: value for key, value in line.items() if key == "loss" or "@" in key} for line in read_metrics(folder)
        ]
    assert any("recall@20" in line for line in metrics["file"])
    assert all(found == metrics["file"] for found in metrics.values())
    assert run(*words, *data) == 0


def qrels_of(source: str, name: str) -> str:
    return str(tiny.DATA / "qrels/tydi.tsv") if source == "file" else f"{name}#qrels/tydi"


def test_batches_by_name_are_those_of_the_file(tiny_models: Path, mesh1: Any, tmp_path: Path) -> None:
    """Token rows and draws of examples, with hard negatives of passages that the corpus lacks."""
    files = tiny.write_supervised(tmp_path / "files")
    by_name = {
        "train": f"tfds:{named_sets.build_data(files['train'], tmp_path, name='examples').path}",
        "corpus": f"tfds:{named_sets.build_data(files['corpus'], tmp_path, name='passages').path}",
    }
    runs = []
    for number, data in enumerate((files, by_name)):
        settings: Any = {"data": {**data, "dev_questions": None}, "negatives": {"static": 2}}
        config = tiny.contrastive_config(tiny_models, **settings)
        runs.append(ContrastiveRun(config, mesh1, tmp_path / str(number)))
    assert runs[0].inputs() == runs[1].inputs()
    for step in range(3):
        first, second = (each.batch(step) for each in runs)
        for name in ("tokens", "lengths", "rows", "known"):
            a, b = (getattr(batch, name) for batch in (first, second))
            np.testing.assert_array_equal(a, b, err_msg=name)
    np.testing.assert_array_equal(runs[0].whole.passages.ids, runs[1].whole.passages.ids)


def test_encoding_and_searching(trained: Path, names: dict[str, str], tmp_path: Path) -> None:
    """With the corpus and the questions by name; a killed encoding resumes, as its corpus has the same fingerprint."""
    stores = []
    for source, corpus in {"file": CORPUS, **names}.items():
        assert run("encode", trained / "run", "--corpus", corpus, "--out", tmp_path / source, "--shard-rows", 8) == 0
        stores.append(EmbeddingStore.open(tmp_path / source))
    assert all(store.meta.address == stores[0].meta.address for store in stores)
    hits = []
    for source, questions in {"file": QUERIES, **names}.items():
        out = tmp_path / f"{source}.trec"
        words = ("search", trained / "run", "--index", tmp_path / source, "--queries", questions, "--out", out)
        assert run(*words) == 0
        hits.append(out.read_text())
    assert len(set(hits)) == 1
    # The store of the file, asked for the corpus by name, is complete already.
    assert run("encode", trained / "run", "--corpus", names["tfds"], "--out", tmp_path / "file", "--shard-rows", 8) == 0


@pytest.mark.parametrize("source", ["ir_datasets", "tfds", "hf"])
def test_evaluating(
    source: str, trained: Path, names: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, found = (
        json.loads(printed(capsys, "evaluate", trained / "run", "--beir", beir, "--split", "train", "--format", "json"))
        for beir in (tiny.DATA, names[source])
    )
    assert found == expected
    run_file = tmp_path / "bm25.trec"
    assert (
        run("bm25", "--corpus", names[source], "--queries", names[source], "--out", run_file, "--format", "trec") == 0
    )
    by_file, by_name = (
        printed(capsys, "evaluate", "--run", run_file, "--qrels", qrels)
        for qrels in (QRELS, f"{names[source]}#qrels/train")
    )
    assert by_name == by_file


def test_mining(names: dict[str, str], tmp_path: Path) -> None:
    mined = []
    for corpus, train in ((CORPUS, tiny.DATA), *((name, name) for name in names.values())):
        out = tmp_path / f"{len(mined)}.jsonl"
        assert run("mine", "--corpus", corpus, "--train", train, "--out", out, "--ranks", "1:6") == 0
        mined.append(out.read_text())
    assert mined[0] and len(set(mined)) == 1
    lexical = tmp_path / "lexical"
    words = (
        "mine",
        "lexical",
        "--corpus",
        names["hf"],
        "--out",
        lexical,
        "--limit",
        8,
        "--positives",
        3,
        "--negative-ranks",
        "6:8",
    )
    assert run(*words) == 0
    recorded = json.loads((lexical / "meta.json").read_text())["settings"]["corpus"]["files"]
    assert recorded == [f"{names['hf']}#corpus"]
    assert run(*words) == 0  # finished already


def test_converting_and_validating(names: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = []
    for path in (tiny.DATA, *names.values()):
        out = tmp_path / f"{len(written)}.jsonl"
        assert run("data", "convert", path, out, "--to", "tevatron") == 0
        written.append(out.read_text())
    assert len(set(written)) == 1
    for name in names.values():
        assert "no problem in" in printed(capsys, "data", "validate", name)
        assert f"{name}: BEIR folder" in printed(capsys, "data", "inspect", name)
