"""Which passages stand for an example at a step: drawn again each time, from the files that the settings name."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import contrastive_config

from jaxretr.config import ContrastiveConfig
from jaxretr.data.corpus import Corpus
from jaxretr.data.duplicate_groups import duplicate_groups
from jaxretr.data.questions import Question
from jaxretr.data.training_set import Ragged, TrainingSet
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.training.runs.example_draws import ExampleDraws, known_contents

PASSAGES = Corpus([str(i) for i in range(12)], [""] * 12, [f"text {min(i, 10)}" for i in range(12)])  # 11 copies 10


def training_set(**changes: Any) -> TrainingSet:
    """Four questions: two with the same text, one with two positives, one whose negatives are of the other kind."""
    questions = [Question(str(i), text, ()) for i, text in enumerate(["who", "what", "who", "where"])]
    examples = TrainingSet(
        questions,
        PASSAGES,
        12,
        positives=Ragged.from_rows([[0], [1, 11], [2], [3]], np.int32),
        negatives=Ragged.from_rows([[4, 5, 6], [7], [], []], np.int32),
        other_negatives=Ragged.from_rows([[8], [9], [8, 9], []], np.int32),
        positive_scores=None,
        negative_scores=None,
    )
    return dataclasses.replace(examples, **changes)


def settings(**changes: dict[str, Any]) -> ContrastiveConfig:
    return contrastive_config(Path("unused"), **changes)


def draws(examples: TrainingSet, mined: TrainingSet | None = None, **changes: dict[str, Any]) -> ExampleDraws:
    return ExampleDraws(settings(**changes), examples, mined, duplicate_groups(PASSAGES))


def test_the_first_positive_is_taken_where_that_is_set_with_its_score() -> None:
    scores = {
        "positive_scores": Ragged.from_rows([[1.0], [2.0, 3.0], [4.0], [5.0]], np.float32),
        "negative_scores": Ragged.from_rows([[0.0, 0.0, 0.0], [0.0], [], []], np.float32),
    }
    changes = {"contrastive": {"positives": "first"}, "distillation": {"loss": "kl"}, "negatives": {"static": 1}}
    drawn = draws(training_set(**scores), **changes)
    for step in range(8):
        rows, teacher = drawn.rows(np.array([3, 1, 0]), step)
        assert rows[:, 0].tolist() == [3, 1, 0] and rows.dtype == np.int32
        assert teacher is not None and teacher[:, 0].tolist() == [5.0, 2.0, 1.0]
    assert len({drawn.rows(np.array([0]), step)[0][0, 1].item() for step in range(20)}) == 3, "negatives are drawn"


def test_a_step_draws_without_replacement_and_leaves_places_open() -> None:
    drawn = draws(training_set(), negatives={"static": 2})
    seen: list[set[int]] = [set() for _ in range(4)]
    positives = set()
    for step in range(40):
        rows, teacher = drawn.rows(np.arange(4), step)
        assert rows.shape == (4, 3) and rows.dtype == np.int32 and teacher is None
        for number, row in enumerate(rows.tolist()):
            real = [negative for negative in row[1:] if negative != NO_PASSAGE]
            assert len(set(real)) == len(real)
            seen[number] |= set(real)
        positives.add(rows[1, 0].item())
        assert rows[1, 1:].tolist() == [7, NO_PASSAGE], "one hard negative: nothing is filled up with other kinds"
        assert rows[3, 1:].tolist() == [NO_PASSAGE] * 2
    assert positives == {1, 11}
    assert seen == [{4, 5, 6}, {7}, {8, 9}, set()]  # the third question has no hard ones and falls back to others


def test_a_draw_is_a_function_of_seed_and_step() -> None:
    one, same = (draws(training_set(), negatives={"static": 2}) for _ in range(2))
    other = draws(training_set(), negatives={"static": 2}, train={"seed": 1})
    order = np.array([2, 0, 0, 1, 3, 0])
    named = {"one": one, "same": same, "other": other}
    of = {name: np.stack([drawn.rows(order, step)[0] for step in range(20)]) for name, drawn in named.items()}
    np.testing.assert_array_equal(of["one"], of["same"])
    assert (of["one"] != of["other"]).any()
    assert (of["one"][0] != of["one"][1]).any() or (of["one"][1] != of["one"][2]).any()


def test_known_positives_join_questions_with_the_same_text() -> None:
    known = draws(training_set()).known(np.array([0, 1, 2]))
    assert [sorted(set(row) - {NO_PASSAGE}) for row in known.tolist()] == [[0, 2], [1, 10], [0, 2]]


def test_the_question_itself_is_known_under_its_id_and_its_text_under_any() -> None:
    passages = Corpus(
        ["0", "1", "2", "3", "4"], ["", "what", "topic", "", ""], ["p", "is it", "who", "who", " What  is it"]
    )
    examples = training_set(
        questions=[Question("1", "What is it?"[:-1], ()), Question("7", "who", ()), Question("2", " ", ())],
        passages=passages,
        positives=Ragged.from_rows([[0], [0], [0]], np.int32),
    )
    known = known_contents(examples, duplicate_groups(passages))
    assert [known[number].tolist() for number in range(3)] == [[0, 1], [0, 2, 3], [0]]
    # It is known even where judged positives are not; a positive is none.
    without = {"mask_known_positives": False, "static": 0}
    for positives, expected in (
        ([[0], [0], [0]], [[1, -1], [2, 3], [-1, -1]]),
        ([[1], [3], [1]], [[-1], [2], [-1]]),
    ):
        judged = dataclasses.replace(examples, positives=Ragged.from_rows(positives, np.int32))
        drawn = ExampleDraws(settings(negatives=without), judged, None, duplicate_groups(passages))
        assert drawn.known(np.arange(3)).tolist() == expected
    drawn = draws(training_set(), negatives=without)
    assert drawn.known(np.array([2, 0])).shape == (2, 0) and drawn.known(np.array([2, 0])).dtype == np.int32


def test_mined_negatives_are_joined_by_the_question_id() -> None:
    mined = training_set(
        questions=[Question("1", "what", ()), Question("9", "when", ()), Question("0", "who", ())],
        positives=Ragged.from_rows([[1], [5], [0]], np.int32),
        negatives=Ragged.from_rows([[11, 6], [7], [8]], np.int32),  # 11 is a positive of the training file's question 1
        other_negatives=Ragged.from_rows([[], [], []], np.int32),
    )
    drawn = draws(training_set(), mined, negatives={"static": 1, "mined": 2}, data={"mined": "m.jsonl"})
    rows = drawn.rows(np.arange(4), 0)[0]
    assert rows[:, 2:].tolist() == [[8, -1], [6, -1], [-1, -1], [-1, -1]]
    assert rows[0, 1] in (4, 5, 6), "the static ones keep their place"


def test_the_teachers_scores_follow_the_drawn_passages(caplog: pytest.LogCaptureFixture) -> None:
    scored = training_set(
        positive_scores=Ragged.from_rows([[10.0], [11.0, 12.0], [13.0], [14.0]], np.float32),
        negative_scores=Ragged.from_rows([[4.0, 5.0, 6.0], [7.0], [], []], np.float32),
    )
    drawn = draws(scored, negatives={"static": 2}, distillation={"loss": "margin_mse"})
    for step in range(20):
        rows, teacher = drawn.rows(np.arange(4), step)
        assert teacher is not None
        assert teacher[0, 1:].tolist() == rows[0, 1:].tolist()
        assert teacher[1, 0] == {1: 11.0, 11: 12.0}[rows[1, 0].item()]
        assert np.isnan(teacher[2, 1:]).all() and np.isnan(teacher[3, 1:]).all()  # others have no scores
    said = "2 of 4 examples lack a positive and a negative with a score, and 2 of 11 passages have none"
    assert said in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"negatives": {"static": -1}}, "negatives.static=-1"),
        ({"negatives": {"first_rank": 5, "last_rank": 4}}, "ranks count from 1"),
        ({"negatives": {"mined": 1}}, "go together"),
        ({"data": {"mined": "m.jsonl"}}, "go together"),
        ({"contrastive": {"chunk": 0}}, "contrastive.chunk"),
        ({"contrastive": {"temperature": 0.0}}, "must be above 0"),
        ({"distillation": {"contrastive_weight": 0.0}}, "leaves no loss"),
        ({"distillation": {"loss": "kl", "weight": 0.0, "contrastive_weight": 0.0}}, "leaves no loss"),
        (
            {"distillation": {"loss": "kl", "contrastive_weight": 0.0}, "contrastive": {"symmetric": True}},
            "contrastive.symmetric=True: has no effect with distillation.contrastive_weight=0",
        ),
        ({"distillation": {"weight": 2.0}}, "distillation.weight=2.0: is of distillation.loss"),
        ({"distillation": {"loss": "margin_mse", "teacher_temperature": 2.0}}, "is of distillation.loss=kl"),
        ({"negatives": {"margin": 0.1, "mined": 1}, "data": {"mined": "m.jsonl"}}, "margin is of retrieved negatives"),
    ],
)
def test_contradicting_settings_are_refused(changes: dict[str, dict[str, Any]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings(**changes).check()


def test_missing_negatives_and_scores_are_refused() -> None:
    empty = Ragged.from_rows([[]] * 4, np.int32)
    with pytest.raises(UsageError, match=r"contains no negatives; .*jaxretr mine"):
        draws(training_set(negatives=empty, other_negatives=empty), negatives={"static": 1})
    with pytest.raises(UserError, match="no scores to learn from"):
        draws(training_set(), distillation={"loss": "kl"})
    lists = {name: getattr(training_set(), name) for name in ("positives", "negatives")}
    unscored, scored = (
        {f"{name[:-1]}_scores": Ragged(each.offsets, np.full(len(each.values), value)) for name, each in lists.items()}
        for value in (np.nan, 1.0)
    )
    mixed = unscored | {"negative_scores": scored["negative_scores"]}
    for loss, scores, changes in (("kl", unscored, {}), ("margin_mse", mixed, {}), ("kl", scored, {"static": 0})):
        with pytest.raises(UserError, match=r"no example has .* with a score to learn from"):
            draws(training_set(**scores), distillation={"loss": loss}, negatives=changes)
    draws(training_set(**mixed), distillation={"loss": "kl"}, negatives={"static": 2})


def test_a_mined_file_of_other_questions_is_refused() -> None:
    mined = training_set(questions=[Question(f"other {i}", "?", ()) for i in range(4)])
    with pytest.raises(UserError, match="check that the ids agree"):
        draws(training_set(), mined, negatives={"mined": 1}, data={"mined": "m.jsonl"})
