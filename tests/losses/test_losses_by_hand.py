"""Losses of tokens, pairs, misspelt forms and embeddings, by numbers that a reader can check."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxretr.losses.contrastive import NO_PASSAGE, passage_losses, scaled_scores
from jaxretr.losses.distillation import cosine_losses
from jaxretr.losses.language_models import mlm_loss, passage_lm_loss, ranking_losses
from jaxretr.losses.pairs import pair_losses
from jaxretr.losses.typos import contrast_losses, self_teaching_losses

LOG = np.log
SCORES = jnp.array([[LOG(4.0), LOG(2.0), 0.0], [0.0, LOG(3.0), 90.0], [1.0, 90.0, 90.0]])
IS_PRESENT = jnp.array([[1, 1, 1], [1, 1, 0], [1, 0, 0]], bool)


def test_scores_are_inner_products_over_the_temperature() -> None:
    questions, passages = jnp.arange(12.0).reshape(2, 2, 3), jnp.arange(24.0).reshape(2, 4, 3)
    expected = [[[q @ p / 0.5 for p in ps] for q in qs] for qs, ps in zip(questions, passages, strict=True)]
    np.testing.assert_allclose(scaled_scores(questions, passages, 0.5), expected)
    np.testing.assert_allclose(scaled_scores(questions[0], passages[0], 0.5), expected[0])


def test_binary_losses_of_pairs() -> None:
    """2 log(1 + 1/4) + log(1 + 2) + log(1 + 1); 2 log 2 + log(1 + 3); a pair that does not exist counts nowhere."""
    total, count = pair_losses(SCORES, IS_PRESENT, loss="binary", positive_weight=2.0)
    alone = 2 * LOG(1 + np.exp(-1.0))
    np.testing.assert_allclose(total, 2 * LOG(1.25) + LOG(6) + 2 * LOG(2) + LOG(4) + alone, rtol=1e-6)
    assert count == 6


def test_listwise_losses_of_questions() -> None:
    """log(7 / 4) and log(4 / 1); a question without a negative is none."""
    total, count = pair_losses(SCORES, IS_PRESENT, loss="listwise")
    np.testing.assert_allclose(total, LOG(7 / 4) + LOG(4), rtol=1e-6)
    assert count == 2


def test_losses_of_tokens_are_sums_over_those_that_count() -> None:
    total, count = mlm_loss(SCORES[None], jnp.array([[1, 0, 2]]), jnp.array([[1.0, 0.0, 1.0]]))
    np.testing.assert_allclose(total, LOG(7 / 2) + LOG(2 + np.exp(-89.0)), rtol=1e-6)
    assert count == 2
    total, count = passage_lm_loss(jnp.array([[-1.0, -2.0, -9.0], [-4.0, -9.0, -9.0]]), jnp.array([2, 1]))
    assert (total, count) == (7, 3)


def test_ranking_is_the_cross_entropy_of_the_first_passage() -> None:
    """Halves of the scores: 2 of 2 + sqrt 2 + 1."""
    expected = LOG((2 + 2**0.5 + 1) / 2)
    np.testing.assert_allclose(ranking_losses(SCORES[:1], 2.0), [expected], rtol=1e-6)


def test_a_question_meets_the_forms_of_other_texts_alone() -> None:
    """One form each; the third question has the text of the first, so that its form is no negative of it."""
    scores = SCORES[:, :, None]
    same = jnp.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]], bool)
    losses = contrast_losses(scores[:2], 0, same[:2])
    np.testing.assert_allclose(losses, [LOG(6 / 4), LOG((1 + 3 + np.exp(90.0)) / 3)], rtol=1e-5)
    np.testing.assert_allclose(contrast_losses(scores[1:2], 1, same[1:2]), losses[1:], rtol=1e-6)


def test_the_other_direction_takes_a_passages_questions() -> None:
    """Two positives of question 1, of which the second is a false negative of question 0; then one that is missing."""
    scores = SCORES[:2, :2].reshape(1, 2, 2, 1)
    excluded = jnp.array([[8], [7]])
    losses = passage_losses(scores, jnp.array([[7, 8]]), excluded, first=1)
    np.testing.assert_allclose(losses, [LOG(6 / 2) / 2], rtol=1e-6)
    losses = passage_losses(scores, jnp.array([[7, NO_PASSAGE]]), excluded, first=1)
    np.testing.assert_allclose(losses, [LOG(6 / 2)], rtol=1e-6)


def test_self_teaching_is_a_mean_over_forms_without_a_gradient_into_the_question() -> None:
    clean, misspelt = SCORES[:1, :2], jnp.array([[[LOG(2.0), LOG(4.0)], [LOG(4.0), LOG(2.0)]]])

    def loss(clean: jax.Array, misspelt: jax.Array) -> jax.Array:
        return self_teaching_losses(clean, misspelt, jnp.ones((1, 2), bool)).sum()

    np.testing.assert_allclose(loss(clean, misspelt), (2 / 3 - 1 / 3) * LOG(2) / 2, rtol=1e-6)
    of_clean, of_misspelt = jax.grad(loss, argnums=(0, 1))(clean, misspelt)
    assert (of_clean == 0).all()
    np.testing.assert_allclose(of_misspelt[0], [[-1 / 6, 1 / 6], [0, 0]], atol=1e-6)


@pytest.mark.parametrize(("angle", "expected"), [(0.0, 0.0), (np.pi / 3, 0.5), (np.pi, 2.0)])
def test_one_minus_the_cosine(angle: float, expected: float) -> None:
    student = jnp.array([[np.cos(angle), np.sin(angle)]])
    np.testing.assert_allclose(cosine_losses(student, jnp.array([[1.0, 0.0]])), [expected], atol=1e-6)
