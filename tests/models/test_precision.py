"""float32 that is asked for is float32 on accelerators too, read off programs that are lowered for them."""

import dataclasses
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import BERT, DECODER, T5

from jaxretr.config import AdapterShape, MlmConfig, PretrainData
from jaxretr.models.backbones.layers import define, scaled
from jaxretr.models.backbones.masked_lm import MaskedLm
from jaxretr.models.backbones.products import product
from jaxretr.models.backbones.t5 import T5Model
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig
from jaxretr.models.embed import DualEncoderConfig, abstract_params, embed, init_params, tower
from jaxretr.models.scorers.t5_scorer import Prompt, score_pairs
from jaxretr.training.runs.mlm import mlm_programs
from jaxretr.training.steps.mlm import MaskedBatch

TYPE = r"tensor<(?:\d+x)*(\w+)>"
DOT = re.compile(rf"stablehlo\.dot_general .*?precision = \[(\w+), (\w+)\] : \({TYPE}, {TYPE}\)")

# Products of float32 in a bfloat16 model's programs: the gradient of the mean over tokens.
MEANT = {"encoder": 1, "masked language model": 0, "teacher": 0}


def shape(dtype: Any, *dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def dots(program: Any, platform: str, *arguments: Any) -> list[tuple[str, ...]]:
    """(precision and precision, type and type) of every matrix product, for one platform."""
    text = jax.jit(program).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
    found = DOT.findall(text)
    assert len(found) == text.count("stablehlo.dot_general"), "one that states no precision"
    return found


def encoder_gradient(dtype: str) -> tuple[Any, tuple[Any, ...]]:
    config = DualEncoderConfig(BERT, pooling="mean")

    def loss(params: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        return embed(config, tower(params, "passage"), tokens, lengths, dtype=dtype).sum()

    return jax.grad(loss), (abstract_params(config), shape("int32", 4, 16), shape("int32", 4))


def masked_language_model(dtype: str, mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    config = MlmConfig(name="mlm", start="", data=PretrainData(corpora=(), max_length=16, held_out=0), dtype=dtype)  # pyright: ignore
    loss = mlm_programs(config, BERT, mesh).loss
    params = define(lambda rngs: MaskedLm(BERT, dtype=dtype, rngs=rngs))[1]
    places = [shape(kind, 4, 3) for kind in ("int32", "int32", "float32")]
    batch = MaskedBatch(shape("int32", 4, 16), shape("int32", 4), *places)
    return jax.grad(lambda params, batch: loss(params, batch, None)[0]), (params, batch)


def teacher(dtype: str) -> tuple[Any, tuple[Any, ...]]:
    program = partial(score_pairs, T5, Prompt(prefix=(3, 4), suffix=(5, 1)), dtype=dtype)
    texts = (shape("int32", 4, 16), shape("int32", 4))
    return program, (define(lambda rngs: T5Model(T5, rngs=rngs))[1], *texts, *texts)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@pytest.mark.parametrize("model", ["encoder", "masked language model", "teacher"])
def test_float32_is_neither_rounded_to_tf32_nor_to_bfloat16(model: str, platform: str, mesh1: Any) -> None:
    """A float32 run would otherwise train, and score, with 10 or 7 bits of its 23, and say nothing."""
    makers: dict[str, Any] = {
        "encoder": encoder_gradient,
        "masked language model": partial(masked_language_model, mesh=mesh1),
        "teacher": teacher,
    }
    program, arguments = makers[model]("float32")
    found = dots(program, platform, *arguments)
    assert len(found) > 4 and set(found) == {("HIGHEST", "HIGHEST", "f32", "f32")}

    # Of a bfloat16 model every product is, also those of the backward pass, which take two thirds of the time; but not the
    # mean over the tokens.
    program, arguments = makers[model]("bfloat16")
    found = dots(program, platform, *arguments)
    assert {dot[:2] for dot in found} == {("DEFAULT", "DEFAULT")}
    others = [dot for dot in found if dot[2:] != ("bf16", "bf16")]
    assert len(found) > 4 + len(others) and len(others) == MEANT[model]


@pytest.mark.parametrize("block", ["post", "pre", "rotary", "sandwich", "t5"])
def test_states_between_layers_are_bfloat16_where_one_asks(block: str) -> None:
    """What layers read, add and keep for the backward pass; the results are those of float32 up to rounding."""
    shapes: dict[str, Any] = {
        "post": BERT,
        "pre": dataclasses.replace(BERT, pre_layer_norm=True),
        "rotary": DECODER,
        "sandwich": dataclasses.replace(DECODER, norm_order="sandwich"),
        "t5": T5EncoderConfig(vocab_size=400, d_model=16, d_kv=8, d_ff=24, num_heads=2, num_layers=2),
    }
    config = DualEncoderConfig(shapes[block], pooling="mean", shared=True, normalise=True)
    params, rng = init_params(config, 0), np.random.default_rng(3)
    tokens, lengths = rng.integers(1, BERT.vocab_size, (4, 12)), np.array([12, 9, 1, 12], np.int32)

    def encode(params: Any, **numbers: Any) -> jax.Array:
        return embed(config, tower(params, "passage"), tokens, lengths, **numbers)

    def carried(**numbers: Any) -> set[str]:
        gradient = jax.make_jaxpr(jax.grad(lambda params: encode(params, **numbers).sum()))(params)
        scans = [eqn for eqn in gradient.eqns if eqn.primitive.name == "scan"]
        assert len(scans) == 2
        avals = [x.aval for scan in scans for x in scan.outvars]
        return {aval.dtype.name for aval in avals if aval.shape[-3:] == (4, 12, 16)}

    assert carried(dtype="bfloat16") == {"float32"}
    assert carried(dtype="bfloat16", residual="bfloat16") == {"bfloat16"}
    exact, rounded, most = (
        np.asarray(jax.jit(partial(encode, **numbers))(params))
        for numbers in (
            {"dtype": "float32"},
            {"dtype": "bfloat16"},
            {"dtype": "bfloat16", "residual": "bfloat16"},
        )
    )
    assert np.abs(most - rounded).max() > 0
    assert np.abs(most - exact).max() < 0.02


def test_a_precision_that_the_user_has_chosen_stays(mesh1: Any) -> None:
    program, arguments = encoder_gradient("float32")
    with jax.default_matmul_precision("tensorfloat32"):
        found = dots(program, "cuda", *arguments)
    assert {dot[:2] for dot in found} == {("HIGH", "HIGH")}


def test_a_factor_behind_a_bias_is_the_biass_too() -> None:
    rng = np.random.default_rng(2)
    x, kernel, bias = (rng.normal(size=size).astype(np.float32) for size in ((8, 16), (16, 32), (32,)))

    @jax.jit
    def projected(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        y = product("nd,de->ne", x, kernel, jnp.float32, bias=bias, result=jnp.float32)
        return scaled(y.reshape(2, 4, 2, 16), 0.125).transpose(0, 2, 1, 3)

    expected = (0.125 * (x.astype(np.float64) @ kernel + 100 * bias)).reshape(2, 4, 2, 16).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(projected(x, kernel, 100 * bias), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (DualEncoderConfig(BERT), 1),
        (DualEncoderConfig(DECODER, pooling="mean"), 2),  # local and global layers
        (DualEncoderConfig(BERT, adapter=AdapterShape(bottleneck=4, scale=4.0)), 2),
    ],
    ids=["bert", "rotary", "adapters"],
)
def test_something_stands_between_a_bias_and_a_factor_on_gpus(config: DualEncoderConfig, count: int) -> None:
    def encode(params: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        return embed(config, tower(params, "passage"), tokens, lengths, dtype="float32")

    trace = jax.jit(encode).trace(abstract_params(config), shape("int32", 4, 16), shape("int32", 4))
    cpu, cuda = (trace.lower(lowering_platforms=(platform,)).as_text() for platform in ("cpu", "cuda"))
    scores = 0 if config.backbone is DECODER else 1  # has a barrier of its own
    assert cuda.count("optimization_barrier") - scores == count and "optimization_barrier" not in cpu
