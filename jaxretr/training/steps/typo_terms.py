"""Typo-robust dual encoders: terms that tie a question's misspelt forms to it and to its passages.

With q a question, q~ its misspelt forms (V of them a step), P the batch's passages and Q~ the forms of all of the
batch's questions, a run's own loss L(q -> P) becomes

    clean L(q -> P)  +  contrast CE(q -> Q~)  +  passage L(q~ -> P)  +  self_teaching KL(q -> P || q~ -> P)  +  ...

With the first three weights at 1 this is the loss of Sidiropoulos & Kanoulas (2022); with `self_teaching` alone added
to L that of CharacterBERT's self-teaching (Zhuang & Zuccon 2022); DST (Tasawong et al. 2023) adds the same KL from
passages to questions, and multi-positive learning (Sidiropoulos & Kanoulas 2024) makes q and all q~ the positives of a
passage. The terms are additions: they call the run's own loss where they need it, so they go with every objective that
has questions. A step takes this side road only where its batch has forms: `typo_losses` puts the terms together from the
losses in jaxretr/losses/typos.py. Everything runs inside a shard_map over "data", with
b = B / devices questions on this device.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.config import Typos
from jaxretr.losses.contrastive import scaled_scores
from jaxretr.losses.typos import contrast_losses, self_teaching_losses
from jaxretr.runtime.parallel.mesh import DATA


def typo_losses(
    weights: Typos,
    questions: jax.Array,
    forms: jax.Array,
    clean: jax.Array,
    counted: jax.Array,
    losses_of: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    *,
    tokens: jax.Array,
    temperature: float,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the weighted terms that every objective with questions can have.

    Args:
      weights: weights of the terms; those at 0 are not computed.
      questions: embeddings of the questions, float32 [b, D].
      forms: embeddings of the forms, float32 [b, V, D].
      clean: the questions' scores of the passages, already divided by the temperature, float32 [b, M].
      counted: whether there is a passage in each place, bool [b, M].
      losses_of: the run's own loss from question to passages: vectors [b, V, D] -> losses [b, V], scores [b, V, M].
      tokens: token ids of the questions, integers [b, L].
      temperature: divisor of the scores of questions and forms.

    Returns:
      float32 [b], and each term without its weight by its name in the log, float32 [b].
    """
    b, v, d = forms.shape
    terms: dict[str, tuple[float, jax.Array]] = {}
    if weights.contrast_weight:
        all_forms, all_tokens = (lax.all_gather(x, DATA, tiled=True) for x in (forms, tokens))
        scores = scaled_scores(questions, all_forms.reshape(-1, d), temperature)
        same = (tokens[:, None] == all_tokens).all(axis=-1)  # [b, B]
        contrast = contrast_losses(scores.reshape(b, -1, v), lax.axis_index(DATA) * b, same)
        terms["typo_contrast"] = (weights.contrast_weight, contrast)
    if weights.passage_weight or weights.self_teaching_weight:
        losses, scores = losses_of(forms)
        if weights.passage_weight:
            terms["typo_passages"] = (weights.passage_weight, losses.mean(axis=-1))
        if weights.self_teaching_weight:
            teaching = self_teaching_losses(clean, scores, counted)
            terms["typo_self_teaching"] = (weights.self_teaching_weight, teaching)
    # The sum begins with zeros that vary over the devices as the terms do.
    total = sum((weight * losses for weight, losses in terms.values()), start=jnp.zeros_like(clean[:, 0]))
    return total, {name: losses for name, (_, losses) in terms.items()}
