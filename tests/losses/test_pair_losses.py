"""Losses of cross-encoders against sentence-transformers', and by numbers that a reader can check."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from peers import sentence_transformers, torch

from jaxretr.losses.pairs import PairLoss, pair_losses

SEED = 7
# Questions with 6, 4 and 5 of 6 passages; grades with ties, so that some pairs have no order.
COUNTS = (6, 4, 5)
IS_PRESENT = np.arange(6) < np.array(COUNTS)[:, None]
GRADES = np.array([[2, 0, 1, 0, 3, 1], [1, 0, 0, 2, 9, 9], [0, 0, 1, 0, 0, 9]], np.float32)
JUDGED = (np.arange(6) == 0) * np.ones((3, 1), np.float32)


def drawn() -> np.ndarray:
    print("seed", SEED)
    return (3 * np.random.default_rng(SEED).normal(size=(3, 6))).astype(np.float32)


def theirs(name: str, scores: Any, labels: np.ndarray) -> Any:
    """A loss of sentence-transformers, whose model returns these scores: passages are called by their places."""

    class Given(sentence_transformers.CrossEncoder):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        num_labels, device = 1, "cpu"

        def preprocess(self, pairs: list[tuple[str, str]], **_: Any) -> Any:
            return {"pairs": pairs}

        def forward(self, batch: dict[str, list[tuple[str, str]]]) -> Any:
            return {"scores": torch.stack([scores[int(row), int(place)] for row, place in batch["pairs"]])}

    losses = sentence_transformers.cross_encoder.losses
    questions = [str(number) for number in range(len(scores))]
    if name == "margin_mse":
        columns = [[str(place)] * len(scores) for place in range(scores.shape[1])]
        return losses.MarginMSELoss(Given())([questions, *columns], torch.tensor(labels))
    loss = {"lambda": losses.LambdaLoss, "ranknet": losses.RankNetLoss}[name](Given())
    passages = [[str(place) for place in range(count)] for count in COUNTS]
    return loss([questions, passages], [torch.tensor(row[:n]) for row, n in zip(labels, COUNTS, strict=True)])


def mean(scores: jax.Array, is_present: np.ndarray, teacher: np.ndarray | None, loss: PairLoss) -> jax.Array:
    total, count = pair_losses(scores, jnp.asarray(is_present), teacher, loss=loss)
    return total / count


@pytest.mark.parametrize(
    ("loss", "labels", "is_present"),
    [
        ("lambda", None, IS_PRESENT),
        ("lambda", GRADES, IS_PRESENT),
        ("ranknet", None, IS_PRESENT),
        ("ranknet", GRADES - 1, IS_PRESENT),
        ("margin_mse", GRADES, np.ones_like(IS_PRESENT)),
    ],
)
def test_losses_and_gradients_are_those_of_sentence_transformers(
    loss: PairLoss, labels: np.ndarray | None, is_present: np.ndarray
) -> None:
    """Passages that do not exist hold scores and labels that would show."""
    scores = drawn()
    given = torch.tensor(scores, requires_grad=True)
    expected = theirs(loss, given, JUDGED if labels is None else labels)
    expected.backward()
    found, gradient = jax.value_and_grad(mean)(jnp.asarray(scores), is_present, labels, loss)
    assert expected.item() > 0.1
    np.testing.assert_allclose(found, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, given.grad, atol=1e-4 * float(given.grad.abs().max()))


def test_lambda_by_hand() -> None:
    """The positive at rank 2 of 2: 1 / D falls from 1 to 1 / log2(3), in LambdaRank's term and ten times in the bound."""
    weight = 11 * (1 - 1 / np.log2(3))
    found, count = pair_losses(jnp.array([[0.0, 1.0]]), jnp.ones((1, 2), bool), loss="lambda")
    np.testing.assert_allclose(found, weight * np.log2(1 + np.e), rtol=1e-6)
    assert count == 1


def test_lambda_takes_scores_of_bm25_as_labels() -> None:
    """2^200 is more than float32 holds; beside such gains the 1 of 2^y - 1 is nothing, and only differences count."""
    scores, present = jnp.asarray(drawn()[:1, :3]), np.ones((1, 3), bool)
    labels = np.array([[30.0, 28.0, 29.0]], np.float32)
    wanted, found = (
        jax.value_and_grad(mean)(scores, present, each, "lambda") for each in (labels, labels + np.float32(170))
    )
    assert wanted[0] > 0.1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, wanted)


@pytest.mark.parametrize("loss", ["ranknet", "margin_mse", "kl"])
def test_what_the_teacher_did_not_score_counts_nowhere(loss: PairLoss) -> None:
    """As if it was not there, in the loss, its number and its gradient; a question with one score has no loss."""
    scores, teacher = drawn(), GRADES.copy()
    teacher[~IS_PRESENT] = np.nan
    teacher[2, 1:] = np.nan
    everywhere = np.ones_like(IS_PRESENT)
    found = pair_losses(jnp.asarray(scores), everywhere, teacher, loss=loss)
    expected = pair_losses(jnp.asarray(scores[:2]), IS_PRESENT[:2], GRADES[:2], loss=loss)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    gradient = np.asarray(jax.grad(mean)(jnp.asarray(scores), everywhere, teacher, loss))
    assert (gradient[np.isnan(teacher)] == 0).all() and (gradient[2] == 0).all()


def test_kl_divides_the_teachers_scores_by_their_temperature() -> None:
    scores, present = jnp.asarray(drawn()), jnp.ones((3, 6), bool)
    warm = pair_losses(scores, present, GRADES, loss="kl", teacher_temperature=2.0)
    np.testing.assert_allclose(warm, pair_losses(scores, present, GRADES / 2, loss="kl"), rtol=1e-6)
    assert abs(warm[0] - pair_losses(scores, present, GRADES, loss="kl")[0]) > 0.1
