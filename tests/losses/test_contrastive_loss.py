"""The contrastive loss against PyTorch's cross-entropy, and the choice of negatives against a definition in Python.

Tolerances are those of float32: each loss is one sum of exponentials and one logarithm.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import torch

from jaxretr.losses.contrastive import NO_PASSAGE, Masks, contrastive_losses, false_negatives

SEED = 11


def reference(
    scores: np.ndarray, positive: np.ndarray, negative: np.ndarray, further: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Losses [b] and their sum's gradient [b, M] in float64: F.cross_entropy of each positive and the negatives."""
    s = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    losses = []
    for i in range(len(scores)):
        rest = [s[i, j] for j in np.flatnonzero(negative[i])]
        if further is not None:
            rest.append(torch.tensor(further[i], dtype=torch.float64))
        places = np.flatnonzero(positive[i])
        each = [
            torch.nn.functional.cross_entropy(torch.stack([s[i, j], *rest])[None], torch.tensor([0])) for j in places
        ]
        losses.append(sum(each) / len(each) if each else torch.zeros((), dtype=torch.float64))
    total = torch.stack(losses)
    (total.sum() + 0 * s.sum()).backward()
    return total.detach().numpy(), s.grad.numpy()


@jax.jit
def losses_and_gradient(*arguments: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    def total(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
        losses = contrastive_losses(scores, *arguments[1:])
        return losses.sum(), losses

    (_, losses), gradient = jax.value_and_grad(total, has_aux=True)(arguments[0])
    return losses, gradient


def test_one_positive_against_the_rest_is_cross_entropy() -> None:
    """Of large scores too: DPR's are inner products of vectors of length 10 and more."""
    rng = np.random.default_rng(SEED)
    scores = (30 * rng.normal(size=(6, 20))).astype(np.float32)
    targets = rng.integers(0, 20, 6)
    positive = np.arange(20) == targets[:, None]
    losses, gradient = losses_and_gradient(scores, positive, ~positive)
    s = torch.tensor(scores, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(s, torch.tensor(targets), reduction="none")
    expected.sum().backward()
    np.testing.assert_allclose(losses, expected.detach(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(gradient, s.grad, atol=1e-6)


def test_several_positives_by_hand() -> None:
    """Each against the negatives alone: log(1 + (e^0 + e^1) / e^s), for s = 2 and s = -1, and their mean."""
    scores = jnp.array([[2.0, -1.0, 0.0, 1.0, 50.0]])
    positive, negative = jnp.array([[1, 1, 0, 0, 0]], bool), jnp.array([[0, 0, 1, 1, 0]], bool)
    rest = 1 + np.e
    expected = (np.log1p(rest / np.e**2) + np.log1p(rest / np.e**-1)) / 2
    np.testing.assert_allclose(contrastive_losses(scores, positive, negative), [expected], rtol=1e-6)
    batched = contrastive_losses(scores[None], positive[None], negative[None])  # any leading axes
    np.testing.assert_allclose(batched, [[expected]], rtol=1e-6)


def test_further_negatives_enter_the_denominator() -> None:
    """By the logarithm of their sum, as if they were columns; with none of them nothing changes."""
    rng = np.random.default_rng(SEED)
    scores = rng.normal(size=(3, 9)).astype(np.float32)
    positive = np.arange(9) == np.array([0, 3, 8])[:, None]
    near = np.arange(9) < 5
    further = jax.nn.logsumexp(jnp.where(~near & ~positive, scores, -jnp.inf), axis=-1)
    whole, gradient = losses_and_gradient(scores, positive, ~positive)
    parts, its_gradient = losses_and_gradient(scores, positive, ~positive & near, further)
    np.testing.assert_allclose(parts, whole, rtol=1e-6)
    np.testing.assert_allclose(its_gradient[:, near], gradient[:, near], atol=1e-6)
    for nothing in (-np.inf, -1e30):
        alone = losses_and_gradient(scores, positive, ~positive, np.full(3, nothing, np.float32))
        np.testing.assert_array_equal(alone[0], whole)
        np.testing.assert_array_equal(alone[1], gradient)


def test_what_does_not_count_has_no_gradient_at_all() -> None:
    """A false negative's score, however high: its gradient is 0, not just small. Nor is any gradient NaN."""
    rng = np.random.default_rng(SEED)
    scores = rng.normal(size=(4, 8)).astype(np.float32)
    positive = np.zeros((4, 8), bool)
    positive[[0, 1, 2], [0, 3, 5]] = True
    negative = ~positive & (rng.random((4, 8)) < 0.6)
    negative[2] = False  # nothing to learn from
    positive[3], negative[3, 0] = False, True  # no positive
    ignored = ~positive & ~negative
    scores[ignored] = rng.choice(np.array([1e4, -1e4, 0.0], np.float32), ignored.sum())
    losses, gradient = losses_and_gradient(scores, positive, negative)
    assert ignored.sum() > 10
    assert (np.asarray(gradient)[ignored] == 0).all()
    assert (np.asarray(gradient)[:2][(positive | negative)[:2]] != 0).all()
    for row in (2, 3):
        assert losses[row] == 0 and (np.asarray(gradient)[row] == 0).all()


@settings(max_examples=40, deadline=None, print_blob=True)
@given(
    b=st.integers(1, 3),
    m=st.integers(1, 7),
    positives=st.integers(0, 3),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    scale=st.sampled_from([0.1, 1.0, 40.0]),
    further=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape(b: int, m: int, positives: int, share: float, scale: float, further: bool, seed: int) -> None:
    """Values and gradients, for any numbers of positives and negatives, none included."""
    rng = np.random.default_rng(seed)
    scores = (scale * rng.normal(size=(b, m))).astype(np.float32)
    positive = rng.random((b, m)).argsort(axis=1) < rng.integers(0, positives + 1, (b, 1))
    negative = ~positive & (rng.random((b, m)) < share)
    more = (scale * rng.normal(size=b)).astype(np.float32) if further else None
    losses, gradient = losses_and_gradient(scores, positive, negative, more)
    expected, its_gradient = reference(scores, positive, negative, more)
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)
    # An exponent is a difference of scores, rounded to float32: a probability is off by as much of itself.
    rounding = np.finfo(np.float32).eps * np.abs(np.append(scores, 0.0 if more is None else more)).max()
    np.testing.assert_allclose(gradient, its_gradient, atol=1e-6 + rounding)
    assert (np.asarray(gradient)[~positive & ~negative] == 0).all()


# ---- which passages count --------------------------------------------------------------------------------------------


def defined(
    contents: np.ndarray, known: np.ndarray, first: int, positives: int, copies: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Positives and negatives of the questions from `first` on, written out passage by passage."""
    size, c = contents.shape
    positive, negative = np.zeros((2, len(known), size * c), bool)
    for i, of_question in enumerate(known):
        its_positives = [content for content in contents[first + i, :positives] if content != NO_PASSAGE]
        for owner in range(size):
            for place in range(c):
                content = contents[owner, place]
                if content == NO_PASSAGE:
                    continue
                if owner == first + i and place < positives:
                    positive[i, owner * c + place] = True
                elif content not in of_question and not (copies and content in its_positives):
                    negative[i, owner * c + place] = True
    return positive, negative


@pytest.mark.parametrize("positives", [1, 2])
@pytest.mark.parametrize(("judged", "copies"), [(True, True), (True, False), (False, True), (False, False)])
def test_masks_are_as_defined(positives: int, judged: bool, copies: bool) -> None:
    """Random batches of few contents, so that copies abound; padded places everywhere, positives' included."""

    @jax.jit
    def of_batch(
        own: jax.Array, text_ids: jax.Array, known: jax.Array, first: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        excluded = false_negatives(known, own, positives=positives, mask_duplicates=copies)
        masks = Masks.of_batch(text_ids, excluded, first=first, positives=positives)
        return masks.positive, masks.negative

    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    masked = 0
    for _ in range(20):
        contents = rng.integers(NO_PASSAGE, 9, (6, 4)).astype(np.int32)
        known = rng.integers(NO_PASSAGE, 9, (2, 3)).astype(np.int32)
        first = int(rng.integers(0, 5))
        known[:, 0] = contents[first : first + 2, 0]
        known = known if judged else known[:, :0]
        result = of_batch(contents[first : first + 2], contents, known, first)
        expected = defined(contents, known, first, positives, copies)
        np.testing.assert_array_equal(result[0], expected[0])
        np.testing.assert_array_equal(result[1], expected[1])
        masked += int(((contents != NO_PASSAGE).sum() * 2 - np.sum(expected)).item())
    assert (masked > 0) == (judged or copies)


def test_a_judged_positive_is_no_negative_even_among_the_own_ones() -> None:
    """A training file may name a passage as a hard negative that the judgements call relevant."""
    own = jnp.array([[5, 7, 6]], jnp.int32)
    for known, expected in (([[5, 7]], [[False, False, True]]), ([[]], [[False, True, True]])):
        excluded = false_negatives(jnp.array(known, jnp.int32), own, positives=1, mask_duplicates=True)
        masks = Masks.of_batch(own, excluded, first=0, positives=1)
        assert masks.negative.tolist() == expected
