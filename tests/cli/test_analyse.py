"""`jaxretr analyse`: overlap of runs, and questions with shuffled words, as a user would type them."""

import csv
import json
import logging
import math
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tiny
from command_errors import the_error

import jaxretr
from jaxretr import cli
from jaxretr.data.readers import read_beir
from jaxretr.data.word_shuffle import shuffle_words
from jaxretr.evaluate import metrics
from jaxretr.models.dual_encoder import DualEncoder


def run(*words: object) -> int:
    return cli.main(["analyse", *map(str, words)])


def write_trec(path: Path, rankings: dict[str, str]) -> Path:
    """A run from {question id: passages, one letter each}."""
    path.write_text(
        "".join(
            f"{question} Q0 {passage} {rank} {100 - rank} x\n"
            for question, ranking in rankings.items()
            for rank, passage in enumerate(ranking, start=1)
        )
    )
    return path


# ---- what can be typed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["", "overlap", "shuffle"])
def test_help_has_examples_that_parse(action, capsys):
    assert run(*action.split(), "--help") == 0
    printed = capsys.readouterr().out
    for example in printed.split("example:\n")[1].splitlines():
        words = example.split()
        assert words[:2] == ["jaxretr", "analyse"] and (not action or words[2] == action)
        assert cli.parse(words[1:]).command == "analyse"
    parser = cli.build_parser()[1][f"analyse {action}".strip()]
    assert all(name in printed for name in parser._option_string_actions)


@pytest.mark.parametrize(
    "words, message",
    [
        ("overlp a b", "overlp: no such action of analyse; did you mean 'overlap'?"),
        ("overlap a", "the following arguments are required: RUN2"),
        ("overlap a b --p 1", "--p 1.0: must be above 0 and below 1"),
        ("overlap a b --p many", "argument --p: invalid float value: 'many'"),
        ("overlap a b --dpeth 3", "--dpeth: no such option of analyse overlap; did you mean '--depth'?"),
        ("shuffle m", "the following arguments are required: --beir"),
        ("shuffle --beir d", "give either MODEL or --bm25"),
        ("shuffle m --bm25 --beir d", "give either MODEL or --bm25"),
        ("shuffle --bm25 --beir d --pooling mean", "--pooling is MODEL's, but --bm25 replaces MODEL"),
        ("shuffle --bm25 --beir d --compute bfloat16", "--compute is MODEL's, but --bm25 replaces MODEL"),
        ("shuffle --bm25 --beir d --split ,", "argument --split: no split is named"),
        ("shuffle --bm25 --beir d --seeds 0", "argument --seeds: '0' is not a whole number from 1"),
        ("shuffle --bm25 --metrics ndgc@10 --beir " + str(tiny.DATA) + " --split train", "unknown measure 'ndgc@10'"),
    ],
)
def test_wrong_use(words, message, capsys):
    assert run(*words.split()) == 2
    assert message in the_error(capsys)


# ---- overlap ---------------------------------------------------------------------------------------------------------


def test_overlap_of_runs(tmp_path, capsys):
    """The mean over questions of sums done by hand, for each further run, as JSON, lines and a table."""
    bm25 = write_trec(tmp_path / "bm25.trec", {"q1": "abcde", "q2": "abcde"})
    same = write_trec(tmp_path / "same.trec", {"q2": "abcde", "q1": "abcde"})
    half = write_trec(tmp_path / "half.trec", {"q1": "badxy", "q2": "vwxyz"})
    lines = tmp_path / "lines.tsv"
    assert run("overlap", bm25, same, half, "--json", "--per-query", lines) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["reference"], found["questions"], found["p"], found["depth"]) == (str(bm25), 2, 0.9, 100)
    first, second = found["runs"]
    assert first["run"] == str(same)
    assert first["rbo"] == pytest.approx(1 - 0.9**5) == first["low"] == first["high"]
    assert first["residual"] == pytest.approx(0.9**5) and first["extrapolated"] == pytest.approx(1)
    assert [first[f"overlap@{cut}"] for cut in (1, 10, 100)] == [1, 1, 1]
    # q1: nothing at depth 1, then ab, ab, abd, abd; q2 shares nothing.
    by_hand = 0.1 * (0.9 * 1 + 0.9**2 * 2 / 3 + 0.9**3 * 3 / 4 + 0.9**4 * 3 / 5)
    assert second["rbo"] == pytest.approx(by_hand / 2)
    assert (second["low"], second["high"]) == pytest.approx((0, by_hand))
    assert [second[f"overlap@{cut}"] for cut in (1, 10, 100)] == pytest.approx([0, 0.3, 0.3])

    rows = [line.split("\t") for line in lines.read_text().splitlines()]
    assert rows[0][:5] == ["question-id", "run", "rbo", "residual", "extrapolated"]
    assert [row[:2] for row in rows[1:]] == [[q, str(path)] for path in (same, half) for q in ("q1", "q2")]
    assert [float(row[2]) for row in rows[3:]] == pytest.approx([by_hand, 0], rel=1e-5)

    assert run("overlap", bm25, same, half, "--p", "0.5", "--depth", "3") == 0
    head, names, *table = capsys.readouterr().out.splitlines()
    assert head == f"overlap with {bm25}: 2 questions, p 0.5, depth 3"
    assert "overlap@1" in names and "overlap@10" not in names  # ranks that are not looked at
    assert [line.split()[:2] for line in table] == [
        [str(same), f"{1 - 0.5**3:.4f}"],
        [str(half), f"{(0.25 * 1 + 0.125 * 2 / 3) / 2:.4f}"],
    ]


def test_ties_are_ranked_as_by_evaluate(tmp_path, capsys):
    """All scores equal: both runs rank by id, whatever the lines' order."""
    for name, order in (("a", "abc"), ("b", "cab")):
        (tmp_path / name).write_text("".join(f"q Q0 {letter} 1 5.0 x\n" for letter in order))
    assert run("overlap", tmp_path / "a", tmp_path / "b", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["rbo"] == pytest.approx(1 - 0.9**3)


def test_questions_of_one_run_only(tmp_path, capsys, caplog):
    """As in evaluate: what the measured run lacks counts as 0 and is counted, what it has besides does not count."""
    bm25 = write_trec(tmp_path / "bm25.trec", {"q1": "abc", "q2": "abc", "q3": "abc"})
    other = write_trec(tmp_path / "other.trec", {"q1": "abc", "q9": "abc"})
    with caplog.at_level(logging.WARNING):
        assert run("overlap", bm25, other, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["questions"] == 3
    assert figures["runs"][0]["rbo"] == pytest.approx((1 - 0.9**3) / 3)
    assert f"{other} lacks 2 of 3 questions (q2, ...): they count as 0" in caplog.text
    assert f"{other} has 1 questions (q9, ...) that {bm25} lacks: they do not count" in caplog.text
    stranger = write_trec(tmp_path / "stranger.trec", {"9": "abc"})
    assert run("overlap", bm25, stranger) == 1
    message = the_error(capsys)
    assert message.startswith(f"{stranger} has no question of {bm25}, for instance '9' and 'q1'; give runs of the same")


# ---- shuffled words --------------------------------------------------------------------------------------------------


def test_shuffled_words_are_the_same_words_and_depend_on_text_and_seed_alone():
    text = "who  wrote the U.S. constitution,\tand why ?"
    shuffled = shuffle_words(text, 3)
    assert Counter(shuffled.split(" ")) == Counter(text.split())
    assert shuffled.split() != text.split()
    assert shuffle_words(text, 3) == shuffled != shuffle_words(text, 4)
    # Written down once: figures that are published must come out again on any machine and Python.
    assert shuffle_words("a b c d e f g", 0) == "f c e d b g a"
    for single in ("", " ", "word", " word\n", "一つの質問"):
        assert shuffle_words(single, 3) == single
    assert len(shuffle_words("half a \ud800 pair").split()) == 4


def test_every_order_is_equally_likely():
    counts = Counter(shuffle_words("a b c", seed) for seed in range(6000))
    assert len(counts) == 6
    # 1000 expected of each, standard deviation 29; the seeds are fixed.
    assert all(abs(count - 1000) < 150 for count in counts.values()), counts
    # Another text is not shuffled alike: else whole splits would be reversed or left alone together.
    orders = {tuple(int(word[0]) for word in shuffle_words(f"0{x} 1{x} 2{x}").split()) for x in "abcdefghijkl"}
    assert len(orders) > 2


def test_bm25_does_not_notice(capsys):
    words = ("--bm25", "--beir", tiny.DATA, "--split", "train,tydi", "--metrics", "ndcg@10,mrr,recall@5")
    assert run("shuffle", *words, "--seeds", 3, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seeds"] == [0, 1, 2]
    assert list(found["splits"]) == ["train", "tydi"]
    for split, result in found["splits"].items():
        assert result["questions"] == len(read_beir(tiny.DATA, split).questions)
        assert result["reordered"] > 0.9
        for figures in result["metrics"].values():
            assert figures["difference"] == figures["low"] == figures["high"] == 0.0
            assert figures["original"] == figures["shuffled"] > 0.3
            assert figures["of_seeds"] == [figures["original"]] * 3
            assert figures["p_value"] == 1.0 and figures["wins"] == figures["losses"] == 0
    assert run("shuffle", *words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[::6]] == ["train", "tydi"]
    assert lines[2].split()[0] == "ndcg@10" and lines[2].split()[3] == "+0.0000"


def test_results_in_python_have_tables_for_papers_and_the_values_of_every_question(tmp_path: Path) -> None:
    shuffled = jaxretr.word_order(
        None, beir=tiny.DATA, splits=["train", "tydi"], seeds=[3, 4], metrics=["mrr", "ndcg@10"]
    )
    shuffled.write_per_query(tmp_path / "values.tsv")
    with (tmp_path / "values.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert list(rows[0]) == ["split", "question-id", "seed", "mrr", "ndcg@10"]
    for split, found in json.loads(shuffled.to_json())["splits"].items():
        for metric, values in found["metrics"].items():
            for seed, mean in zip(("original", "3", "4"), (values["original"], *values["of_seeds"]), strict=True):
                written = [float(row[metric]) for row in rows if (row["split"], row["seed"]) == (split, seed)]
                assert len(written) == found["questions"] and np.mean(written) == pytest.approx(mean, abs=1e-5)
    run = write_trec(tmp_path / "a_run.trec", {"q1": "abcde"})
    for results in (shuffled, jaxretr.run_overlap(run, [run])):
        assert "\\begin{tabular}" in results.table("latex") and "| ---" not in results.table()
        assert "|---" in results.table("markdown").replace(":", "-").replace(" ", "")


def test_one_question_has_no_t_test(tmp_path: Path) -> None:
    folder = tmp_path / "beir"
    shutil.copytree(tiny.DATA, folder)
    question = read_beir(tiny.DATA, "train").questions[0].id
    (folder / "qrels/one.tsv").write_text(f"query-id\tcorpus-id\tscore\n{question}\tnothing\t1\n")
    found = jaxretr.word_order(None, beir=folder, splits=["one"], metrics=["mrr"])
    assert json.loads(found.to_json())["splits"]["one"]["metrics"]["mrr"]["t_test_p_value"] is None
    assert "nan" not in found.table() and found.table().splitlines()[-1].split()[-2:] == ["-", "0/1/0"]


def by_hand(model: DualEncoder, split: str, seed: int | None) -> dict[str, float]:
    """mrr of each question, from embeddings and a sort."""
    beir = read_beir(tiny.DATA, split)
    texts = [q.text if seed is None else shuffle_words(q.text, seed) for q in beir.questions]
    scores = model.encode_queries(texts) @ model.encode_passages(list(beir.corpus)).T
    run = {
        q.id: dict(zip(beir.corpus.ids, row.tolist(), strict=True))
        for q, row in zip(beir.questions, scores, strict=True)
    }
    return metrics.evaluate(beir.qrels, run, ["mrr"], per_query=True)[1]["mrr"]


def test_a_model_before_and_after(tiny_models, capsys):
    model = tiny_models / "encoder"
    words = (model, "--beir", tiny.DATA, "--split", "train", "--metrics", "mrr", "--pooling", "mean")
    assert run("shuffle", *words, "--seed", 5, "--seeds", 2, "--json") == 0
    found = json.loads(capsys.readouterr().out)["splits"]["train"]["metrics"]["mrr"]
    encoder = DualEncoder.from_pretrained(model, pooling="mean")
    original, *shuffled = (by_hand(encoder, "train", seed) for seed in (None, 5, 6))
    means = [np.mean(list(values.values())) for values in (original, *shuffled)]
    assert found["original"] == pytest.approx(means[0])
    assert found["of_seeds"] == pytest.approx(means[1:])
    assert found["shuffled"] == pytest.approx(np.mean(means[1:]))
    assert found["difference"] == pytest.approx(np.mean(means[1:]) - means[0])
    changes = {id: (shuffled[0][id] + shuffled[1][id]) / 2 - original[id] for id in original}
    assert max(map(abs, changes.values())) > 0.005, "nothing is tested"  # a rank or more
    assert found["wins"] == sum(change > 1e-9 for change in changes.values())
    assert found["losses"] == sum(change < -1e-9 for change in changes.values())
    assert math.isclose(sum(changes.values()) / len(changes), found["difference"], abs_tol=1e-9)

    assert run("shuffle", *words, "--seed", 5, "--seeds", 2) == 0
    head, _, line = capsys.readouterr().out.splitlines()
    assert head.startswith("train: ") and head.endswith("mean of seeds 5 to 6")
    assert line.split()[:4] == ["mrr", f"{means[0]:.4f}", f"{found['shuffled']:.4f}", f"{found['difference']:+.4f}"]


def test_the_passage_that_is_the_question_is_left_out(tmp_path, capsys):
    """As in evaluate: in ArguAna a question is a passage of the corpus too; the 101st passage takes its place."""
    (tmp_path / "qrels").mkdir()
    texts = {"q": "red green blue", **{f"p{i}": "red green" for i in range(99)}, "last": "a grey stone, not red"}
    corpus = ({"_id": id, "title": "", "text": text} for id, text in texts.items())
    (tmp_path / "corpus.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in corpus))
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "red green blue"}\n')
    (tmp_path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tlast\t1\n")
    assert run("shuffle", "--bm25", "--beir", tmp_path, "--metrics", "mrr@100", "--json") == 0
    figures = json.loads(capsys.readouterr().out)["splits"]["test"]["metrics"]["mrr@100"]
    assert figures["original"] == figures["shuffled"] == 1 / 100


def test_a_folder_that_does_not_fit(tmp_path, capsys, caplog):
    assert run("shuffle", "--bm25", "--beir", tmp_path / "no") == 1
    assert the_error(capsys).startswith(f"{tmp_path / 'no'}: no such folder; give a BEIR folder")
    folder = tmp_path / "beir"
    shutil.copytree(tiny.DATA, folder)
    assert run("shuffle", "--bm25", "--beir", folder, "--split", "train,tydy") == 1
    assert "no split 'tydy', it has train, tydi; did you mean 'tydi'?" in the_error(capsys)
    (folder / "qrels/odd.tsv").write_text("query-id\tcorpus-id\tscore\nnobody\tnothing\t1\n")
    assert run("shuffle", "--bm25", "--beir", folder, "--split", "odd") == 1
    assert the_error(capsys).startswith(f"{folder / 'qrels/odd.tsv'}: judges no question of the queries file")
    # Questions without spaces stay as they are, and a difference of 0 says nothing then.
    rows = [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]
    joined = ({**row, "text": row["text"].replace(" ", "-")} for row in rows)
    (folder / "queries.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in joined))
    with caplog.at_level(logging.WARNING):
        assert run("shuffle", "--bm25", "--beir", folder, "--split", "train", "--json") == 0
    assert json.loads(capsys.readouterr().out)["splits"]["train"]["reordered"] == 0
    assert "beir, train: shuffling changes only 0 % of the questions" in caplog.text
