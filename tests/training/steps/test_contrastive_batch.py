"""The loss of a batch that is spread over devices, against its definition in float64 (contrastive_reference.py).

Each setting of the objective at once in one case or another; values and gradients in questions and passages. float32
rounding: at most some 200 scores of size 10 meet in one logarithm.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import contrastive_reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contrastive_reference import Examples
from jax import lax
from jax.sharding import PartitionSpec as P
from peers import torch
from tiny import changed_program, contrastive_program

from jaxretr.config import Distillation, IndexAware, Typos
from jaxretr.embeddings.vector_files import dequantise, quantise
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.losses.quantised import fitted_codebook
from jaxretr.runtime.parallel.mesh import DATA, make_mesh
from jaxretr.training.state import CorpusState, ProductCodes
from jaxretr.training.steps.batch_loss import ContrastiveBatch, ContrastiveProgram, PassagesOfBatch, batch_loss
from jaxretr.training.steps.index_aware import loss_on_index

B, C, Q, D, N, CORPUS = 8, 4, 3, 16, 32, 27
"""27 passages of the corpus, and 3 that only the training file has, in 32 rows: 4 a device of 8."""
SEED = 21

PLAIN = contrastive_program(corpus_rows=CORPUS)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "nothing masked, several positives, both directions": {
        "positives": 2,
        "symmetric": True,
        "temperature": 0.5,
        "mask_known_positives": False,
        "mask_duplicates": False,
    },
    "masked, several positives, both directions": {"positives": 2, "symmetric": True},
    "corpus, prefixes, cosines": {
        "encoder": dataclasses.replace(PLAIN.encoder, normalise=True),
        "positives": 2,
        "corpus_softmax": True,
        "sizes": (2, 5, D),
        "temperature": 0.1,
    },
    "corpus, masked by copies alone": {"corpus_softmax": True, "mask_known_positives": False},
    "margins": {"distillation": Distillation("margin_mse", weight=0.5), "sizes": (3, D)},
    "divergence": {
        "distillation": Distillation("kl", weight=2.0, contrastive_weight=0.0, teacher_temperature=3.0),
        "temperature": 2.0,
    },
    "typos as the paper has them": {"typos": Typos(contrast_weight=1.0, passage_weight=1.0), "temperature": 0.7},
    "forms taught by their question, several positives": {
        "positives": 2,
        "typos": Typos(variants=3, self_teaching_weight=1.0, contrast_weight=0.5),
    },
    "taught both ways, forms as positives": {
        "symmetric": True,
        "positives": 2,
        "sizes": (5, D),
        "typos": Typos(
            variants=2,
            clean_weight=0.5,
            self_teaching_weight=0.4,
            passage_self_teaching_weight=0.1,
            multi_positive=True,
        ),
    },
    "int8, over the corpus, in prefixes, both directions": {
        "encoder": dataclasses.replace(PLAIN.encoder, normalise=True),
        "corpus_softmax": True,
        "symmetric": True,
        "sizes": (5, D),
        "temperature": 0.1,
        "index_aware": IndexAware("int8"),
    },
    "product codes, over the corpus, with margins": {
        "corpus_softmax": True,
        "distillation": Distillation("margin_mse", weight=0.5),
        "index_aware": IndexAware("product", block=3, centres=4, commitment=2.0),
    },
    "product codes, half of the loss": {
        "positives": 2,
        "index_aware": IndexAware("product", block=3, centres=4, weight=0.5),
    },
    "typos over the corpus, in prefixes, with margins": {
        "encoder": dataclasses.replace(PLAIN.encoder, normalise=True),
        "corpus_softmax": True,
        "sizes": (4, D),
        "distillation": Distillation("margin_mse"),
        "typos": Typos(variants=2, passage_weight=0.7, self_teaching_weight=0.3),
    },
}


def drawn(program: ContrastiveProgram) -> tuple[np.ndarray, np.ndarray, Examples]:
    """Random embeddings, and passages of which many are copies of others or judged positives of other questions."""
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    q, p, index = (rng.normal(size=shape).astype(np.float32) for shape in ((B, D), (B, C, D), (N, D)))
    if program.encoder.normalise:
        q, p, index = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, p, index))
    contents = np.arange(N, dtype=np.int32)
    contents[[9, 20, 25, 28]] = [2, 2, 11, 5]  # copies; the last one stands in the training file alone
    rows = rng.integers(0, CORPUS + 3, (B, C)).astype(np.int32)
    rows[[0, 0, 1, 2], 0] = [2, 2, 20, 9]
    rows[[1, 3, 3, 5], [3, 2, 3, 1]] = NO_PASSAGE
    known = np.full((B, Q), NO_PASSAGE, np.int32)
    known[:, 0] = contents[rows[:, 0]]
    known[::2, 1] = contents[rows[1::2, 2]]  # a negative of the next question; NO_PASSAGE reads the last row's
    known[1, 2] = contents[rows[1, 1]]
    if not program.negatives.mask_known_positives:
        known = known[:, :0]
    teacher = rng.normal(size=(B, C)).astype(np.float32)
    teacher[[0, 2, 4], [0, 1, 3]] = np.nan
    texts = np.arange(B)
    texts[6] = 1  # asked twice, with other passages
    return q, p, Examples(rows, known, contents, index, teacher if program.distillation.loss != "none" else None, texts)


def forms_of(program: ContrastiveProgram, q: np.ndarray) -> np.ndarray | None:
    """Vectors near the questions', [B, V, D]."""
    if not program.typos.forms:
        return None
    noise = np.random.default_rng(SEED + 1).normal(size=(B, program.typos.variants, D))
    forms = (q[:, None] + 0.5 * noise).astype(np.float32)
    return forms / np.linalg.norm(forms, axis=-1, keepdims=True) if program.encoder.normalise else forms


def codes_of(program: ContrastiveProgram, p: np.ndarray) -> ProductCodes | None:
    """Product codes that fit the passages [B, C, D], if the program has any."""
    settings = program.index_aware
    if settings.kind != "product":
        return None
    rows = jnp.asarray(p.reshape(-1, D))
    codebook = fitted_codebook(rows, jnp.ones(len(rows)), settings.block, settings.centres)
    return ProductCodes(codebook, jnp.float32(0), jnp.int32(0))


def stored(program: ContrastiveProgram, codes: ProductCodes | None) -> Callable[[Any], Any]:
    """How the program's index stores passages, on the host: as files of int8 have it, or by a search for the nearest centre."""

    def in_numbers(rows: np.ndarray) -> np.ndarray:
        flat = rows.reshape(-1, rows.shape[-1]).astype(np.float32)
        if codes is None:
            return dequantise(*quantise(flat)).reshape(rows.shape)
        codebook = np.asarray(codes.codebook)
        groups, _, width = codebook.shape
        blocks = np.pad(flat, ((0, 0), (0, groups * width - flat.shape[1]))).reshape(-1, groups, width)
        found = np.empty_like(blocks)
        for group in range(groups):
            far = np.square(blocks[:, group, None] - codebook[group]).sum(axis=-1)
            found[:, group] = codebook[group, far.argmin(axis=1)]
        return found.reshape(len(flat), -1)[:, : flat.shape[1]].reshape(rows.shape)

    def of_tensor(rows: Any) -> Any:
        return torch.tensor(in_numbers(rows.detach().numpy()), dtype=torch.float64)

    return contrastive_reference.as_it_is if program.index_aware.kind == "none" else of_tensor


def reference(program: ContrastiveProgram, q: Any, p: Any, examples: Examples, *forms: Any) -> tuple[Any, float]:
    """The loss by its definition, on the scores of the program's index as far as it is aware of one."""
    settings = program.index_aware
    store = stored(program, codes_of(program, p.detach().numpy().astype(np.float32)))
    loss, negatives = contrastive_reference.loss(program, q, p, examples, *forms, stored=store)
    if settings.weight < 1:
        exact, _ = contrastive_reference.loss(program, q, p, examples, *forms)
        loss = settings.weight * loss + (1 - settings.weight) * exact
    if settings.commitment:
        there = torch.tensor(examples.rows != NO_PASSAGE)
        error = (p - store(p)).square().sum(dim=-1) / p.detach().square().sum(dim=-1)
        loss = loss + settings.commitment * error[there].mean()
    return loss, negatives


def ours(
    program: ContrastiveProgram,
    mesh: jax.sharding.Mesh,
    q: np.ndarray,
    p: np.ndarray,
    examples: Examples,
    forms: np.ndarray | None = None,
) -> tuple[Any, ...]:
    """Loss, metrics and gradients, put together from the devices' parts as the step does it."""
    batch = ContrastiveBatch(
        *(
            jnp.asarray(examples.texts, jnp.int32)[:, None],
            jnp.ones(B, jnp.int32),
            jnp.asarray(examples.rows),
            jnp.asarray(examples.known),
        ),
        teacher=None if examples.teacher is None else jnp.asarray(examples.teacher),
    )
    index = (
        CorpusState(jnp.asarray(examples.index), jnp.zeros(N, jnp.int32))
        if program.contrastive.corpus_softmax
        else None
    )

    @partial(
        jax.shard_map,
        mesh=mesh,
        axis_names={DATA},
        in_specs=(P(DATA), P(DATA), P(DATA), P(DATA), P()),
        out_specs=(P(), P(), P(DATA)),
    )
    def parts(
        vectors: tuple[jax.Array, ...],
        index: CorpusState | None,
        contents: jax.Array,
        batch: ContrastiveBatch,
        codes: ProductCodes | None,
    ) -> Any:
        everyone = lax.all_gather(batch.rows, DATA, tiled=True, to="invarying")
        table = lax.all_gather(contents, DATA, tiled=True)
        own = jnp.where(batch.rows == NO_PASSAGE, NO_PASSAGE, table[batch.rows])

        def of_vectors(vectors: tuple[jax.Array, ...]) -> tuple[jax.Array, dict[str, jax.Array]]:
            q, p, *forms = vectors
            passages = PassagesOfBatch(own, everyone, index, contents)
            loss_on = partial(batch_loss, program, q, p, passages, batch, forms=forms[0] if forms else None)
            if program.index_aware.kind == "none":
                return loss_on()
            return loss_on_index(program.index_aware, codes, loss_on)

        (loss, metrics), gradients = jax.value_and_grad(of_vectors, has_aux=True)(vectors)
        return lax.psum(loss, DATA), lax.psum(metrics, DATA), gradients

    vectors = tuple(jnp.asarray(x) for x in (q, p, forms) if x is not None)
    loss, metrics, gradients = jax.jit(parts)(
        vectors, index, jnp.asarray(examples.contents), batch, codes_of(program, p)
    )
    return float(loss), {name: float(value) for name, value in metrics.items()}, *map(np.asarray, gradients)


@pytest.mark.parametrize(
    ("case", "devices"),
    [
        *((case, 8) for case in CASES),
        ("corpus, prefixes, cosines", 1),
        ("margins", 2),
        ("taught both ways, forms as positives", 2),
    ],
)
def test_loss_and_gradients_are_those_of_the_definition(case: str, devices: int) -> None:
    program = changed_program(PLAIN, **CASES[case])
    q, p, examples = drawn(program)
    forms = forms_of(program, q)
    vectors = [x for x in (q, p, forms) if x is not None]
    loss, metrics, *gradients = ours(program, make_mesh(jax.devices()[:devices]), q, p, examples, forms)

    exact = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in vectors]
    expected, negatives = reference(program, *exact[:2], examples, *exact[2:])
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    largest = max(float(x.grad.abs().max()) for x in exact)
    assert all(float(x.grad.abs().max()) > 1e-3 for x in exact)
    for got, x in zip(gradients, exact, strict=True):
        np.testing.assert_allclose(got, x.grad, atol=1e-5 * largest)
    of_p = gradients[1]
    assert (of_p[examples.rows == NO_PASSAGE] == 0).all()
    counted = CORPUS if program.contrastive.corpus_softmax else 0
    np.testing.assert_allclose(metrics["negatives"], negatives + counted, rtol=1e-6)


def test_accuracy_is_the_share_of_questions_whose_positive_stands_first() -> None:
    q, p, examples = drawn(PLAIN)
    p[::3, 0] += q[::3]
    _, metrics, *_ = ours(PLAIN, make_mesh(jax.devices()[:1]), q, p, examples)
    right = 0
    for i in range(B):
        scores = [q[i] @ p[j, place] for j, place in contrastive_reference.negatives_of(PLAIN, examples, i)]
        right += q[i] @ p[i, 0] > max(scores)
    assert 0 < right < B
    assert metrics["accuracy"] == right / B


def test_a_false_negative_gets_no_gradient_from_its_question() -> None:
    """The whole weight of the mask: passage 1 of question 1 is judged positive, and no other question is there."""
    q, p, examples = drawn(PLAIN)
    examples.rows[[0, *range(2, B)]] = NO_PASSAGE
    _, _, of_q, of_p = ours(PLAIN, make_mesh(), q, p, examples)
    assert (of_p[1, 1] == 0).all() and (of_p[1, 2] != 0).all()
    assert (of_q[0] == 0).all() and (of_q[1] != 0).all()
