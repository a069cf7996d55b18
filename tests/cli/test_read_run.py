"""Runs of other programs: every format gives the ranking that its writer meant."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxretr.cli import evaluate, parse
from jaxretr.data.formats.kinds import file_kind
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.data.run_reading import Hits, has_question_ids, read_run, write_dpr_json, write_jsonl
from jaxretr.runtime.errors import UsageError, UserError

DATA = Path(__file__).parents[1] / "data"
WIKI = DATA / "wiki_qa"
GOLDEN = DATA / "formats" / "dpr_results.json"


def test_runs_of_every_format(tmp_path):
    corpus = read_corpus(WIKI)
    questions = read_questions(WIKI)[:2]
    hits = [Hits(question.id, corpus.ids[:2], np.array([2, 0.5], np.float32)) for question in questions]
    write_dpr_json(tmp_path / "dpr.json", questions, corpus, hits)
    assert read_run(tmp_path / "dpr.json") == {question.id: {"nq:p0": 2.0, "nq:p1": 0.5} for question in questions}
    write_jsonl(tmp_path / "run.jsonl", questions, corpus, hits)
    assert read_run(tmp_path / "run.jsonl") == {question.id: {"nq:p0": 2.0, "nq:p1": 0.5} for question in questions}
    contents = {
        "trec": ("q Q0 a 9 2.5 t\nq Q0 b 1 3.5 t\n", {"a": 2.5, "b": 3.5}),
        "real scores": ("q\ta\t0.25\nq\tb\t-7\n", {"a": 0.25, "b": -7}),
        "json": ('{"id": 7, "ctxs": [{"id": "a"}, {"id": "b"}]}', {"a": -1, "b": -2}),
    }
    for name, (content, expected) in contents.items():
        (tmp_path / name).write_text(content)
        assert read_run(tmp_path / name) == {"7" if name == "json" else "q": expected}, name


@pytest.mark.parametrize("id", ["[7", "{7", '{"id":7', "[{}]"])
def test_an_id_that_begins_as_json_does(id, tmp_path):
    path = tmp_path / "run"
    for line in (f"{id} Q0 a 1 -2.5e-3 t", f"{id}\tQ0\ta\t1\t-.25\tt", f"{id}\ta\t0.25"):
        path.write_text(f"{line}\n")
        assert [*read_run(path)] == [id] and has_question_ids(path) and file_kind(path) == "run"
    path.write_text(f"{id} 0 a 1\n")
    assert file_kind(path) == "qrels"


@pytest.mark.parametrize("text", ["won it in 1966 7 times", "a Q0 b 1 2.5 t", "a 0 b 1", "a 1 2"])
def test_json_whose_text_is_as_columns(text, tmp_path):
    path = tmp_path / "run"
    row = {"question": text, "id": "q", "ctxs": [{"id": "a", "score": 5}]}
    for rows, indent in ((row, None), ([row], None), ([row], 1)):
        path.write_text(json.dumps(rows, indent=indent, separators=(",", ":")))
        assert read_run(path) == {"q": {"a": 5.0}} and file_kind(path) == "run"


@pytest.mark.parametrize(
    ("of_questions", "ranks"),
    [
        ([["1", "2", "3"]], True),
        ([["1.0", "2.0", "3.0"]], True),
        ([["1", "2", "4"]], True),  # one was filtered
        ([["2", "5"], ["1", "3"], ["9"]], True),
        ([["0", "1", "2"]], True),
        ([["2", "3", "1"]], True),  # MS MARCO's, in no order
        ([["0.25", "-7"]], False),
        ([["-1", "-2", "-3"]], False),
        ([["70", "19", "3"]], False),
        ([["3", "3", "1"]], False),
        ([["1", "0", "1"]], False),  # grades
        ([["1", "1"], ["5"]], False),
        ([["2", "1"], ["9", "7"]], False),
        ([["3", "2", "1"]], None),  # what a reader who counts down writes, or ranks worst first
        ([["2", "1", "0"]], None),
        ([["2", "7"]], None),
        ([["0", "1"]], None),  # grades, or ranks from 0
        ([["1", "1", "3"]], None),
        ([["4", "2", "9"]], None),
    ],
)
def test_a_third_column_is_ranks_or_scores_or_refused(of_questions, ranks, tmp_path):
    path = tmp_path / "run.tsv"
    rows = [(f"q{q}", f"d{d}", value) for q, values in enumerate(of_questions) for d, value in enumerate(values)]
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    if ranks is None:
        with pytest.raises(UserError, match=r"run.tsv: .* can be ranks or scores; give .* TREC") as error:
            read_run(path)
        assert "\n" not in str(error.value)
        return
    # Ranks from 0 become scores from -1: a score of 0 is of a passage that shares no word with the question.
    shift = ranks and any("0" in each for each in of_questions)
    sign = -1 if ranks else 1
    wanted = {
        f"q{q}": {f"d{d}": sign * (float(v) + shift) for d, v in enumerate(vs)} for q, vs in enumerate(of_questions)
    }
    assert read_run(path) == wanted


def test_questions_without_ids_are_found_by_their_text(tmp_path):
    """DPR's results have no ids; a position may be another question's."""
    rows = [("who\u2019s there", "a"), ("who is it", "b"), ("who is it", "c")]
    path = tmp_path / "run.json"
    path.write_text(json.dumps([{"question": text, "answers": [], "ctxs": [{"id": id}]} for text, id in rows]))
    with pytest.raises(UserError, match=r"run.json:1: the question has no id.*; give the questions"):
        read_run(path)
    questions = [Question("1", "who is it"), Question("2", "who's there"), Question("0", "who is it")]
    assert read_run(path, questions=questions) == {"2": {"a": -1.0}, "1": {"b": -1.0}, "0": {"c": -1.0}}
    with pytest.raises(UserError, match=r"run.json:1: 'who is it' is not among the questions, or more often"):
        read_run(path, questions=questions[1:])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("q\ta\t1\nq\ta\t2\n", ":2: passage 'a' occurs twice for question 'q'"),
        ("q\ta\t1\nq\tb\thigh\n", ":2: the score 'high' is not a number"),
        ("q\ta\t1\nq\tb\n", ":2: no question-id<TAB>passage-id<TAB>rank"),
        ('[{"id": 1, "ctxs": [{"id": "a", "score": "1"}]},\n{"id": 2, "ctxs": [{"text": "a"}]}]', ':2: no field "id"'),
        ('[{"id": 1, "ctxs": [{"id": "a"}, {"id": "a"}]}]', ":1: passage 'a' occurs twice"),
        ('[{"id": 1, "ctxs": [{"id": "a", "score": 3}, {"id": "b", "score": null}]}]', ":1: passage 'b' has no score"),
        ('[{"id": "x", "ctxs": []},\n{"id": "x", "ctxs": []}]', ":2: question 'x' occurs twice"),
        ('[{"question": "q"}]', ':1: field "ctxs" is not a list of passages'),
        ('[{"question": "q", "ctxs": []}]', "the run is empty"),
        ('[{"id": 1, "ctxs": [{"id": "a", "score": "NaN"}]}]', ":1: the score 'NaN' is not a number"),
    ],
)
def test_bad_runs_are_named(content, problem, tmp_path):
    (tmp_path / "run").write_text(content)
    with pytest.raises(UserError) as error:
        read_run(tmp_path / "run", questions=[Question("0", "q")])
    assert problem in str(error.value) and "\n" not in str(error.value) and ";" in str(error.value)


def test_evaluate_reads_runs_of_every_format(tmp_path):
    """The command, without its printing: DPR's results have no ids, and are found by the questions' texts."""
    ranks = tmp_path / "ms_marco.tsv"
    ranks.write_text("0\tnq:p1\t1\n0\tnq:p3\t2\n1\tsquad:0-0\t1\n1\tnq:p3\t2\n")
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("0 0 nq:p1 1\n1 0 nq:p3 1\n")
    queries = tmp_path / "queries.jsonl"
    texts = enumerate(row["question"] for row in json.loads(GOLDEN.read_text()))
    queries.write_text("".join(json.dumps({"_id": str(n), "text": text}) + "\n" for n, text in [*texts][::-1]))
    with pytest.raises(UserError, match="has no id"):
        evaluate.run(parse(["evaluate", "--run", str(GOLDEN), "--qrels", str(qrels)]))
    with pytest.raises(UsageError, match="leave queries out"):
        evaluate.run(parse(["evaluate", "--run", str(ranks), "--qrels", str(qrels), "--queries", str(queries)]))
    of_dpr = GOLDEN, ["--queries", queries], {"0": 1.0, "1": 1 / 3}
    for run, more, expected in ((ranks, [], {"0": 1.0, "1": 0.5}), of_dpr):
        out = tmp_path / "values.tsv"
        words = ["evaluate", "--run", run, "--qrels", qrels, "--metrics", "mrr@10", "--per-query", out, *more]
        evaluate.run(parse([str(word) for word in words]))
        rows = [line.split("\t") for line in out.read_text().splitlines()[1:]]
        assert {id: float(value) for id, value in rows} == pytest.approx(expected, rel=1e-5)
