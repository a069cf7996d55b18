"""`jaxretr evaluate MODEL --beir DIR` and `jaxretr.evaluate_model`: kept embeddings, and BM25 as a baseline."""

import gc
import json
import shutil
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import tiny

import jaxretr
from jaxretr import cli
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_beir
from jaxretr.data.run_reading import write_trec
from jaxretr.data.runs import Hits, RunFormat, SearchRun
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.evaluate import metrics
from jaxretr.evaluate.measuring import TestSet, depth, run_of
from jaxretr.evaluate.retrieval import retrieval_metrics
from jaxretr.evaluate.searches import bm25_search, find_all
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.models.dual_encoder import DualEncoder

NAMES = "ndcg@10,mrr@10"
QUESTIONS, QRELS = tiny.DATA / "queries.jsonl", tiny.DATA / "qrels/train.tsv"


@pytest.fixture(scope="module")
def words(tiny_models: Path) -> list[str]:
    return ["evaluate", str(tiny_models / "encoder"), "--beir", str(tiny.DATA), "--split", "train", "--metrics", NAMES]


@pytest.fixture(scope="module")
def bm25() -> dict[str, dict[str, float]]:
    data = read_beir(tiny.DATA, "train")
    return run_of(bm25_search(data.corpus), data.questions, 100)


@pytest.fixture(scope="module")
def run_file(bm25: dict[str, dict[str, float]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without the best passage of each question."""
    path = tmp_path_factory.mktemp("run") / "run.trec"
    write_trec(path, {question: dict(list(hits.items())[1:]) for question, hits in bm25.items()})
    return path


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    assert cli.main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> str:
    assert cli.main([*map(str, words)]) == code
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("jaxretr: error: ")]
    return line


def test_kept_embeddings_are_written_once_and_used_again(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    keep = tmp_path / "kept"
    first = printed(capsys, *words, "--keep", keep)
    assert first == printed(capsys, *words)
    assert EmbeddingStore.open(keep).meta.rows == 20
    # An interrupted evaluation goes on: of a store without its record the passages are encoded again, else none.
    sides, real = [], DualEncoder.encode_pieces

    def noted(self: DualEncoder, side: str, *given: object, **options: object) -> Iterator[tuple[np.ndarray, int]]:
        sides.append(side)
        return real(self, side, *given, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(DualEncoder, "encode_pieces", noted)
    assert printed(capsys, *words, "--keep", keep) == first
    assert sides == ["question"]
    (keep / "embeddings-00000-of-00001.json").unlink()
    assert printed(capsys, *words, "--keep", keep) == first
    assert sides == ["question", "passage", "question"]


def test_kept_embeddings_of_another_model_or_corpus_are_refused(
    words: list[str], tmp_path: Path, tiny_models: Path, capsys: pytest.CaptureFixture[str]
):
    printed(capsys, *words, "--keep", tmp_path / "kept")
    error = refused(capsys, 1, *words, "--keep", tmp_path / "kept", "--pooling", "mean")
    assert "holds embeddings of another model" in error and error.endswith("give another folder as --keep")
    shutil.copytree(tiny.DATA, tmp_path / "beir")
    with open(tmp_path / "beir/corpus.jsonl", "a", encoding="utf-8") as file:
        file.write('{"_id": "new", "title": "", "text": "one more"}\n')
    changed = [tmp_path / "beir" if word == str(tiny.DATA) else word for word in words]
    error = refused(capsys, 1, *changed, "--keep", tmp_path / "kept")
    assert "holds embeddings of other texts (passages); give another folder as --keep" in error
    for more, message in (
        (["--index", "i"], "index is there already and keep writes what is missing"),
        (["--typos"], "--keep belongs to --beir, not to --typos"),
    ):
        assert message in refused(capsys, 2, *words, "--keep", tmp_path / "kept", *more)


def test_bm25_stands_in_the_table_beside_a_model(
    words: list[str], bm25: dict[str, dict[str, float]], capsys: pytest.CaptureFixture[str]
):
    found = printed(capsys, *words, "--baseline", "bm25")
    wanted = metrics.evaluate(read_beir(tiny.DATA, "train").qrels, bm25, NAMES.split(","))
    [baseline] = found["baselines"]
    assert baseline["run"] == "BM25"
    assert {name: values["mean_b"] for name, values in baseline["metrics"].items()} == pytest.approx(wanted)
    assert cli.main([*words, "--baseline", "bm25"]) == 0
    assert "\nBM25 " in capsys.readouterr().out


def test_models_that_read_different_lengths_are_said_to(
    words: list[str], tiny_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    DualEncoder.from_pretrained(tiny_models / "encoder", max_passage_length=24).save(tmp_path / "short")
    assert cli.main([*words, "--baseline", str(tmp_path / "short")]) == 0
    [said] = [line for line in capsys.readouterr().err.splitlines() if "different lengths" in line]
    assert f"{tmp_path / 'short'} 64 and 24" in said and "encoder 64 and 64" in said
    shutil.copytree(tiny_models / "encoder", tmp_path / "alike")
    assert cli.main([*words, "--baseline", str(tmp_path / "alike")]) == 0
    assert "different lengths" not in capsys.readouterr().err


def test_a_file_of_the_name_bm25_is_read_by_its_path(
    words: list[str],
    run_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    shutil.copy(run_file, tmp_path / "bm25")
    monkeypatch.chdir(tmp_path)
    found = printed(capsys, *words, "--baseline", "./bm25")
    assert [each["run"] for each in found["baselines"]] == ["./bm25"]
    assert cli.main([*words, "--baseline", "bm25", "--baseline", "./bm25", "--json"]) == 0
    captured = capsys.readouterr()
    assert [each["run"] for each in json.loads(captured.out)["baselines"]] == ["BM25", "./bm25"]
    assert "write ./bm25 for the file of that name" in captured.err


def test_a_run_is_compared_with_bm25_where_the_texts_are_given(
    run_file: Path, bm25: dict[str, dict[str, float]], capsys: pytest.CaptureFixture[str]
):
    words = ["evaluate", "--run", run_file, "--qrels", QRELS, "--metrics", "mrr@10"]
    texts = ["--corpus", tiny.DATA, "--queries", QUESTIONS]
    found = printed(capsys, *words, *texts, "--baseline", "bm25")["baselines"][0]["metrics"]["mrr@10"]
    assert found["mean_b"] == metrics.evaluate(read_beir(tiny.DATA, "train").qrels, bm25, ["mrr@10"])["mrr@10"]
    assert found["difference"] < 0
    answers = ["evaluate", "--run", run_file, "--answers", QUESTIONS, "--corpus", tiny.DATA, "--baseline", "bm25"]
    assert printed(capsys, *answers)["baselines"][0]["run"] == "BM25"
    for given, message in (
        (["--baseline", "bm25"], "the baseline bm25 searches the corpus: give corpus and queries"),
        (["--baseline", "bm25", *texts[:2]], "give corpus and queries"),
        (texts[:2], "give queries as well"),
        (texts[2:], "give corpus as well"),
    ):
        assert message in refused(capsys, 2, *words, *given)
    assert "with answers the questions are known" in refused(capsys, 2, *answers, *texts[2:])


def test_bm25_may_find_fewer_passages_than_were_asked_for(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """One that shares no word with the question is not a hit: the rows behind the last hit are -1."""
    real = Bm25Index.search

    def few(self: Bm25Index, questions: list[str], k: int, *, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        scores, rows = (found.copy() for found in real(self, questions, k, threads=threads))
        scores[:, 2:], rows[:, 2:] = -np.inf, -1
        scores[0], rows[0] = -np.inf, -1
        return scores, rows

    monkeypatch.setattr(Bm25Index, "search", few)
    found = printed(capsys, *words, "--baseline", "bm25")["baselines"][0]["metrics"]
    assert all(np.isfinite(values["mean_b"]) for values in found.values())
    run = run_of(bm25_search(read_beir(tiny.DATA, "train").corpus), read_beir(tiny.DATA, "train").questions, 100)
    assert sorted({len(hits) for hits in run.values()}) == [0, 2]


def test_python_gives_the_commands_figures(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], run_file: Path
):
    command = printed(capsys, *words, "--baseline", "bm25", "--baseline", run_file)
    report = jaxretr.evaluate_model(
        words[1],
        beir=tiny.DATA,
        split="train",
        metrics=NAMES.split(","),
        baselines=["bm25", run_file],
        keep=tmp_path / "kept",
    )
    assert json.loads(report.to_json()) == command
    assert list(report.means) == ["encoder", "BM25", "run.trec"]
    assert report.means["encoder"] == command["metrics"]
    assert "against the baselines" in report.table()
    again = jaxretr.evaluate_model(
        jaxretr.load_encoder(words[1]), beir=read_beir(tiny.DATA, "train"), metrics=["mrr@10"], index=tmp_path / "kept"
    )
    assert again.means == {"encoder": {"mrr@10": command["metrics"]["mrr@10"]}}


def test_a_report_by_judgements_does_not_keep_the_passages_in_memory():
    corpus = Corpus(["a", "b"], ["", ""], ["red fox", "blue"])
    there = weakref.ref(corpus)
    questions, run = [Question("q", "which fox")], {"q": {"a": 2.0, "b": 1.0}}
    report = jaxretr.evaluate_run(run, qrels={"q": {"a": 1}}, corpus=corpus, queries=questions, baselines=["bm25"])
    del corpus
    gc.collect()
    assert there() is None and list(report.means.values()) == [{"ndcg@10": 1.0, "mrr@10": 1.0, "recall@100": 1.0}] * 2


def test_the_embeddings_of_one_system_are_freed_before_the_next_ones_are_computed() -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    class Search:
        def __call__(self, questions: Sequence[Question], k: int) -> tuple[np.ndarray, list[list[str]]]:
            return np.ones((len(questions), 1), np.float32), [["p"]] * len(questions)

    def make(corpus: Corpus) -> Search:
        assert not alive
        search = Search()
        alive.add(search)
        return search

    on = TestSet([Question("q", "who?")], Corpus(["p"], [""], ["she"]), {"q": {"p": 1}})
    systems = [("a", make), ("read", {"q": {"x": 2.0}}), ("b", make)]
    assert find_all(systems, on, ["mrr@10"]) == [
        ("a", {"q": {"p": 1.0}}),
        ("read", {"q": {"x": 2.0}}),
        ("b", {"q": {"p": 1.0}}),
    ]


def test_equal_scores_are_in_the_order_of_the_search_as_in_a_run_that_is_written(tmp_path: Path) -> None:
    """Copies of a passage, of which the search finds the first one first and trec_eval would rank the last one so."""
    ids = [f"p{number}" for number in range(5)]
    corpus, questions = Corpus(ids, [""] * 5, ["the red planet"] * 5), [Question("q", "red planet")]
    on = TestSet(questions, corpus, {"q": {"p0": 1}})
    run = on.search(bm25_search(corpus), 5)
    assert list(run["q"]) == ids and metrics.evaluate({"q": {"p0": 1}}, run, ["mrr@10"]) == {"mrr@10": 1.0}
    write_trec(tmp_path / "run", run)
    copies = SearchRun([Hits("q", ids, np.ones(5, np.float32))], questions)
    for form in get_args(RunFormat):
        copies.save(tmp_path / f"run.{form}", format=form, corpus=corpus)
    for name in ("run", *(f"run.{form}" for form in get_args(RunFormat))):
        report = jaxretr.evaluate_run(
            tmp_path / name, qrels={"q": {"p0": 1}}, corpus=corpus, queries=questions, baselines=["bm25"]
        )
        assert report.means[name] == report.means["BM25"] and report.against[0].rbo == pytest.approx(1)
    scores, rows = np.ones((1, 5), np.float32), np.arange(5)[None]
    assert retrieval_metrics(corpus, questions, {"q": {"p0": 1}}, scores, rows, ["mrr@10"]) == {"mrr@10": 1.0}
    found = SearchRun([Hits("q", ids, scores[0])], questions)
    assert metrics.evaluate({"q": {"p0": 1}}, found, ["mrr@10"]) == {"mrr@10": 1.0}


def test_a_cut_counts_with_white_space_around_the_metric() -> None:
    assert depth(("recall@2000 ", " mrr@5")) == 2000
