"""The attention kernels of GPUs, elsewhere run as JAX operations: against float64, the written-out form, and where programs take them."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from test_attention_kernels import lowered

from jaxretr.models.backbones import fused_attention
from jaxretr.models.backbones.attention_kernels import ATTENTION_VARIABLE, KeyBias
from jaxretr.models.backbones.dropout import Dropout, PackedKeys, dropped
from jaxretr.models.backbones.fused_attention import Form
from jaxretr.models.backbones.layers import attend, key_bias
from jaxretr.runtime.parallel.mesh import DATA, make_mesh

RATE = 0.25
# bfloat16 keeps 8 bits: a rounded number is off by .002 of itself (root mean square .0017), a sum of products of two by less
# than .003. Measured: .0015 to .0033, and as much in the written-out form.
TOLERANCE = 0.005

Arrays = dict[str, np.ndarray]


class Rows(NamedTuple):
    q: jax.Array
    k: jax.Array
    v: jax.Array
    cotangent: jax.Array  # zero at padding positions, which no loss reads
    bias: KeyBias
    keys: jax.Array | None


def drawn(
    lengths: list[int], length: int, *, heads: int = 2, size: int = 16, rate: float = RATE, biased: bool = False
) -> Rows:
    rng = np.random.default_rng(length + size)
    shape = (len(lengths), length, heads, size)
    # Scores of a spread of 2, so that probabilities are neither equal nor all in one place.
    q, k, v, cotangent = (jnp.bfloat16(rng.standard_normal(shape) * 2**0.5) for _ in range(4))
    real = np.arange(length) < np.array(lengths)[:, None]
    cotangent = jnp.where(real[:, :, None, None], cotangent, 0).reshape(len(lengths), length, heads * size)
    positions = jnp.float32(rng.standard_normal((1, heads, length, length))) if biased else None
    keys = Dropout(jax.random.split(jax.random.key(5), len(lengths)), rate).next_keys()
    return Rows(q, k, v, cotangent, key_bias(jnp.array(lengths), length, positions), keys)


def by_kernels(rows: Rows, rate: float = RATE) -> Arrays:
    """The output, and the gradients of queries, keys and values."""
    return outcomes(lambda q, k, v: fused(q, k, v, rows.bias, rows.keys, rate=rate), rows)


def by_xla(rows: Rows, rate: float = RATE) -> Arrays:
    """The same of the written-out form, which CPUs run."""
    return outcomes(lambda q, k, v: written_out(q, k, v, rows.bias, rows.keys, rate=rate), rows)


def in_float64(rows: Rows, rate: float = RATE) -> Arrays:
    """The same of formulas of this file's."""
    with jax.enable_x64(True):
        wide = rows._replace(**{name: jnp.float64(getattr(rows, name)) for name in ("q", "k", "v", "cotangent")})
        return outcomes(lambda q, k, v: reference(q, k, v, rows.bias, rows.keys, rate), wide)


def fused(q: jax.Array, k: jax.Array, v: jax.Array, bias: KeyBias, keys: Any, *, rate: float = RATE) -> jax.Array:
    form = Form(q.shape[-1] ** -0.5, rate, interpret=jax.default_backend() != "gpu")
    return fused_attention.fused_attention(q, k, v, bias, keys, form, partial(written_out, rate=rate))


def written_out(q: jax.Array, k: jax.Array, v: jax.Array, bias: KeyBias, keys: Any, *, rate: float) -> jax.Array:
    drop = Dropout(None, rate)
    drop.next_keys = lambda: keys
    return attend(q, k, v, bias, "bfloat16", drop, scale=q.shape[-1] ** -0.5)


def reference(q: jax.Array, k: jax.Array, v: jax.Array, bias: KeyBias, keys: Any, rate: float) -> jax.Array:
    scores = jnp.einsum("blhd,bmhd->bhlm", q, k) * q.shape[-1] ** -0.5 + bias.hidden.swapaxes(-1, -2)
    scores = scores if bias.positions is None else scores + bias.positions.swapaxes(-1, -2)
    mask = 1.0 if keys is None else dropped(jnp.ones(scores.shape), keys, rate)
    out = jnp.einsum("bhlm,bmhd->blhd", jax.nn.softmax(scores) * mask, v)
    return out.reshape(*out.shape[:2], -1)


def outcomes(attention: Callable[..., jax.Array], rows: Rows) -> Arrays:
    @jax.jit
    def run(q: jax.Array, k: jax.Array, v: jax.Array, cotangent: jax.Array) -> Any:
        out, back = jax.vjp(attention, q, k, v)
        return out, *back(cotangent)

    real = np.arange(rows.q.shape[1]) < np.asarray(rows.bias.lengths)[:, None]
    out, *gradients = (np.asarray(x, np.float64) for x in run(*rows[:4]))
    return {"out": np.where(real[:, :, None], out, 0), **dict(zip("qkv", gradients, strict=True))}


def assert_near(found: Arrays, expected: Arrays, tolerance: float = TOLERANCE) -> None:
    for name, one in found.items():
        error = np.linalg.norm(one - expected[name]) / np.linalg.norm(expected[name])
        assert error < tolerance, f"{name}: {error}"


@pytest.fixture(autouse=True)
def no_kernels_in_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written out is written out on GPUs too."""
    monkeypatch.setenv(ATTENTION_VARIABLE, "xla")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks in rows of few tokens."""
    monkeypatch.setattr(fused_attention, "BLOCK", 16)


@pytest.mark.parametrize(
    ("rate", "biased"), [pytest.param(0.0, False, marks=pytest.mark.slow), (RATE, False), (RATE, True)]
)
@pytest.mark.usefixtures("small_blocks")
def test_attention_and_its_gradient_are_those_of_float64(rate: float, biased: bool) -> None:
    """Rows that fill all blocks, end within one, at the end of one, and with their first token; nothing of padding is read."""
    rows = drawn([40, 23, 16, 1], 40, rate=rate, biased=biased)
    expected = in_float64(rows, rate)
    assert_near(by_kernels(rows, rate), expected)
    assert_near(by_xla(rows, rate), expected)
    # What stands at padding positions goes into no sum.
    real = (np.arange(40) < np.array([40, 23, 16, 1])[:, None])[:, :, None, None]
    other = rows._replace(**{name: jnp.where(real, getattr(rows, name), 1e30) for name in "qkv"})
    found = by_kernels(rows, rate)
    for name, one in by_kernels(other, rate).items() if not biased else ():
        np.testing.assert_array_equal(one, found[name])


@pytest.mark.slow
@pytest.mark.parametrize(("length", "size"), [(8, 16), (72, 32), (144, 64), (256, 128), (512, 64)])
def test_every_length_and_size(length: int, size: int) -> None:
    lengths = sorted({1, length // 3 + 1, 64, length} - set(range(length + 1, 65)))
    for biased in (False, True) if size == 64 else (False,):
        rows = drawn(lengths, length, size=size, biased=biased)
        expected = in_float64(rows)
        assert_near(by_kernels(rows), expected)
        assert_near(by_xla(rows), expected)


@pytest.mark.slow
def test_every_row_length() -> None:
    rows = drawn(list(range(1, 73)), 72, heads=1)
    assert_near(by_kernels(rows), in_float64(rows))


@pytest.mark.usefixtures("small_blocks")
def test_the_masks_are_those_of_dropout() -> None:
    """With queries of 0 and values that are unit vectors, the output is the mask itself."""
    length, heads = 40, 2
    keys = jax.random.split(jax.random.key(5), 3)
    q = jnp.zeros((3, length, heads, 64), jnp.bfloat16)
    v = jnp.broadcast_to(jnp.eye(length, 64, dtype=jnp.bfloat16)[:, None], q.shape)
    words = Dropout(keys, RATE).next_keys()
    out = fused(q, q, v, key_bias(jnp.full(3, length), length), words)
    found = np.asarray(out.reshape(3, length, heads, 64).transpose(0, 2, 1, 3))[..., :length] > 0
    expected = np.asarray(Dropout(keys, RATE)(jnp.ones((3, heads, length, length)))) > 0
    np.testing.assert_array_equal(found, expected)
    assert 0.7 < found.mean() < 0.8


def test_handing_out_the_next_keys_counts_as_a_call() -> None:
    keys = jax.random.split(jax.random.key(1), 2)
    one, other = Dropout(keys, RATE), Dropout(keys, RATE)
    x = jnp.ones((2, 64))
    np.testing.assert_array_equal(dropped(x, one.next_keys(), RATE), other(x))
    np.testing.assert_array_equal(one(x), other(x))
    assert Dropout(None, RATE).next_keys() is None
    assert Dropout(keys, 0.0).next_keys() is None


@pytest.mark.usefixtures("small_blocks")
def test_rows_without_tokens_are_finite_and_padding_queries_are_zero() -> None:
    rows = drawn([0, 5], 24)
    out, back = jax.vjp(lambda q, k, v: fused(q, k, v, rows.bias, rows.keys), *rows[:3])
    for x in (out, *back(jnp.ones_like(out))):
        assert np.isfinite(np.asarray(x, np.float32)).all()
        assert not np.asarray(x, np.float32)[0].any()
        assert not np.asarray(x, np.float32)[1, 5:].any()
        assert np.asarray(x, np.float32)[1, :5].any()


@pytest.mark.usefixtures("small_blocks")
def test_padding_and_the_batch_change_no_bit() -> None:
    """As everything that a row goes through: its state does not depend on the chunk that it is in."""
    lengths = [20, 7]
    wide = drawn(lengths, 40)

    def of(rows: Any, length: int) -> Arrays:
        q, k, v, cotangent = (x[rows, :length] for x in wide[:4])
        bias = key_bias(jnp.array(lengths)[rows], length)
        return by_kernels(Rows(q, k, v, cotangent, bias, wide.keys[rows]))  # pyright: ignore[reportOptionalSubscript]

    whole = of(slice(None), 40)
    for rows in (slice(None), slice(1, 2)):
        for name, one in of(rows, 24).items():
            np.testing.assert_array_equal(one, whole[name][rows, :24], err_msg=name)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("biased", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_texts_in_packed_rows_are_to_the_bit_what_they_are_alone(biased: bool) -> None:
    lengths = [20, 7, 1, 16, 3]
    alone, positions = drawn(lengths, 24), None
    if biased:  # by the distance of a key, as all biases of positions are
        distances = np.arange(40)[:, None] - np.arange(40)
        positions = jnp.float32(np.random.default_rng(1).standard_normal((1, 2, 79))[..., distances + 39])
        alone = alone._replace(bias=alone.bias._replace(positions=positions[..., :24, :24]))
    # Places (row, start) of the texts; the rows' ends are unfilled and hold what nobody may read.
    order = [[2, 0, 4], [3, 1, 5]]
    sizes = np.array([[lengths[text] if text < 5 else 0 for text in row] for row in order])
    starts = np.cumsum(sizes, axis=1) - sizes
    packed = {name: np.full((2, 40, 2, 16), 3.0, np.float32) for name in ("q", "k", "v", "cotangent")}
    places = [
        (text, row, slice(start, start + lengths[text]))
        for row, texts in enumerate(order)
        for text, start in zip(texts, starts[row], strict=True)
        if text < 5
    ]
    for name, values in packed.items():
        for text, row, place in places:
            values[row, place] = np.asarray(getattr(alone, name), np.float32).reshape(5, 24, 2, 16)[
                text, : lengths[text]
            ]
    bias = key_bias(jnp.array(sizes, jnp.int32), 40, positions)
    arrays = {name: jnp.bfloat16(values) for name, values in packed.items()}
    cotangent = arrays["cotangent"].reshape(2, 40, 32)
    keys = PackedKeys(alone.keys[np.minimum(order, 4)], bias.lengths)
    both = Rows(arrays["q"], arrays["k"], arrays["v"], cotangent, bias, None)
    out = jax.jit(lambda *qkv: fused(*qkv, bias, keys))(*both[:3])
    expected = by_kernels(alone)
    gradients = jax.jit(lambda q, k, v, c: jax.vjp(lambda *qkv: fused(*qkv, bias, keys), q, k, v)[1](c))
    found = {"out": out, **(dict(zip("qkv", gradients(*both[:4]), strict=True)) if not biased else {})}
    for name, values in found.items():
        flat = np.asarray(values, np.float64).reshape(2, 40, -1)
        for text, row, place in places:
            own = expected[name][text, : lengths[text]].reshape(lengths[text], -1)
            np.testing.assert_array_equal(flat[row, place], own, err_msg=f"{name} of {text}")
        assert not flat[0, 24:].any() and not flat[1, 23:].any(), name  # the unfilled ends
    near = written_out(*both[:3], bias, keys, rate=RATE)
    for text, row, place in places:
        one, other = (np.asarray(x, np.float64).reshape(2, 40, -1)[row, place] for x in (near, out))
        assert np.linalg.norm(one - other) < TOLERANCE * np.linalg.norm(other), text


def layers(
    weights: jax.Array, q: jax.Array, v: jax.Array, lengths: jax.Array, keys: jax.Array, attention: Any
) -> jax.Array:
    """A sum over what a scan of checkpointed layers of attention gives at real positions."""

    def body(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
        k = (weight * x.astype(jnp.float32)).astype(x.dtype)
        out = attention(x, k, v, key_bias(lengths, x.shape[1]), keys)
        return x + out.reshape(x.shape), None

    x = jax.lax.scan(jax.checkpoint(body, prevent_cse=False), q, weights)[0]
    real = jnp.arange(x.shape[1]) < lengths[:, None]
    return jnp.where(real[:, :, None, None], x, 0).astype(jnp.float32).sum()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.slow
def test_the_kernels_run_in_checkpointed_layers_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = drawn([24, 9, 17, 1], 24)
    weights = jnp.linspace(0.5, 1.5, 2 * 16).reshape(2, 16)
    data = rows.q, rows.v, rows.bias.lengths, rows.keys
    loss = partial(layers, attention=fused)
    expected = jax.jit(jax.value_and_grad(loss))(weights, *data)
    mesh = make_mesh(jax.devices()[:2])
    specs = PartitionSpec(), *[PartitionSpec(DATA)] * 4

    def apart(weights: jax.Array, *data: jax.Array) -> Any:
        return jax.tree.map(lambda x: jax.lax.psum(x, DATA), jax.value_and_grad(loss)(weights, *data))

    # JAX cannot check the types of kernels that it runs as operations.
    found = jax.jit(jax.shard_map(apart, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False))
    for one, other in zip(found(weights, *data), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * float(jnp.abs(other).max()))

    # Those of a program for GPUs it checks.
    monkeypatch.delenv(ATTENTION_VARIABLE, raising=False)

    def attention(q: jax.Array, k: jax.Array, v: jax.Array, bias: KeyBias, keys: jax.Array) -> jax.Array:
        drop = Dropout(None, RATE)
        drop.next_keys = lambda: keys
        return attend(q, k, v, bias, "bfloat16", drop)

    def of_gpus(weights: jax.Array, *data: jax.Array) -> Any:
        loss, gradient = jax.value_and_grad(partial(layers, attention=attention))(weights, *data)
        return jax.lax.psum(loss, DATA), gradient

    program = jax.shard_map(of_gpus, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())
    text = lowered(program, "cuda", weights, *data)
    assert "_backward_kernel" in text


def test_only_programs_for_nvidia_gpus_take_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ATTENTION_VARIABLE, raising=False)
    keys = jax.random.split(jax.random.key(0), 2)
    q = jax.ShapeDtypeStruct((2, 24, 2, 16), jnp.bfloat16)

    def gradient(q: jax.Array, dtype: str = "bfloat16") -> Any:
        def loss(q: jax.Array) -> jax.Array:
            bias, drop = key_bias(jnp.array([24, 3]), 24), Dropout(keys, RATE)
            return attend(q, q, q, bias, dtype, drop).astype(jnp.float32).sum()

        return jax.grad(loss)(q)

    text = lowered(gradient, "cuda", q)
    assert "_forward_kernel" in text
    assert "_backward_kernel" in text
    for platform in ("cpu", "tpu"):
        assert "triton" not in lowered(gradient, platform, q)

    def of_packed_rows(q: jax.Array) -> Any:
        bias = key_bias(jnp.array([[9, 3, 0], [20, 2, 2]]), 24)
        drop = Dropout(PackedKeys(jax.random.split(jax.random.key(0), (2, 3)), bias.lengths), RATE)
        return jax.grad(lambda q: attend(q, q, q, bias, "bfloat16", drop).astype(jnp.float32).sum())(q)

    text = lowered(of_packed_rows, "cuda", q)
    assert "_forward_kernel" in text
    assert "_backward_kernel" in text
    # float32 has no such kernel, nor have heads of 8.
    assert "triton" not in lowered(partial(gradient, dtype="float32"), "cuda", q)
    assert "triton" not in lowered(gradient, "cuda", jax.ShapeDtypeStruct((2, 24, 2, 8), jnp.bfloat16))
    monkeypatch.setenv(ATTENTION_VARIABLE, "xla")
    assert "triton" not in lowered(partial(gradient), "cuda", q)
