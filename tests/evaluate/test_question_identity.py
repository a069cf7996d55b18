"""A passage is the question itself if id and text are the question's and it is not relevant: for every system and command."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny import contrastive_config

import jaxretr
from jaxretr import cli
from jaxretr.config import RerankerData
from jaxretr.data.corpus import Corpus
from jaxretr.data.question_identity import first_with_text, joined_by_text, own_ids, own_rows, without_own_rows
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_beir
from jaxretr.data.run_reading import read_run, write_trec
from jaxretr.evaluate import metrics
from jaxretr.evaluate.measuring import TestSet
from jaxretr.evaluate.searches import bm25_search, encoder_search
from jaxretr.evaluate.weight_tuning import hits_needed, values_of
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.reranking import RerankingSet
from jaxretr.training.runs.whole_corpus import Judged

# Questions a1 and a2 are passages themselves; a3 is one that is judged relevant, and 7 is numbered as another passage.
PASSAGES = {
    "a1": ("roads", "City cyclists should pay a road tax because they use the road every day."),
    "a1c": ("", "A road tax on cyclists is unfair since bicycles hardly wear the road."),
    "a2": ("", "School uniforms save parents  money.\n"),
    "a2c": ("", "School uniforms are dear and parents must buy clothes twice."),
    "a3": ("Museums", "ought to be free"),
    "7": ("", "The coast line train leaves at noon."),
    "8": ("", "Bread is baked from flour, water and salt."),
}
QUESTIONS = {
    "a1": "City cyclists should pay a road tax because they use the road every day.",
    "a2": "school uniforms save parents money.",
    "a3": "Museums ought to be free",
    "7": "when does the coast line train leave",
}
QRELS = {"a1": {"a1c": 1}, "a2": {"a2c": 2, "a2": 0}, "a3": {"a3": 1}, "7": {"a1c": 1, "8": -1}}
OWN = {"a1", "a2"}
NAMES = ["mrr@10", "ndcg@10", "recall@5"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BEIR folder of these texts."""
    place = tmp_path / "beir"
    (place / "qrels").mkdir(parents=True)
    passages = [{"_id": id, "title": title, "text": text} for id, (title, text) in PASSAGES.items()]
    questions = [{"_id": id, "text": text} for id, text in QUESTIONS.items()]
    for name, rows in (("corpus", passages), ("queries", questions)):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = [f"{q}\t{p}\t{grade}\n" for q, of_one in QRELS.items() for p, grade in of_one.items()]
    for split in ("train", "dev", "test"):
        (place / f"qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    return place


def others(search: Any, folder: Path) -> dict[str, dict[str, float]]:
    """All that a search finds but the questions themselves."""
    data = read_beir(folder, "test")
    scores, ids = search(data.questions, len(PASSAGES))
    return {
        question.id: {
            id: score
            for id, score in zip(names, of_one, strict=False)
            if not (question.id in OWN and id == question.id)
        }
        for question, names, of_one in zip(data.questions, ids, scores.tolist(), strict=True)
    }


def expected(search: Any, folder: Path) -> dict[str, float]:
    return metrics.evaluate(QRELS, others(search, folder), NAMES)


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert cli.main([*map(str, words), "--json", "--metrics", ",".join(NAMES)]) == 0
    return json.loads(capsys.readouterr().out)


def in_table(found: dict[str, Any]) -> list[dict[str, float]]:
    """The metrics of each system of a report."""
    of_baselines = [{name: one["mean_b"] for name, one in each["metrics"].items()} for each in found["baselines"]]
    return [found["metrics"], *of_baselines]


def test_the_id_the_text_and_the_judgement_tell(folder: Path) -> None:
    data = read_beir(folder, "test")
    assert own_ids(data.questions, data.corpus, data.qrels) == OWN
    assert own_rows(data.questions, data.corpus).tolist() == [0, 2, 4, -1]
    assert own_ids([], data.corpus) == own_ids(data.questions, Corpus([], [], [])) == set()
    empty = Corpus(["0", "1"], ["", "title"], ["", ""])
    assert own_rows([Question("0", ""), Question("1", " ")], empty).tolist() == [-1, -1]


def test_rows_move_up_in_place_of_the_question_itself_whatever_the_size_of_the_corpus() -> None:
    rows = np.array([[3, 1, 2], [1, 3, 2], [2, -1, -1]])
    scores = np.array([[3.0, 2.0, 1.0]] * 3, np.float32)
    found = without_own_rows(scores, rows, np.array([3, -1, 2]), 2)
    assert found[1].tolist() == [[1, 2], [1, 3], [-1, -1]] and found[0][:2].tolist() == [[2, 1], [3, 2]]
    assert without_own_rows(scores, rows, np.array([3, 3, 9]), 5)[1].tolist() == [[1, 2, -1], [1, 2, -1], [2, -1, -1]]


def test_questions_with_one_text_share_their_positives() -> None:
    texts = ["Who ", "what", "who", "", "", "  "]
    assert first_with_text(texts).tolist() == [0, 1, 0, 3, 4, 5]
    assert joined_by_text(texts, [[5, 1], [2], [1, 7], [3], [4], []]) == [[5, 1, 7], [2], [5, 1, 7], [3], [4], []]


def test_one_system_has_one_value_as_a_model_a_run_a_baseline_and_in_a_suite(
    folder: Path, tiny_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_models / "encoder"
    data = read_beir(folder, "test")
    searches = {
        "model": encoder_search(jaxretr.load_encoder(model), data.corpus, None),
        "bm25": bm25_search(data.corpus),
    }
    dense, lexical = (pytest.approx(expected(search, folder)) for search in searches.values())
    for name, search in searches.items():
        scores, ids = search(data.questions, len(PASSAGES))
        runs = zip(data.questions, ids, scores.tolist(), strict=True)
        write_trec(
            tmp_path / f"{name}.trec", {q.id: dict(zip(names, of_one, strict=False)) for q, names, of_one in runs}
        )
    files = [tmp_path / "model.trec", tmp_path / "bm25.trec"]
    baselines = [word for file in (*files, "bm25") for word in ("--baseline", file)]
    found = printed(capsys, "evaluate", model, "--beir", folder, "--compute", "float32", *baselines)
    assert in_table(found) == [dense, dense, lexical, lexical]
    words = ["evaluate", "--run", files[0], "--qrels", folder / "qrels/test.tsv"]
    texts = ["--corpus", folder, "--queries", folder, "--compute", "float32"]
    assert printed(capsys, *words, *texts)["metrics"] == dense
    found = printed(capsys, *words, *texts, *baselines[2:], "--baseline", model)
    assert in_table(found) == [dense, lexical, lexical, dense]
    found = printed(capsys, "evaluate", model, "--suite", tmp_path, "--compute", "float32")
    assert found["average"] == dense
    # Without texts a run is measured as trec_eval does.
    as_it_is = metrics.evaluate(QRELS, read_run(files[0]), NAMES)
    assert printed(capsys, *words)["metrics"] == pytest.approx(as_it_is) and as_it_is != dense
    # The original text tells, also where typos are searched for.
    typed = tmp_path / "typed.jsonl"
    typed.write_text("".join(json.dumps({"_id": id, "text": f"{text} x"}) + "\n" for id, text in QUESTIONS.items()))
    report = jaxretr.evaluate_typos([model], beir=folder, profiles=(), queries={"x": [typed]}, metrics=NAMES)
    of_model = report.values["test"][str(model)]
    assert {name: metrics.mean(values) for name, values in of_model.original.items()} == dense
    changed = [Question(id, f"{text} x") for id, text in QUESTIONS.items()]
    altered = expected(lambda _, k: searches["model"](changed, k), folder)
    assert {name: metrics.mean(values) for name, values in of_model.draws["x"][0].items()} == pytest.approx(altered)


@pytest.mark.parametrize(
    ("given", "key_word"),
    [
        (["--baseline", "MODEL"], "corpus and queries"),
        (["--corpus", "c"], "queries"),
        (["--queries", "q"], "corpus"),
    ],
)
def test_a_run_without_both_texts_refuses_what_needs_them(
    given: list[str], key_word: str, folder: Path, tiny_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("MODEL", str(tiny_models / "encoder")) for word in given]
    assert cli.main(["evaluate", "--run", "r", "--qrels", str(folder / "qrels/test.tsv"), *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "jaxretr: error: " in line and key_word in line


def test_a_run_that_is_one_hit_short_or_finds_the_questions_is_said_to(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = {id: {**({id: 9.0} if id != "7" else {}), "8": 1.0} for id in QUESTIONS}
    settings: dict[str, Any] = {"qrels": QRELS, "corpus": folder, "queries": folder}
    jaxretr.evaluate_run(run, metrics=["recall@2"], **settings)
    assert [record.message.count("2 questions have one hit less") for record in caplog.records] == [1]
    caplog.clear()
    jaxretr.evaluate_run(run, metrics=["recall@3"], **settings)
    assert not caplog.records
    jaxretr.evaluate_run({id: {id: 1.0} for id in ("a1", "a2", "7")}, qrels=QRELS, metrics=["recall@2"])
    assert ["own id" in record.message for record in caplog.records] == [True, False]


def test_a_fused_weight_is_tuned_on_what_evaluate_measures(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    others = {"a1": ("8", "a1c"), "a2": ("8", "a2c"), "a3": ("8", "a1"), "7": ("8", "a1c")}
    one = {id: {id: 9.0, **dict(zip(found, (3.0, 2.0), strict=True))} for id, found in others.items()}
    two = {id: {id: 9.0, **dict(zip(found[::-1], (4.0, 1.0), strict=True))} for id, found in others.items()}
    texts: dict[str, Any] = {"corpus": folder, "queries": folder}
    settings: dict[str, Any] = {"tune": QRELS, "metric": "mrr@10", "grid": [0.1, 1.0]}
    curve = jaxretr.fuse([one, two], **settings, **texts).curve
    assert curve is not None and not [record for record in caplog.records if "own id" in record.message]
    expected = [
        jaxretr.evaluate_run(run, qrels=QRELS, metrics=["mrr@10"], **texts).means["the run"]["mrr@10"]
        for run in (one, *(jaxretr.fuse([one, two], weights=[weight]).run for weight in (0.1, 1.0)), two)
    ]
    assert [curve.alone[0], *curve.values.values(), curve.alone[1]] == pytest.approx(expected)
    # a1 and a2 find theirs second or first, a3 itself, and 7 the passage of its number before all others.
    assert expected == pytest.approx([(1 / 2 + 1 / 2 + 1 + 1 / 3) / 4] * 2 + [(1 + 1 + 1 + 1 / 2) / 4] * 2)
    files = [tmp_path / "one.trec", tmp_path / "two.trec"]
    for file, run in zip(files, (one, two), strict=True):
        write_trec(file, run)
    words = [*files, "--tune", folder / "qrels/dev.tsv", "--metric", "mrr@10", "--grid", "0.1,1"]
    assert cli.main(["fuse", *map(str, words), "--corpus", str(folder), "--queries", str(folder)]) == 0
    printed = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()[1:5]]
    assert printed == pytest.approx(expected, abs=1e-4)
    # Without texts they are measured as trec_eval does, and are said to be.
    caplog.clear()
    curve = jaxretr.fuse([one, two], **settings).curve
    assert curve is not None and curve.alone[0] == pytest.approx((1 / 3 + 1 / 3 + 1 + 1 / 3) / 4)
    assert sum("own id" in record.message for record in caplog.records) == 2


def test_a_dev_set_of_a_weight_drops_them_by_judgements_and_by_answers(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = read_beir(folder, "test")
    ids = list(data.corpus.ids)
    first = [ids.index(id) for id in ("a1", "a2", "a3", "7")]
    rows = np.array([[row, *(other for other in range(7) if other != row)] for row in first])
    scores = np.tile(np.arange(7, 0, -1, dtype=np.float32), (4, 1))
    dev = TestSet(data.questions, data.corpus, data.qrels)
    assert dev.own_questions and hits_needed(dev, "mrr@3") == 100
    # Behind themselves, a1 finds its relevant passage first and a2 its own third.
    assert values_of(dev, "mrr@3", 0.0, scores, rows, ids) == pytest.approx(
        {"a1": 1.0, "a2": 1 / 3, "a3": 1.0, "7": 1 / 3}
    )
    answered = [Question(q.id, q.text, ("road tax",)) for q in data.questions[:2]]
    by_answers = TestSet(answered, data.corpus)
    order = np.array([[0, 2], [2, 0]])
    assert hits_needed(by_answers, "acc@1") == 1
    assert values_of(by_answers, "acc@1", 0.0, scores[:2, :2], order, ids) == {"a1": 0.0, "a2": 1.0}
    # Without texts all count, with one warning.
    without = TestSet(data.questions, Corpus([], [], []), data.qrels)
    assert not without.own_questions
    for weight in (0.0, 1.0):
        assert values_of(without, "mrr@3", weight, scores, rows, ids)["a1"] == 1 / 2
    assert ["own id" in record.message for record in caplog.records] == [True]


def test_a_run_prints_what_evaluate_prints_and_takes_none_for_a_negative(
    folder: Path, tiny_models: Path, tmp_path: Path, mesh1: Any
) -> None:
    data: dict[str, Any] = {"train": str(folder), "split": "train", "corpus": str(folder), "mined": None, "dev": None}
    data |= {"dev_questions": str(folder), "dev_qrels": str(folder / "qrels/dev.tsv")}
    negatives = {"static": 0, "retrieved": 6, "last_rank": 7, "draw": "top", "mask_known_positives": False}
    config = contrastive_config(tiny_models, data=data, negatives=negatives, train={"batch_size": 4})
    run = ContrastiveRun(config, mesh1, tmp_path / "run")
    state = run.init()
    run.save_model(state, tmp_path / "model")
    means = jaxretr.evaluate_model(tmp_path / "model", beir=folder, split="dev", metrics=NAMES).means["model"]
    found = run.evaluate(state)
    assert {name: found[name] for name in NAMES} == pytest.approx(means)
    # With answers instead of judgements, nothing is judged: a3 is a passage itself as well.
    answers = [Question(id, text, ("road tax", "free")) for id, text in QUESTIONS.items()]
    run.dev.questions, run.dev.qrels = answers, None
    corpus = read_beir(folder, "dev").corpus
    run.dev._own = own_rows(answers, corpus)
    search = encoder_search(jaxretr.load_encoder(tmp_path / "model"), corpus, None)
    scores, ids = search(answers, len(PASSAGES))
    given = {
        q.id: dict(zip(names, of_one, strict=False))
        for q, names, of_one in zip(answers, ids, scores.tolist(), strict=True)
    }
    report = jaxretr.evaluate_run(given, answers=answers, corpus=corpus, metrics=["acc@1", "acc@5"])
    found = run.evaluate(state)
    assert {name: found[name] for name in ("acc@1", "acc@5")} == pytest.approx(report.means["the run"])
    # What the step took as negatives.
    batch = run.batch(0)
    order = run.batches.indices(0).tolist()
    *_, rows = run.programs.step(state.train, state.index, run.whole.passages, run.device_contents, batch)
    for number, taken in zip(order, np.asarray(rows)[:, 1:].tolist(), strict=True):
        id = run.examples.draws.examples.questions[number].id  # pyright: ignore[reportAttributeAccessIssue]
        negatives = {list(PASSAGES)[row] for row in taken if row >= 0}
        assert negatives == {*PASSAGES} - {max(QRELS[id], key=QRELS[id].__getitem__), *OWN.intersection([id])}


def test_candidates_of_a_rerankers_dev_questions(folder: Path, tmp_path: Path) -> None:
    data = read_beir(folder, "dev")
    judged = Judged(data.questions, data.qrels)
    found = RerankingSet(judged, data.corpus, RerankerData(train=str(folder), dev_depth=1))
    bests = [list(PASSAGES)[rows[0]] for rows in found.rows]
    assert bests == ["a1c", "a2c", "a3", "7"] and found.first_stage()["recall@1"] == 0.75
    write_trec(tmp_path / "run.trec", {id: {id: 2.0, "8": 1.0} for id in QUESTIONS})
    settings = RerankerData(train=str(folder), dev_depth=1, dev_run=str(tmp_path / "run.trec"))
    found = RerankingSet(judged, data.corpus, settings)
    assert [list(PASSAGES)[rows[0]] for rows in found.rows] == ["8", "8", "a3", "7"]


@pytest.mark.parametrize("source", ["bm25", "run"])
def test_one_more_passage_is_mined_in_its_place(source: str, folder: Path) -> None:
    run = None if source == "bm25" else {id: {id: 3.0, "8": 2.0, "a1": 1.5, "a2": 1.0} for id in QUESTIONS}
    (folder / "qrels/train.tsv").write_text("a1\ta1c\t1\na2\ta2c\t1\na3\ta3\t1\n7\ta1c\t1\n")
    mined = jaxretr.mine(folder, corpus=folder, run=run, ranks=(1, 2), negatives=2)
    negatives = {record["query_id"]: record["negative_document_ids"] for record in mined.records()}
    if source == "run":
        # The others' first rank is theirs: a3's is its positive, and 7's another text.
        assert negatives == {"a1": ["8", "a2"], "a2": ["8", "a1"], "a3": ["8"], "7": ["7", "8"]}
    assert all(id not in negatives[id] for id in OWN) and "7" in negatives["7"]
    assert SimpleNamespace(**mined.report.as_dict()).questions == 4
