"""Attention that is left to cuDNN where a program is lowered for CUDA; nowhere here does it run."""

import sys
from functools import partial
from typing import Any

import jax
import jax._src.cudnn.fused_attention_stablehlo as fused_attention
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny import BERT, T5

from jaxretr.models.backbones.attention_kernels import ATTENTION_VARIABLE, attention_on_cuda
from jaxretr.models.backbones.dropout import Dropout
from jaxretr.models.backbones.layers import attend, define, key_bias
from jaxretr.models.backbones.t5 import T5Model
from jaxretr.models.embed import DualEncoderConfig, abstract_params, embed
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.programs import pallas_triton

TOKENS, LENGTHS = jax.ShapeDtypeStruct((4, 16), jnp.int32), jax.ShapeDtypeStruct((4,), jnp.int32)


@pytest.fixture(autouse=True)
def cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with cuDNN 9.10, which JAX asks for when it traces."""
    monkeypatch.setenv(ATTENTION_VARIABLE, "cudnn")
    monkeypatch.setattr(fused_attention, "check_cudnn_version", lambda: 91000)


def lowered(program: Any, platform: str, *arguments: Any) -> str:
    return jax.jit(program).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


def encoding(dtype: str) -> tuple[Any, Any]:
    config = DualEncoderConfig(BERT, shared=True)
    return lambda params, *rows: embed(config, params["shared"], *rows, dtype=dtype), abstract_params(config)


def test_encoders_leave_attention_to_cudnn_on_nvidia_gpus_alone() -> None:
    program, params = encoding("bfloat16")
    assert "fmhaSoftmax" in lowered(program, "cuda", params, TOKENS, LENGTHS)
    for platform in ("cpu", "tpu", "rocm"):
        assert "fmha" not in lowered(program, platform, params, TOKENS, LENGTHS)
    # float32 has no such kernel.
    program, params = encoding("float32")
    assert "fmha" not in lowered(program, "cuda", params, TOKENS, LENGTHS)


def test_t5_takes_its_bias_there() -> None:
    graph, params = define(lambda rngs: T5Model(T5, dtype="bfloat16", rngs=rngs))

    def encode(params: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        return nnx.merge(graph, params).encode(tokens, lengths)

    assert "fmhaScaleBiasSoftmax" in lowered(encode, "cuda", params, TOKENS, LENGTHS)


def test_dropout_and_the_default_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    q = jax.ShapeDtypeStruct((2, 16, 2, 8), jnp.bfloat16)
    keys = jax.random.split(jax.random.key(0), 2)

    def attention(q: jax.Array, rate: float) -> jax.Array:
        return attend(q, q, q, key_bias(jnp.array([16, 3]), 16), "bfloat16", Dropout(keys, rate))

    assert "fmha" in lowered(lambda q: attention(q, 0.0), "cuda", q)
    assert "fmha" not in lowered(lambda q: attention(q, 0.1), "cuda", q)
    monkeypatch.delenv(ATTENTION_VARIABLE)
    assert "fmha" not in lowered(lambda q: attention(q, 0.0), "cuda", q)
    monkeypatch.setenv(ATTENTION_VARIABLE, "fuse")
    with pytest.raises(UsageError, match=r"JAXRETR_ATTENTION=fuse: .*'fused'"):
        lowered(lambda q: attention(q, 0.0), "cuda", q)


def test_without_pallas_triton_cudnn_takes_what_it_can_and_xla_the_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    monkeypatch.delattr("jax.experimental.pallas.triton", raising=False)
    assert pallas_triton.__wrapped__() is None
    monkeypatch.setattr("jaxretr.models.backbones.attention_kernels.pallas_triton", lambda: None)
    monkeypatch.delenv(ATTENTION_VARIABLE)
    form = partial(attention_on_cuda, "bfloat16", 32)
    assert form(16, packed=False, drops=False) == "cudnn"
    assert form(16, packed=True, drops=False) == form(16, packed=False, drops=True) == "xla"
    assert form(17, packed=False, drops=False) == "xla"  # It has no gradient there.
    program, params = encoding("bfloat16")
    assert "fmhaSoftmax" in lowered(program, "cuda", params, TOKENS, LENGTHS)
    # Nor is cuDNN there.
    monkeypatch.setattr(fused_attention, "check_cudnn_version", lambda: 1 / 0)
    program, params = encoding("bfloat16")
    text = lowered(program, "cuda", params, TOKENS, LENGTHS)
    assert "fmha" not in text and "triton" not in text
    monkeypatch.setenv(ATTENTION_VARIABLE, "fused")
    with caplog.at_level("INFO", "jaxretr"):
        assert form(16, packed=True, drops=True) == "xla"
    assert "JAXRETR_ATTENTION=fused cannot" in caplog.text


def test_what_cudnn_is_asked_for_is_our_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same call in XLA's form gives the same numbers: scale, bias, and hidden keys."""
    from jaxretr.models.backbones import attention_kernels

    calls = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda *a, **k: calls(*a, **{**k, "implementation": "xla"}))
    rng = np.random.default_rng(0)
    q, k, v = (jnp.bfloat16(rng.standard_normal((3, 16, 2, 8))) for _ in range(3))
    positions = jnp.float32(jnp.bfloat16(rng.standard_normal((1, 2, 16, 16))))
    lengths = jnp.array([16, 5, 1])
    bias = key_bias(lengths, 16, positions)
    found = attention_kernels.by_cudnn(q, k, v, bias, 0.3)
    ours = attend(q, k, v, bias, "bfloat16", Dropout(None, 0.0), scale=0.3)
    real = np.arange(16) < np.asarray(lengths)[:, None]
    one, other = (np.asarray(x, np.float32)[real] for x in (found, ours))
    np.testing.assert_allclose(one, other, atol=0.03)
    assert np.abs(np.asarray(ours, np.float32)).max() > 1
