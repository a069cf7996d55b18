"""The weight of a combination is not tested on the questions that chose it."""

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

import jaxretr
from jaxretr.evaluate.metrics import mean
from jaxretr.evaluate.significance import compare, paired_t_test
from jaxretr.evaluate.weight_curve import Curve, halves, trace
from jaxretr.runtime.errors import UsageError

IDS = [f"q{number}" for number in range(40)]


def noise(seed: int, gain: float = 0.0) -> tuple[dict[float, dict[str, float]], list[list[float]]]:
    """Values with every weight that differ from those of the first system by chance and by `gain`; and what was asked."""
    rng = np.random.default_rng(seed)
    first = rng.random(len(IDS))
    values = {0.0: dict(zip(IDS, first, strict=True))}
    for weight in [*(2.0 ** (step / 4) for step in range(-140, 141)), math.inf]:
        values[weight] = dict(zip(IDS, first + gain + rng.normal(size=len(IDS)), strict=True))
    return values, []


def traced(seed: int, gain: float = 0.0, grid: str | Sequence[float] = "log") -> tuple[Curve, dict, list[list[float]]]:
    values, passes = noise(seed, gain)

    def evaluate(weights: Sequence[float]) -> Mapping[float, Mapping[str, float]]:
        passes.append(list(weights))
        return {weight: values[weight] for weight in weights}

    return trace(evaluate, grid, lambda: 1.0, metric="mrr@10", systems=("a", "b")), values, passes


def test_the_p_value_holds_where_the_best_weight_is_luck_and_a_test_on_the_same_questions_does_not() -> None:
    naive, held_out = [], []
    for seed in range(16):
        curve, values, _ = traced(seed)
        best = values[curve.choice.weight]
        naive.append(paired_t_test(np.array([best[id] - values[0.0][id] for id in IDS])))
        assert curve.held_out is not None
        held_out.append(curve.held_out.comparison.t_test_p_value)
    # No weight is better than none: 5 % of the tests reject that at the level of 5 %: one of 16.
    assert sum(p < 0.05 for p in naive) >= 4
    assert sum(p < 0.05 for p in held_out) <= 2


def test_a_true_gain_is_found() -> None:
    curve, _, _ = traced(1, gain=1.0)
    assert curve.held_out is not None and curve.held_out.comparison.p_value < 0.001


def test_each_half_is_measured_with_what_the_other_one_chose_by_itself() -> None:
    curve, values, _ = traced(3)
    split = halves(IDS)
    assert len(split[0]) == len(split[1]) == 20 and sorted(split[0] + split[1]) == sorted(IDS)
    alone = []
    for half in split:
        only = {weight: {id: of_one[id] for id in half} for weight, of_one in values.items()}
        found = trace(
            lambda weights, only=only: {weight: only[weight] for weight in weights},
            "log",
            lambda: 1.0,
            metric="mrr@10",
            systems=("a", "b"),
        )
        alone.append(found.choice.weight)
    assert curve.held_out is not None and curve.held_out.weights == tuple(alone) and alone[0] != alone[1]
    expected = {id: values[alone[1]][id] for id in split[0]} | {id: values[alone[0]][id] for id in split[1]}
    assert curve.held_out.comparison == compare(expected, values[0.0])
    assert curve.held_out.comparison.mean_a < curve.choice.value == mean(values[curve.choice.weight])


def test_a_pass_over_the_corpus_serves_all_three_grids() -> None:
    curve, _, passes = traced(3)
    assert len(passes) <= 5 and passes[0][-2:] == [0.0, math.inf] and len(passes[0]) == 15
    asked = [weight for weights in passes for weight in weights]
    assert len(asked) == len(set(asked)) and set(curve.values) < set(asked)
    fixed, _, passes = traced(3, grid=(0.5, 1.0, 2.0))
    assert passes == [[0.5, 1.0, 2.0, 0.0, math.inf]] and list(fixed.values) == [0.5, 1.0, 2.0]


def test_the_text_says_on_which_questions_the_p_value_stands() -> None:
    curve, _, _ = traced(0)
    best, held_out = curve.as_table().splitlines()[-2:]
    assert best.startswith("best weight ") and "on the 40 questions that chose it" in best and "p =" not in best
    assert held_out.startswith("held out (each half") and held_out.count("p = ") == 1
    content = json.loads(curve.as_json())
    assert len(content["held_out"]["weights"]) == 2
    assert content["held_out"]["combined_against_first"]["p_value"] == curve.held_out.comparison.p_value  # pyright: ignore
    assert json.dumps(content).count("p_value") == 2, "of the randomisation and of the t-test, held out"


def test_one_question_gives_a_weight_and_no_p_value() -> None:
    values = {0.0: {"q": 0.0}, 0.5: {"q": 1.0}, math.inf: {"q": 0.0}}
    curve = trace(lambda weights: {w: values[w] for w in weights}, [0.5], lambda: 1.0, metric="m", systems=("a", "b"))
    assert curve.choice.weight == 0.5 and curve.held_out is None and "p =" not in curve.as_table()
    assert json.loads(curve.as_json())["held_out"] is None


@pytest.mark.parametrize("ids", [["b", "a", "ü", "\ud800"], ["q"]])
def test_halves_do_not_depend_on_the_order(ids: list[str]) -> None:
    assert halves(ids) == halves(ids[::-1])


def test_a_metric_that_is_the_better_the_lower_chooses_no_weight() -> None:
    run = {"q": {"a": 1.0}}
    for tried in (
        lambda: jaxretr.fuse([run, run], tune={"q": {"a": 1}}, metric="holes@10"),
        lambda: jaxretr.merge(["one", "two"], beir="beir", metric="holes@10"),
        lambda: jaxretr.tune(["one", "two"], beir="beir", metric="holes@10"),
    ):
        with pytest.raises(UsageError, match="metric=holes@10: is better the lower it is"):
            tried()
