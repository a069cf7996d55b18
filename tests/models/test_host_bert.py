"""Encoding without XLA, on processors without AVX-512: the same numbers, and chosen only where it is measured faster."""

import dataclasses
import itertools
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import erfc
from tiny import BERT

from jaxretr.config import AdapterShape
from jaxretr.models import encode, engine_choice
from jaxretr.models.backbones import host_bert
from jaxretr.models.embed import DualEncoderConfig, abstract_params, embed, tower
from jaxretr.models.encode import Engine, HostEngine, fastest_dtype
from jaxretr.runtime.parallel import machine

RNG = np.random.default_rng(3)

AVX2 = frozenset({"fma", "avx2"})
AVX512 = AVX2 | {"avx512f"}
AVX512_BF16 = AVX512 | {"avx512_bf16"}
AMX = AVX512_BF16 | {"amx_tile", "amx_bf16"}


def draw(config: DualEncoderConfig) -> Any:
    """Random parameters, biases and scales too: those of keys and values are nowhere added as such."""

    def leaf(path: Any, leaf: Any) -> np.ndarray:
        return RNG.normal(path[-1].key == "scale", 0.2, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(leaf, abstract_params(config))


def test_gelu_is_exact_for_all_of_float32() -> None:
    # Every 2,047th float32, of both signs, from the smallest to the largest.
    x = np.arange(0, 2**32, 2047, dtype=np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    found = x[None].copy()
    host_bert.gelu(found, np.zeros(x.size, np.float32))
    exact = x.astype(np.float64)
    expected = 0.5 * exact * erfc(-exact * np.sqrt(0.5))
    # Roundings of 1 + erf, of which PyTorch's has as many. Where x is so negative that the result is below them, only 0
    # will do: 1e30 times a rounding is no rounding.
    assert (
        np.abs(found[0] - expected) <= 2.0**-22 * np.abs(exact).clip(max=6) + 2.0**-23 * np.abs(expected) + 2.0**-149
    ).all()
    assert not found[0][x < -6].any()
    biased = np.full((1, 4), 0.5, np.float32)
    host_bert.gelu(biased, np.float32([0, 0.5, np.inf, np.nan]))
    assert biased[0, 1] == pytest.approx(0.8413447) and biased[0, 2] == np.inf and np.isnan(biased[0, 3])


def test_attention_of_rows_of_any_length() -> None:
    heads, dim = 3, 8
    lengths = np.array([1, 2, 3, 4, 5, 31, 32, 33, 64, 65, 130])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    size, n = heads * dim, starts[-1]
    qkv = RNG.normal(size=(n, 3 * size)).astype(np.float32)
    qkv[: starts[6], :size] *= 1e4  # scores of which all but the largest vanish
    bias = RNG.normal(size=size).astype(np.float32)
    found = np.full((n, size), np.nan, np.float32)
    pairs = len(lengths) * heads
    for first, last in ((0, 7), (7, 8), (8, pairs)):  # as threads share them
        host_bert._attend(qkv, bias, starts, heads, first, last, found)
    for start, stop in itertools.pairwise(starts):
        q, k, v = np.moveaxis(qkv[start:stop].astype(np.float64).reshape(-1, 3, heads, dim), 1, 0)
        scores = np.einsum("lhd,mhd->hlm", q + bias.reshape(heads, dim), k)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        expected = np.einsum("hlm,mhd->lhd", weights / weights.sum(axis=-1, keepdims=True), v)
        # Scores of 1e4 have an absolute error of 1e-3; for the others, some 100 roundings of numbers of about 1.
        tolerance = 2e-2 if start < starts[6] else 2e-5
        np.testing.assert_allclose(found[start:stop].reshape(expected.shape), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("bert", "changes"),
    [
        ({}, {"pooling": "mean", "normalise": True, "projection_size": 6, "truncate_dim": 5}),
        ({"pre_layer_norm": True}, {}),
    ],
)
def test_embeddings_are_xlas_up_to_rounding(bert: Any, changes: Any) -> None:
    config = DualEncoderConfig(dataclasses.replace(BERT, **bert), shared=True, **changes)
    params = tower(draw(config), "passage")
    engine = HostEngine(engine_choice.embed_on_host(config, params))
    texts = [RNG.integers(1, BERT.vocab_size, length).tolist() for length in (2, 31, 9, 48, 1, 17, 33)]

    def encoded(texts: list[list[int]], **how: Any) -> np.ndarray:
        def rows(start: int, stop: int) -> tuple[list[list[int]], int]:
            return texts[start:stop], 0

        return engine.encode(rows, len(texts), config.embedding_size, max_length=48, **how)[0]

    found = encoded(texts)
    tokens = np.zeros((len(texts), 48), np.int32)
    for row, ids in zip(tokens, texts, strict=True):
        row[: len(ids)] = ids
    lengths = np.array([len(ids) for ids in texts], np.int32)
    expected = jax.jit(lambda params, *rows: embed(config, params, *rows, dtype="float32"))(params, tokens, lengths)
    # Sums in another order, of numbers of about 1.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    # A text's vector is its own, whoever is encoded beside it.
    np.testing.assert_allclose(encoded(texts, batch_size=1), found, rtol=0, atol=1e-6)
    np.testing.assert_allclose(encoded(texts[:1]), found[:1], rtol=0, atol=1e-6)
    # A text without any token, which some tokenizers make of an empty one, has a finite vector and disturbs no other.
    with_empty = encoded([*texts[:3], [], *texts[3:]])
    assert np.isfinite(with_empty).all()
    np.testing.assert_allclose(np.delete(with_empty, 3, axis=0), found, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("flags", "bert", "adapter", "dtype", "engine"),
    [
        (AVX2, {}, None, "float32", HostEngine),
        (AVX2, {}, AdapterShape(lora_rank=2, bottleneck=0), "float32", HostEngine),  # merged into the kernels
        (AVX2, {}, AdapterShape(lora_rank=0, bottleneck=2), "float32", Engine),
        (AVX2, {}, None, "bfloat16", Engine),
        (AVX2, {"hidden_act": "relu"}, None, "float32", Engine),
        (AVX2, {"num_hidden_layers": 0}, None, "float32", Engine),
        (AVX512, {}, None, "float32", Engine),
        (AMX, {}, None, "float32", Engine),
        (frozenset(), {}, None, "float32", Engine),  # not Linux, or not x86
    ],
)
def test_the_engine_is_the_faster_one_of_the_processor(
    monkeypatch: pytest.MonkeyPatch, flags: frozenset[str], bert: Any, adapter: Any, dtype: Any, engine: type
) -> None:
    monkeypatch.setattr(machine, "cpu_flags", lambda: flags)
    config = DualEncoderConfig(dataclasses.replace(BERT, **bert), shared=True, adapter=adapter)
    params = tower(draw(config), "question")
    ready = dataclasses.replace(config, lora_merged=adapter is not None)
    assert type(engine_choice.choose_engine(ready, params, dtype)) is engine


@pytest.mark.parametrize(
    ("backend", "flags", "chosen"),
    [
        ("cpu", AVX2, "float32"),
        ("cpu", AVX512, "float32"),
        ("cpu", frozenset(), "float32"),
        ("cpu", AVX512_BF16, "bfloat16"),
        ("cpu", AMX, "bfloat16"),
        ("gpu", AVX2, "bfloat16"),
        ("tpu", frozenset(), "bfloat16"),
    ],
)
def test_auto_takes_bfloat16_only_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, backend: str, flags: frozenset[str], chosen: str
) -> None:
    monkeypatch.setattr(machine, "cpu_flags", lambda: flags)
    monkeypatch.setattr(encode.jax, "default_backend", lambda: backend)
    assert fastest_dtype() == chosen
