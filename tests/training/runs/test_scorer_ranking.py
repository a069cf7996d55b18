"""The scorer's second loss: a question's own passage among others that BM25 ranks high."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import logsumexp
from tiny import DATA, write_tokenizer

from jaxretr.config import Optimizer, PassageLmConfig, PretrainData, T5Shape, Train
from jaxretr.data.readers import read_beir, read_corpus
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.models.question_scorer import QuestionScorer
from jaxretr.models.scorers.t5_scorer import Prompt, score_pairs
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import outline, train
from jaxretr.training.runs.corpus_sizes import corpus_size
from jaxretr.training.runs.passage_lm import PassageLmRun
from jaxretr.training.steps.passage_lm import ScorerBatch

C, TAU, WEIGHT = 3, 0.2, 5.0


def config(**changes: Any) -> PassageLmConfig:
    plan = PassageLmConfig(
        name="ranked",
        data=PretrainData(
            corpora=(str(DATA),), pairs=str(DATA), vocab_size=400, vocabulary_every=1, max_length=24, held_out=0
        ),
        t5=T5Shape(d_model=32, d_kv=8, d_ff=48, heads=4, encoder_layers=1, decoder_layers=1),
        window=10,
        target_length=12,
        ranked_questions=8,
        ranked_passages=C,
        ranked_depth=4,
        ranked_temperature=TAU,
        ranked_weight=WEIGHT,
        optimizer=Optimizer(learning_rate=1e-2, warmup=0.1, weight_decay=0.0),
        train=Train(steps=30, batch_size=8, log_every=10, save_every=100, eval_every=100, best_metric="loss"),
    )
    return dataclasses.replace(plan, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a vocabulary that is the same in every run; the one that is learnt breaks ties at random."""
    folder = tmp_path_factory.mktemp("ranked")
    write_tokenizer(
        "t5", [f"{passage.title} {passage.text}" for passage in read_corpus(DATA)], folder / "data/tokenizer"
    )
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> PassageLmRun:
    return PassageLmRun(config(), make_mesh(jax.devices()[:1]), folder)


def drawn(run: PassageLmRun, number: int) -> ScorerBatch:
    return jax.device_get(run.batch(number))


def test_the_loss_is_the_cross_entropy_of_the_questions_own_passage(run: PassageLmRun) -> None:
    """Recomputed from the scores that ART asks the scorer for, and from the likelihood of the targets."""
    state, batch = run.init(), drawn(run, 0)
    params = jax.device_get(state.params)
    prompt = Prompt.of(run.data.tokenizer)

    def scores(passages: Any, lengths: Any, targets: Any, target_lengths: Any) -> np.ndarray:
        return np.asarray(score_pairs(run.t5, prompt, params, passages, lengths, targets, target_lengths))

    examples, ranked = batch.examples, batch.ranked
    assert ranked.passages.shape[:2] == (8, C)
    of_examples = scores(*examples) * examples.target_lengths
    of_ranked = np.stack(
        [scores(ranked.passages[:, j], ranked.passage_lengths[:, j], *ranked[2:]) for j in range(C)], axis=1
    ).astype(np.float64)
    likelihood = -of_examples.sum() - (of_ranked[:, 0] * ranked.target_lengths).sum()
    order = (logsumexp(of_ranked / TAU, axis=1) - of_ranked[:, 0] / TAU).sum()
    tokens = examples.target_lengths.sum() + ranked.target_lengths.sum()
    loss = float(run.programs.step(state, run.batch(0))[1]["loss"])
    np.testing.assert_allclose(loss, (likelihood + WEIGHT * order) / tokens, rtol=1e-5)


def test_one_device_and_eight_agree(run: PassageLmRun, folder: Path) -> None:
    eight = PassageLmRun(config(), make_mesh(), folder)
    losses = [float(each.programs.step(each.init(), each.batch(3))[1]["loss"]) for each in (run, eight)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_the_others_are_bm25s_and_never_judged_to_answer(run: PassageLmRun) -> None:
    examples: Any = run.examples
    corpus = run.data.corpus
    answers: dict[int, set[int]] = {}
    for number, row in examples.pairs:
        answers.setdefault(int(number), set()).add(int(row))
    texts = [question.text for question in read_beir(DATA, "train").questions]
    _, found = Bm25Index.build(corpus).search(texts, 5)
    for number, others in enumerate(examples.others):
        assert not set(others.tolist()) & answers[number]
        wanted = [int(row) for row in found[number] if row >= 0 and int(row) not in answers[number]][:4]
        assert others.tolist() == wanted
    first = drawn(run, 0).ranked
    tokens, lengths = run.data.store.select(np.arange(len(corpus)), first.passages.shape[-1])
    rows = {tuple(ids[:n]): row for row, (ids, n) in enumerate(zip(tokens.tolist(), lengths, strict=True))}
    questions = {
        tuple(ids[:n]): k
        for k, (ids, n) in enumerate(zip(examples.questions.tolist(), examples.question_lengths, strict=True))
    }
    for g in range(8):
        number = questions[tuple(first.targets[g][: first.target_lengths[g]].tolist())]
        passages = [
            rows[tuple(ids[:n].tolist())] for ids, n in zip(first.passages[g], first.passage_lengths[g], strict=True)
        ]
        assert passages[0] in answers[number], "its own first"
        assert set(passages[1:]) <= set(examples.others[number].tolist()) and len(set(passages)) == C


def test_a_scorer_that_is_trained_to_rank_ranks(tmp_path: Path) -> None:
    """From the start that is the same for both, the questions' own passages stand out more with the second loss."""
    beir, corpus = read_beir(DATA, "train"), read_corpus(DATA)
    own = [next(iter(beir.qrels[question.id])) for question in beir.questions]

    def loss(scorer: QuestionScorer) -> float:
        passages = [{"title": passage.title, "text": passage.text} for passage in corpus]
        losses = []
        for question, id in zip(beir.questions, own, strict=True):
            scores = scorer.score([question.text] * len(passages), passages).astype(np.float64) / TAU
            losses.append(logsumexp(scores) - scores[corpus.row(id)])
        return float(np.mean(losses))

    plan = config(train=Train(steps=60, batch_size=8, log_every=20, save_every=100, eval_every=100))
    ranked = train(plan, tmp_path / "ranked")
    plain = train(
        dataclasses.replace(plan, ranked_questions=0, data=dataclasses.replace(plan.data, pair_share=0.5)),
        tmp_path / "plain",
    )
    results = [loss(QuestionScorer.from_pretrained(result.model, max_length=64)) for result in (ranked, plain)]
    assert results[0] < 0.8 * results[1], results


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    without = dataclasses.replace(config().data, pairs=None)
    for plan, words in (
        (config(data=without), "set data.pairs"),
        (config(ranked_passages=1), "ranked_passages=1"),
        (config(ranked_passages=9), r"from 2 to ranked_depth \(4\)"),
        (config(ranked_temperature=0.0), "must be above 0"),
    ):
        with pytest.raises(UsageError, match=words):
            PassageLmRun(plan, make_mesh(), tmp_path)
    plan = config(ranked_passages=60, ranked_depth=60)
    with pytest.raises(UserError, match="a lower ranked_passages="):
        PassageLmRun(plan, make_mesh(), tmp_path / "few")


def test_the_plan_has_the_ranked_questions() -> None:
    plan = config(data=dataclasses.replace(config().data, held_out=8))
    planned = outline(plan, make_mesh(), corpus_size(plan))
    step = next(program for program in planned.programs if program.name == "step")
    shapes = [leaf.shape for leaf in jax.tree.leaves(step.arguments)]
    assert (8, C, 24) in shapes, shapes
