"""Packed rows: every encoder and pooling gives a text the vector that it has in a padded row."""

import dataclasses
from types import SimpleNamespace
from typing import Any, get_args

import jax
import numpy as np
import pytest
from tiny import BERT, DECODER, lively

from jaxretr.config import SPLADE, AdapterShape, Pooling
from jaxretr.models.backbones.packed_rows import counted_places, token_places
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, embed, init_params, tower
from jaxretr.models.encode import Engine, PackedEngine
from jaxretr.models.engine_choice import ENGINE_VARIABLE, compiled_engine, packed_row
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.programs import programs
from jaxretr.serve.encoding import BatchEncoder

BACKBONES: dict[str, Any] = {
    "bert": BERT,
    "megatron": dataclasses.replace(BERT, pre_layer_norm=True),
    "mpnet": dataclasses.replace(
        BERT, architecture="mpnet", pad_token_id=1, relative_attention_num_buckets=8, type_vocab_size=0
    ),
    "decoder": DECODER,
    "modern": dataclasses.replace(DECODER, causal=False),
    "t5": T5EncoderConfig(vocab_size=400, d_model=16, d_kv=8, d_ff=24, num_heads=2, num_layers=2),
}
QUICK = {("bert", "mean"), ("mpnet", "cls"), ("decoder", "lasttoken"), ("t5", "weightedmean"), ("modern", "max")}
RNG = np.random.default_rng(4)


@pytest.mark.parametrize(
    ("backbone", "pooling"),
    [
        pytest.param(name, pooling, marks=() if (name, pooling) in QUICK else pytest.mark.slow)
        for name in BACKBONES
        for pooling in get_args(Pooling)
        if not (pooling == "cls" and name == "decoder") and not (pooling in SPLADE and name != "bert")
    ],
)
def test_a_texts_vector_is_that_of_a_padded_row(backbone: str, pooling: Any) -> None:
    """With the dropout of the text's own key: masks follow a text into any row."""
    adapter = AdapterShape(lora_rank=2, bottleneck=4) if (backbone, pooling) == ("bert", "mean") else None
    shape = dataclasses.replace(BACKBONES[backbone], hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2)
    config = DualEncoderConfig(shape, pooling=pooling, adapter=adapter)
    params = tower(lively(init_params(config, seed=1), seed=2), "passage")
    texts = [RNG.integers(0, 400, length) for length in (5, 1, 9, 16, 3, 7, 12, 2)]  # some hold MPNet's padding token
    padded = np.stack([np.pad(text, (0, 16 - len(text))) for text in texts]).astype(np.int32)
    keys = jax.random.split(jax.random.key(3), 8)
    real = np.array([*map(len, texts)], np.int32)
    expected = np.asarray(embed(config, params, padded, real, dtype="float32", keys=keys))
    assert abs(expected - np.asarray(embed(config, params, padded, real, dtype="float32"))).max() > 0.01
    for order in ([[0, 3, 1], [2, 4, 5, 7], [6]], [[7, 6], [5, 4, 3], [2, 1, 0]]):
        tokens, lengths = np.zeros((3, 32), np.int32), np.zeros((3, 4), np.int32)
        own = keys[np.array([some + [0] * (4 - len(some)) for some in order])]
        for row, some in enumerate(order):
            lengths[row, : len(some)] = [len(texts[text]) for text in some]
            tokens[row, : lengths[row].sum()] = np.concatenate([texts[text] for text in some])
        vectors = np.asarray(embed(config, params, tokens, lengths, dtype="float32", keys=own)).reshape(3, 4, -1)
        assert np.isfinite(vectors).all()
        for row, some in enumerate(order):
            np.testing.assert_allclose(vectors[row, : len(some)], expected[some], rtol=0, atol=5e-6)


def test_positions_count_from_each_text() -> None:
    lengths = np.array([[3, 0, 2], [1, 4, 0]], np.int32)
    expected = [[0, 1, 2, 0, 1, 0, 0], [0, 0, 1, 2, 3, 0, 0]]
    np.testing.assert_array_equal(token_places(lengths, 7), expected)
    np.testing.assert_array_equal(token_places(lengths[:, 0], 3), [0, 1, 2])
    counted = np.array([[1, 0, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 0, 0]], bool)
    np.testing.assert_array_equal(counted_places(counted, lengths)[:, :5], [[0, 1, 1, 0, 1], [0, 0, 1, 1, 2]])


@pytest.fixture
def encoder(tiny_models: Any) -> DualEncoder:
    return DualEncoder.from_pretrained(tiny_models / "encoder")


def test_two_programs_encode_texts_of_every_length(encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["who", "founded", "the", "city", "of", "rome", "?"]
    texts = [" ".join(RNG.choice(words, length)) for length in [*RNG.integers(0, 60, 1500), 60]]
    monkeypatch.setenv(ENGINE_VARIABLE, "padded")
    expected = DualEncoder(encoder.config, encoder.params, encoder.tokenizer).encode_passages(texts)
    monkeypatch.setenv(ENGINE_VARIABLE, "packed")
    packed = DualEncoder(encoder.config, encoder.params, encoder.tokenizer)
    before = programs()
    np.testing.assert_allclose(packed.encode_passages(texts), expected, rtol=0, atol=1e-5)
    few = packed.encode_passages(texts[:3])
    news = programs() - before
    assert news.compiled + news.cached <= 2
    np.testing.assert_allclose(few, expected[:3], rtol=0, atol=1e-5)
    # In another order, and so in other rows.
    order = RNG.permutation(len(texts))
    found = packed.encode_passages([texts[place] for place in order])
    np.testing.assert_allclose(found, expected[order], rtol=0, atol=1e-5)


def test_a_service_has_few_programs(encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENGINE_VARIABLE, "packed")
    packed = DualEncoder(encoder.config, encoder.params, encoder.tokenizer)
    texts = [f"who founded rome {number} times ?" for number in range(300)]
    expected = packed.encode_passages(texts)
    served = BatchEncoder(packed, batch_tokens=4096)
    before = programs()
    served.compile()
    news = programs() - before
    assert news.compiled + news.cached <= 4 * (1 if packed.config.shared else 2) and not served.pads
    rows = served.tokenise("passage", texts).rows
    before = programs()
    for count in (1, 40, 300):
        np.testing.assert_allclose(served.compute("passage", rows[:count]), expected[:count], rtol=0, atol=1e-5)
    assert programs() == before


@pytest.mark.parametrize(
    ("shape", "dtype", "version", "packs"),
    [
        ("bert", "bfloat16", "PJRT C API cuda 12090", True),
        ("bert", "bfloat16", "rocm 60300", False),
        ("bert", "float32", "PJRT C API cuda 12090", False),
        ("mpnet", "bfloat16", "PJRT C API cuda 12090", False),
        ("modern", "bfloat16", "PJRT C API cuda 12090", False),
    ],
)
def test_rows_are_packed_by_themselves_where_our_kernel_computes_all_attention(
    shape: str, dtype: str, version: str, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"hidden_size": 64, "num_attention_heads": 2} if shape == "bert" else {}
    backbone = dataclasses.replace(BACKBONES[shape], **wide)
    card = SimpleNamespace(platform="gpu", client=SimpleNamespace(platform_version=version))
    monkeypatch.delenv(ENGINE_VARIABLE, raising=False)
    assert packed_row(DualEncoderConfig(backbone), dtype, card) == (2048 if packs else 0)
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="cpu")])
    assert compiled_engine(backbone, dtype) is Engine
    monkeypatch.setattr(jax, "devices", lambda: [card])
    assert compiled_engine(backbone, dtype) is (PackedEngine if packs else Engine)
    monkeypatch.setenv(ENGINE_VARIABLE, "padded")
    assert compiled_engine(backbone, dtype) is Engine and not packed_row(DualEncoderConfig(backbone), dtype, card)
    monkeypatch.setenv(ENGINE_VARIABLE, "packed")
    assert packed_row(DualEncoderConfig(backbone), dtype, card) == (2048 if packs else 512)


@pytest.mark.parametrize(("chosen", "named"), [("paked", "packed"), ("host", "padded")])
def test_engines_that_cannot_run_are_refused(
    encoder: DualEncoder, chosen: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = DualEncoder(dataclasses.replace(encoder.config, pooling="max"), encoder.params, encoder.tokenizer)
    monkeypatch.setenv(ENGINE_VARIABLE, chosen)
    with pytest.raises(UsageError, match=named):
        model.engine("passage")
