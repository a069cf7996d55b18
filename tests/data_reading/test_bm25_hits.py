"""A passage that shares no word with the question is not a hit of BM25, wherever its hits go."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxretr import cli
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.run_reading import read_run, read_trec
from jaxretr.evaluate.measuring import run_of
from jaxretr.evaluate.retrieval import retrieval_metrics
from jaxretr.evaluate.searches import bm25_search
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.mining.negatives import Filters, Ranking, hard_negatives

TEXTS = {
    "p0": "a red stone",
    "p1": "the blue river",
    "p2": "red leaves of a tree",
    "p3": "nothing",
    "p4": "the last one",
}
QUESTIONS = {"known": "red river", "one": "leaves", "none": "zzz"}
CORPUS = Corpus(list(TEXTS), [""] * len(TEXTS), list(TEXTS.values()))


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


@pytest.fixture(scope="module")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beir")
    for name, texts in (("corpus", TEXTS), ("queries", QUESTIONS)):
        rows = [json.dumps({"_id": id, "title": "", "text": text}) for id, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "qrels").mkdir()
    # The last passage, which a row of -1 would be taken for, and the first, which a filled list began with.
    judged = [("known", "p0"), ("one", "p2"), ("none", "p0"), ("none", "p4"), ("one", "p4")]
    lines = ["query-id\tcorpus-id\tscore", *(f"{question}\t{passage}\t1" for question, passage in judged)]
    (folder / "qrels/test.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def trec(beir: Path) -> Path:
    assert run("bm25", "--corpus", beir, "--queries", beir, "-k", 4, "--out", beir / "run.trec") == 0
    return beir / "run.trec"


def test_a_run_has_no_line_for_them_and_evaluate_counts_a_question_without_hits_as_0(
    beir: Path, trec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read_trec(trec)
    assert {question: sorted(hits) for question, hits in found.items()} == {"known": ["p0", "p1", "p2"], "one": ["p2"]}
    assert min(score for hits in found.values() for score in hits.values()) > 0.1
    assert run("evaluate", "--run", trec, "--qrels", beir / "qrels/test.tsv", "--metrics", "recall@5", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["metrics"]["recall@5"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert "lacks 1 of 3 questions (none, ...): they count as 0" in printed.err


def test_the_other_formats_and_the_terminal_say_so(beir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("jsonl", "dpr"):
        out = beir / f"run.{form}"
        assert run("bm25", "--corpus", beir, "--queries", beir, "--format", form, "--out", out) == 0
        printed = capsys.readouterr()
        assert printed.out == f"{out}: 4 hits of 3 questions\n"
        assert "1 of 3 questions share no word with any passage and have no hits (none, ...)" in printed.err
        assert [len(hits) for hits in read_run(out).values()] == [3, 1, 0]


def test_metrics_of_rows_do_not_take_them_for_the_last_passage() -> None:
    questions = [Question(id, text, ("last one",)) for id, text in QUESTIONS.items()]
    scores, rows = Bm25Index.build(CORPUS).search(list(QUESTIONS.values()), 5)
    qrels = {"known": {"p0": 1}, "one": {"p2": 1, "p4": 1}, "none": {"p4": 1}}
    found = retrieval_metrics(CORPUS, questions, qrels, scores, rows, measures=("recall@5",))
    assert found["recall@5"] == pytest.approx(0.5) and found["acc@20"] == 0


def test_the_run_for_other_commands_has_them_neither() -> None:
    found = run_of(bm25_search(CORPUS), [Question(id, text) for id, text in QUESTIONS.items()], 4)
    assert {id: list(hits) for id, hits in found.items()} == {"known": ["p1", "p0", "p2"], "one": ["p2"], "none": []}


def test_what_stands_behind_the_last_hit_is_no_negative(beir: Path) -> None:
    rankings = [
        Ranking(np.array([2, 0, -1, -1]), np.array([2, 1, -np.inf, -np.inf], np.float32), np.ones(1, np.float32))
    ]
    [mined] = hard_negatives([Question("q", "?")], [[0]], rankings, CORPUS, Filters(answers=None))
    assert mined.rows.tolist() == [2] and sum(mined.dropped.values()) == 1 and mined.positive_rank == 2

    pairs = {"q1": ("red", "p0"), "q2": ("leaves", "p2"), "q3": ("zzz", "p1")}
    train = beir / "train.jsonl"
    train.write_text(
        "".join(
            json.dumps({"query_id": id, "query_text": text, "positive_document_ids": [p], "negative_document_ids": []})
            + "\n"
            for id, (text, p) in pairs.items()
        )
    )
    out = beir / "mined.jsonl"
    assert run("mine", "--corpus", beir, "--train", train, "--out", out, "--answers", "none") == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["negative_document_ids"] for line in lines] == [["p2"], [], []]


def test_overlap_compares_what_there_is(beir: Path, trec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"question_id": id, "hits": []} for id in QUESTIONS]
    lines[1]["hits"] = [{"id": "p2", "score": 1.0}]
    (beir / "other.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("analyse", "overlap", trec, beir / "other.jsonl", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["overlap@1"] == pytest.approx(0.5)
