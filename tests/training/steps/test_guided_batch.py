"""A guide of the negatives, and the terms among questions and among positives, against sentence-transformers' losses."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from peers import torch
from tiny import contrastive_program

from jaxretr.runtime.parallel.mesh import DATA, make_mesh
from jaxretr.training.steps.batch_loss import ContrastiveBatch, PassagesOfBatch, batch_loss

B, C, D = 16, 2, 12
PROGRAM = {"temperature": 0.1, "mask_known_positives": False, "mask_duplicates": True}


def drawn() -> list[np.ndarray]:
    """Questions and passages of a model and of a guide, of length 1; the guide's question and positive are alike."""
    rng = np.random.default_rng(4)
    found = [rng.normal(size=(B, *more, D)) for more in ((), (C,), (), (C,))]
    found[3][:, 0] = found[2] + 1.2 * rng.normal(size=(B, D))
    found[3][3, 0] = -found[2][3] + 0.5 * rng.normal(size=D)  # The guide finds this positive unlike its question.
    return [(x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32) for x in found]


def ours(settings: dict[str, Any], devices: int) -> tuple[Any, ...]:
    program = contrastive_program(corpus_rows=B * C, **PROGRAM, **settings)
    q, p, guide_q, guide_p = map(jnp.asarray, drawn())
    if "guide" not in settings:
        guide_q = guide_p = None
    rows = jnp.arange(B * C, dtype=jnp.int32).reshape(B, C)
    batch = ContrastiveBatch(
        jnp.arange(B, dtype=jnp.int32)[:, None],
        jnp.ones(B, jnp.int32),
        rows,
        jnp.zeros((B, 0), jnp.int32),
        None,
        guide=guide_q,
    )

    @partial(jax.shard_map, mesh=make_mesh(jax.devices()[:devices]), in_specs=P(DATA), out_specs=(P(), P(), P(DATA)))
    def parts(q: jax.Array, p: jax.Array, guide_p: jax.Array | None, batch: ContrastiveBatch) -> Any:
        everyone = lax.all_gather(batch.rows, DATA, tiled=True, to="invarying")
        passages = PassagesOfBatch(batch.rows, everyone, None, jnp.zeros(0, jnp.int32), guide_p)
        of_both = jax.value_and_grad(lambda q, p: batch_loss(program, q, p, passages, batch), (0, 1), has_aux=True)
        (loss, metrics), gradients = of_both(q, p)
        return lax.psum(loss, DATA), lax.psum(metrics, DATA), gradients

    loss, metrics, gradients = jax.jit(parts)(q, p, guide_p, batch)
    return float(loss), float(metrics["negatives"]), *map(np.asarray, gradients)


def assert_equal(loss: float, gradients: Sequence[np.ndarray], theirs: Any, tensors: Sequence[Any]) -> None:
    """Our loss to 1e-5, and its gradients to 1e-4 of the largest, are those of a loss in PyTorch."""
    theirs.backward()
    np.testing.assert_allclose(loss, theirs.item(), rtol=1e-5)
    for got, tensor in zip(gradients, tensors, strict=True):
        # Their cosines differentiate the vectors' lengths too, which our encoder normalises before.
        x, gradient = tensor.detach().numpy(), tensor.grad.numpy()
        tangent = got - (got * x).sum(-1, keepdims=True) * x
        np.testing.assert_allclose(tangent, gradient, atol=1e-4 * np.abs(gradient).max())


@pytest.mark.parametrize(
    ("margin", "relative", "questions", "positives", "devices"),
    [
        (0.0, False, True, True, 8),
        (0.1, False, False, False, 1),
        (0.2, True, True, False, 1),
        (0.05, True, False, True, 4),
    ],
)
def test_the_loss_is_gist(
    margin: float, relative: bool, questions: bool, positives: bool, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"guide": "g", "guide_margin": margin, "guide_relative": relative}
    more = {"among_questions": questions, "among_positives": positives}
    loss, negatives, *gradients = ours({**settings, **more}, devices)
    unguided = ours(more, devices) if not margin else None

    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import gist_embed
    from sentence_transformers.util import cos_sim

    q, p, guide_q, guide_p = (torch.tensor(x, dtype=torch.float64) for x in drawn())
    q.requires_grad_()
    p.requires_grad_()
    columns = {"model": [q, p[:, 0], p[:, 1]], "guide": [guide_q, guide_p[:, 0], guide_p[:, 1]]}
    monkeypatch.setattr(gist_embed, "embed_columns", lambda model, features: columns[model])
    assert SentenceTransformer
    gist = gist_embed.GISTEmbedLoss.__new__(gist_embed.GISTEmbedLoss)
    torch.nn.Module.__init__(gist)
    strategy = "relative" if relative else "absolute"
    facts = {"margin": margin, "margin_strategy": strategy, "temperature": 0.1, "must_retokenize": False}
    facts |= {"contrast_anchors": questions, "contrast_positives": positives, "gather_across_devices": False}
    facts |= {"similarity_fct": torch.nn.CosineSimilarity(dim=-1), "cross_entropy_loss": torch.nn.CrossEntropyLoss()}
    vars(gist).update({**facts, "model": "model", "guide": "guide", "sim_matrix": cos_sim})
    theirs = gist([{}, {}, {}], None)
    assert_equal(loss, gradients, theirs, (q, p))
    assert 0 < negatives < B * C - 1, "some are masked"
    if unguided is not None:
        assert abs(unguided[0] - loss) > 1e-2


def test_terms_among_questions_and_positives_without_a_guide() -> None:
    loss, *_ = ours({"among_questions": True, "among_positives": True}, 8)
    q, p, *_ = (x.astype(np.float64) for x in drawn())
    own, passages = p[:, 0], p.reshape(-1, D)
    expected = []
    for i in range(B):
        others = [j for j in range(B) if j != i]
        scores = [
            q[i] @ passages[C * i],
            *np.delete(passages, C * i, axis=0) @ q[i],
            *q[others] @ q[i],
            *own[others] @ own[i],
        ]
        scores = np.array(scores) / 0.1
        expected.append(np.log(np.exp(scores).sum()) - scores[0])
    np.testing.assert_allclose(loss, np.mean(expected), rtol=1e-5)


@pytest.mark.parametrize(
    ("hardness_of", "mode", "devices"),
    [("all", "all_negatives", 8), ("own", "hard_negatives", 1), ("others", "in_batch_negatives", 1)],
)
def test_hardness_is_that_of_sentence_transformers(hardness_of: str, mode: Any, devices: int) -> None:
    more = {"hardness": 7.0, "hardness_of": hardness_of}
    loss, _, *gradients = ours(more, devices)

    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.util import cos_sim

    q, p = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in drawn()[:2])
    ranking = MultipleNegativesRankingLoss.__new__(MultipleNegativesRankingLoss)
    torch.nn.Module.__init__(ranking)
    vars(ranking).update(
        {"scale": 10.0, "similarity_fct": cos_sim, "gather_across_devices": False, "directions": ("query_to_doc",)}
        | {"partition_mode": "joint", "hardness_mode": mode, "hardness_strength": 7.0}
    )
    theirs = ranking.compute_loss_from_embeddings([q, p[:, 0], p[:, 1]], None)
    assert_equal(loss, gradients, theirs, (q, p))
    assert abs(loss - ours({**more, "hardness": 0.0}, devices)[0]) > 1e-2
