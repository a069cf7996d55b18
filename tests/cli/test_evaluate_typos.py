"""`jaxretr evaluate --typos` as a user would type it, and the figures under it."""

import csv
import json
import math
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from command_errors import the_error

from jaxretr import cli
from jaxretr.data.readers import read_beir, read_questions
from jaxretr.data.typos import TypoGenerator
from jaxretr.evaluate import metrics
from jaxretr.evaluate.robustness import mean_over_draws, relative_loss, robustness
from jaxretr.evaluate.significance import holm, paired_t_test
from jaxretr.evaluate.tables import shortened
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.models.dual_encoder import DualEncoder

TRAIN = read_beir(tiny.DATA, "train")


def run(*words: object) -> int:
    return cli.main(["evaluate", *map(str, words)])


def printed(capsys: pytest.CaptureFixture[str]) -> dict:
    """The JSON object that a command printed, which has no NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


def write_queries(path: Path, texts: dict[str, str]) -> Path:
    path.write_text("".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in texts.items()))
    return path


# ---- the figures, without any model ----------------------------------------------------------------------------------


def test_robustness_by_hand():
    clean = {"a": 1.0, "b": 0.5, "c": 0.0}
    draws = [{"a": 0.5, "b": 0.5, "c": 0.5}, {"a": 0.0, "b": 0.5, "c": 0.0}]
    found = robustness(clean, draws)
    assert found.of_draws == pytest.approx([0.5, 0.5 / 3])
    assert found.deviation == pytest.approx(statistics.stdev([0.5, 0.5 / 3]))
    assert found.comparison.mean_a == pytest.approx(1 / 3) and found.comparison.mean_b == 0.5
    assert found.relative_loss == pytest.approx(100 / 3)
    assert (found.comparison.wins, found.comparison.ties, found.comparison.losses) == (1, 1, 1)
    assert mean_over_draws(clean, draws) == pytest.approx({"a": 0.25, "b": 0.5, "c": 0.25})
    assert math.isnan(robustness(clean, draws[:1]).deviation)
    assert relative_loss(0.4, 0.5) == pytest.approx(-25)
    assert math.isnan(relative_loss(0.0, 0.0))


def test_what_does_not_change_is_exactly_equal():
    # 1/3 summed ten times and divided by ten is not 1/3.
    clean = {"a": 1 / 3, "b": 0.1}
    found = robustness(clean, [clean] * 10)
    assert found.comparison.difference == found.relative_loss == 0.0
    assert found.comparison.p_value == found.comparison.t_test_p_value == 1.0
    assert mean_over_draws(clean, [clean] * 10) == clean


# ---- what can be typed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, message",
    [
        ("m --beir d --typos typo", "unknown profile of typos 'typo'"),
        ("m --beir d --typos ,", "argument --typos: no profile is named"),
        ("--typos m --beir d", "--typos took 'm' for its profiles: write MODEL before --typos"),
        ("--run r --qrels q --typos", "--typos needs MODEL with --beir DIR"),
        ("--run r --qrels q --typo-queries a=b", "--typo-queries needs MODEL with --beir DIR"),
        ("m --typos", "MODEL needs --beir DIR"),
        ("m --beir d --typos --baseline r", "--baseline belongs to --run or --beir, not to --typos"),
        ("m --beir d --draws 3", "--draws belongs to --typos, not to --beir; leave it out"),
        ("m --beir d --seed 0", "--seed belongs to --typos"),
        ("m --beir d --typo-queries a=b --keyboard qwerty", "--keyboard is for the typos that --typos generates"),
        ("m --beir d --misspellings f", "--misspellings belongs to --typos"),
        ("m --beir d --plot a.gif", "plot a.gif: give a name that ends in .png, .pdf, .svg"),
        ("m --suite d --typos", "--suite does not go with --typos; leave it out"),
        ("m --beir d --and-model n", "--and-model belongs to --typos"),
        ("m --beir d --no-bm25", "--no-bm25 belongs to --typos"),
        ("m --beir d --split a,b", "--split a,b: name one split; several, by commas, go with typos or --suite only"),
        ("m --beir d --typos --plot a.gif", "plot a.gif: give a name that ends in .png, .pdf, .svg"),
        ("m --beir d --typos --draws 0", "argument --draws: '0' is not a whole number from 1"),
        ("m --beir d --typos --keyboard dvorak", "argument --keyboard: invalid choice: 'dvorak'"),
        ("m --beir d --typos spacing --keyboard qwertz", "keyboard is for the typos of dictionary and single_word"),
        ("m --beir d --typos spacing --misspellings f", "misspellings is for the typos of dictionary"),
        ("m --beir d --typo-queries file.jsonl", "argument --typo-queries: 'file.jsonl' is not NAME=FILE"),
        ("m --beir d --typos --metrics ndgc@10", "unknown measure 'ndgc@10'"),
    ],
)
def test_wrong_use(words, message, capsys):
    assert run(*words.split()) == 2
    assert message in the_error(capsys)


# ---- a model and BM25 ------------------------------------------------------------------------------------------------


def values(scores: np.ndarray) -> dict[str, float]:
    """mrr of each question from the scores of all passages."""
    found = {
        question.id: {
            id: score for id, score in zip(TRAIN.corpus.ids, of_question.tolist(), strict=True) if score > -math.inf
        }
        for question, of_question in zip(TRAIN.questions, scores, strict=True)
    }
    return metrics.evaluate(TRAIN.qrels, found, ["mrr"], per_query=True)[1]["mrr"]


def by_hand(search: Callable[[list[str]], np.ndarray], draws: Sequence[list[str]]) -> dict[str, Any]:
    """What is to be printed for one system and kind of typos."""
    clean = values(search([question.text for question in TRAIN.questions]))
    typoed = [values(search(texts)) for texts in draws]
    means = {id: statistics.fmean(one[id] for one in typoed) for id in clean}
    changes = [means[id] - clean[id] for id in clean]
    before, after = (statistics.fmean(of_questions.values()) for of_questions in (clean, means))
    return {
        "clean": before,
        "mean": after,
        "difference": after - before,
        "relative_loss_percent": 100 * (before - after) / before,
        "of_draws": [statistics.fmean(one.values()) for one in typoed],
        "deviation": statistics.stdev(statistics.fmean(one.values()) for one in typoed),
        "wins": sum(change > 1e-9 for change in changes),
        "losses": sum(change < -1e-9 for change in changes),
        "ties": sum(abs(change) <= 1e-9 for change in changes),
    }


@pytest.fixture(scope="module")
def draws() -> list[list[str]]:
    """Two draws of single_word, by the numbers that the questions have in the file of all of them."""
    texts = [question.text for question in TRAIN.questions]
    numbers = {question.id: row for row, question in enumerate(read_questions(tiny.DATA))}
    generator = TypoGenerator("single_word", seed=3)
    return [generator.texts(texts, draw, [numbers[q.id] for q in TRAIN.questions]) for draw in (0, 1)]


def test_the_figures_are_those_computed_by_hand(tiny_models, draws, tmp_path, capsys):
    model, lines = tiny_models / "encoder", tmp_path / "values.tsv"
    words = (model, "--pooling", "mean", "--beir", tiny.DATA, "--split", "train", "--metrics", "mrr")
    assert run(*words, "--typos", "single_word", "--seed", 3, "--draws", 2, "--json", "--per-query", lines) == 0
    content = printed(capsys)
    assert content["made"] == {
        "profiles": ["single_word"],
        "draws": 2,
        "seed": 3,
        "keyboard": "qwerty",
        "misspellings": None,
    }
    split = content["splits"]["train"]
    assert (split["questions"], split["typos"]) == (6, {"single_word": {"draws": 2, "changed": 1.0}})
    assert split["metrics"]["mrr"]["differences"] == []

    encoder = DualEncoder.from_pretrained(model, pooling="mean")
    passages = encoder.encode_passages(list(TRAIN.corpus))
    index = Bm25Index.build(TRAIN.corpus)

    def bm25(texts: list[str]) -> np.ndarray:
        found, rows = index.search(texts, len(TRAIN.corpus))
        scores = np.full_like(found, -np.inf)  # of what shares no word with the question
        for of_one, hits, values in zip(scores, rows, found, strict=True):
            of_one[hits[hits >= 0]] = values[hits >= 0]
        return scores

    searches = {str(model): lambda texts: encoder.encode_queries(texts) @ passages.T, "BM25": bm25}
    systems = split["metrics"]["mrr"]["systems"]
    assert [system["system"] for system in systems] == list(searches)
    for system in systems:
        found = system["typos"]["single_word"]
        expected = by_hand(searches[system["system"]], draws)
        assert found["of_draws"] == pytest.approx(expected.pop("of_draws"))
        # 1e-9: the difference is one of figures near 1.
        assert {key: {**found, **system}[key] for key in expected} == pytest.approx(expected, abs=1e-9)
        assert found["low"] <= found["difference"] <= found["high"]
    assert systems[0]["typos"]["single_word"]["ties"] < 6, "nothing is tested"

    # The printed figures come out again from the values of each question, and so does the t-test.
    rows = list(csv.DictReader(lines.open(), delimiter="\t"))
    assert list(rows[0]) == ["split", "question-id", "system", "typos", "draw", "mrr"]
    assert len(rows) == 2 * (1 + 2) * 6
    for system in systems:
        of_system = [row for row in rows if row["system"] == system["system"]]
        clean = [float(row["mrr"]) for row in of_system if row["typos"] == "clean"]
        typoed = [float(row["mrr"]) for row in of_system if row["typos"] == "single_word"]
        assert np.mean(clean) == pytest.approx(system["clean"], rel=1e-5)  # six digits are written
        changes = np.reshape(typoed, (2, 6)).mean(axis=0) - clean
        expected = paired_t_test(np.round(changes, 9))
        assert system["typos"]["single_word"]["t_test_p_value"] == pytest.approx(expected, rel=1e-3)


def test_files_are_kinds_beside_those_that_are_made(tiny_models, tmp_path, capsys):
    """The files of `jaxretr typos` give the figures of the same typos made on the way; without BM25 there is no row."""
    assert cli.main(["typos", str(tiny.DATA), "--profile", "spacing", "--draws", "2", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    clean = {question.id: question.text for question in read_questions(tiny.DATA)}
    upper = write_queries(tmp_path / "upper.jsonl", {id: text.upper() for id, text in clean.items()})
    files = [f"again={tmp_path / f'spacing-0{draw}.jsonl'}" for draw in (0, 1)] + [f"upper={upper}"]
    words = [tiny_models / "encoder", "--beir", tiny.DATA, "--split", "tydi,train", "--metrics", "mrr@10,recall@1"]
    for file in files:
        words += ["--typo-queries", file]
    assert run(*words, "--typos", "spacing", "--draws", 2, "--no-bm25", "--json") == 0
    both = printed(capsys)
    assert list(both["splits"]) == ["tydi", "train"]
    for split in both["splits"].values():
        assert [kind["draws"] for kind in split["typos"].values()] == [2, 2, 1]
        assert split["typos"]["again"] == split["typos"]["spacing"] and split["typos"]["upper"]["changed"] == 0
        for figures in split["metrics"].values():
            [system] = figures["systems"]
            assert system["typos"]["again"] == system["typos"]["spacing"]
            # The vocabulary is of lower case.
            assert system["typos"]["upper"]["difference"] == 0 and system["typos"]["upper"]["deviation"] is None
    assert any(
        figures["systems"][0]["typos"]["spacing"]["difference"]
        for split in both["splits"].values()
        for figures in split["metrics"].values()
    ), "nothing is tested"

    # Files alone, as a table.
    assert run(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tydi, mrr@10: 4 questions"
    rows = [line.split() for line in lines[2:6]]
    system = both["splits"]["tydi"]["metrics"]["mrr@10"]["systems"][0]
    found = system["typos"]["again"]
    assert rows[0][:3] == [str(tiny_models / "encoder"), "again", "2"]
    assert rows[0][5:8] == [f"{system['clean']:.4f}", f"{found['mean']:.4f}", f"{found['deviation']:.4f}"]
    assert [row[:2] for row in rows[2:]] == [["BM25", "again"], ["BM25", "upper"]]
    assert rows[1][7] == "-"  # no deviation of one draw


def test_files_that_do_not_fit(tiny_models, tmp_path, capsys):
    texts = {question.id: question.text for question in read_questions(tiny.DATA)}
    words = (tiny_models / "encoder", "--beir", tiny.DATA, "--split", "tydi,train")
    first = TRAIN.questions[0].id
    fewer = write_queries(tmp_path / "fewer.jsonl", {id: text for id, text in texts.items() if id != first})
    assert run(*words, "--typo-queries", f"people={fewer}") == 1
    assert the_error(capsys).startswith(f"{fewer}: lacks 1 of 6 questions of split train (the first: '{first}'); add")
    more = write_queries(tmp_path / "more.jsonl", {**texts, "stranger": "who?"})
    assert run(*words, "--typo-queries", f"people={more}") == 1
    assert the_error(capsys).startswith(f"{more}: 1 of 11 questions are unknown (the first: 'stranger'); give them the")
    assert run(*words, "--typo-queries", f"people={tmp_path / 'none.jsonl'}") == 1
    assert "none.jsonl" in the_error(capsys)
    good = write_queries(tmp_path / "good.jsonl", texts)
    for name, options in (("clean", ()), ("spacing", ("--typos", "spacing"))):
        assert run(*words, "--typo-queries", f"{name}={good}", *options) == 2
        assert the_error(capsys) == f"queries named '{name}': the name is taken; choose another one"


# ---- models against each other ---------------------------------------------------------------------------------------


def test_a_model_and_itself_differ_by_nothing_and_twice_is_the_same(tiny_models, tmp_path, capsys):
    model = tiny_models / "encoder"
    words = (model, "--beir", tiny.DATA, "--split", "train", "--metrics", "mrr", "--typos", "dictionary,spacing")
    words = (*words, "--draws", 2, "--and-model", model, "--no-bm25")
    assert run(*words, "--format", "latex") == 0
    assert "\\begin{tabular}" in capsys.readouterr().out
    assert run(*words, "--json", "--plot", tmp_path / "a.svg") == 0
    figures = printed(capsys)["splits"]["train"]["metrics"]["mrr"]
    assert [system["system"] for system in figures["systems"]] == [str(model), f"{model} (2)"]
    assert [found["typos"] for found in figures["differences"]] == ["clean", "dictionary", "spacing"]
    for found in figures["differences"]:
        assert (found["system"], found["first"]) == (f"{model} (2)", str(model))
        assert found["difference"] == found["low"] == found["high"] == 0
        assert {found[f"{test}p_value{holm}"] for test in ("", "t_test_") for holm in ("", "_holm")} == {1.0}
        assert found["ties"] == 6

    tables = []
    for name in ("b.svg", "c.pdf"):
        assert run(*words, "--plot", tmp_path / name) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]
    assert "Holm" in tables[0] and f"against {model}" in tables[0] and "nan" not in tables[0]
    picture = (tmp_path / "a.svg").read_bytes()
    assert picture == (tmp_path / "b.svg").read_bytes() and b"<svg" in picture
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")


def test_another_model_is_compared_question_by_question(tiny_models, tmp_path, capsys):
    tiny.write_models(tmp_path, noise=0.5)
    models, lines = (tiny_models / "encoder", tmp_path / "encoder"), tmp_path / "values.tsv"
    words = (models[0], "--and-model", models[1], "--beir", tiny.DATA, "--split", "train", "--metrics", "mrr,recall@5")
    picture = tmp_path / "bars.png"
    options = ("--typos", "dictionary,spacing", "--draws", 2, "--per-query", lines, "--plot", picture)
    assert run(*words, *options, "--json") == 0
    found = printed(capsys)["splits"]["train"]["metrics"]["mrr"]
    rows = list(csv.DictReader(lines.open(), delimiter="\t"))

    def mean(system: str, kind: str) -> float:
        return statistics.fmean(float(r["mrr"]) for r in rows if (r["system"], r["typos"]) == (system, kind))

    assert [system["system"] for system in found["systems"]] == [*map(str, models), "BM25"]
    assert len(found["differences"]) == 3  # the models only
    for one in found["differences"]:
        after, before = mean(str(models[1]), one["typos"]), mean(str(models[0]), one["typos"])
        assert (one["mean"], one["mean_of_first"]) == pytest.approx((after, before), rel=1e-5)  # six digits are written
        assert one["difference"] == pytest.approx(after - before, abs=1e-5)
    assert any(one["difference"] for one in found["differences"]), "nothing is tested"
    for test in ("p_value", "t_test_p_value"):
        corrected = holm([one[test] for one in found["differences"]])
        assert [one[f"{test}_holm"] for one in found["differences"]] == corrected
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    import matplotlib.image

    pixels = matplotlib.image.imread(picture)
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 20, "an empty picture"


def test_where_there_is_no_number(tiny_models, tmp_path, capsys):
    """One question, whose passage nobody has: no t-test, no relative loss, no deviation of a single draw."""
    folder = tmp_path / "beir"
    shutil.copytree(tiny.DATA, folder)
    (folder / "qrels/one.tsv").write_text(f"query-id\tcorpus-id\tscore\n{TRAIN.questions[0].id}\tnothing\t1\n")
    model = tiny_models / "encoder"
    words = (model, "--and-model", model, "--beir", folder, "--split", "one", "--metrics", "mrr", "--typos", "spacing")
    assert run(*words, "--draws", 1, "--json") == 0
    figures = printed(capsys)["splits"]["one"]["metrics"]["mrr"]
    for system in figures["systems"]:
        found = system["typos"]["spacing"]
        assert found["deviation"] is found["relative_loss_percent"] is found["t_test_p_value"] is None
        assert found["mean"] == found["difference"] == 0 and found["p_value"] == 1
    assert all(one["t_test_p_value_holm"] is None and one["p_value_holm"] == 1 for one in figures["differences"])
    assert run(*words, "--draws", 1) == 0
    assert "nan" not in capsys.readouterr().out


def test_a_picture_names_models_by_the_end_of_their_path_if_that_is_enough() -> None:
    assert shortened(["runs/base/", "/far/runs/robust", "BM25"]) == ["base", "robust", "BM25"]
    assert shortened(["a/model", "b/model", "BM25 (2)"]) == ["a/model", "b/model", "BM25 (2)"]
