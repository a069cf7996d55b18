"""Embedding chunk by chunk gives the embeddings and the gradient of embedding all rows at once, for any chunk size."""

import dataclasses
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_attention_kernels import lowered
from tiny import BERT, lively

from jaxretr.models.backbones.partition import partition
from jaxretr.models.embed import DualEncoderConfig, embed, init_params, word_table
from jaxretr.runtime.parallel.matmul_flops import matmul_flops
from jaxretr.training.steps.chunks import embed_in_chunks
from jaxretr.training.steps.encoding import row_encoder
from jaxretr.training.steps.packed_chunks import PackedChunks, PackedForm, row_starts
from jaxretr.training.steps.padded_chunks import PaddedChunks
from jaxretr.training.steps.widths import chosen_widths, passage_widths

pytestmark = pytest.mark.usefixtures("float32_products")

ROWS, WIDTH, VOCABULARY, SIZE = 7, 64, 50, 6
# Unsorted, two of them empty, and one that fills the rectangle: every width that a chunk can be cut to is taken.
LENGTHS = np.array([20, 0, 64, 3, 33, 0, 48], np.int32)
SEED = 7

widths_seen: list[int] = []


def embed_rows(
    params: Any, tokens: jax.Array, lengths: jax.Array, keys: jax.Array | None, words: jax.Array | None = None
) -> jax.Array:
    """A small encoder with a nonlinearity, in which each row's noise depends on its key alone."""
    widths_seen.append(tokens.shape[1])
    real = jnp.arange(tokens.shape[1]) < lengths[:, None]
    words = params["table"][tokens] if words is None else words
    mean = jnp.where(real[..., None], words, 0.0).sum(axis=1) / 8
    hidden = jnp.tanh(mean @ params["kernel"] + params["bias"])
    if keys is None:
        return hidden
    return hidden * jax.vmap(lambda key: jax.random.uniform(key, (SIZE,)))(keys)


@dataclasses.dataclass
class Given:
    params: Any
    tokens: np.ndarray
    weights: np.ndarray
    """Of the sum of all embeddings' elements whose gradient is compared: each row's are its own."""
    keys: jax.Array


@pytest.fixture(scope="module")
def rows() -> Given:
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    shapes = {"table": (VOCABULARY, SIZE), "kernel": (SIZE, SIZE), "bias": (SIZE,)}
    return Given(
        params={name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()},
        tokens=rng.integers(0, VOCABULARY, (ROWS, WIDTH)).astype(np.uint16),
        weights=rng.normal(size=(ROWS, SIZE)).astype(np.float32),
        keys=jax.random.split(jax.random.key(SEED), ROWS),
    )


def value_and_gradient(function: Any, params: Any, weights: np.ndarray) -> tuple[np.ndarray, Any]:
    def total(params: Any) -> tuple[jax.Array, jax.Array]:
        embeddings = function(params)
        return (embeddings * weights).sum(), embeddings

    gradient, embeddings = jax.jit(jax.grad(total, has_aux=True))(params)
    return np.asarray(embeddings), jax.device_get(gradient)


@pytest.mark.parametrize("keep", [{}, {"keep": True}, {"keep": True, "words": ("table",)}])
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_any_chunk_size_gives_the_plain_embeddings_and_their_gradient(
    rows: Given, chunk: int, dropout: bool, keep: Any
) -> None:
    """Chunks of 1 and 7 divide the 7 rows, 2 and 3 do not, 100 is larger. Rounding: float32 sums in another order."""
    keys = rows.keys if dropout else None
    expected = value_and_gradient(
        lambda params: embed_rows(params, rows.tokens, LENGTHS, keys), rows.params, rows.weights
    )
    widths_seen.clear()
    chunked = value_and_gradient(
        lambda params: embed_in_chunks(
            embed_rows,
            params,
            PaddedChunks.of(jnp.asarray(rows.tokens), jnp.asarray(LENGTHS), keys, chunk=chunk),
            **keep,
        ),
        rows.params,
        rows.weights,
    )
    np.testing.assert_allclose(chunked[0], expected[0], rtol=1e-5, atol=1e-6)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), chunked[1], expected[1])
    assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(expected[1])) > 1e-2
    assert set(widths_seen) == {16, 32, 48, 64}  # each width has a branch of its own


@pytest.mark.parametrize("parts", [(), ("table",), ("kernel", "bias")])
def test_frozen_parameters_get_no_gradient_and_the_others_theirs(rows: Given, parts: tuple[str, ...]) -> None:
    trained, frozen = partition(rows.params, parts)
    keep = {"keep": True, "words": None if "table" in parts else ("table",)}
    full, kept = (
        value_and_gradient(
            lambda params, how=how: embed_in_chunks(
                embed_rows,
                params,
                PaddedChunks.of(jnp.asarray(rows.tokens), jnp.asarray(LENGTHS), None, chunk=3),
                frozen=frozen,
                **how,
            ),
            trained,
            rows.weights,
        )
        for how in ({}, keep)
    )
    np.testing.assert_allclose(kept[0], full[0], rtol=1e-6)
    assert kept[1].keys() == rows.params.keys() - set(parts)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), kept[1], full[1])


def test_rows_are_cut_to_what_the_longest_of_a_chunk_needs(rows: Given) -> None:
    """What stands behind a row's end is never read, and a chunk takes the narrowest width that holds its rows."""
    tokens, lengths = jnp.asarray(rows.tokens), jnp.asarray(LENGTHS)
    marked = jnp.where(jnp.arange(WIDTH) < lengths[:, None], tokens, VOCABULARY - 1)

    def width_taken(params: Any, tokens: jax.Array, lengths: jax.Array, keys: None) -> jax.Array:
        return jnp.full((len(tokens), 1), tokens.shape[1], jnp.float32) + 0 * params

    embedded = [
        embed_in_chunks(embed_rows, rows.params, PaddedChunks.of(t, lengths, None, chunk=2)) for t in (tokens, marked)
    ]
    np.testing.assert_array_equal(*embedded)
    chunks = partial(PaddedChunks.of, tokens, lengths, None, chunk=2)
    widths = embed_in_chunks(width_taken, jnp.zeros(()), chunks())[:, 0]
    # In order of length, two at a time from the longest: 64 with 48, 33 with 20, 3 and a 0, a 0 alone.
    np.testing.assert_array_equal(widths, [48, 16, 64, 16, 48, 16, 64])
    known = embed_in_chunks(width_taken, jnp.zeros(()), chunks(widths=(24, 56, 96)))[:, 0]
    np.testing.assert_array_equal(known, [56, 24, 64, 24, 56, 24, 64])


@pytest.mark.parametrize(
    ("width", "known", "expected"),
    [
        (64, (), (16, 32, 48, 64)),
        (8, (), (8,)),
        (40, (), (16, 32, 40)),
        (1, (), (1,)),
        (64, (24, 64, 80), (24, 64)),
        (16, (24, 64), (16,)),
    ],
)
def test_widths_to_choose_from(width: int, known: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Few, for each is compiled; the last is the array's own, and so holds every row."""
    assert chosen_widths(width, known) == expected


def test_widths_of_a_corpus_are_near_its_passages_lengths() -> None:
    """Passages of 100 words have 110 to 160 tokens: of quarters of 256, chunks in order of length would fill up a third more."""
    rng = np.random.default_rng(SEED)
    lengths = np.concatenate([rng.normal(136, 13, 10_000).astype(int), rng.integers(10, 257, 300)]).clip(1, 256)

    def padded(widths: tuple[int, ...]) -> float:
        return np.array(widths)[np.searchsorted(widths, lengths)].sum() / lengths.sum()

    widths = passage_widths(lengths, 256)
    assert len(widths) <= 4
    assert widths[-1] == 256
    assert padded(widths) < 1.12
    assert padded(chosen_widths(256)) > 1.25


@pytest.mark.parametrize("keep", [False, True])
def test_packed_chunks_give_the_padded_rows_embeddings_and_gradient(keep: bool) -> None:
    """With dropout. Texts that fill rows, that leave their ends unfilled, and more room than they need.

    The packed rows' layers are apart, the padded rows' in a loop."""
    rng = np.random.default_rng(SEED)
    bert = dataclasses.replace(BERT, num_hidden_layers=2, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    encoder = DualEncoderConfig(bert, pooling="mean")
    params = lively(init_params(encoder, 0)["passage"], SEED)
    lengths = np.array([*rng.integers(1, 33, 20), 32, 32, 1, 7], np.int32)
    padded = partial(PaddedChunks.of, chunk=24, widths=(32,))  # one width: the others are other tests' business
    tokens = jnp.asarray(rng.integers(0, bert.vocab_size, (24, 32)))
    keys = jax.random.split(jax.random.key(SEED), 24)
    weights = rng.normal(size=(24, bert.hidden_size)).astype(np.float32)
    form = PackedForm.of(24, 32, 64, 192)
    assert form == (32, 64, 4, 3, 4)
    assert [PackedForm.of(n, 128, 2048, 8192)[1:] for n in (3, 20, 80)] == [
        (384, 24, 1, 1),
        (1280, 80, 2, 1),
        (1792, 112, 3, 2),
    ]

    def embedded(params: Any, tokens: jax.Array, lengths: jax.Array, keys: jax.Array, *, packed: bool) -> jax.Array:
        chunks: Any = padded(tokens, lengths, keys)
        if packed:
            chunks = PackedChunks.of(lengths, form, together=False, tokens=tokens, keys=keys)
        words = word_table(params) if keep else None
        rows = row_encoder(encoder, "float32")
        return embed_in_chunks(rows, params, chunks, keep=keep, words=words, apart=packed)

    given = tokens, jnp.asarray(lengths), keys
    expected = value_and_gradient(lambda params: embedded(params, *given, packed=False), params, weights)

    def total(params: Any, weights: np.ndarray, *given: jax.Array) -> tuple[jax.Array, jax.Array]:
        embeddings = embedded(params, *given, packed=True)
        return (embeddings * weights).sum(), embeddings

    packed = jax.jit(jax.grad(total, has_aux=True))
    for some in (np.arange(24), rng.permutation(24)):
        gradient, embeddings = packed(params, weights[some], *(x[some] for x in given))
        np.testing.assert_allclose(embeddings, expected[0][some], rtol=0, atol=1e-5)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), gradient, expected[1])


@pytest.mark.parametrize("most", [2, 16])
def test_texts_are_packed_as_long_as_they_fit(most: int) -> None:
    rng = np.random.default_rng(SEED)
    lengths = np.concatenate([rng.integers(0, 31, 100), [30, 30, 0]])
    starts = np.asarray(row_starts(jnp.asarray(lengths, jnp.int32), PackedForm(30, 60, most, 13, 5)))
    expected, size = [0], 0
    for text, length in enumerate(lengths):
        if size + length > 60 or text - expected[-1] == most:
            expected, size = [*expected, text], 0
        size += length
    np.testing.assert_array_equal(starts[: len(expected)], expected)
    assert (starts[len(expected) :] == 103).all() and len(starts) == 66 > len(expected)


def test_dropout_of_the_encoder_does_not_depend_on_the_chunk() -> None:
    """BERT draws its masks from each text's key alone: also a text that another chunk pads to another width."""
    bert = dataclasses.replace(BERT, num_hidden_layers=1, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    config = DualEncoderConfig(bert)
    params = lively(init_params(config, 0)["passage"], SEED)
    rng = np.random.default_rng(SEED)
    lengths = jnp.array([20, 3, 30, 9])
    tokens = jnp.asarray(rng.integers(0, bert.vocab_size, (4, 32)))
    keys = jax.random.split(jax.random.key(SEED), 4)

    def encoder(
        params: Any, tokens: jax.Array, lengths: jax.Array, keys: jax.Array | None, words: jax.Array | None = None
    ) -> jax.Array:
        return embed(config, params, tokens, lengths, dtype="float32", keys=keys, words=words)

    whole = jax.jit(encoder)(params, tokens, lengths, keys)
    chunked = jax.jit(lambda params, *rows: embed_in_chunks(encoder, params, PaddedChunks.of(*rows, chunk=1)))(
        params, tokens, lengths, keys
    )
    np.testing.assert_allclose(chunked, whole, atol=1e-5)


def test_a_step_that_keeps_bfloat16_activations_multiplies_no_more_than_one_of_float32() -> None:
    """The results of the dense layers are kept in either type, as bits or as they are: none is computed again."""
    config = DualEncoderConfig(dataclasses.replace(BERT, num_hidden_layers=2))
    params = init_params(config, 0)["passage"]
    tokens, lengths = jnp.zeros((4, 32), jnp.int32), jnp.array([20, 3, 30, 9])

    def gradient(dtype: str) -> Any:
        def encoder(params: Any, tokens: jax.Array, lengths: jax.Array, keys: Any, words: Any = None) -> jax.Array:
            return embed(config, params, tokens, lengths, dtype=dtype, keep_matmuls=True, words=words)

        chunks = PaddedChunks.of(tokens, lengths, None, chunk=2)
        return jax.jit(jax.grad(lambda params: embed_in_chunks(encoder, params, chunks, keep=True).sum())).trace(params)

    counted = {dtype: matmul_flops(gradient(dtype)) for dtype in ("float32", "bfloat16")}
    assert counted["bfloat16"] == counted["float32"] > 0


def test_packed_chunks_for_nvidia_gpus_run_the_kernels_and_scatter_into_the_table_of_words_alone() -> None:
    """Both directions, without a table of scores as wide as the row; the positions' gradient is a product."""
    bert = dataclasses.replace(BERT, hidden_size=32, num_attention_heads=2, num_hidden_layers=1)
    config = DualEncoderConfig(bert, pooling="mean")
    form = PackedForm.of(24, 32, 512, 1024)

    def gradient(params: Any, tokens: jax.Array, lengths: jax.Array) -> Any:
        def total(params: Any) -> jax.Array:
            chunks = PackedChunks.of(lengths, form, together=False, tokens=tokens, keys=None)
            return embed_in_chunks(row_encoder(config, "bfloat16"), params, chunks).sum()

        return jax.grad(total)(params)

    params = jax.eval_shape(lambda: init_params(config, 0)["passage"])
    ids = jax.ShapeDtypeStruct((24, 32), jnp.int32), jax.ShapeDtypeStruct((24,), jnp.int32)
    text = lowered(gradient, "cuda", params, *ids)
    assert "_forward_kernel" in text and "_backward_kernel" in text
    # The embeddings' places are distinct, and in the backward pass they are read.
    scattered = re.findall(r'"stablehlo.scatter".*?\}\) : \(tensor<(\d+)x', text, re.DOTALL)
    assert scattered == [str(bert.vocab_size)]
