"""Re-ranking: the scorer's order, in search, evaluation and by itself; what is behind the depth, and equal scores."""

import json
from pathlib import Path

import numpy as np
import processes
import pytest
import tiny
from test_cli import run, train_once

import jaxretr
from jaxretr.data.readers import read_beir, read_corpus, read_questions
from jaxretr.data.run_reading import read_run
from jaxretr.data.runs import Hits
from jaxretr.evaluate import metrics
from jaxretr.indexes.reranking import rerank_hits
from jaxretr.models.pair_scorer import CrossEncoder
from jaxretr.runtime.errors import UserError

CORPUS, QUERIES = tiny.DATA / "corpus.jsonl", tiny.DATA / "queries.jsonl"

# Of scores of the order of 1, when other pairs share the batch.
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_once(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def model(tiny_cross_encoder: Path) -> Path:
    return tiny_cross_encoder


@pytest.fixture(scope="module")
def scorer(model: Path) -> CrossEncoder:
    return CrossEncoder.from_pretrained(model)


@pytest.fixture(scope="module")
def store(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reranking") / "store"
    assert run("encode", trained / "run", "--corpus", CORPUS, "--out", folder) == 0
    return folder


def by_definition(scorer: CrossEncoder, question: str, ids: list[str]) -> dict[str, float]:
    """The scores of these passages, best first."""
    corpus = read_corpus(CORPUS)
    passages = [corpus[corpus.row(id)] for id in ids]
    scores = scorer.score([question] * len(ids), [{"title": p.title, "text": p.text} for p in passages])
    return {ids[place]: float(scores[place]) for place in np.argsort(-scores, kind="stable")}


def test_the_first_hits_are_ordered_by_the_scorer_and_the_rest_is_dropped(scorer: CrossEncoder):
    ids = [passage.id for passage in read_corpus(CORPUS)]
    questions = read_questions(QUERIES)
    before = {question.id: {id: float(-rank) for rank, id in enumerate(ids)} for question in questions}
    after = jaxretr.rerank(scorer, before, queries=QUERIES, corpus=CORPUS, depth=7)
    changed = 0
    for question in questions:
        wanted = by_definition(scorer, question.text, ids[:7])
        assert list(after[question.id]) == list(wanted)
        np.testing.assert_allclose(list(after[question.id].values()), list(wanted.values()), atol=ROUNDING)
        changed += list(wanted) != ids[:7]
    assert changed > 5
    everything = jaxretr.rerank(scorer, after, queries=QUERIES, corpus=CORPUS, depth=None)
    assert [list(hits) for hits in everything.values()] == [list(hits) for hits in after.values()]


def test_equal_scores_keep_their_earlier_order_for_every_reader(scorer: CrossEncoder, tmp_path: Path):
    """Also for metrics and trec_eval, which order equal scores by id."""
    passages = [jaxretr.data.corpus.Passage(id, "", "the same text") for id in ("b", "a", "c")]
    corpus = jaxretr.data.corpus.Corpus.from_passages(passages)
    run = {"0": {"c": 3.0, "a": 2.0, "b": 1.0}}
    after = jaxretr.rerank(scorer, run, queries=["a question"], corpus=corpus)
    assert list(after["0"]) == ["c", "a", "b"]
    assert metrics.evaluate({"0": {"c": 1}}, after, ["mrr@1"]) == {"mrr@1": 1.0}
    after.save(tmp_path / "run.trec")
    assert list(read_run(tmp_path / "run.trec")["0"]) == ["c", "a", "b"]


def test_hits_that_have_no_text_are_named(scorer: CrossEncoder):
    corpus, questions = read_corpus(CORPUS), read_questions(QUERIES)
    hits = [Hits(questions[0].id, ["nowhere"], np.ones(1, np.float32))]

    def load() -> CrossEncoder:
        raise AssertionError("is loaded before the hits are known to be there")

    with pytest.raises(UserError, match=r"passage 'nowhere', .*corpus"):
        rerank_hits(load, hits, questions=questions, corpus=corpus)
    hits = [Hits("who", [corpus.ids[0]], np.ones(1, np.float32))]
    with pytest.raises(UserError, match="question 'who' "):
        rerank_hits(load, hits, questions=questions, corpus=corpus)


def test_a_search_is_re_ranked(trained: Path, store: Path, model: Path, scorer: CrossEncoder, tmp_path: Path):
    words = ["search", trained / "run", "--index", store, "--queries", QUERIES, "-k", 9, "--out"]
    assert run(*words, tmp_path / "before.trec") == 0
    assert run(*words, tmp_path / "after.trec", "--rerank", model, "--depth", 5, "--corpus", CORPUS) == 0
    before, after = read_run(tmp_path / "before.trec"), read_run(tmp_path / "after.trec")
    for question in read_questions(QUERIES):
        wanted = by_definition(scorer, question.text, list(before[question.id])[:5])
        assert list(after[question.id]) == list(wanted)
    found = jaxretr.search(trained / "run", store, queries=QUERIES, k=9, corpus=CORPUS, rerank=scorer, depth=5)
    assert [list(hits) for hits in found.values()] == [list(hits) for hits in after.values()]


def test_an_evaluation_shows_what_re_ranking_changes(trained: Path, model: Path, scorer: CrossEncoder, capsys):
    words = ["evaluate", trained / "run", "--beir", tiny.DATA, "--split", "train", "--metrics", "mrr@10,recall@5"]
    assert run(*words, "--json") == 0
    before = json.loads(capsys.readouterr().out)["metrics"]
    assert run(*words, "--rerank", model, "--depth", 12, "--json") == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    data = read_beir(tiny.DATA, "train")
    found = jaxretr.evaluate.searches.encoder_search(jaxretr.load_encoder(trained / "run"), data.corpus, None)
    hits = jaxretr.evaluate.measuring.run_of(found, data.questions, 12)
    wanted = {question.id: by_definition(scorer, question.text, list(hits[question.id])) for question in data.questions}
    assert report["metrics"] == pytest.approx(metrics.evaluate(data.qrels, wanted, ["mrr@10", "recall@5"]))
    compared = report["baseline"]["mrr@10"]
    assert compared["difference"] == pytest.approx(report["metrics"]["mrr@10"] - before["mrr@10"])
    assert "p_value_holm" in compared and " questions/s" in captured.err
    assert run(*words, "--rerank", model, "--depth", 12) == 0
    assert "run re-ranked by cross_encoder" in capsys.readouterr().out


def test_a_run_is_evaluated_before_and_after(model: Path, trained: Path, tmp_path: Path, capsys):
    out = tmp_path / "run.trec"
    assert run("bm25", "--corpus", CORPUS, "--queries", QUERIES, "--out", out) == 0
    words = ["evaluate", "--run", out, "--qrels", tiny.DATA / "qrels/train.tsv", "--metrics", "mrr@10"]
    texts = ["--corpus", CORPUS, "--queries", QUERIES]
    capsys.readouterr()
    assert run(*words, *texts, "--rerank", model, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    after = jaxretr.rerank(model, out, queries=QUERIES, corpus=CORPUS)
    judged = jaxretr.data.readers.read_qrels(tiny.DATA / "qrels/train.tsv")
    assert report["metrics"] == pytest.approx(metrics.evaluate(judged, after, ["mrr@10"]))
    assert report["baselines"][0]["run"] == str(out)
    # Metrics that look further than the scorer did are pointed out.
    assert run(*words[:-1], "recall@20", *texts, "--rerank", model, "--depth", 3) == 0
    assert "only the first 3 hits of a question are re-ranked" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["search", "m", "--index", "i", "--queries", "q", "--out", "o", "--rerank", "r"],
            "--rerank reads the passages'",
        ),
        (
            ["search", "m", "--index", "i", "--queries", "q", "--out", "o", "--depth", "3"],
            "--depth is for --rerank SCORER",
        ),
        (["evaluate", "--run", "r", "--qrels", "q", "--rerank", "r"], "give --corpus FILE and --queries FILE as well"),
        (["evaluate", "m", "--suite", "s", "--rerank", "r"], "--rerank belongs to --run or --beir"),
        (["evaluate", "m", "--suite", "s", "--rerank-kind", "t5"], "--rerank-kind is for --rerank SCORER: give that"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert run(*words) == 2
    assert message in capsys.readouterr().err


def test_processes_share_the_re_ranking(trained: Path, store: Path, model: Path, tmp_path: Path):
    words = ["-m", "jaxretr", "search", str(trained / "run"), "--index", str(store), "--queries", str(QUERIES)]
    words += ["--corpus", str(CORPUS), "--rerank", str(model), "--compute", "float32", "--out"]
    processes.finish(processes.start([*words, str(tmp_path / "one")], 1, 1))
    processes.finish(processes.start([*words, str(tmp_path / "two")], 2, 1))
    one, two = read_run(tmp_path / "one"), read_run(tmp_path / "two")
    assert [list(hits) for hits in two.values()] == [list(hits) for hits in one.values()]
    for question, hits in one.items():
        np.testing.assert_allclose(list(two[question].values()), list(hits.values()), atol=ROUNDING)
