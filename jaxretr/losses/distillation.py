"""Learning from a teacher: its scores by Margin-MSE (Hofstätter et al. 2020) or KL divergence, or its embeddings."""

import jax
import jax.numpy as jnp
from jax import lax


def margin_mse(student: jax.Array, teacher: jax.Array, scored: jax.Array) -> jax.Array:
    """Return the squared error of the margins between each question's first passage and the others.

    The mean over the scored others of ((s_0 - s_j) - (t_0 - t_j))^2; a constant added to all of a question's scores, on
    either side, changes nothing.

    Args:
      student: the model's scores, float32 [..., C]; the positive comes first.
      teacher: the teacher's scores, float32 [..., C]; no gradient flows into them.
      scored: bool [..., C]: whether the teacher scored this passage; the others are left out.

    Returns:
      float32 [...]; 0 for a question whose first passage, or whose others, have no score.
    """
    teacher = jnp.where(scored, lax.stop_gradient(teacher.astype(jnp.float32)), 0.0)
    student = student.astype(jnp.float32)
    margins = (student[..., :1] - student[..., 1:]) - (teacher[..., :1] - teacher[..., 1:])
    counts = scored[..., 1:] & scored[..., :1]
    return jnp.where(counts, jnp.square(margins), 0.0).sum(axis=-1) / jnp.maximum(counts.sum(axis=-1), 1)


def kl_divergence(student: jax.Array, teacher: jax.Array, scored: jax.Array) -> jax.Array:
    """Return KL(teacher || student) of the two softmax distributions over each question's scored passages.

    Its gradient in the student's scores is student distribution - teacher distribution.

    Args:
      student: the model's scores, already divided by their temperature, float32 [..., C].
      teacher: the teacher's scores, divided by theirs, float32 [..., C]; no gradient flows into them.
      scored: bool [..., C]: the passages that both distributions are taken over.

    Returns:
      float32 [...], in nats; 0 for a question with fewer than two scored passages.
    """
    log_target = _log_softmax(lax.stop_gradient(teacher), scored)
    log_model = _log_softmax(student, scored)
    # Outside of `scored` the target is exactly 0.
    return jnp.where(scored, jnp.exp(log_target) * (log_target - log_model), 0.0).sum(axis=-1)


def cosine_losses(student: jax.Array, teacher: jax.Array) -> jax.Array:
    """Return 1 - cos(student, teacher) of embeddings of the same texts (Reimers and Gurevych 2020).

    Args:
      student: the model's embeddings, of length 1, float32 [B, D].
      teacher: the teacher's, of length 1, float32 [B, D].

    Returns:
      float32 [B].
    """
    return 1.0 - jnp.einsum("bd,bd->b", student, teacher, precision=lax.Precision.HIGHEST)


def _log_softmax(scores: jax.Array, scored: jax.Array) -> jax.Array:
    """Log-softmax over the scored places; finite elsewhere, so that no NaN enters the gradient."""
    return jax.nn.log_softmax(jnp.where(scored, scores.astype(jnp.float32), -1e30), axis=-1)
