"""Rows as quantised indexes store them, against the code that stores them: vector files, ScaNN's codes, FAISS."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from jaxretr.config import IndexAware
from jaxretr.embeddings.embedding_store import EmbeddingStore, StoreMeta
from jaxretr.embeddings.vector_files import dequantise, quantise
from jaxretr.indexes.certified import faiss_engine
from jaxretr.indexes.certified.codes import codes_of
from jaxretr.indexes.certified.learnt import Learnt
from jaxretr.indexes.exact.store import streamed
from jaxretr.indexes.index import Opening, SearchOptions
from jaxretr.losses.quantised import (
    StoredRows,
    decoded,
    fitted_codebook,
    int8_rows,
    nearest_codes,
    score_aware_codes,
)
from jaxretr.training.state import ProductCodes
from jaxretr.training.steps.index_aware import stored_rows, threshold_of

SEED = 5
N, D = 300, 13
"""13 dimensions: the last block of 2 or of 4 is filled up."""


@pytest.fixture(scope="module")
def rows() -> NDArray[np.float32]:
    """Rows of different lengths, one of them zero."""
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    rows = rng.normal(size=(N, D)) * rng.uniform(0.5, 3.0, size=(N, 1))
    rows[7] = 0
    return rows.astype(np.float32)


def codebook_of(rows: NDArray[np.float32], block: int, centres: int = 16) -> NDArray[np.float32]:
    return np.asarray(jax.jit(fitted_codebook, static_argnums=(2, 3))(rows, np.ones(len(rows)), block, centres))


def stored(settings: IndexAware, codebook: NDArray[np.float32] | None = None, threshold: float = 1.0) -> StoredRows:
    if codebook is None:
        return stored_rows(settings, None)
    return stored_rows(settings, ProductCodes(jnp.asarray(codebook), jnp.float32(threshold), jnp.int32(0)))


# ---- int8 ------------------------------------------------------------------------------------------------------------


def test_int8_rows_are_those_of_a_file(rows: NDArray[np.float32]) -> None:
    expected = dequantise(*quantise(rows))
    # Scales may differ in their last bit: the compiler multiplies by 1 / 127.
    np.testing.assert_allclose(jax.jit(int8_rows)(rows), expected, rtol=3e-7)
    assert np.abs(expected - rows).max() > 1e-3


def test_scores_are_those_of_a_served_int8_store(rows: NDArray[np.float32], tmp_path: Path) -> None:
    meta = StoreMeta(
        side="passage",
        model="m",
        model_fingerprint="m",
        texts_fingerprint="t",
        rows=N,
        dim=D,
        dtype="int8",
        compute="float32",
        shard_rows=128,
    )
    ids = [str(row) for row in range(N)]
    store = EmbeddingStore.begin(tmp_path, meta, ids)
    for shard in store.missing():
        store.write(shard, rows[slice(*meta.span(shard))], 0)
    questions = np.random.default_rng(SEED + 1).normal(size=(4, D)).astype(np.float32)
    index = streamed(EmbeddingStore.open(tmp_path), Opening(once=True))
    scores, found = index.search_ids(questions, N, SearchOptions())
    trained = questions @ np.asarray(stored(IndexAware("int8"))(jnp.asarray(rows))).T
    # float32 sums of 13 products.
    np.testing.assert_allclose(scores, np.take_along_axis(trained, np.array(found, int), axis=1), rtol=1e-5, atol=1e-5)
    assert np.abs(trained - questions @ rows.T).max() > 1e-3, "the rounding shows in the scores"


# ---- product codes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [2, 4])
def test_nearest_codes_are_scanns(rows: NDArray[np.float32], block: int) -> None:
    codebook = codebook_of(rows, block)
    expected, _ = codes_of(rows, Learnt(np.zeros((1, D), np.float32), codebook, float("nan")))
    codes = jax.jit(nearest_codes)(rows, codebook)
    np.testing.assert_array_equal(codes, expected)
    blocks = np.pad(rows, ((0, 0), (0, -D % block))).reshape(N, -1, block)
    values = codebook[np.arange(codebook.shape[0]), expected]
    np.testing.assert_array_equal(decoded(codes, jnp.asarray(codebook), D), values.reshape(N, -1)[:, :D])
    assert 0 < np.square(values - blocks).sum() < np.square(blocks).sum() / 3


def test_rows_are_what_faiss_reads_from_its_codes(rows: NDArray[np.float32]) -> None:
    """The engine's quantizer with the same codebook: its codes, decoded by FAISS."""
    faiss = pytest.importorskip("faiss")
    codebook = codebook_of(rows, 2)
    quantizer = faiss_engine._quantizer(faiss, D)
    faiss.copy_array_to_vector(np.ascontiguousarray(codebook).ravel(), quantizer.centroids)
    expected = quantizer.decode(quantizer.compute_codes(faiss_engine._padded(rows)))[:, :D]
    np.testing.assert_array_equal(stored(IndexAware("product"), codebook).values(jnp.asarray(rows)), expected)


@pytest.mark.parametrize("block", [2, 4])
def test_score_aware_codes_are_scanns(rows: NDArray[np.float32], block: int) -> None:
    codebook = codebook_of(rows, block)
    threshold = 3.0
    learnt = Learnt(np.zeros((1, D), np.float32), codebook, threshold)
    expected, _ = codes_of(rows, learnt)
    codes = np.asarray(jax.jit(score_aware_codes)(rows, codebook, threshold))
    # A sum in another order may choose the other of two centres whose costs differ by rounding alone.
    assert (codes == expected).mean() > 0.999
    nearest = np.asarray(nearest_codes(jnp.asarray(rows), jnp.asarray(codebook)))
    assert (expected != nearest).mean() > 0.05, "the loss chooses other centres than the nearest"
    short = np.square(rows).sum(axis=1) <= threshold**2
    assert short.sum() > 10
    np.testing.assert_array_equal(codes[short], nearest[short])


def test_the_threshold_is_that_of_our_scann_index() -> None:
    """As jaxretr/indexes/certified/worker.py has it: .2 of the rows' length, less above 128 dimensions."""
    rows = np.random.default_rng(SEED).normal(size=(50, 384)).astype(np.float32)
    weights = np.arange(50) < 40
    length = np.sqrt(np.square(rows[:40]).sum(axis=1).mean())
    threshold = threshold_of(jnp.asarray(rows), jnp.asarray(weights))
    np.testing.assert_allclose(threshold, length * 0.2 * (128 / 384) ** 0.75, rtol=1e-5)


# ---- the fit ---------------------------------------------------------------------------------------------------------


def lloyd(rows: NDArray[np.float32], block: int, centres: int) -> NDArray[np.float64]:
    """Lloyd's algorithm, ten times over, one block and one centre after the other."""
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % block))).astype(np.float64)
    books = []
    for first in range(0, padded.shape[1], block):
        points = padded[:, first : first + block]
        means = points[np.arange(centres) * len(points) // centres].copy()
        for _ in range(10):
            errors = np.square(points[:, None] - means).sum(axis=-1)
            nearest = errors.argmin(axis=1)
            far = iter(np.argsort(-errors.min(axis=1), kind="stable"))
            means = np.stack(
                [
                    points[nearest == c].mean(axis=0) if (nearest == c).any() else points[next(far)]
                    for c in range(centres)
                ]
            )
        books.append(means)
    return np.stack(books)


@pytest.mark.parametrize("centres", [4, 16])
def test_the_fit_is_lloyds_algorithm(rows: NDArray[np.float32], centres: int) -> None:
    repeated = np.concatenate([rows[:1]] * 40 + [rows])  # Several centres begin at one row, so that some are empty.
    np.testing.assert_allclose(codebook_of(repeated, 2, centres), lloyd(repeated, 2, centres), atol=1e-4)


def test_rows_of_no_weight_do_not_count_and_a_fit_goes_on(rows: NDArray[np.float32]) -> None:
    fit = jax.jit(fitted_codebook, static_argnums=(2, 3))
    alone = fit(rows[:250], np.ones(250), 4, 16)
    weights = np.arange(N) < 250
    np.testing.assert_allclose(fit(np.where(weights[:, None], rows, 9.0), weights, 4, 16), alone, atol=1e-5)

    def error(codebook: Any) -> float:
        values = decoded(nearest_codes(jnp.asarray(rows), codebook), codebook, D)
        return float(jnp.square(values - rows).sum())

    assert error(fit(rows, np.ones(N), 4, 16, alone)) < error(alone)


# ---- the gradient ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [IndexAware("int8"), IndexAware("product", block=4), IndexAware("product", block=4, anisotropic=True)]
)
def test_the_gradient_goes_straight_through(rows: NDArray[np.float32], settings: IndexAware) -> None:
    """Of any loss, the gradient in the rows is that in the stored rows, taken at the stored rows."""
    how = stored(settings, None if settings.kind == "int8" else codebook_of(rows, settings.block))
    values = how.values(jnp.asarray(rows))

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sin(3 * x).sum()

    np.testing.assert_allclose(how(jnp.asarray(rows)), values, atol=1e-6)
    gradient = jax.grad(lambda x: loss(how(x)))(jnp.asarray(rows))
    np.testing.assert_allclose(gradient, jax.grad(loss)(values), atol=1e-4)
    assert np.abs(gradient - jax.grad(loss)(jnp.asarray(rows))).max() > 0.01


def test_settings_and_codes_are_a_pytree(rows: NDArray[np.float32]) -> None:
    how = stored(IndexAware("product", block=4), codebook_of(rows, 4))
    again = jax.jit(lambda how: how.values(rows))(how)
    np.testing.assert_array_equal(again, how.values(jnp.asarray(rows)))
    assert dataclasses.is_dataclass(how)
