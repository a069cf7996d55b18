"""Self-attention alone: by our kernels, written out, and by cuDNN, each checked against float32 and timed."""

import os
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.models.backbones.attention_kernels import ATTENTION_VARIABLE
from jaxretr.models.backbones.dropout import Dropout
from jaxretr.models.backbones.layers import attend, key_bias, matmuls_in
from on_gpu.measuring import Part, waits

# One call is over sooner than it is started.
CALLS = 20
# Relative, in norm, of results and gradients in bfloat16.
TOLERANCE = 0.01


class Case(NamedTuple):
    """Rows of one length, or of all lengths up to it, and what is done with them."""

    rows: int
    length: int
    heads: int
    rate: float = 0.0
    positions: bool = False
    backward: bool = False

    @property
    def name(self) -> str:
        """For people."""
        parts = (
            f"{self.rows} x {self.length}, {self.heads} heads",
            f"dropout {self.rate:g}" if self.rate else "",
            "bias of positions" if self.positions else "",
            "forward and backward" if self.backward else "forward",
        )
        return ", ".join(filter(None, parts))


TIMED = (
    Case(256, 144, 12),
    Case(256, 144, 12, rate=0.1),
    Case(256, 144, 12, rate=0.1, backward=True),
    Case(256, 144, 12, backward=True),
    Case(64, 176, 32, positions=True),
    Case(128, 32, 12, rate=0.1, backward=True),
)
CHECKED = tuple(
    Case(8, length, 12, rate=rate, positions=positions, backward=True)
    for length in (136, 144, 256, 512)
    for rate, positions in ((0.0, False), (0.1, False), (0.1, True))
)
TOY = (Case(2, 16, 2, rate=0.1, backward=True), Case(2, 16, 2, positions=True))


class Given(NamedTuple):
    """Arrays of a case, in float32."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    cotangent: jax.Array
    """0 at padding."""
    lengths: jax.Array
    keys: jax.Array
    positions: jax.Array | None


def drawn(case: Case, *, full: bool) -> Given:
    """Random queries, keys and values of rounded numbers; rows are all of the full length, or of any."""
    rng = np.random.default_rng(case.length)
    q, k, v, cotangent = (
        jnp.bfloat16(rng.standard_normal((case.rows, case.length, case.heads, 64), np.float32)) for _ in range(4)
    )
    lengths = rng.integers(1, case.length + 1, case.rows)
    lengths[: case.rows if full else 1] = case.length
    real = (np.arange(case.length) < lengths[:, None])[:, :, None, None]
    positions = rng.standard_normal((1, case.heads, case.length, case.length), np.float32) if case.positions else None
    keys = jax.random.key_data(jax.random.split(jax.random.key(1), case.rows))
    arrays = (jnp.float32(x) for x in (q, k, v, jnp.where(real, cotangent, 0)))
    return Given(*arrays, jnp.int32(lengths), keys, None if positions is None else jnp.asarray(positions))


def attended(case: Case, dtype: str, given: Given) -> tuple[jax.Array, ...]:
    """The attention, float32 and 0 at padding; then the gradients of queries, keys and values, if the case has them."""
    bias = key_bias(given.lengths, case.length, given.positions)

    def of_qkv(*qkv: jax.Array) -> jax.Array:
        drop = Dropout(given.keys, case.rate)
        scale = 1.0 if case.positions else 64**-0.5
        with matmuls_in(dtype):
            return attend(*(x.astype(dtype) for x in qkv), bias, dtype, drop, scale=scale)

    qkv = given.q, given.k, given.v
    real = jnp.arange(case.length) < given.lengths[:, None]
    if not case.backward:
        return (jnp.where(real[..., None], of_qkv(*qkv), 0).astype(jnp.float32),)
    out, pull = jax.vjp(of_qkv, *qkv)
    gradients = pull(given.cotangent.reshape(out.shape).astype(out.dtype))
    return jnp.where(real[..., None], out, 0).astype(jnp.float32), *gradients


def repeated(case: Case, given: Given) -> Any:
    """The same some times, each with what the one before it gave."""

    def once(_: Any, qkv: Any) -> Any:
        found = attended(case, "bfloat16", given._replace(q=qkv[0], k=qkv[1], v=qkv[2]))
        fresh = [x.reshape(given.q.shape) for x in found]
        return tuple(fresh[1:]) if case.backward else (fresh[0], *qkv[1:])

    return jax.lax.fori_loop(0, CALLS, once, (given.q, given.k, given.v))


def left_to(kind: str) -> AbstractContextManager[Any]:
    """Attention by "fused", "xla" or "cudnn", in what is traced meanwhile."""
    return mock.patch.dict(os.environ, {ATTENTION_VARIABLE: kind})


def kinds_of(case: Case) -> tuple[str, ...]:
    """What can do a case here; cuDNN's dropout is another one, and its gradient of a bias is not asked for."""
    if jax.default_backend() != "gpu":
        return ("xla",)
    return ("fused", "xla") if case.rate or (case.positions and case.backward) else ("fused", "xla", "cudnn")


def alone(part: Part) -> None:
    """Checks, then times."""
    for case in TOY if part.toy else CHECKED:
        given = drawn(case, full=False)
        with left_to("xla"):
            expected = jax.jit(partial(attended, case, "float32"))(given)
        errors = {kind: worst(case, kind, given, expected) for kind in kinds_of(case)}
        part.say(f"{case.name}: error {', '.join(f'{kind} {error:.4f}' for kind, error in errors.items())}")
    timed = TOY if part.toy else TIMED
    works = [(case, kind) for case in timed for kind in kinds_of(case)]
    for done, (case, kind) in enumerate(works):
        given, name = drawn(case, full=True), f"{CALLS} times attention by {kind}, {case.name}"
        with left_to(kind):
            call, seconds = part.compiled(name, jax.jit(partial(repeated, case)), given)
        part.compare(name, waits(partial(call, given)), None, share=1 / (len(works) - done), compile=seconds)


def worst(case: Case, kind: str, given: Given, expected: tuple[jax.Array, ...]) -> float:
    """The largest relative error of results and gradients; raises where one is too large."""
    with left_to(kind):
        found = jax.jit(partial(attended, case, "bfloat16"))(given)
    errors = [float(jnp.linalg.norm(x - y) / jnp.linalg.norm(y)) for x, y in zip(found, expected, strict=True)]
    if not max(errors) < TOLERANCE:
        raise ValueError(f"attention by {kind}, {case.name}, differs from float32 by {max(errors):.3g}")
    return max(errors)
