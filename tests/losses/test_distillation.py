"""Learning from a teacher's scores: against PyTorch, by hand, and what must not change the losses."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from peers import torch

from jaxretr.losses.distillation import kl_divergence, margin_mse

SEED = 5
Loss = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
LOSSES = [margin_mse, kl_divergence]


def drawn(places: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of a student and a teacher, [4, places]; all of them count."""
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    student, teacher = (3 * rng.normal(size=(2, 4, places))).astype(np.float32)
    return student, teacher, np.ones((4, places), bool)


def gradients(loss: Loss, *arguments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the sum of losses, in the student's scores and in the teacher's."""
    pair = jax.grad(lambda s, t, scored: loss(s, t, scored).sum(), argnums=(0, 1))(*arguments)
    return np.asarray(pair[0]), np.asarray(pair[1])


def test_margin_mse_is_the_mean_squared_error_of_margins() -> None:
    """F.mse_loss over one question's margins, and its gradient; none into the teacher."""
    student, teacher, scored = drawn()
    s, t = torch.tensor(student, requires_grad=True), torch.tensor(teacher)
    margins = s[:, :1] - s[:, 1:], t[:, :1] - t[:, 1:]
    expected = torch.nn.functional.mse_loss(*margins, reduction="none").mean(dim=1)
    expected.sum().backward()
    np.testing.assert_allclose(margin_mse(student, teacher, scored), expected.detach(), rtol=1e-5)
    ours, of_teacher = gradients(margin_mse, student, teacher, scored)
    np.testing.assert_allclose(ours, s.grad, atol=1e-5)
    assert (of_teacher == 0).all()


def test_margin_mse_by_hand() -> None:
    """Margins 2 and -1 against 1 and 1: (1 + 4) / 2; without the last place 1; without the first 0."""
    student, teacher = jnp.array([[3.0, 1.0, 4.0]] * 3), jnp.array([[0.0, -1.0, -1.0]] * 3)
    scored = jnp.array([[1, 1, 1], [1, 1, 0], [0, 1, 1]], bool)
    np.testing.assert_allclose(margin_mse(student, teacher, scored), [2.5, 1.0, 0.0], rtol=1e-6)


def test_kl_is_torchs() -> None:
    """F.kl_div of the two softmax distributions, and its gradient: student distribution - teacher distribution."""
    student, teacher, scored = drawn()
    s = torch.tensor(student, requires_grad=True)
    target = torch.softmax(torch.tensor(teacher), dim=-1)
    expected = torch.nn.functional.kl_div(torch.log_softmax(s, -1), target, reduction="none").sum(-1)
    expected.sum().backward()
    np.testing.assert_allclose(kl_divergence(student, teacher, scored), expected.detach(), rtol=1e-5)
    ours, of_teacher = gradients(kl_divergence, student, teacher, scored)
    np.testing.assert_allclose(ours, s.grad, atol=1e-6)
    np.testing.assert_allclose(ours, torch.softmax(torch.tensor(student), -1) - target, atol=1e-6)
    assert (of_teacher == 0).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_any_leading_axes_give_the_losses_of_one(loss: Loss) -> None:
    arrays = drawn()
    expected = np.asarray(loss(*arrays))
    np.testing.assert_allclose(loss(*(x.reshape(2, 2, -1) for x in arrays)), expected.reshape(2, 2), rtol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_constant_added_to_a_questions_scores_changes_nothing(loss: Loss) -> None:
    student, teacher, scored = drawn()
    shift = np.array([[1.0], [-2.0], [4.0], [0.0]], np.float32)
    expected = loss(student, teacher, scored)
    assert np.asarray(expected).min() > 1e-2
    np.testing.assert_allclose(loss(student + shift, teacher, scored), expected, rtol=1e-5)
    np.testing.assert_allclose(loss(student, teacher - shift, scored), expected, rtol=1e-5)
    np.testing.assert_allclose(loss(student, student + shift, scored), 0.0, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_places_without_a_score_are_as_if_they_were_not_there(loss: Loss) -> None:
    """Whatever stands in them, NaN included; and they get no gradient."""
    student, teacher, scored = drawn()
    expected = loss(student, teacher, scored)
    its_gradient, _ = gradients(loss, student, teacher, scored)
    wider = [np.insert(x, [2, 5], 0, axis=1) for x in (student, teacher, scored)]
    absent = ~wider[2]
    wider[0][absent] = 1e6
    wider[1][absent] = np.nan
    assert absent.sum() == 8
    np.testing.assert_allclose(loss(*wider), expected, rtol=1e-6)
    ours, of_teacher = gradients(loss, *wider)
    assert (ours[absent] == 0).all() and (of_teacher == 0).all()
    np.testing.assert_allclose(ours[~absent].reshape(4, 5), its_gradient, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("places", [(), (0,), (3,)])
def test_with_fewer_than_two_scores_there_is_nothing_to_learn(loss: Loss, places: tuple[int, ...]) -> None:
    """The loss is 0 and so is the gradient, not NaN."""
    student, teacher, scored = drawn()
    scored[1] = np.isin(np.arange(5), places)
    teacher[1, ~scored[1]] = np.nan
    losses = np.asarray(loss(student, teacher, scored))
    ours, _ = gradients(loss, student, teacher, scored)
    assert losses[1] == 0 and (ours[1] == 0).all()
    assert np.isfinite(ours).all() and (losses[[0, 2, 3]] > 0).all()
