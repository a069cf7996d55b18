"""Every measure equals trec_eval's and that of ir_measures on random runs; the paired tests equal scipy's."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import ir_measures, pytrec_eval

from jaxretr.evaluate import significance
from jaxretr.evaluate.metrics import evaluate, lower_is_better
from jaxretr.runtime.errors import UsageError

# Letters and signs of one to four bytes in UTF-8, so that the order of ids is that of bytes and not of UTF-16.
PASSAGES = [f"d{number}" for number in range(12)] + ["é", "日本", "\U0001d4b3", "\ufffd", "Z", "z", "a\u00a0b"]
QUESTIONS = ["q1", "q2", "10", "9", "frage-ü", "質問", "\U0001f50d"]
# Few distinct scores: most are ties. Some are apart as doubles only, one overflows single precision.
SCORES = st.sampled_from([-2.0, -0.0, 0.0, 0.1, 0.1 + 1e-9, 1.0, 1.0 + 1e-7, 3.5, 1e300])
# pytrec_eval reads beside its arrays, and crashes, where a grade is below -1 or no grade of a question is from 0.
GRADES = st.sampled_from([-1, 0, 0, 1, 1, 2, 3, 7])
JUDGED = st.dictionaries(st.sampled_from(PASSAGES), GRADES, min_size=1).filter(lambda of: max(of.values()) >= 0)
JUDGEMENTS = st.dictionaries(st.sampled_from(QUESTIONS), JUDGED, min_size=1)
RUNS = st.dictionaries(st.sampled_from([*QUESTIONS, "not judged"]), st.dictionaries(st.sampled_from(PASSAGES), SCORES))

THEIRS = {
    "ndcg": "ndcg",
    "mrr": "recip_rank",
    "map": "map",
    "rprec": "Rprec",
    "bpref": "bpref",
    **{f"ndcg@{k}": f"ndcg_cut_{k}" for k in (1, 3, 10)},
    **{f"recall@{k}": f"recall_{k}" for k in (1, 3, 10)},
    **{f"precision@{k}": f"P_{k}" for k in (1, 3, 30)},
    **{f"map@{k}": f"map_cut_{k}" for k in (2, 10)},
    **{f"success@{k}": f"success_{k}" for k in (1, 5)},
}


@settings(max_examples=400, deadline=None, derandomize=True)
@given(JUDGEMENTS, RUNS, st.sampled_from([1, 2]))
def test_random_runs_equal_trec_eval(qrels, run, level):
    """Ties, missing questions and passages, unjudged passages, negative grades, both levels of relevance."""
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, set(THEIRS.values()), relevance_level=level)
    # What it makes of a question without results is not defined; as trec_eval -c has it, those count as 0.
    theirs = evaluator.evaluate({question: hits for question, hits in run.items() if hits})
    means, ours = evaluate(qrels, run, list(THEIRS), per_query=True, relevance_level=level)
    for name, their_name in THEIRS.items():
        expected = {question: theirs.get(question, {}).get(their_name, 0.0) for question in qrels}
        # Both sum doubles; only the order of the sums may differ.
        assert ours[name] == pytest.approx(expected, abs=1e-12), name
        assert means[name] == pytest.approx(sum(expected.values()) / len(qrels), abs=1e-12), name


def of_ir_measures(level: int) -> dict[str, object]:
    """Our names, and the measures of ir_measures that they are."""
    measures = ir_measures
    return {
        "ndcg@5": measures.nDCG @ 5,
        "ndcg": measures.nDCG,
        "map@10": measures.AP(rel=level) @ 10,
        "map": measures.AP(rel=level),
        "mrr": measures.RR(rel=level),
        "mrr@3": measures.RR(rel=level) @ 3,
        "precision@4": measures.P(rel=level) @ 4,
        "recall@4": measures.R(rel=level) @ 4,
        "success@3": measures.Success(rel=level) @ 3,
        "rprec": measures.Rprec(rel=level),
        "bpref": measures.Bpref(rel=level),
    }


@settings(max_examples=40, deadline=None, derandomize=True)
@given(JUDGEMENTS, RUNS, st.sampled_from([1, 2]), st.randoms(use_true_random=False))
def test_random_runs_equal_ir_measures(qrels, run, level, random):
    """Scores are all different here: ir_measures hands its measures to programs that break ties each in their way."""
    ranked = {question: random.sample(sorted(hits), len(hits)) for question, hits in run.items() if hits}
    run = {question: {passage: -float(rank) for rank, passage in enumerate(hits)} for question, hits in ranked.items()}
    names = of_ir_measures(level)
    ours = evaluate(qrels, run, [*names, "holes@4"], per_query=True, relevance_level=level)[1]
    expected = {name: dict.fromkeys(qrels, 0.0) for name in names}
    if run.keys() & qrels.keys():
        of_measure = {measure: name for name, measure in names.items()}
        for found in ir_measures.iter_calc([*names.values()], qrels, run):
            if found.query_id in qrels:
                expected[of_measure[found.measure]][found.query_id] = found.value
    for name in names:
        assert ours[name] == pytest.approx(expected[name], abs=1e-6), name
    judged = {found.query_id: found.value for found in ir_measures.iter_calc([ir_measures.Judged @ 4], qrels, run)}
    for question in qrels:
        assert ours["holes@4"][question] == pytest.approx(1 - judged[question] if question in run else 0.0)


def test_holes_and_capped_recall_by_hand():
    qrels = {"q": {"a": 0, "b": 1, "c": 2, "d": 1, "e": -1}, "none": {"a": 0}}
    run = {"q": {"x": 9.0, "a": 8.0, "y": 7.0, "e": 6.0, "b": 5.0}, "none": {"x": 1.0}}
    names = ["holes@1", "holes@2", "holes@4", "holes@5", "holes@100", "recall_cap@2", "recall_cap@5", "recall@5"]
    of_q = [1, 1 / 2, 2 / 4, 2 / 5, 2 / 5, 0, 1 / 3, 1 / 3]
    values = evaluate(qrels, run, names, per_query=True)[1]
    assert [values[name]["q"] for name in names] == pytest.approx(of_q)
    # A question without a relevant passage has holes all the same; one without results has none.
    assert [values[name]["none"] for name in names] == [1, 1, 1, 1, 1, 0, 0, 0]
    assert evaluate(qrels, {"q": {}}, ["holes@10"]) == {"holes@10": 0.0}
    full = {"q": dict.fromkeys("bcd", 1.0)}
    assert evaluate({"q": qrels["q"]}, full, ["recall_cap@2", "recall@2"]) == {"recall_cap@2": 1.0, "recall@2": 2 / 3}
    assert lower_is_better("Holes@10") and not lower_is_better("ndcg@10")


def test_levels_of_relevance():
    qrels = {"q": {"a": 1, "b": 2, "c": 3}}
    run = {"q": {"a": 3.0, "b": 2.0, "x": 1.0}}
    assert evaluate(qrels, run, ["mrr"]) == {"mrr": 1.0}
    assert evaluate(qrels, run, ["mrr", "recall@10"], relevance_level=2) == {"mrr": 0.5, "recall@10": 0.5}
    assert evaluate(qrels, run, ["mrr", "recall@10"], relevance_level=4) == {"mrr": 0.0, "recall@10": 0.0}
    with pytest.raises(UsageError, match="a relevance level of 0"):
        evaluate(qrels, run, ["mrr"], relevance_level=0)
    with pytest.raises(UsageError, match="'bpref@10' has no cut: write bpref"):
        evaluate(qrels, run, ["bpref@10"])


# ---- statistics ------------------------------------------------------------------------------------------------------

VALUES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1 / 3, 1.0]) | st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)),
    min_size=3,
    max_size=40,
)  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True)
@given(VALUES)
def test_the_t_test_equals_scipys(values):
    from scipy import stats

    a, b = np.array(values).T
    differences = a - b
    # Of equal differences scipy's p-value hangs on the rounding of a standard deviation that should be 0.
    if differences.std() > 1e-9:
        expected = stats.ttest_rel(a, b).pvalue  # type: ignore[attr-defined]
        assert significance.paired_t_test(differences) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_the_randomisation_test_equals_scipys(seed):
    """Up to 12 questions scipy tries all signs: ours may differ by the error of 10,000 tosses, no more."""
    from scipy import stats

    rng = np.random.default_rng(seed)
    a, b = rng.random((2, int(rng.integers(6, 13))))
    a[:2] = b[:2]  # ties
    a += 0.1 * seed
    found = stats.permutation_test(  # type: ignore[attr-defined]
        (a, b), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples", vectorized=True
    )
    exact = float(found.pvalue)
    tolerance = 5 * math.sqrt(exact * (1 - exact) / 10_000) + 2e-4  # 5 standard deviations, and the toss counted in
    assert significance.randomisation_test(a - b) == pytest.approx(exact, abs=tolerance), seed


@pytest.mark.parametrize(("seed", "confidence"), [(0, 0.95), (1, 0.95), (2, 0.8), (3, 0.99)])
def test_the_bootstrap_interval_equals_scipys(seed, confidence):
    from scipy import stats

    rng = np.random.default_rng(seed)
    differences = rng.normal(0.05, 0.3, 60) + rng.exponential(0.2, 60)  # skewed: the interval is not symmetric
    found = stats.bootstrap(  # type: ignore[attr-defined]
        (differences,), np.mean, n_resamples=10_000, confidence_level=confidence, method="percentile", rng=rng
    )
    expected = found.confidence_interval
    error = differences.std() / math.sqrt(60)
    # The 99% end of 10,000 draws wavers by about 4% of the standard error, in theirs as in ours.
    low, high = significance.bootstrap_interval(differences, confidence=confidence, seed=seed)
    assert [low, high] == pytest.approx([expected.low, expected.high], abs=0.2 * error)
    assert abs(low - differences.mean()) != pytest.approx(high - differences.mean(), rel=1e-3)
