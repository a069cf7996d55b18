"""A scorer as the filter of mined negatives: what it drops, by definition, and scores that a student is distilled from."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from command_errors import the_error

import jaxretr
from jaxretr import cli
from jaxretr.data.pairs import Pair
from jaxretr.data.readers import read_corpus
from jaxretr.data.runs import to_json
from jaxretr.data.training_set import load_training_set
from jaxretr.mining import scorer_filter
from jaxretr.mining.scorer_filter import ScorerFilter
from jaxretr.models.pair_scorer import CrossEncoder
from jaxretr.models.question_scorer import QuestionScorer
from jaxretr.runtime.errors import UsageError

DATA = tiny.DATA

# Of scores of the order of 1, when other pairs share the batch.
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def model(tiny_cross_encoder: Path) -> Path:
    return tiny_cross_encoder


@pytest.fixture(scope="module")
def scorer(model: Path) -> CrossEncoder:
    return CrossEncoder.from_pretrained(model)


def mine(out: Path, *words: object) -> list[dict]:
    typed = ["mine", "--corpus", DATA / "corpus.jsonl", "--train", DATA, "--out", out, *words]
    assert cli.main([str(word) for word in typed]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def raw(scorer: CrossEncoder, question: str, ids: list[str]) -> np.ndarray:
    corpus = read_corpus(DATA)
    passages = [corpus[corpus.row(id)] for id in ids]
    return scorer.score([question] * len(ids), [{"title": p.title, "text": p.text} for p in passages])


def test_the_scorer_filters_what_the_others_leave_and_its_scores_are_written(
    model: Path, scorer: CrossEncoder, tmp_path: Path
):
    report, options = tmp_path / "report.json", ("--ranks", "1:18", "--answers", "none")
    everything = mine(tmp_path / "all.jsonl", *options, "--negatives", 20)
    mined = mine(
        tmp_path / "mined.jsonl",
        *(*options, "--negatives", 3, "--scorer", model, "--max-score-share", 0.9, "--score-margin", 0.01),
        *("--report", report),
    )
    dropped = 0
    for record, candidates in zip(mined, everything, strict=True):
        question, ids = record["query_text"], candidates["negative_document_ids"]
        of_positives = raw(scorer, question, record["positive_document_ids"])
        of_candidates = raw(scorer, question, ids)
        best = of_positives.max()

        def sigmoid(logits: np.ndarray) -> np.ndarray:
            return 1 / (1 + np.exp(-np.float64(logits)))

        passes = (of_candidates <= best - 0.01) & (sigmoid(of_candidates) <= 0.9 * sigmoid(best))
        wanted = np.flatnonzero(passes)[:3]
        assert record["negative_document_ids"] == [ids[place] for place in wanted]
        np.testing.assert_allclose(record["negative_scores"], of_candidates[wanted], atol=ROUNDING)
        np.testing.assert_allclose(record["positive_scores"], of_positives, atol=ROUNDING)
        dropped += int((~passes[: wanted[-1] + 1 if len(wanted) == 3 else len(ids)]).sum())
    found = json.loads(report.read_text())
    assert found["dropped"]["scorer"] == dropped > 0
    whole = sum(len(candidates["negative_document_ids"]) for candidates in everything)
    assert found["negatives"]["total"] + dropped + found["dropped"]["surplus"] == whole


def test_passages_that_the_scorer_prefers_to_the_positive_become_positives(scorer: CrossEncoder, tmp_path: Path):
    settings = {"corpus": DATA / "corpus.jsonl", "answers": None, "scorer": scorer, "score_margin": 0.001}
    plain, mined = (jaxretr.mine(DATA, **settings, negatives=3, **more) for more in ({}, {"relabel_margin": 0.002}))
    relabelled = 0
    for before, record in zip(plain.records(), mined.records(), strict=True):
        given = before["positive_document_ids"]
        kept, new = record["positive_document_ids"][: len(given)], record["positive_document_ids"][len(given) :]
        scores = raw(scorer, record["query_text"], record["positive_document_ids"])
        assert kept == given and record["negative_document_ids"] == before["negative_document_ids"]
        np.testing.assert_allclose(record["positive_scores"], scores, atol=ROUNDING)
        assert all(score >= scores[: len(given)].max() + 0.002 - ROUNDING for score in scores[len(given) :])
        relabelled += len(new)
    dropped, of_plain = mined.report.as_dict()["dropped"], plain.report.as_dict()["dropped"]
    assert dropped["relabelled"] == relabelled > 0 == of_plain["relabelled"]
    assert sum(dropped.values()) == sum(of_plain.values()), "every hit counts once"
    mined.save(tmp_path / "mined.jsonl")
    again = load_training_set(tmp_path / "mined.jsonl", read_corpus(DATA))
    assert (
        sum(map(len, map(again.positives.__getitem__, range(len(again))))) == len(plain.positives.values) + relabelled
    )


def test_a_passage_becomes_a_positive_of_all_questions_with_a_text_or_of_none(scorer: CrossEncoder, tmp_path: Path):
    question, ids = "what is a shark", read_corpus(DATA).ids[:6]
    in_order = [ids[place] for place in np.argsort(raw(scorer, question, ids))]
    worst, best = in_order[0], in_order[-2]
    given = {"one": ("What is a  shark", worst), "other": (question, best)}
    lines = [
        {"query_id": id, "query_text": text, "positive_document_ids": [of_one], "negative_document_ids": []}
        for id, (text, of_one) in given.items()
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = {id: {each: float(-place) for place, each in enumerate(ids)} for id in given}
    mined = jaxretr.mine(
        tmp_path / "train.jsonl", corpus=DATA / "corpus.jsonl", run=run, scorer=scorer, relabel_margin=0.0
    )
    for record in mined.records():
        own = given[record["query_id"]][1]
        assert record["positive_document_ids"] == [own, in_order[-1]]
        assert sorted(record["negative_document_ids"]) == sorted(in_order[1:-2])
        np.testing.assert_allclose(record["positive_scores"][0], raw(scorer, question, [own])[0], atol=ROUNDING)


def test_an_interrupted_call_resumes_after_the_questions_it_has_scored(
    scorer: CrossEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(scorer_filter, "_QUESTIONS", 2)
    asked: list[int] = []

    def scored(*arguments: Any, until: int = 1_000_000) -> dict[int, np.ndarray]:
        if len(asked) == until:
            raise KeyboardInterrupt
        asked.append(sum(map(len, arguments[-1].values())))
        return whole(*arguments)

    whole = scorer_filter._scored
    monkeypatch.setattr(scorer_filter, "_scored", scored)
    settings: dict[str, Any] = {"corpus": DATA / "corpus.jsonl", "answers": None, "scorer": scorer, "negatives": 3}
    uninterrupted = list(jaxretr.mine(DATA, **settings, score_margin=0.001).records())
    of_all = asked.copy()
    asked.clear()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(scorer_filter, "_scored", partial(scored, until=4))
        jaxretr.mine(DATA, **settings, score_margin=0.001, out=tmp_path / "mined.jsonl")
    before = len(list(tmp_path.glob("mined.jsonl.scores-*/*")))
    assert before, "whole blocks were kept"
    (kept,) = tmp_path.glob("mined.jsonl.scores-*")
    shutil.copytree(kept, tmp_path / "kept")
    asked.clear()
    mined = jaxretr.mine(DATA, **settings, score_margin=0.001, out=tmp_path / "mined.jsonl")
    assert asked == of_all[-len(asked) :] and len(asked) < len(of_all)
    assert list(mined.records()) == uninterrupted
    lines = (tmp_path / "mined.jsonl").read_bytes().splitlines()
    assert lines == [to_json(record) for record in uninterrupted]
    assert not kept.exists(), "the folder goes when the file is there"
    shutil.copytree(tmp_path / "kept", kept)
    # With other candidates, only those that are the same as before have scores.
    others = {**settings, "ranks": (2, 20), "score_margin": 0.001}
    of_others = jaxretr.mine(DATA, **others, out=tmp_path / "mined.jsonl")
    assert list(of_others.records()) == list(jaxretr.mine(DATA, **others).records())


def test_a_training_set_has_the_mined_scores_to_distil_from(scorer: CrossEncoder, tmp_path: Path):
    mined = jaxretr.mine(
        DATA, corpus=DATA / "corpus.jsonl", answers=None, scorer=scorer, score_margin=-100.0, negatives=4
    )
    mined.save(tmp_path / "mined.jsonl")
    again = load_training_set(tmp_path / "mined.jsonl", read_corpus(DATA))
    # What --distillation.loss asks for.
    assert again.positive_scores is not None and again.negative_scores is not None
    for number, question in enumerate(mined.questions):
        ids = [mined.corpus.ids[row] for row in again.negatives[number].tolist()]
        np.testing.assert_allclose(again.negative_scores[number], raw(scorer, question.text, ids), atol=ROUNDING)


def test_probabilities_are_those_of_the_kind_of_scorer(scorer: CrossEncoder, model: Path):
    logits = np.array([-800, -1, 0, 2, 800], np.float32)
    with np.errstate(over="raise"):
        found = ScorerFilter(scorer).probabilities(logits)
    np.testing.assert_allclose(found, [0, 1 / (1 + np.e), 0.5, 1 / (1 + np.exp(-2)), 1], atol=1e-12)
    t5 = QuestionScorer.from_pretrained(model.parent / "scorer")
    np.testing.assert_allclose(ScorerFilter(t5).probabilities(np.array([-2, 0], np.float32)), [np.exp(-2), 1])
    # exp(-2.1) is 0.90 of exp(-2), exp(-2.02) is 0.98 of it.
    passes = ScorerFilter(t5, max_share=0.95).passes(
        np.array([-2.1, -2.02], np.float32), np.array([-3, -2], np.float32)
    )
    assert passes.tolist() == [True, False], "against the best positive"
    passes = ScorerFilter(t5, margin=0.5).passes(np.array([-2.5, -2.4], np.float32), np.array([-2], np.float32))
    assert passes.tolist() == [True, False]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-score-share", "0.9"], "--max-score-share is for the scores of a scorer: give --scorer as well"),
        (["--score-margin", "1"], "--score-margin is for the scores of a scorer: give --scorer as well"),
        (["--relabel-margin", "1"], "--relabel-margin is for the scores of a scorer: give --scorer as well"),
        (["--scorer-kind", "t5"], "--scorer-kind is for --scorer SCORER: give that as well"),
        (["--compute", "float32"], "--compute is for --scorer SCORER: give that as well"),
    ],
)
def test_options_without_a_scorer_are_refused(words: list[str], message: str, tmp_path: Path, capsys):
    typed = ["mine", "--corpus", str(DATA), "--train", str(DATA), "--out", str(tmp_path / "out"), *words]
    assert cli.main(typed) == 2
    assert message in the_error(capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_share": 0.0}, "share of a positive's score is between 0 and 1, not 0.0"),
        ({"max_share": 1.5}, "share of a positive's score is between 0 and 1, not 1.5"),
        ({"margin": float("nan")}, "must be a finite number, not nan"),
        ({"relabel": -0.5}, "relabelled passages must be 0 or a number above, not -0.5"),
    ],
)
def test_wrong_limits(options: dict[str, float], message: str, scorer: CrossEncoder):
    with pytest.raises(UsageError, match=message):
        ScorerFilter(scorer, **options)


@pytest.mark.parametrize("settings", [{}, {"max_score_share": 0.9}, {"relabel_margin": 0.0}])
def test_the_scorer_is_not_asked_about_candidates_behind_the_last_that_is_kept(
    settings: dict[str, Any], scorer: CrossEncoder, monkeypatch: pytest.MonkeyPatch
):
    """Unless a passage far behind may become a positive; the negatives are those of all scores in any case."""
    pairs: list[int] = []
    score = scorer_filter.score_pairs

    def counted(scorer: CrossEncoder, given: list[Pair], count: int, *, shown: bool) -> np.ndarray:
        pairs.append(count)
        return score(scorer, given, count, shown=shown)

    monkeypatch.setattr(scorer_filter, "score_pairs", counted)
    settings = {"corpus": DATA, "ranks": (1, 18), "answers": None, "scorer": scorer, **settings}
    found = jaxretr.mine(DATA, negatives=3, **settings)
    of_three = pairs.copy()
    everything = jaxretr.mine(DATA, negatives=18, **settings)
    for number in range(len(found.questions)):
        assert found.negatives[number].tolist() == everything.negatives[number][:3].tolist()
    every = sum(pairs[len(of_three) :])
    if "relabel_margin" in settings:
        assert sum(of_three) == every
    elif "max_score_share" in settings:
        assert 4 * len(found.questions) < sum(of_three) < every and len(of_three) > 1
    else:
        assert of_three == [4 * len(found.questions)]
