"""ART's loss: its value against numpy, its gradient against the closed form, and what no gradient flows into."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tiny import BERT, T5, art_config

from jaxretr.losses.art import art_losses, art_target
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.scorers.t5_scorer import Prompt
from jaxretr.models.scorers.teachers import T5Teacher
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.runs.art import art_program
from jaxretr.training.steps.widths import TeacherWidths

B, K, TAU = 3, 5, 4.0


@pytest.fixture(scope="module")
def scores() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return (6 * rng.normal(size=(B, K))).astype(np.float32), (2 * rng.normal(size=(B, K)) - 9).astype(np.float32)


def art_loss(student: Any, teacher: Any, *, temperature: float, **settings: float) -> jax.Array:
    """A batch's mean, as the step takes it."""
    student = student / temperature
    return art_losses(student, art_target(student, teacher, **settings)).mean()


def softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def kl(p: np.ndarray, q: np.ndarray) -> float:
    """KL(p || q), the mean over the rows, in float64."""
    return float((p * np.log(p / q)).sum(axis=-1).mean())


def test_value_is_the_kl_from_teacher_to_student(scores: tuple[np.ndarray, np.ndarray]) -> None:
    student, teacher = scores
    forward = kl(softmax(teacher), softmax(student / TAU))
    reverse = kl(softmax(student / TAU), softmax(teacher))
    assert abs(forward - reverse) > 0.1  # The direction shows.
    np.testing.assert_allclose(art_loss(student, teacher, temperature=TAU), forward, rtol=1e-5)


def test_direction_by_a_passage_that_the_teacher_rules_out() -> None:
    """KL(teacher || student) does not mind a passage that only the student likes; the reverse would be infinite."""
    student = np.zeros((1, 2), np.float32)
    teacher = np.array([[0.0, -80.0]], np.float32)
    np.testing.assert_allclose(art_loss(student, teacher, temperature=1.0), np.log(2), rtol=1e-6)
    np.testing.assert_allclose(art_loss(teacher, student, temperature=1.0), 40 - np.log(2), rtol=1e-6)


def test_gradient_is_the_closed_form(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """dL/ds = (student distribution - teacher distribution) / (tau B)."""
    student, teacher = scores
    gradient = jax.grad(lambda s: art_loss(s, teacher, temperature=TAU))(student)
    expected = (softmax(student / TAU) - softmax(teacher)) / (TAU * B)
    np.testing.assert_allclose(gradient, expected, atol=1e-7, rtol=1e-5)
    assert np.abs(expected).max() > 1e-2


def test_no_gradient_flows_into_the_teacher(scores: tuple[np.ndarray, np.ndarray]) -> None:
    student, teacher = scores
    gradient = jax.grad(lambda t: art_loss(student, t, temperature=TAU))(teacher)
    np.testing.assert_array_equal(gradient, np.zeros((B, K)))


def test_temperatures_divide_the_scores(scores: tuple[np.ndarray, np.ndarray]) -> None:
    student, teacher = scores
    both = art_loss(student, teacher, temperature=TAU, teacher_temperature=2.0)
    np.testing.assert_allclose(both, kl(softmax(teacher / 2), softmax(student / TAU)), rtol=1e-5)
    plain = art_loss(student, teacher, temperature=1.0)
    np.testing.assert_allclose(plain, kl(softmax(teacher), softmax(student)), rtol=1e-5)
    assert abs(float(plain) - float(both)) > 0.1


def test_equal_distributions_cost_nothing(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """Scores that differ by a constant are the same distribution."""
    _, teacher = scores
    loss, gradient = jax.value_and_grad(lambda s: art_loss(s, teacher, temperature=TAU))(TAU * (teacher + 3))
    np.testing.assert_allclose(loss, 0, atol=1e-6)
    np.testing.assert_allclose(gradient, np.zeros((B, K)), atol=1e-6)


def test_by_default_scores_are_divided_by_the_root_of_the_embedding_s_size(tmp_path: Path) -> None:
    config, encoder = art_config(tmp_path), DualEncoderConfig(BERT)
    teacher = T5Teacher(T5, Prompt((), ()))
    program = art_program(config, encoder, teacher, TeacherWidths((16,), (16,), (16, 16)), 20, make_mesh())
    assert program.temperature == 4.0 == BERT.hidden_size**0.5


def test_with_a_prior_the_target_is_the_posterior() -> None:
    """p(z | q) ~ p(q | z)^(1/T) p_student(z | q), and no gradient flows through the prior."""
    rng = np.random.default_rng(5)
    student, teacher = rng.normal(size=(2, 3, 4)).astype(np.float32)
    prior = softmax(student / TAU)
    likelihood = np.exp(teacher.astype(np.float64) / 0.5)
    posterior = prior * likelihood / (prior * likelihood).sum(axis=1, keepdims=True)
    settings = {"temperature": TAU, "teacher_temperature": 0.5, "prior_weight": 1.0}
    expected = (posterior * (np.log(posterior) - np.log(prior))).sum(axis=1).mean()
    loss, gradient = jax.value_and_grad(lambda s: art_loss(s, teacher, **settings))(student)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(gradient, (prior - posterior) / TAU / 3, rtol=1e-3, atol=1e-6)
    flat = art_loss(student, np.zeros_like(teacher), **settings)
    np.testing.assert_allclose(flat, 0.0, atol=1e-6, err_msg="a teacher that prefers nothing changes nothing")
