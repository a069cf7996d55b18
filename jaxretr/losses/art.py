"""ART's loss: the retriever's distribution over a question's passages moves towards the teacher's (Sachan et al. 2023).

Equations 2 to 4 of https://arxiv.org/abs/2206.10658: KL(teacher || student) over the K passages of each question.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.losses.distillation import kl_divergence


def art_losses(student: jax.Array, target: jax.Array) -> jax.Array:
    """Return KL(softmax(target) || softmax(student)) over each question's K passages, in nats.

    The gradient of their mean in the student's scores is (student distribution - target distribution) / B.

    Args:
      student: inner products of question and passage embeddings, divided by the temperature, float32 [..., K].
      target: logits of the target distribution, see `art_target`; float32 with the same shape, or one that broadcasts to
        it. No gradient flows into it.

    Returns:
      float32 [...].
    """
    return kl_divergence(student, jnp.broadcast_to(target, student.shape), jnp.ones(student.shape, bool))


def art_target(
    prior: jax.Array, teacher: jax.Array, teacher_temperature: float = 1.0, prior_weight: float = 0.0
) -> jax.Array:
    """Return the logits of the target distribution over the K passages, towards which the student is trained.

    ART's teacher assumes that all retrieved passages are equally likely before it reads the question. With a prior
    weight of 1 they are as likely as under an encoder, the student or the one that it began as: the target is then the
    posterior p(passage | question) ~ p(question | passage) p_encoder(passage | question), as in EMDR2 (Sachan et al. 2021,
    https://arxiv.org/abs/2106.05346), whose encoder is the student. A teacher that ranks no better still teaches with it.

    A cross-encoder's logits are not log-probabilities of questions. Their softmax is the distribution over the K
    passages all the same, as in the distillation of cross-encoders (Ren et al. 2021, https://arxiv.org/abs/2110.07367).

    Args:
      prior: the encoder's scores, already divided by the student's temperature, float32 [..., K].
      teacher: how well each passage explains the question, float32 [..., K]: its mean log-probability by a T5 or a
        causal language model, or the logit of a cross-encoder.
      teacher_temperature: divisor of the teacher's scores.
      prior_weight: weight of the encoder's scores; 0 is ART.

    Returns:
      float32 [..., K], without a gradient.
    """
    return lax.stop_gradient(teacher / teacher_temperature + prior_weight * prior)
