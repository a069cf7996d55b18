"""Mined negatives equal their definition, filter by filter, whatever the number of threads; the report adds up."""

import dataclasses
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from tiny import contrastive_config

import jaxretr
from jaxretr import cli
from jaxretr.data.corpus import Corpus, read_corpus
from jaxretr.data.made_of import read_record
from jaxretr.data.questions import Question, read_questions
from jaxretr.data.run_reading import Hits, read_trec, write_dpr_json, write_jsonl
from jaxretr.data.training_set import load_training_set
from jaxretr.evaluate.answers import has_answer
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.indexes.bm25.words import Bm25Settings, split_words
from jaxretr.mining.negatives import Filters, MiningReport, Ranking, hard_negatives, rankings_of_run
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.training.runs.run_examples import read_run_examples

DATA = Path(__file__).parents[1] / "data" / "wiki_qa"
INF, NAN = math.inf, math.nan


def _corpus(*texts: str) -> Corpus:
    return Corpus([f"p{row}" for row in range(len(texts))], [""] * len(texts), list(texts))


def _ranking(scores: dict[int, float], *positive_scores: float) -> Ranking:
    return Ranking(
        np.array(list(scores), np.int64),
        np.array(list(scores.values()), np.float32),
        np.array(positive_scores, np.float32),
    )


def _mine_one(corpus: Corpus, ranking: Ranking, positives: list[int], question: Question | None = None, **filters):
    [mined] = hard_negatives([question or Question("q", "?")], [positives], [ranking], corpus, Filters(**filters))
    assert len(mined.rows) + sum(mined.dropped.values()) == len(ranking.rows)
    return mined


# ---- against the definition ------------------------------------------------------------------------------------------


def _defined(corpus, question, positives, known, scores, filters) -> list[int]:
    """The definition, from the scores of all passages, word for word; `known` are positives of questions with its text."""
    order = sorted(range(len(corpus)), key=lambda row: (-scores[row], row))
    best = max(float(scores[row]) for row in positives)
    negatives = []
    for rank, row in enumerate(order, start=1):
        score = float(scores[row])
        copies = [p for p in known if (corpus.titles[p], corpus.texts[p]) == (corpus.titles[row], corpus.texts[row])]
        itself = corpus.texts[row] == question.text != ""
        within = filters.first_rank <= rank <= filters.last_rank
        near = filters.margin is not None and score > best - filters.margin
        near = near or (filters.relative_margin is not None and score > best - filters.relative_margin * best)
        answered = filters.answers is not None and has_answer(corpus.texts[row], question.answers, filters.answers)
        if within and score > 0 and not copies and not itself and not near and not answered:
            negatives.append(row)
    return negatives[: filters.negatives]


def _random_set(seed: int) -> tuple[Corpus, list[Question], list[list[int]]]:
    """A corpus with ties, copies, empty rows and answers all over it, in a vocabulary of 14 words."""
    rng = np.random.default_rng(seed)
    words = np.array([f"w{number}" for number in range(14)])
    weights = 1 / np.arange(1, 15)
    drawn = [" ".join(rng.choice(words, rng.integers(0, 6), p=weights / weights.sum())) for _ in range(120)]
    titles = [str(rng.choice(["", "w0", "w13"])) for _ in drawn]
    corpus = Corpus([f"p{row}" for row in range(120)], titles, drawn)
    questions, positives = [], []
    for number in range(25):
        answers = tuple(rng.choice(words, rng.integers(0, 3), replace=False).tolist())
        questions.append(Question(f"q{number}", " ".join(rng.choice(words, rng.integers(0, 5))), answers))
        positives.append(sorted(rng.choice(120, rng.integers(1, 4), replace=False).tolist()))
    return corpus, questions, positives


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {"answers": None},
        {"answers": None, "negatives": 3},
        {"answers": None, "first_rank": 4, "last_rank": 9},
        {"answers": None, "margin": 0.4},
        {"answers": None, "margin": -0.2},
        {"answers": None, "relative_margin": 0.25},
        {"negatives": 120, "last_rank": 120},
        {"negatives": 5, "first_rank": 2, "last_rank": 60, "margin": 0.1, "relative_margin": 0.2},
    ],
    ids=str,
)
def test_equals_the_definition(seed: int, options: dict):
    corpus, questions, positives = _random_set(seed)
    filters = Filters(**options)
    index = Bm25Index.build(corpus, stemmer=None)
    # Ranked no deeper than the window: most positives then lie outside and are scored all the same.
    found = index.search_and_score([question.text for question in questions], filters.last_rank, positives)
    mined = list(hard_negatives(questions, positives, map(Ranking, found[1], found[0], found[2]), corpus, filters))
    kept = 0
    for number, of_question in enumerate(mined):
        of_all = index.search_and_score([questions[number].text], 1, [range(len(corpus))])[2][0]
        same = [other.text == questions[number].text != "" or other is questions[number] for other in questions]
        known = [row for rows, is_same in zip(positives, same, strict=True) if is_same for row in rows]
        expected = _defined(corpus, questions[number], positives[number], known, of_all, filters)
        assert of_question.rows.tolist() == expected, f"seed {seed}, question {number}"
        np.testing.assert_array_equal(of_question.scores, of_all[expected])
        np.testing.assert_array_equal(of_question.positive_scores, of_all[positives[number]])
        kept += len(expected)
    assert kept > 10


# ---- filter by filter ------------------------------------------------------------------------------------------------


def test_window_counts_ranks_from_one_and_holds_both_edges():
    corpus = _corpus(*"abcdef")
    ranking = _ranking({4: 9, 0: 8, 2: 7, 1: 6, 5: 5}, 9)
    mined = _mine_one(corpus, ranking, [4], first_rank=2, last_rank=4)
    assert mined.rows.tolist() == [0, 2, 1] and mined.scores.tolist() == [8, 7, 6]
    assert mined.dropped["outside_ranks"] == 2 and mined.dropped["positive"] == 0
    assert _mine_one(corpus, ranking, [4], first_rank=5, last_rank=50).rows.tolist() == [5]
    beyond = _mine_one(corpus, ranking, [4], first_rank=6, last_rank=50)
    assert beyond.rows.tolist() == [] and beyond.dropped["outside_ranks"] == 5


def test_the_first_are_kept_and_the_rest_counted():
    mined = _mine_one(_corpus(*"abcdef"), _ranking({4: 9, 0: 8, 2: 7, 1: 6, 5: 5}, 9), [4, 1], negatives=2)
    assert mined.rows.tolist() == [0, 2]
    assert mined.dropped["positive"] == 1 and mined.dropped["surplus"] == 2 and mined.positive_rank == 1


def test_copies_of_a_positive_are_no_negatives_but_other_titles_are():
    corpus = Corpus(list("abcde"), ["T", "T", "U", "T", ""], ["x", "x", "x", "y", "x"])
    mined = _mine_one(corpus, _ranking({1: 5, 2: 4, 3: 3, 4: 2}, 5), [0])
    assert mined.rows.tolist() == [2, 3, 4]
    assert mined.dropped["duplicate"] == 1 and mined.dropped["positive"] == 0 and mined.positive_rank is None


def test_a_score_of_zero_is_no_match_even_as_a_run_writes_it():
    step = float(np.finfo(np.float32).smallest_subnormal)
    mined = _mine_one(_corpus(*"abcdef"), _ranking({4: 1, 0: 1e-30, 1: 0, 2: -step, 3: -2 * step}, 0), [3])
    assert mined.rows.tolist() == [4, 0] and mined.dropped["zero_score"] == 2 and mined.dropped["positive"] == 1
    assert mined.positive_rank is None, "a positive without a word of the question was not found"
    dense = _mine_one(_corpus(*"abc"), _ranking({0: 0.5, 2: -0.25}, 0.5), [0])
    assert dense.rows.tolist() == [2], "scores of dense models may be negative"


@pytest.mark.parametrize(
    ("margin", "relative", "positives", "kept"),
    [
        (None, None, [4.0], [0, 1, 2, 3]),
        (0, None, [4.0], [1, 2, 3]),  # not above the positive, but level with it
        (1, None, [4.0], [2, 3]),
        (-1, None, [4.0], [0, 1, 2, 3]),
        (None, 0.25, [4.0], [2, 3]),
        (None, 0.5, [4.0], [3]),
        (None, 1, [4.0], []),
        (1, 0.5, [4.0], [3]),  # the stricter of both
        (2, 0.25, [4.0], [3]),
        (1, None, [3.0, NAN, 4.0, 1.0], [2, 3]),  # of the best positive
        (1, None, [NAN], []),
        (None, 0.1, [NAN, NAN], []),
        (None, None, [NAN], [0, 1, 2, 3]),
        (1, None, [0.0], []),
    ],
)
def test_margins(margin, relative, positives, kept):
    ranking = _ranking({0: 5, 1: 4, 2: 3, 3: 2}, *positives)
    gold = [4] * len(positives)
    mined = _mine_one(_corpus(*"abcde"), ranking, gold, margin=margin, relative_margin=relative)
    assert mined.rows.tolist() == kept and mined.dropped["margin"] == 4 - len(kept)


def test_relative_margin_of_a_negative_score_lies_below_it():
    assert Filters(relative_margin=0.1).ceiling(np.array([-10], np.float32)) == -11
    assert Filters(relative_margin=0.0, margin=2).ceiling(np.array([-10], np.float32)) == -12
    assert Filters().ceiling(np.array([NAN], np.float32)) == INF


def test_answers_are_looked_for_in_texts_as_dpr_does():
    corpus = Corpus(list("abcd"), ["", "Paris", "", ""], ["in paris, France", "a city", "Parisian", "capital"])
    ranking = _ranking({0: 4, 1: 3, 2: 2, 3: 1}, 9)
    found = {
        answers: _mine_one(corpus, ranking, [], question, answers=mode)
        for answers, mode, question in [
            ("string", "string", Question("q", "?", ("Lyon", "Paris"))),
            ("regex", "regex", Question("q", "?", ("^par", "c.p"))),
            ("off", None, Question("q", "?", ("Paris",))),
            ("none", "string", Question("q", "?")),
        ]
    }
    assert found["string"].rows.tolist() == [1, 2, 3] and found["string"].dropped["answer"] == 1
    assert found["regex"].rows.tolist() == [0, 1]
    assert found["off"].rows.tolist() == found["none"].rows.tolist() == [0, 1, 2, 3]


def test_wrong_filters():
    for options, message in [
        ({"negatives": 0}, "negatives=0: must be at least 1"),
        ({"first_rank": 0}, "first_rank=0: must be at least 1"),
        ({"first_rank": 5, "last_rank": 4}, "5:4: not a window"),
        ({"margin": NAN}, "margin=nan: must be a finite number"),
        ({"relative_margin": 1.5}, "relative_margin=1.5: must be a share between 0 and 1"),
        ({"relative_margin": NAN}, "relative_margin=nan: must be a share between 0 and 1"),
        ({"answers": "sting"}, "answers='sting': give .* did you mean 'string'"),
    ]:
        with pytest.raises(UsageError, match=message):
            Filters(**options)


# ---- rankings --------------------------------------------------------------------------------------------------------


def test_rankings_of_a_run_break_ties_by_row_and_score_only_what_was_found():
    run = {"q0": {"p2": 1.0, "p0": 1.0, "p3": 7.0, "p1": 1.0}, "stranger": {"p0": 1.0}}
    rows = {f"p{row}": row for row in range(5)}
    first, second = rankings_of_run(run, [Question("q0", ""), Question("q1", "")], [[1, 4], [0]], rows, 3)
    assert first.rows.tolist() == [3, 0, 1] and first.scores.tolist() == [7, 1, 1]
    np.testing.assert_array_equal(first.positive_scores, np.array([1, NAN], np.float32))
    assert second.rows.tolist() == [] and np.isnan(second.positive_scores).all()


@pytest.mark.parametrize("method", ["lucene", "robertson", "atire", "bm25l", "bm25+"])
def test_scores_are_those_of_bm25s(method):
    import bm25s

    corpus, questions, _ = _random_set(3)
    index = Bm25Index.build(corpus, k1=1.1, b=0.6, stemmer=None, method=method)
    retriever = bm25s.BM25(k1=1.1, b=0.6, method=method)
    words = [split_words(f"{title} {text}") for title, text in zip(corpus.titles, corpus.texts, strict=True)]
    retriever.index(words, show_progress=False)
    compared = 0
    for question in questions:
        asked = [word for word in split_words(question.text) if word in retriever.vocab_dict]
        if not asked:
            continue
        [scores], [rows] = index.search([question.text], len(corpus))
        hits = np.count_nonzero(rows >= 0)
        # Sums of float32 in another order.
        np.testing.assert_allclose(scores[:hits], retriever.get_scores(asked)[rows[:hits]], rtol=1e-5, atol=1e-6)
        compared += 1
    assert compared > 3


@pytest.mark.parametrize("method", ["lucene", "bm25+"])
def test_search_is_the_same_for_any_k_and_threads(method):
    corpus, questions, positives = _random_set(2)
    texts = [question.text for question in questions]
    index = Bm25Index.build(corpus, stemmer=None, method=method)
    every = index.search_and_score(texts, len(corpus), positives)
    for k, threads in ((7, 1), (7, 3), (120, 2)):
        few = index.search_and_score(texts, k, positives, threads=threads)
        np.testing.assert_array_equal(few[0], every[0][:, :k])
        np.testing.assert_array_equal(few[1], every[1][:, :k])
        for number, of_positives in enumerate(few[2]):
            of_row = dict(zip(every[1][number].tolist(), every[0][number].tolist(), strict=True))
            of_row.pop(-1, None)
            for row, score in zip(positives[number], of_positives.tolist(), strict=True):
                assert score == of_row[row] if row in of_row else score <= min(of_row.values(), default=score)
    with pytest.raises(ValueError, match="2 questions, but rows to score for 1"):
        index.search_and_score(["a", "b"], 1, [[0]])


# ---- the command -----------------------------------------------------------------------------------------------------


def _run(*words: object) -> int:
    return cli.main([str(word) for word in words])


def _mine(out: Path, *words: object) -> list[dict]:
    assert _run("mine", "--corpus", DATA / "corpus.jsonl", "--train", DATA, "--out", out, *words) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_command_writes_what_the_definition_says_and_a_report_that_adds_up(tmp_path: Path, capsys, caplog):
    report = tmp_path / "report.json"
    options = ("--ranks", "2:20", "--negatives", 5, "--relative-margin", 0.3, "--k1", 1.2, "--stemmer", "none")
    records = _mine(tmp_path / "mined.jsonl", "--report", report, *options)
    assert "(outside_ranks)" in caplog.text and "dropped 0 " not in caplog.text

    corpus = read_corpus(DATA)
    training = load_training_set(DATA, corpus)
    index = Bm25Index.build(corpus, k1=1.2, stemmer=None)
    filters = Filters(negatives=5, first_rank=2, last_rank=20, relative_margin=0.3)
    expected_report = MiningReport(20)
    hits = 0
    for number, (record, question) in enumerate(zip(records, training.questions, strict=True)):
        positives = training.positives[number].tolist()
        [scores], [rows], [of_all] = index.search_and_score([question.text], 20, [range(20)])
        negatives = _defined(corpus, question, positives, positives, of_all, filters)
        assert list(record)[:5] == [
            *("query_id", "query_text", "query_image", "positive_document_ids", "negative_document_ids")
        ]
        assert (record["query_id"], record["query_text"], record["query_image"]) == (question.id, question.text, None)
        assert record["positive_document_ids"] == [corpus.ids[row] for row in positives]
        assert record["negative_document_ids"] == [corpus.ids[row] for row in negatives]
        assert np.array(record["negative_scores"], np.float32).tolist() == of_all[negatives].tolist()
        assert np.array(record["positive_scores"], np.float32).tolist() == of_all[positives].tolist()
        ranking = Ranking(rows, scores, of_all[positives])
        hits += np.count_nonzero(rows >= 0)
        expected_report.add(next(hard_negatives([question], [positives], [ranking], corpus, filters)))
    assert sum(len(record["negative_document_ids"]) for record in records) > 5

    found = json.loads(report.read_text())
    assert found == expected_report.as_dict()
    assert found["questions"] == 6 and found["dropped"]["outside_ranks"] == 6
    assert found["negatives"]["total"] + sum(found["dropped"].values()) == hits <= 6 * 20
    assert found["dropped"]["zero_score"] == 0, "what shares no word is not among the hits"
    assert found["positive_in_top"] == {"depth": 20, "questions": 5, "share": 5 / 6}, (
        "one shares no word with its passage"
    )
    assert sum(found["negatives"]["questions_by_number"].values()) == 6
    said = capsys.readouterr()
    assert f"mined.jsonl: {found['negatives']['total']} negatives of 6 questions" in said.out
    assert "(margin)" in said.err and "83.3 % of the questions have a positive among the best 20" in said.err

    again = load_training_set(tmp_path / "mined.jsonl", corpus)
    assert [question.id for question in again.questions] == [record["query_id"] for record in records]
    for number, record in enumerate(records):
        assert [corpus.ids[row] for row in again.negatives[number]] == record["negative_document_ids"]
        assert again.positives[number].tolist() == training.positives[number].tolist()


def test_python_mines_what_the_command_mines(tmp_path: Path):
    records = _mine(tmp_path / "mined.jsonl", "--negatives", 4, "--ranks", "2:15", "--k1", 1.2, "--answers", "none")
    mined = jaxretr.mine(
        DATA, corpus=read_corpus(DATA), negatives=4, ranks=(2, 15), answers=None, bm25=Bm25Settings(k1=1.2)
    )
    assert list(mined.records()) == records
    assert len(mined) == 6 and repr(mined) == f"MinedSet({len(mined.negatives.values)} negatives of 6 questions)"
    again = pickle.loads(pickle.dumps(mined))
    again.save(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "mined.jsonl").read_bytes()
    run = {question.id: {"squad:0-1": 2.0, "squad:0-8": 1.0} for question in mined.questions}
    of_run = jaxretr.mine(DATA, corpus=DATA / "corpus.jsonl", run=run, ranks=(1, 1), answers=None)
    assert {of_run.corpus.ids[row] for row in of_run.negatives.values.tolist()} == {"squad:0-1"}
    first = mined.questions[0].id
    with pytest.raises(UserError, match=f"'squad:0-8' for question '{first}' is not a number"):  # It passes any margin.
        jaxretr.mine(DATA, corpus=DATA, run={**run, first: {"squad:0-8": float("nan")}}, margin=1.0)
    hits = [Hits(id, [*found], np.array([*found.values()], np.float32)) for id, found in run.items()]
    for write in (write_jsonl, write_dpr_json):  # every format that is read as a run
        write(tmp_path / "run", mined.questions, of_run.corpus, hits)
        of_file = jaxretr.mine(DATA, corpus=DATA, run=tmp_path / "run", ranks=(1, 1), answers=None)
        np.testing.assert_array_equal(of_file.negatives.values, of_run.negatives.values)


def test_a_mined_file_names_what_it_was_made_from_and_training_with_another_corpus_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jaxretr.mine(DATA, corpus=DATA, negatives=4, answers=None).save(tmp_path / "mined.jsonl")
    record = read_record(tmp_path / "mined.jsonl")
    assert record is not None and record["corpus"] == read_corpus(DATA).fingerprint()
    assert "k1" in record["ranking"] and len(record["questions"]) == 64
    lines = (DATA / "corpus.jsonl").read_text().splitlines()
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines[::-1]))
    config = contrastive_config(
        tmp_path, data={"mined": str(tmp_path / "mined.jsonl"), "dev_questions": None}, negatives={"mined": 1}
    )
    read_run_examples(config)
    assert "another corpus" not in caplog.text
    other = dataclasses.replace(config.data, corpus=str(tmp_path / "corpus.jsonl"))
    read_run_examples(dataclasses.replace(config, data=other))
    assert "data.mined=" in caplog.text and "another corpus" in caplog.text
    with open(tmp_path / "mined.jsonl", "a") as file:
        file.write("\n")
    assert read_record(tmp_path / "mined.jsonl") is None, "it is another file than the one that the record is of"


def test_help_names_every_option_and_its_examples_parse(capsys):
    assert _run("mine", "--help") == 0
    printed = capsys.readouterr().out
    for example in printed.split("example:\n")[1].splitlines():
        assert cli.parse(example.split()[1:]).command == "mine"
    assert all(name in printed for name in cli.build_parser()[1]["mine"]._option_string_actions)


def test_bytes_do_not_depend_on_threads_and_questions_without_negatives_stay(tmp_path: Path, monkeypatch):
    _mine(tmp_path / "one.jsonl")
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    _mine(tmp_path / "three.jsonl")
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "three.jsonl").read_bytes()
    records = _mine(tmp_path / "none.jsonl", "--margin", 1000, "--report", tmp_path / "report.json")
    assert [record["negative_document_ids"] for record in records] == [[]] * 6
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["questions_without_negatives"] == 6 and report["positive_in_top"]["depth"] == 20
    _mine(tmp_path / "deep.jsonl", "--ranks", "2:5", "--depth", 15, "--report", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["dropped"]["outside_ranks"] == 6 * 11 and report["positive_in_top"]["depth"] == 15


def test_a_run_of_bm25_gives_the_negatives_of_bm25(tmp_path: Path):
    trec = tmp_path / "bm25.trec"
    queries = tmp_path / "queries.jsonl"
    judged = {question.id for question in load_training_set(DATA).questions}
    asked = [question for question in read_questions(DATA) if question.id in judged]
    queries.write_text("".join(json.dumps({"_id": q.id, "text": q.text}) + "\n" for q in asked[:5]))
    assert _run("bm25", "--corpus", DATA, "--queries", queries, "-k", 20, "--out", trec) == 0
    options = ("--negatives", 12, "--margin", 0.5, "--ranks", "1:18")
    of_bm25 = {record["query_id"]: record for record in _mine(tmp_path / "direct.jsonl", *options)}
    report = tmp_path / "report.json"
    from_run = {
        record["query_id"]: record
        for record in _mine(tmp_path / "run.jsonl", *options, "--run", trec, "--report", report)
    }
    assert len(of_bm25) == len(from_run) == 6
    unfound = 0
    for question in asked[:5]:
        direct = of_bm25[question.id]
        if direct["positive_scores"] == [0]:  # It shares no word with the question, so the run lacks it.
            direct = {**direct, "positive_scores": [None]}
            unfound += 1
        assert from_run[question.id] == direct, question
    assert unfound == 1
    assert len({tuple(record["negative_document_ids"]) for record in of_bm25.values()}) > 3
    # The sixth is not in the run.
    [missing] = set(of_bm25) - set(read_trec(trec))
    assert from_run[missing]["negative_document_ids"] == [] and from_run[missing]["positive_scores"] == [None]
    assert json.loads(report.read_text())["questions_without_positive_score"] == 1 + unfound


def test_positives_outside_the_corpus(tmp_path: Path, capsys):
    training = tmp_path / "train.jsonl"
    corpus = read_corpus(DATA)
    known = {"docid": corpus.ids[3], "title": corpus.titles[3], "text": corpus.texts[3]}
    strange = {"docid": "x", "title": "", "text": "nowhere in the corpus"}
    rows = [
        {
            "query_id": str(number),
            "query": "who plays mr randolph",
            "positive_passages": passages,
            "negative_passages": [],
        }
        for number, passages in enumerate([[strange], [strange, known], [known]])
    ]
    training.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("mine", "--corpus", DATA, "--train", training, "--out", tmp_path / "mined.jsonl")
    assert _run(*words) == 1
    assert "2 questions have a positive passage that is not in the corpus (the first: '0')" in capsys.readouterr().err
    assert not (tmp_path / "mined.jsonl").exists()
    assert _run(*words, "--skip-bad") == 0
    mined = [json.loads(line) for line in (tmp_path / "mined.jsonl").read_text().splitlines()]
    assert [(row["query_id"], row["positive_document_ids"]) for row in mined] == [("1", ["nq:p3"]), ("2", ["nq:p3"])]
    assert "and 1 questions that have no other" in capsys.readouterr().err
    training.write_text(json.dumps(rows[0]) + "\n")
    assert _run(*words, "--skip-bad") == 1
    assert "no positive passage is in the corpus" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--ranks 0:5", 2, "'0:5' is not a window of ranks"),
        ("--ranks 5", 2, "'5' is not a window of ranks"),
        ("--ranks 6:5", 2, "'6:5' is not a window of ranks"),
        ("--ranks 1:10 --depth 9", 2, "--depth 9 ends before the ranks 1:10"),
        ("--relative-margin 5", 2, "--relative-margin 5.0: must be a share between 0 and 1"),
        ("--margin nan", 2, "--margin nan: must be a finite number"),
        ("--answers exact", 2, "invalid choice: 'exact'"),
        ("--run RUN --k1 1.2", 2, "--k1, --b and --stemmer of BM25 have no effect with --run, which gives the ranking"),
        ("--k1 -1", 2, "--k1 -1.0: must be at least 0"),
        ("--split trian", 1, "trian"),
        ("--report FOLDER", 1, "is a folder; name a file"),
        ("--report OUT", 2, "is --out as well; give the report a file of its own"),
        ("--run missing.trec", 1, "missing.trec: cannot be read"),
        ("--run RUN", 1, "RUN:3: passage 'p9' is not in the corpus; give the corpus that was searched"),
        ("--run OTHER", 1, "has hits for none of the 6 training questions"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, capsys, words: str, code: int, message: str):
    question = load_training_set(DATA).questions[0].id
    hits = tmp_path / "hits.trec"
    hits.write_text(f"{question} Q0 nq:p0 1 3 t\nother Q0 p9 1 3 t\n{question} Q0 p9 2 2 t\n")
    other = tmp_path / "other.trec"
    other.write_text("other Q0 nq:p0 1 3 t\n")
    places = {"RUN": hits, "OTHER": other, "FOLDER": tmp_path, "OUT": tmp_path / "mined.jsonl"}
    typed = [str(places.get(word, word)) for word in words.split()]
    assert _run("mine", "--corpus", DATA, "--train", DATA, "--out", tmp_path / "mined.jsonl", *typed) == code
    said = capsys.readouterr().err.splitlines()
    assert message.replace("RUN:", f"{hits}:") in said[-1]
    assert not (tmp_path / "mined.jsonl").exists()


# ---- from a dense model ----------------------------------------------------------------------------------------------


def test_a_dense_model_mines_as_a_run_of_its_whole_ranking_does(tiny_models: Path, tmp_path: Path) -> None:
    """A run of all passages knows the score of every positive, as the model does."""
    encoder, corpus = jaxretr.DualEncoder.from_pretrained(tiny_models / "encoder"), read_corpus(DATA)
    questions = load_training_set(DATA, corpus, split="train").questions
    scores = encoder.encode_queries([each.text for each in questions]) @ encoder.encode_passages(list(corpus)).T
    run = {
        each.id: dict(zip(corpus.ids, row.tolist(), strict=True)) for each, row in zip(questions, scores, strict=True)
    }
    settings = {"corpus": corpus, "ranks": (2, 20), "negatives": 5, "relative_margin": 0.001}
    ours, theirs = jaxretr.mine(DATA, model=encoder, **settings), jaxretr.mine(DATA, run=run, **settings)
    assert len(ours.negatives.values) >= 10 and ours.report.dropped["margin"] > 0
    for found, expected in zip(ours.records(), theirs.records(), strict=True):
        assert found["negative_document_ids"] == expected["negative_document_ids"]
        np.testing.assert_allclose(found["negative_scores"], expected["negative_scores"], rtol=1e-5)
        np.testing.assert_allclose(found["positive_scores"], expected["positive_scores"], rtol=1e-5)
    assert ours.report.as_dict() == theirs.report.as_dict()
    ranks = ours.report.as_dict()["best_positive_ranks"]
    assert sum(ranks.values()) == len(questions) and {*ranks} <= {"1", "2-3", "4-10", "11-20", "lower"}
    assert "questions by the rank of their best positive: " in ours.table()
    with pytest.raises(UsageError, match="run= and model= both give the ranking"):
        jaxretr.mine(DATA, model=encoder, run=run, **settings)
    with pytest.raises(UsageError, match="have no effect with model="):
        jaxretr.mine(DATA, model=encoder, bm25=Bm25Settings(), **settings)

    out = tmp_path / "mined.jsonl"
    words = ["--corpus", str(DATA), "--train", str(DATA), "--ranks", "2:20", "--negatives", "5"]
    model = ["--model", str(tiny_models / "encoder"), "--relative-margin", "0.001", "--compute", "float32"]
    assert cli.main(["mine", *words, *model, "--out", str(out)]) == 0
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["negative_document_ids"] for row in written] == [row["negative_document_ids"] for row in ours.records()]
    record = read_record(out)
    assert record is not None and record["ranking"] == ours.made_of["ranking"] and "encoder" in record["ranking"]
