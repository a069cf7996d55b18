"""The measures equal trec_eval's and hand-computed values; the paired tests equal exact enumeration."""

import math
import random
from itertools import product

import numpy as np
import pytest

from jaxretr.evaluate import significance
from jaxretr.evaluate.metrics import evaluate
from jaxretr.runtime.errors import UsageError, UserError

QRELS = {"q1": {"a": 2, "b": 1, "c": 0, "d": 3}, "q2": {"a": 1}}
RUN = {"q1": {"x": 9.0, "b": 8.0, "c": 7.0, "a": 6.0}, "q2": {"b": 2.0, "a": 1.0}}


def test_values_computed_by_hand():
    measures = ["ndcg@3", "ndcg", "mrr", "mrr@1", "recall@2", "recall@10", "precision@5", "map", "map@2", "success@1"]
    means, values = evaluate(QRELS, RUN, measures, per_query=True)
    log2 = math.log2
    ideal = 3 + 2 / log2(3) + 1 / log2(4)
    of_q1 = {
        "ndcg@3": (1 / log2(3)) / ideal,
        "ndcg": (1 / log2(3) + 2 / log2(5)) / ideal,
        "mrr": 1 / 2,
        "mrr@1": 0,
        "recall@2": 1 / 3,
        "recall@10": 2 / 3,
        "precision@5": 2 / 5,
        "map": (1 / 2 + 2 / 4) / 3,
        "map@2": (1 / 2) / 3,
        "success@1": 0,
    }
    of_q2 = {
        "ndcg@3": 1 / log2(3),
        "ndcg": 1 / log2(3),
        "mrr": 1 / 2,
        "mrr@1": 0,
        "recall@2": 1,
        "recall@10": 1,
        "precision@5": 1 / 5,
        "map": 1 / 2,
        "map@2": 1 / 2,
        "success@1": 0,
    }
    for measure in measures:
        assert values[measure] == pytest.approx({"q1": of_q1[measure], "q2": of_q2[measure]}, abs=1e-15)
        assert means[measure] == pytest.approx((of_q1[measure] + of_q2[measure]) / 2, abs=1e-15)
    assert evaluate(QRELS, RUN, measures) == means


def test_equal_scores_go_by_id_descending_whatever_the_order_of_the_run():
    for order in (["a", "b"], ["b", "a"]):
        run = {"q": dict.fromkeys(order, 1.0)}
        assert evaluate({"q": {"a": 1}}, run, ["mrr"]) == {"mrr": 0.5}
        assert evaluate({"q": {"b": 1}}, run, ["mrr"]) == {"mrr": 1.0}
    # "10" < "9" as strings; an astral letter is above a basic one, as in UTF-8 (not as in UTF-16).
    assert evaluate({"q": {"9": 1}}, {"q": {"10": 1.0, "9": 1.0}}, ["mrr"]) == {"mrr": 1.0}
    assert evaluate({"q": {"\U0001d4b3": 1}}, {"q": {"\U0001d4b3": 1.0, "\ufffd": 1.0}}, ["mrr"]) == {"mrr": 1.0}


def test_scores_are_compared_in_single_precision():
    run = {"q": {"a": 1.00000001, "b": 1.0}}  # apart as doubles, one float32
    assert evaluate({"q": {"a": 1}}, run, ["mrr"]) == {"mrr": 0.5}
    run = {"q": {"a": 1e300, "b": 1e200, "c": -1e300}}  # both infinite: a tie
    assert evaluate({"q": {"a": 1}}, run, ["mrr"]) == {"mrr": 0.5}


def test_missing_extra_and_unanswerable_questions():
    qrels = {"found": {"a": 1}, "not in run": {"a": 1}, "nothing relevant": {"a": 0, "b": -1}, "no judgement": {}}
    run = {"found": {"a": 1.0}, "not judged": {"a": 1.0}, "nothing relevant": {"a": 1.0, "b": 0.5}}
    measures = ["ndcg@10", "mrr@10", "recall@10", "precision@1", "map@10", "success@10"]
    means, values = evaluate(qrels, run, measures, per_query=True)
    for measure in measures:
        assert means[measure] == 0.25
        assert values[measure] == {"found": 1.0, "not in run": 0.0, "nothing relevant": 0.0, "no judgement": 0.0}


def test_random_runs_with_many_ties_equal_trec_eval():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    rng = random.Random(5)
    passage_ids = [f"d{number}" for number in range(60)] + ["é", "日本", "\U0001d4b3", "Z", "z"]
    qrels, run = {}, {}
    for question in range(150):
        judged = rng.sample(passage_ids, rng.randint(1, 30))
        qrels[f"q{question}"] = {passage_id: rng.choice([-1, 0, 0, 1, 1, 2, 3, 7]) for passage_id in judged}
        found = rng.sample(passage_ids, rng.randint(1, len(passage_ids)))
        # Few distinct scores, some of them apart only in double precision.
        run[f"q{question}"] = {
            passage_id: rng.choice([-2.0, 0.0, 0.1, 1.0]) + rng.choice([0, 1e-9, 0.5]) for passage_id in found
        }
    names = {
        "ndcg@1": "ndcg_cut_1",
        "ndcg@10": "ndcg_cut_10",
        "ndcg@100": "ndcg_cut_100",
        "ndcg": "ndcg",
        "mrr": "recip_rank",
        "recall@5": "recall_5",
        "recall@20": "recall_20",
        "precision@5": "P_5",
        "precision@100": "P_100",
        "map": "map",
        "map@10": "map_cut_10",
        "success@1": "success_1",
        "success@10": "success_10",
    }
    theirs = pytrec_eval.RelevanceEvaluator(qrels, set(names.values())).evaluate(run)
    means, ours = evaluate(qrels, run, list(names), per_query=True)
    for name, their_name in names.items():
        expected = {question_id: values[their_name] for question_id, values in theirs.items()}
        # Both sum doubles; only the order of the sums may differ.
        assert ours[name] == pytest.approx(expected, abs=1e-13), (name, "seed 5")
        assert means[name] == pytest.approx(sum(expected.values()) / len(expected), abs=1e-13)


def test_mrr_at_a_cut_is_mrr_of_the_cut_ranking():
    run = {"q": {f"d{number}": -float(number) for number in range(20)}}
    for rank in (1, 9, 10, 11, 20):
        expected = {"mrr@10": 1 / rank if rank <= 10 else 0.0, "mrr": 1 / rank}
        assert evaluate({"q": {f"d{rank - 1}": 1}}, run, ["mrr@10", "mrr"]) == expected


def test_names_in_any_case_come_back_as_written():
    assert evaluate(QRELS, RUN, ["nDCG@3", "MRR"]).keys() == {"nDCG@3", "MRR"}
    assert evaluate(QRELS, RUN, ["nDCG@3"])["nDCG@3"] == evaluate(QRELS, RUN, ["ndcg@3"])["ndcg@3"]


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ("ndgc@10", "did you mean 'ndcg'"),
        ("recal@5", "did you mean 'recall'"),
        ("acc@20", "success@20"),
        ("accuracy@20", "success@20"),
        ("acc", "success@k"),
        ("recall", "recall@10"),
        ("recall@0", "at least 1"),
        ("recall@-1", "at least 1"),
        ("recall@five", "at least 1"),
        ("ndcg@", "at least 1"),
        ("ndcg@1\n0", "at least 1"),
        ("", "unknown measure"),
        ("gain@5", "recall_cap@k, holes@k, rprec, bpref"),
    ],
)
def test_unknown_measures_are_refused(measure, message):
    with pytest.raises(UsageError, match=message) as error:
        evaluate(QRELS, RUN, [measure])
    assert "\n" not in str(error.value)


def test_bad_input_is_refused():
    with pytest.raises(UserError, match="qrels are empty"):
        evaluate({}, RUN, ["map"])
    with pytest.raises(UserError, match="passage 'b' for question 'q2' is not a number"):
        evaluate(QRELS, {"q2": {"a": 1.0, "b": float("nan")}}, ["map"])
    for grade in (float("nan"), float("inf")):
        with pytest.raises(UserError, match="grade of passage 'a' for question 'q2' is not a number"):
            evaluate({"q2": {"a": grade}}, RUN, ["ndcg@10"])  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="measures='map': is a single one; give a list"):
        evaluate(QRELS, RUN, "map")
    with pytest.raises(UserError, match="the passage id 7 is no text; give every id as one"):
        evaluate(QRELS, {"q2": {"a": 1.0, 7: 1.0}}, ["map"])  # type: ignore[dict-item]


def _values(numbers: np.ndarray) -> dict[str, float]:
    return {f"q{number:03d}": float(value) for number, value in enumerate(numbers)}


def test_randomisation_test_equals_the_enumeration_of_all_signs():
    rng = np.random.default_rng(1)
    differences = np.concatenate([rng.normal(0.15, 0.5, 10), np.zeros(5)])
    signs = np.array(list(product([-1, 1], repeat=10)))
    exact = (np.abs(signs @ differences[:10]) >= abs(differences.sum()) - 1e-12).mean()
    assert 0.02 < exact < 0.5
    # 10,000 tosses of a coin with p = exact: 5 standard deviations.
    tolerance = 5 * math.sqrt(exact * (1 - exact) / 10_000) + 1e-4
    assert significance.randomisation_test(differences, seed=3) == pytest.approx(exact, abs=tolerance)
    assert significance.randomisation_test(np.zeros(4)) == 1.0
    # All signs alike in 10 questions of 0.1: 2 of 1024 tosses reach the mean, rounding or not.
    assert significance.randomisation_test(np.full(10, 0.1)) == pytest.approx(2 / 1024, abs=0.0025)
    assert significance.randomisation_test(np.full(10, 0.1)) > 0.0005


def test_bootstrap_interval_equals_the_normal_one_on_many_questions():
    differences = np.random.default_rng(2).normal(0.1, 1.0, 400)
    low, high = significance.bootstrap_interval(differences, seed=0)
    error = differences.std() / math.sqrt(400)
    # The end of an interval from 10,000 draws wavers by about 3% of the standard error.
    assert low == pytest.approx(differences.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(differences.mean() + 1.96 * error, abs=0.15 * error)
    narrow = significance.bootstrap_interval(differences, confidence=0.5, seed=0)
    assert low < narrow[0] < narrow[1] < high


def test_blocks_of_resamples_cover_all_of_them(monkeypatch):
    whole = significance.randomisation_test(np.arange(-3.0, 9.0))
    monkeypatch.setattr(significance, "_BLOCK", 1000)
    assert sum(significance._blocks(10_000, 12)) == 10_000
    assert significance.randomisation_test(np.arange(-3.0, 9.0)) == pytest.approx(whole, abs=0.03)


def test_t_test_equals_scipys():
    from scipy import stats

    rng = np.random.default_rng(4)
    a, b = rng.random(30), rng.random(30)
    expected = float(stats.ttest_rel(a, b).pvalue)  # type: ignore[attr-defined]
    assert significance.paired_t_test(a - b) == pytest.approx(expected, rel=1e-9)
    assert significance.paired_t_test(np.zeros(3)) == 1.0
    assert significance.paired_t_test(np.full(3, 0.5)) == 0.0
    assert math.isnan(significance.paired_t_test(np.ones(1)))


def test_holm_by_hand():
    # In ascending order .005 x 4, .01 x 3, .03 x 2, and .04, which may not fall below the one before.
    assert significance.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert significance.holm([0.6, 0.02, 0.7]) == pytest.approx([1.0, 0.06, 1.0])
    assert significance.holm([]) == []
    first, second, third = significance.holm([0.02, float("nan"), 0.03])
    assert (first, third) == pytest.approx((0.04, 0.04)) and math.isnan(second)


def test_compare():
    rng = np.random.default_rng(6)
    b = rng.random(200)
    better = b + rng.normal(0.05, 0.1, 200)
    better[:20] = b[:20]
    better[20:22] = b[20:22] + 1e-16  # another order of a sum, not a win
    found = significance.compare(_values(better), _values(b), seed=1)
    assert found.mean_a == pytest.approx(better.mean())
    assert found.mean_b == pytest.approx(b.mean())
    assert found.difference == pytest.approx((better - b).mean())
    assert found.difference > 0 and found.p_value < 0.001 and found.t_test_p_value < 0.001
    assert 0 < found.low < found.difference < found.high
    assert found.ties == 22
    assert found.wins == (better[22:] > b[22:]).sum()
    assert found.losses == (better[22:] < b[22:]).sum()
    mirrored = significance.compare(_values(b), _values(better), seed=1)
    assert mirrored.difference == -found.difference and mirrored.p_value == found.p_value
    assert (mirrored.wins, mirrored.losses) == (found.losses, found.wins)
    shuffled = dict(reversed(_values(better).items()))
    assert significance.compare(shuffled, _values(b), seed=1) == found
    # Last bits that all go one way are no finding either.
    equal = significance.compare(_values(np.full(20, 0.1 + 0.2)), _values(np.full(20, 0.3)))
    assert (equal.ties, equal.p_value, equal.t_test_p_value, equal.low, equal.high) == (20, 1.0, 1.0, 0.0, 0.0)


def test_compare_needs_the_same_questions():
    with pytest.raises(UserError, match="1 are in one only, for instance 'q2', which the baseline lacks"):
        significance.compare({"q1": 1.0, "q2": 0.0}, {"q1": 1.0})
    with pytest.raises(UserError, match="at least one question"):
        significance.compare({}, {})
