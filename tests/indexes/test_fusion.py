"""Fused runs equal the formulas worked out by hand, ties included, and give the same figures from a file."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from jaxretr import cli
from jaxretr.data.run_reading import read_trec, write_trec
from jaxretr.data.runs import ranked_ids
from jaxretr.evaluate import metrics
from jaxretr.indexes.hybrid.fusion import interpolate, reciprocal_rank
from jaxretr.runtime.errors import UserError

DENSE = {"q1": {"a": 3.0, "b": 2.0, "c": -1.0}, "q2": {"a": 0.5}}
LEXICAL = {"q1": {"d": 10.0, "b": 8.0, "a": 6.0}, "q3": {"x": 1.0, "y": 2.0}}


def test_a_missing_passage_gets_the_runs_lowest_score() -> None:
    fused = interpolate([DENSE, LEXICAL], [1, 0.5])
    # d: lowest dense score -1; c: lowest lexical score 6.
    assert fused["q1"] == {"a": 6.0, "b": 6.0, "d": 4.0, "c": 2.0}
    assert list(fused["q1"]) == ["b", "a", "d", "c"]  # equal scores by id, descending, as trec_eval reads them
    assert list(fused) == ["q1", "q2", "q3"]
    assert fused["q2"] == {"a": 0.5} and fused["q3"] == {"y": 1.0, "x": 0.5}


def test_what_both_runs_rank_alike_stays_so_where_single_precision_cannot_tell() -> None:
    fused = interpolate([{"q": {"a": 2.0**24, "b": 2.0**24}}, {"q": {"a": 0.2, "b": 0.1}}], [1, 1])
    assert ranked_ids(fused["q"]) == list(fused["q"]) == ["a", "b"] and fused["q"]["a"] == 2.0**24


def test_min_max() -> None:
    fused = interpolate([DENSE, LEXICAL], [1, 2], normalise="minmax")
    assert fused["q1"] == pytest.approx({"d": 2, "b": 0.75 + 1, "a": 1, "c": 0})
    # All scores equal: they tell nothing.
    assert fused["q2"] == {"a": 0} and fused["q3"] == {"y": 2, "x": 0}


def test_bm25_scores_what_a_complete_list_lacks_0() -> None:
    # BM25 found one passage with a word of q1, and two, as many as asked for, of q2.
    dense = {"q1": {"a": 0.9, "b": 0.8}, "q2": {"a": 0.9, "b": 0.8}}
    bm25 = {"q1": {"b": 4.0}, "q2": {"b": 4.0, "c": 3.0}}
    lowest = interpolate([dense, bm25], [1, 0.1])
    assert list(lowest["q1"]) == ["a", "b"], "the only hit is its lowest score: BM25 says nothing"
    fused = interpolate([dense, bm25], [1, 0.1], missing=["lowest", "zero"])
    assert fused["q1"] == pytest.approx({"b": 1.2, "a": 0.9}) and list(fused["q1"]) == ["b", "a"]
    assert fused["q2"] == lowest["q2"] == pytest.approx({"b": 1.2, "a": 1.2, "c": 1.1}), "a list that was cut"
    unit = interpolate([dense, bm25], [1, 1], normalise="minmax", missing=["lowest", "zero"])
    assert unit["q1"] == pytest.approx({"a": 1, "b": 1}) and unit["q2"] == pytest.approx({"a": 1, "b": 1, "c": 0})


def test_three_runs_and_a_cut() -> None:
    fused = interpolate([DENSE, LEXICAL, {"q1": {"c": 100.0, "a": 0.0}}], [1, 0.5, 1], k=2)
    assert fused["q1"] == {"c": 102.0, "b": 6.0}


def test_reciprocal_ranks() -> None:
    fused = reciprocal_rank([DENSE, LEXICAL])
    expected = {"a": 1 / 61 + 1 / 63, "b": 1 / 62 + 1 / 62, "d": 1 / 61, "c": 1 / 63}
    assert fused["q1"] == pytest.approx(expected, rel=1e-7)
    assert list(fused["q1"]) == ["a", "b", "d", "c"]
    assert reciprocal_rank([DENSE, LEXICAL], constant=0)["q1"]["a"] == pytest.approx(1 + 1 / 3)
    # Equal scores of a run are ranked by id, descending, whatever the order in the dict.
    tied = reciprocal_rank([{"q": {"a": 1.0, "b": 1.0}}, {"q": {"c": 0.0}}])["q"]
    assert tied == pytest.approx({"c": 1 / 61, "b": 1 / 61, "a": 1 / 62}) and list(tied) == ["c", "b", "a"]


def test_against_a_plain_loop_on_random_runs(tmp_path: Path) -> None:
    """Float64 formulas written down once more, and the figures before and after a file."""
    seed = 5
    print("seed", seed)
    rng = np.random.default_rng(seed)
    runs = [
        {
            f"q{q}": {f"p{p}": float(np.float32(rng.normal() * scale)) for p in rng.choice(60, 25, replace=False)}
            for q in range(20)
        }
        for scale in (1, 30)
    ]
    qrels = {f"q{q}": {f"p{p}": 1 for p in rng.choice(60, 5, replace=False)} for q in range(20)}
    for weight in (0.01, 0.3, 7.7):
        fused = interpolate(runs, [1, weight])
        for question, scores in fused.items():
            one, other = runs[0][question], runs[1][question]
            expected = {
                name: one.get(name, min(one.values())) + weight * other.get(name, min(other.values()))
                for name in one | other
            }
            assert scores == pytest.approx(expected, rel=1e-6, abs=1e-6)
            assert list(scores.values()) == sorted(scores.values(), reverse=True)
        write_trec(tmp_path / "run", fused)
        for measure in ("ndcg@10", "mrr@10", "recall@20"):
            assert metrics.evaluate(qrels, fused, [measure]) == metrics.evaluate(
                qrels, read_trec(tmp_path / "run"), [measure]
            )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interpolate([DENSE], [1]), "at least two runs"),
        (lambda: interpolate([DENSE, LEXICAL], [1]), "1 weights for 2 runs"),
        (lambda: interpolate([DENSE, LEXICAL], [1, -1]), "must be finite numbers from 0"),
        (lambda: interpolate([DENSE, LEXICAL], [1, 1], missing=["zero"]), "1 times missing for 2 runs"),
        (
            lambda: interpolate([DENSE, {"q1": {"z": math.inf}}], [1, 1]),
            "score of passage 'z' for question 'q1' is not a finite",
        ),
        (lambda: reciprocal_rank([DENSE, LEXICAL], constant=-1), "must be a number from 0"),
        (lambda: reciprocal_rank([DENSE, LEXICAL], k=0), "k=0: must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(call, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_trec(tmp_path / "dense.trec", DENSE)
    write_trec(tmp_path / "lexical.trec", {"q1": LEXICAL["q1"], "q3": {"y": 2.0, "x": 1.0}})
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td\t1\nq2\ta\t1\nq3\tx\t1\n")
    return tmp_path


def run(folder: Path, *words: object) -> int:
    names = {"dense.trec", "lexical.trec", "qrels.tsv", "out.trec"}
    return cli.main(["fuse", *(str(folder / word) if word in names else str(word) for word in words)])


def test_command_writes_what_the_functions_give(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files, "dense.trec", "lexical.trec", "--weight", 0.25, "--out", "out.trec") == 0
    assert read_trec(files / "out.trec") == interpolate([DENSE, LEXICAL], [1, 0.25])
    printed = capsys.readouterr()
    assert printed.out.endswith("out.trec: 7 hits of 3 questions\n")
    assert "lexical.trec lacks 1 of 3 questions (q2, ...)" in printed.err
    assert "lexical.trec has fewer than 3 hits for 1 of 2 questions" in printed.err
    assert "add --missing lowest --missing zero" in printed.err
    missing = ("--missing", "lowest", "--missing", "zero")
    assert run(files, "dense.trec", "lexical.trec", "--weight", 0.25, *missing, "--out", "out.trec") == 0
    assert read_trec(files / "out.trec") == interpolate([DENSE, LEXICAL], [1, 0.25], missing=["lowest", "zero"])
    assert "has fewer than" not in capsys.readouterr().err
    assert run(files, "dense.trec", "lexical.trec", "-w", 2, "--normalise", "minmax", "-k", 1, "--out", "out.trec") == 0
    assert read_trec(files / "out.trec") == interpolate([DENSE, LEXICAL], [1, 2], normalise="minmax", k=1)
    assert run(files, "dense.trec", "lexical.trec", "dense.trec", "--method", "rrf", "--out", "out.trec") == 0
    expected = reciprocal_rank([DENSE, LEXICAL, DENSE])
    found = read_trec(files / "out.trec")
    assert {name: list(hits) for name, hits in found.items()} == {name: list(hits) for name, hits in expected.items()}


def test_command_tunes_on_a_dev_run(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("dense.trec", "lexical.trec", "--tune", "qrels.tsv", "--metric", "mrr@1")
    assert run(files, *words, "--grid", "0.1,1,2", "--out", "out.trec") == 0
    printed = capsys.readouterr()
    # For q1 d is first where 10 w - 1 > 8 w + 2 (which is b's score): above 1.5.
    lines = [line.split() for line in printed.out.splitlines()]
    assert lines[0] == ["weight", "mrr@1"]
    values = {line[0]: float(line[1]) for line in lines[1:6]}
    # By lexical scores alone q2 has nothing; q1 has its passage first.
    assert values == {"0": 0.3333, "0.1": 0.3333, "1": 0.3333, "2": 0.6667, "inf": 0.3333}
    assert "best weight 2: mrr@1 0.6667" in printed.out and "on the 3 questions that chose it" in printed.out
    assert "held out (each half of the questions with the weight that the other half chose" in printed.out
    assert "the best weight lies at the edge of the grid" in printed.err
    assert read_trec(files / "out.trec") == interpolate([DENSE, LEXICAL], [1, 2])

    assert run(files, *words) == 0
    best = float(re.search(r"best weight ([\d.e+-]+):", capsys.readouterr().out)[1])  # pyright: ignore
    assert best > 1
    fused = interpolate([DENSE, LEXICAL], [1, best])
    qrels = {"q1": {"d": 1}, "q2": {"a": 1}, "q3": {"x": 1}}
    assert metrics.evaluate(qrels, fused, ["mrr@1"])["mrr@1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("dense.trec --weight 1 --out out.trec", "one run alone cannot be fused"),
        (
            "dense.trec lexical.trec --out out.trec",
            "0 weights for 1 runs besides the first; give one for each of them as --weight",
        ),
        ("dense.trec lexical.trec --weight 1", "give --out FUSED"),
        ("dense.trec lexical.trec --weight -1 --out out.trec", "'-1' is not a weight; give a number of at least 0"),
        (
            "dense.trec lexical.trec --method rrf --weight 1 --out out.trec",
            "--weight belongs to --method interpolation",
        ),
        ("dense.trec lexical.trec --method rrf --missing zero --out out.trec", "--missing belongs to --method inter"),
        ("dense.trec lexical.trec --weight 1 --missing zero --out out.trec", "--missing is given 1 times for 2 runs"),
        ("dense.trec lexical.trec --weight 1 --grid log --out out.trec", "--grid belongs to --tune"),
        ("dense.trec lexical.trec --weight 1 --corpus c --out out.trec", "--corpus belongs to --tune"),
        ("dense.trec lexical.trec --weight 1 --queries q --out out.trec", "--queries belongs to --tune"),
        ("dense.trec lexical.trec --tune qrels.tsv --corpus c", "give queries as well, or leave corpus out"),
        ("dense.trec lexical.trec --tune qrels.tsv --queries q", "give corpus as well, or leave queries out"),
        ("dense.trec lexical.trec --tune qrels.tsv --weight 1", "--tune finds the weight; leave --weight out"),
        ("dense.trec lexical.trec dense.trec --tune qrels.tsv", "--tune finds the one weight of two runs, not 3"),
        ("dense.trec lexical.trec --tune qrels.tsv --grid 0,1", "a weight of 0 is the first model alone"),
    ],
)
def test_wrong_use_is_one_line(files: Path, capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    assert run(files, *words.split()) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (files / "out.trec").exists()


def test_ids_stay_strings(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps({"question_id": "01", "hits": [{"id": "007", "score": 1}, {"id": "NaN", "score": 0}]}))
    assert cli.main(["fuse", str(path), str(path), "--method", "rrf", "--out", str(tmp_path / "out")]) == 0
    assert list(read_trec(tmp_path / "out")["01"]) == ["007", "NaN"]


def test_a_missing_score_of_zero_keeps_the_order_of_negative_scores() -> None:
    """rank_bm25's idf can be negative: a passage without the words, whose score is 0, then ranks above one with them."""
    long = {"q0": dict.fromkeys("wxyz", 1.0)}
    runs = [
        {"q": {"a": 1.0, "b": 1.0, "c": 1.0}},
        {"q": {"a": -2.0, "b": 1.0}, **long},
    ]
    fused = interpolate(runs, [0.0, 1.0], normalise="minmax", missing=["lowest", "zero"])
    assert fused["q"] == pytest.approx({"b": 1.0, "c": 2 / 3, "a": 0.0})
    runs[1]["q"] = {"a": -2.0, "b": -1.0}
    fused = interpolate(runs, [0.0, 1.0], normalise="minmax", missing=["lowest", "zero"])
    assert fused["q"] == pytest.approx({"c": 1.0, "b": 0.5, "a": 0.0})
