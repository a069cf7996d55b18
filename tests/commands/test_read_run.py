"""Runs of other programs: every format gives the ranking that its writer meant."""

from pathlib import Path

import numpy as np
import pytest

from jaxretr.cli import parse
from jaxretr.commands import evaluate
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.errors import UserError
from jaxretr.evaluate.runs import Hits, read_run, write_dpr_json, write_jsonl

DATA = Path(__file__).parents[1] / "data"
WIKI = DATA / "wiki_qa"
GOLDEN = DATA / "formats" / "dpr_results.json"


def test_runs_of_every_format(tmp_path):
    assert read_run(GOLDEN) == {
        "0": {"nq:p1": 9.5, "tydidev:end0": 3.5, "nq:p3": -1.25},
        "1": {"squad:0-0": 8.25, "nq:p3": -1.25, "tydidev:end0": 3.5},
    }
    corpus = read_corpus(WIKI)
    questions = read_questions(WIKI)[:2]
    hits = [Hits(question.id, corpus.ids[:2], np.array([2, 0.5], np.float32)) for question in questions]
    write_dpr_json(tmp_path / "dpr.json", questions, corpus, hits)
    # Such a file has no ids: its questions are counted.
    assert read_run(tmp_path / "dpr.json") == {str(n): {"nq:p0": 2.0, "nq:p1": 0.5} for n in range(2)}
    write_jsonl(tmp_path / "run.jsonl", questions, corpus, hits)
    assert read_run(tmp_path / "run.jsonl") == {question.id: {"nq:p0": 2.0, "nq:p1": 0.5} for question in questions}
    contents = {
        "trec": ("q Q0 a 9 2.5 t\nq Q0 b 1 3.5 t\n", {"a": 2.5, "b": 3.5}),
        "ranks": ("q\ta\t2\nq\tb\t1\n", {"a": -2, "b": -1}),
        "scores": ("q\ta\t2\nq\tb\t7\n", {"a": 2, "b": 7}),
        "real scores": ("q\ta\t0.25\nq\tb\t-7\n", {"a": 0.25, "b": -7}),
        "json": ('{"id": 7, "ctxs": [{"id": "a"}, {"id": "b"}]}', {"a": -1, "b": -2}),
    }
    for name, (content, expected) in contents.items():
        (tmp_path / name).write_text(content)
        assert read_run(tmp_path / name) == {"7" if name == "json" else "q": expected}, name


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("q\ta\t1\nq\ta\t2\n", ":2: passage 'a' occurs twice for question 'q'"),
        ("q\ta\t1\nq\tb\thigh\n", ":2: the score 'high' is not a number"),
        ("q\ta\t1\nq\tb\n", ":2: no question-id<TAB>passage-id<TAB>rank"),
        ('[{"ctxs": [{"id": "a", "score": "1"}]},\n{"ctxs": [{"text": "a"}]}]', ':2: no field "id"'),
        ('[{"ctxs": [{"id": "a"}, {"id": "a"}]}]', ":1: passage 'a' occurs twice"),
        ('[{"id": "x", "ctxs": []},\n{"id": "x", "ctxs": []}]', ":2: question 'x' occurs twice"),
        ('[{"question": "q"}]', ':1: field "ctxs" is not a list of passages'),
        ('[{"question": "q", "ctxs": []}]', "the run is empty"),
        ('[{"ctxs": [{"id": "a", "score": "NaN"}]}]', ":1: the score 'NaN' is not a number"),
    ],
)
def test_bad_runs_are_named(content, problem, tmp_path):
    (tmp_path / "run").write_text(content)
    with pytest.raises(UserError) as error:
        read_run(tmp_path / "run")
    assert problem in str(error.value) and "\n" not in str(error.value) and ";" in str(error.value)


def test_evaluate_reads_runs_of_every_format(tmp_path):
    """The command, without its printing: DPR's results have no ids, and stand here under their positions."""
    ranks = tmp_path / "ms_marco.tsv"
    ranks.write_text("0\tnq:p1\t1\n0\tnq:p3\t2\n1\tsquad:0-0\t1\n1\tnq:p3\t2\n")
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("0 0 nq:p1 1\n1 0 nq:p3 1\n")
    for run, expected in ((ranks, {"0": 1.0, "1": 0.5}), (GOLDEN, {"0": 1.0, "1": 1 / 3})):
        out = tmp_path / "values.tsv"
        words = ["evaluate", "--run", run, "--qrels", qrels, "--metrics", "mrr@10", "--per-query", out]
        evaluate.run(parse([str(word) for word in words]))
        rows = [line.split("\t") for line in out.read_text().splitlines()[1:]]
        assert {id: float(value) for id, value in rows} == pytest.approx(expected, rel=1e-5)
