"""ART without judgements: the teacher's opinion of what is found for held-out questions chooses the checkpoint."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tiny

from jaxretr.config import to_json
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.question_scorer import QuestionScorer
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.report import searches
from jaxretr.training.report.run_files import RunFiles
from jaxretr.training.runs.agreement import FOUND, METRIC
from jaxretr.training.runs.art import ArtRun

HELD_OUT = 3


def config(folder: Path, data: dict[str, Any] | None = None, **changes: Any) -> Any:
    questions = str(folder / "questions.jsonl")
    return tiny.art_config(
        folder,
        data={"questions": questions, "dev_questions": None, "held_out": HELD_OUT} | (data or {}),
        train={"steps": 4, "eval_every": 2, "save_every": 4, "best_metric": METRIC} | changes,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agreement")
    tiny.write_models(folder)
    questions = read_questions(tiny.QUICKSTART)[:30]
    with open(folder / "questions.jsonl", "w") as file:
        file.writelines(json.dumps({"_id": each.id, "text": each.text}) + "\n" for each in questions)
    return folder


def teachers_mean(folder: Path, model: Path, questions: list[str]) -> float:
    """The teacher's mean score of the first passages that a model finds, by hand."""
    corpus, scorer = read_corpus(tiny.DATA), QuestionScorer.from_pretrained(folder / "scorer", max_length=64)
    scorer.max_question_length = 24
    encoder = DualEncoder.from_pretrained(model, max_question_length=16, max_passage_length=48)
    passages = [corpus[row] for row in range(len(corpus))]
    order = np.argsort(-encoder.encode_queries(questions) @ encoder.encode_passages(passages).T, axis=1)[:, :FOUND]
    found = [{"title": passages[row].title, "text": passages[row].text} for row in order.reshape(-1)]
    return float(scorer.score(np.repeat(questions, FOUND).tolist(), found).mean())


def test_it_is_the_teachers_mean_score_of_what_is_found_and_chooses_the_model(folder: Path, tmp_path: Path):
    train(config(folder), tmp_path)
    run = ArtRun(config(folder), make_mesh(jax.devices()[:1]), tmp_path / "run")
    questions = [question.text for question in run.dev.questions]
    assert len(questions) == HELD_OUT
    assert len(run.questions) == 30 - HELD_OUT
    assert not {question.text for question in run.questions} & set(questions)
    values = {int(line["step"]): line[METRIC] for line in read_metrics(tmp_path) if METRIC in line}
    assert list(values) == [0, 2, 4]
    # A mean of 15 scores of the order of 5, in float32.
    assert values[0] == pytest.approx(teachers_mean(folder, folder / "encoder", questions), abs=1e-4)
    best = max(values, key=lambda step: values[step])
    assert values[best] == pytest.approx(teachers_mean(folder, tmp_path / "model", questions), abs=1e-4)
    assert json.loads((tmp_path / "best.json").read_text())["step"] == best


def test_no_pair_is_asked_for_twice_and_one_device_says_what_eight_do(folder: Path, tmp_path: Path):
    found = []
    for devices in (1, 8):
        run = ArtRun(config(folder), make_mesh(jax.devices()[:devices]), tmp_path / str(devices))
        asked, ask = [], run.dev._ask  # pyright: ignore[reportAttributeAccessIssue]

        def counted(numbers: np.ndarray, rows: np.ndarray, asked: list[int] = asked, ask: Any = ask) -> np.ndarray:
            asked.append(len({(n, row) for n, of_one in zip(numbers, rows.tolist(), strict=True) for row in of_one}))
            return ask(numbers, rows)

        run.dev._ask = counted  # pyright: ignore[reportAttributeAccessIssue]
        state = run.init()
        first, again = run.evaluate(state), run.evaluate(state)
        assert first == again
        assert asked == [HELD_OUT * FOUND]
        # One pair that is not known any more is the only one that is asked for.
        del run.dev._known[next(iter(run.dev._known))]  # pyright: ignore[reportAttributeAccessIssue]
        assert run.evaluate(state)[METRIC] == pytest.approx(first[METRIC], abs=1e-5)
        assert asked == [HELD_OUT * FOUND, 1]
        found.append(first[METRIC])
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_another_metric_is_refused_before_anything_is_encoded(folder: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=rf"train.best_metric=recall@20: .* set train.best_metric={METRIC}"):
        ArtRun(config(folder, best_metric="recall@20"), make_mesh(jax.devices()[:1]), tmp_path)
    with pytest.raises(UsageError, match=rf"train.best_metric={METRIC}: there are no questions .* data.held_out=64"):
        ArtRun(config(folder, {"held_out": 0}), make_mesh(jax.devices()[:1]), tmp_path)


def test_judged_questions_are_measured_by_the_teacher_too_where_it_chooses(folder: Path, tmp_path: Path):
    """Held-out questions of a split, with its judgements, and a dev set with answers."""
    shutil.copy(folder / "questions.jsonl", tmp_path / "queries.jsonl")
    passage = read_corpus(tiny.DATA).ids[0]
    lines = (f"{question.id}\t{passage}\t1\n" for question in read_questions(folder / "questions.jsonl"))
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    split = {"questions": str(tmp_path), "questions_split": "train"}
    answered = {"dev_questions": str(tiny.DATA), "held_out": 0}
    found = {}
    for metric, data in (("mrr@10", split), ("acc@5", answered), (METRIC, {})):
        run = ArtRun(config(folder, data), make_mesh(jax.devices()[:1]), tmp_path / metric)
        found[metric] = run.evaluate(run.init())
        assert {metric, METRIC} <= found[metric].keys()
    # The same questions are held out, with judgements or without.
    assert found["mrr@10"][METRIC] == found[METRIC][METRIC] and found[METRIC].keys() == {METRIC}


def test_a_report_of_such_a_run_has_no_test_set(folder: Path, tmp_path: Path):
    """Its held-out questions have neither judgements nor answers."""
    (tmp_path / "config.json").write_text(json.dumps(to_json(config(folder))))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 1.0}) + "\n")
    run = RunFiles.read(tmp_path)
    assert searches.test_set(run, None, "test") is None
