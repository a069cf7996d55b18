"""`jaxretr evaluate MODEL --suite` and `--index`: what is found and left out, averages, going on after a kill."""

import json
import re
import shutil
from pathlib import Path

import pytest
import tiny
from command_errors import the_error

from jaxretr import cli
from jaxretr.data.readers import read_qrels
from jaxretr.evaluate import suite as evaluate_suite
from jaxretr.evaluate.suite import Result, averages, find_data_sets
from jaxretr.models.dual_encoder import DualEncoder


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    tiny.write_models(place, noise=0.5)
    model = DualEncoder.from_pretrained(place / "encoder")
    DualEncoder(model.config, tiny.lively(model.params, 9), model.tokenizer).save(place / "lively")
    return place


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Data sets of different questions: one, two in a folder as CQADupStack's, and folders that are none."""
    root = tmp_path / "suite"
    queries = [json.loads(line) for line in (tiny.DATA / "queries.jsonl").read_text().splitlines()]
    judged = {split: read_qrels(tiny.DATA / f"qrels/{split}.tsv") for split in ("train", "tydi")}
    for name, split, some in (
        ("flat", "train", slice(4)),
        ("forums/a", "train", slice(2)),
        ("forums/b", "tydi", slice(9)),
    ):
        folder = root / name
        shutil.copytree(tiny.DATA, folder)
        shutil.rmtree(folder / "qrels")
        (folder / "qrels").mkdir()
        ids = [query["_id"] for query in queries if query["_id"] in judged[split]][some]
        lines = [f"{id}\t{passage}\t{grade}\n" for id in ids for passage, grade in judged[split][id].items()]
        (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    shutil.copytree(root / "flat", root / "only_dev")
    (root / "only_dev/qrels/test.tsv").rename(root / "only_dev/qrels/dev.tsv")
    shutil.copytree(root / "flat", root / "no_queries")
    (root / "no_queries/queries.jsonl").unlink()
    (root / "notes").mkdir()
    (root / "notes/readme.txt").write_text("no data set at all")
    (root / "loop").symlink_to(root)
    return root


def printed(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out)


def test_a_suite_is_its_data_sets(models, suite, capsys):
    assert run("evaluate", models / "encoder", "--suite", suite, "--json", "--metrics", "ndcg@10,ndcg@20") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert list(found["data_sets"]) == ["flat", "forums/a", "forums/b"]
    for name, of_one in found["data_sets"].items():
        words = ["evaluate", models / "encoder", "--beir", suite / name, "--json", "--metrics", "ndcg@10,ndcg@20"]
        assert run(*words) == 0
        alone = printed(capsys)
        assert of_one["metrics"] == pytest.approx(alone["metrics"], abs=1e-12)
        assert of_one["questions"] == alone["questions"] and of_one["passages"] == 20
    means = {name: of_one["metrics"]["ndcg@20"] for name, of_one in found["data_sets"].items()}
    forums = (means["forums/a"] + means["forums/b"]) / 2
    # The forums count as one, as in BEIR: half of the average, not two thirds.
    assert found["groups"]["forums"]["ndcg@20"] == pytest.approx(forums)
    assert found["average"]["ndcg@20"] == pytest.approx((means["flat"] + forums) / 2)
    assert means["flat"] != pytest.approx(forums), "the test would not see how the average is made"
    assert found["skipped"] == {
        "no_queries": "it has no queries.jsonl",
        "only_dev": "no split test (qrels/test.tsv), it has dev",
    }
    assert "only_dev: skipped: no split test (qrels/test.tsv), it has dev" in captured.err


def test_averages_of_any_depth():
    def of(value: float) -> Result:
        return Result("test", 1, 1, {"mrr": {"q": value}})

    groups, average = averages({"a": of(1), "b/c": of(0), "b/d/e": of(1), "b/d/f": of(0), "b/d/g": of(0.5)})
    assert groups == {"b/d": {"mrr": 0.5}, "b": {"mrr": 0.25}}
    assert average == {"mrr": 0.625}
    assert averages({"x/y": of(0.25)})[1] == {"mrr": 0.25}


def test_splits_in_order_of_preference(suite):
    found, skipped = find_data_sets(suite, ("test", "dev"))
    assert {one.name: one.split for one in found} == {
        "flat": "test",
        "forums/a": "test",
        "forums/b": "test",
        "only_dev": "dev",
    }
    assert list(skipped) == ["no_queries"]
    alone, _ = find_data_sets(suite / "flat", ("test",))
    assert [one.name for one in alone] == ["flat"]


def test_a_killed_suite_goes_on(models, suite, tmp_path, capsys, monkeypatch):
    words = ["evaluate", models / "encoder", "--suite", suite, "--json", "--metrics", "ndcg@10"]
    assert run(*words) == 0
    undisturbed = printed(capsys)
    seen: list[int] = []
    search = evaluate_suite.encoder_search

    def dies(encoder, corpus, batch_size):
        seen.append(len(corpus))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return search(encoder, corpus, batch_size)

    monkeypatch.setattr(evaluate_suite, "encoder_search", dies)
    out = tmp_path / "results"
    assert run(*words, "--out", out) == 130
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*.json")) == [
        "flat/result.json",
        "forums/a/result.json",
    ]
    capsys.readouterr()
    assert run(*words, "--out", out) == 0
    assert printed(capsys) == undisturbed
    assert len(seen) == 4  # The third data set alone was measured again.
    assert json.loads((out / "suite.json").read_text()) == undisturbed
    monkeypatch.setattr(evaluate_suite, "encoder_search", None)  # Nothing is left to search.
    assert run(*words, "--out", out) == 0
    assert printed(capsys) == undisturbed
    # Results of anything else are not taken for these.
    result = out / "flat/result.json"
    for change, message in (
        ({1: models / "lively"}, "was measured with another model"),
        ({6: "mrr@5"}, "was measured with metrics ndcg@10"),
        ({"more": ["--passage-prompt", "passage: "]}, "was measured with another model"),
        ({"more": ["--query-prompt", "query: "]}, "was measured with another model"),
    ):
        changed = [change.get(place, word) for place, word in enumerate([*words, *change.get("more", ())])]
        assert run(*changed, "--out", out) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert str(result) in error and message in error and "give another folder as --out" in error
    with (suite / "flat/qrels/test.tsv").open("a") as file:
        file.write("another\tnq:p0\t1\n")
    assert run(*words, "--out", out) == 1
    assert "has changed since" in capsys.readouterr().err.splitlines()[-1]
    result.write_text("{")
    assert run(*words, "--out", out) == 1
    assert "is not" in capsys.readouterr().err.splitlines()[-1]


def test_tables_of_a_suite(models, suite, tmp_path, capsys):
    words = ["evaluate", models / "encoder", "--suite", suite, "--metrics", "ndcg@10", "--out", tmp_path / "out"]
    assert run(*words, "--per-query", tmp_path / "values.tsv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 data sets"
    assert lines[1].split() == ["data", "set", "split", "questions", "passages", "ndcg@10"]
    assert [line.split()[0] for line in lines[2:5]] == ["flat", "forums/a", "forums/b"]
    assert lines[6].startswith("forums: mean ") and lines[8].startswith("average ")
    rows = [line.split("\t") for line in (tmp_path / "values.tsv").read_text().splitlines()]
    assert rows[0] == ["data-set", "question-id", "ndcg@10"]
    assert {row[0] for row in rows[1:]} == {"flat", "forums/a", "forums/b"}
    assert run(*words, "--format", "latex") == 0
    latex = capsys.readouterr().out
    assert "\\begin{tabular}{lrrrr}" in latex and latex.count("\\midrule") == 3
    assert run(*words, "--format", "markdown") == 0
    assert re.search(r"\| average( *\| *){4}0\.", capsys.readouterr().out)


def test_no_data_set_is_an_error(models, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert run("evaluate", models / "encoder", "--suite", tmp_path / "empty") == 1
    assert "no folder below it has corpus.jsonl, queries.jsonl and qrels/test.tsv" in the_error(capsys)
    assert run("evaluate", models / "encoder", "--suite", tmp_path / "missing") == 1
    assert "missing: no such folder; give the folder that contains the BEIR folders" in the_error(capsys)
    assert run("evaluate", models / "encoder", "--suite", tmp_path / "empty", "--metrics", "ndgc@10") == 2
    assert "did you mean 'ndcg'" in the_error(capsys)


def test_a_stored_corpus_is_not_encoded_again(models, suite, tmp_path, capsys, monkeypatch):
    store, model = tmp_path / "store", models / "encoder"
    assert run("encode", model, "--corpus", suite / "flat", "--out", store) == 0
    words = ["--beir", suite / "flat", "--metrics", "ndcg@10,recall@5", "--json"]
    capsys.readouterr()
    assert run("evaluate", model, *words) == 0
    expected = printed(capsys)
    with monkeypatch.context() as patch:
        patch.setattr(DualEncoder, "encode_passages", None)
        assert run("evaluate", model, *words, "--index", store) == 0
    assert printed(capsys) == expected
    assert run("evaluate", models / "lively", *words, "--index", store) == 1
    assert "was encoded with another model" in capsys.readouterr().err.splitlines()[-1]
    # The same ids and number of passages, but another text.
    corpus = suite / "flat/corpus.jsonl"
    corpus.write_text(corpus.read_text().replace("the", "a", 1))
    assert run("evaluate", model, *words, "--index", store) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"was encoded from other passages than those of {suite / 'flat'}" in error
    assert run("evaluate", model, *words, "--index", tmp_path / "nothing") == 1
    assert "nothing: no index" in capsys.readouterr().err.splitlines()[-1]
