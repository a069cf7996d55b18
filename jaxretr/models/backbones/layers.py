"""The few layers of the encoders and T5, and functions that define, bind and trace a model of them.

Numbers: parameters, norms and softmax are float32, and so is the residual stream unless `residual_in` says otherwise.
Dense layers and attention read and return the model's compute type, with sums in float32 that are rounded once, in both
passes: see products.py.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxretr.models.backbones.attention_kernels import KeyBias, attention_on_cuda, by_cudnn
from jaxretr.models.backbones.dropout import Dropout, dropped
from jaxretr.models.backbones.fused_attention import Form, fused_attention
from jaxretr.models.backbones.layer_stacks import bits_of, from_bits, kept_result, within
from jaxretr.models.backbones.packed_rows import are_packed, hidden_keys
from jaxretr.models.backbones.products import product
from jaxretr.runtime.parallel.split_parameters import rows_of, whole

Params = dict[str, Any]


_residual = contextvars.ContextVar("residual", default="float32")


def residual_in(dtype: str) -> contextlib.AbstractContextManager[None]:
    """A context to trace a model in, whose states between layers, and the additions to them, are of this type.

    In bfloat16 they are half the bytes, which layers read and write several times, and are rounded twice a layer.
    """
    return within(_residual, dtype)


def residual(x: jax.Array) -> jax.Array:
    """Return x in the type of the residual stream."""
    return x.astype(_residual.get())


def added(x: jax.Array, *additions: jax.Array | float) -> jax.Array:
    """Return the residual stream with additions, a sum in float32."""
    return sum((y.astype(jnp.float32) for y in additions if isinstance(y, jax.Array)), x.astype(jnp.float32))


class Dense(nnx.Module):
    """x @ kernel + bias with operands of type `dtype`; the result is of type `result`, by default `dtype`, and of the residual
    stream's type if it is added to that."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool,
        std: float,
        dtype: Any,
        rngs: nnx.Rngs,
        result: Any = None,
        added: bool = False,
    ):
        self.kernel = nnx.Param(std * jax.random.normal(rngs.params(), (inputs, outputs), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((outputs,), jnp.float32)) if bias else None
        self.shape = inputs, outputs
        self.dtype, self.result, self.added = dtype, result or dtype, added

    def __call__(self, x: jax.Array) -> jax.Array:
        # One flat matmul of all tokens, which XLA on CPUs computes much faster than a batched one.
        flat = x.reshape(-1, x.shape[-1]).astype(self.dtype)
        kernel = whole(self.kernel[...], self.shape, self.dtype)
        bias = None if self.bias is None else self.bias[...]
        result = _residual.get() if self.added else self.result
        y = product("nd,de->ne", flat, kernel, self.dtype, bias=bias, result=result)
        return kept_result(y).reshape(*x.shape[:-1], -1)


class LayerNorm(nnx.Module):
    """Layer normalisation over the last axis, in float32."""

    def __init__(self, size: int, eps: float, *, bias: bool = True):
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((size,), jnp.float32)) if bias else None
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        return layer_norm(x, self.scale[...], None if self.bias is None else self.bias[...], self.eps)


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
    """Normalise x [..., D] over its last axis, in float32."""
    x = x.astype(jnp.float32)
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    y = centred * jax.lax.rsqrt(variance + eps) * scale
    return y if bias is None else y + bias


class RMSNorm(nnx.Module):
    """Normalisation without mean and bias, in float32, as in T5 and most decoders.

    With an `offset` the scale is stored less 1, as in Gemma.
    """

    def __init__(self, size: int, eps: float, *, offset: bool = False):
        self.scale = nnx.Param((jnp.zeros if offset else jnp.ones)((size,), jnp.float32))
        self.eps, self.offset = eps, offset

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.astype(jnp.float32)
        variance = jnp.square(x).mean(axis=-1, keepdims=True)
        scale = 1.0 + self.scale[...] if self.offset else self.scale[...]
        return x * jax.lax.rsqrt(variance + self.eps) * scale


class Embedding(nnx.Module):
    """A table of rows, looked up by id; the result is float32, also if the table is stored as bfloat16."""

    def __init__(self, rows: int, size: int, *, std: float, rngs: nnx.Rngs):
        self.table = nnx.Param(std * jax.random.normal(rngs.params(), (rows, size), jnp.float32))
        self.size = size

    def __call__(self, ids: jax.Array) -> jax.Array:
        table = self.table[...]
        if table.dtype != jnp.bfloat16:
            return rows_of(table, ids, self.size).astype(jnp.float32)

        def on_cpus(table: jax.Array, ids: jax.Array) -> jax.Array:
            # XLA on CPUs would cast the whole table to float32 first.
            return from_bits(rows_of(bits_of(table), ids, self.size), table.dtype)

        found = jax.lax.platform_dependent(
            table, ids, cpu=on_cpus, default=lambda table, ids: rows_of(table, ids, self.size)
        )
        return found.astype(jnp.float32)

    def repeated(self, ids: jax.Array) -> jax.Array:
        """Look up ids of which many are equal: the gradient is a product, where a scatter's additions would wait for each
        other on a GPU, and be in any order."""
        table = self.table[...]
        if table.dtype == jnp.bfloat16 or table.shape[1] != self.size:
            return self(ids)
        return _repeated_rows(len(table), table, ids)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _repeated_rows(rows: int, table: jax.Array, ids: jax.Array) -> jax.Array:
    return table[ids].astype(jnp.float32)


def _repeated_rows_backward(rows: int, ids: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, None]:
    chosen = jax.nn.one_hot(ids, rows, dtype=cotangent.dtype)
    return jnp.einsum("...r,...d->rd", chosen, cotangent, precision=jax.lax.Precision.HIGHEST), None


_repeated_rows.defvjp(lambda rows, table, ids: (_repeated_rows(rows, table, ids), ids), _repeated_rows_backward)


def scaled(x: jax.Array, factor: float) -> jax.Array:
    """Return factor x, where x may be the result of a dense layer with a bias.

    XLA on NVIDIA GPUs makes such a factor part of the product and forgets it for the bias (openxla/xla#46110), unless
    something stands between them.
    """
    x = jax.lax.platform_dependent(x, cuda=jax.lax.optimization_barrier, default=lambda x: x)
    return x * factor


def linear(params: Params, x: jax.Array) -> jax.Array:
    """Return x [n, D] @ kernel + bias of a small layer after an encoder. float32 costs nothing there, and accelerators
    would round the operands by default."""
    y = jnp.matmul(x, params["kernel"], precision=jax.lax.Precision.HIGHEST)
    return y + params["bias"] if "bias" in params else y


def chosen_log_probs(logits: jax.Array, ids: jax.Array) -> jax.Array:
    """Return log softmax(logits)[id]: logits float32 [..., V], ids integers [...] -> float32 [...]."""
    chosen = jnp.take_along_axis(logits, ids[..., None].astype(jnp.int32), axis=-1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    # jax.nn.gelu(approximate=False) uses erfc, which takes 2.6 times as long as this in XLA on CPUs.
    "gelu": lambda x: 0.5 * x * (1.0 + jax.lax.erf(x * math.sqrt(0.5))),
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


def attend(
    q_blhd: jax.Array,
    k_bmhd: jax.Array,
    v_bmhd: jax.Array,
    bias: jax.Array | KeyBias,
    dtype: Any,
    drop: Dropout,
    *,
    scale: float = 1.0,
) -> jax.Array:
    """Compute attention of every query position over all key positions.

    With the heads moved forward first and the scores laid out queries x keys, this is the fastest form that XLA
    compiles for CPUs (the more so the longer the rows: keys x queries takes 1.2 times as long at 128 tokens and 1.5
    times at 256), and no slower elsewhere.

    Args:
      q_blhd: queries, with shape [B, L, H, d].
      k_bmhd: keys, with shape [B, M, H, d].
      v_bmhd: values, with shape [B, M, H, d].
      bias: bias of the scores, broadcastable to [B, H, M, L]; a very negative number masks. The parts of a `KeyBias`,
        which come from rows' lengths and positions, can be left to a kernel, see attention_kernels.py.

    Returns:
      [B, L, H * d], of type `dtype`; with a `KeyBias`, undefined but finite at padding positions.

    Raises:
      UsageError: JAXRETR_ATTENTION names no kind of attention.
    """
    keys, size = drop.next_keys(), q_blhd.shape[-1]
    early = jnp.dtype(dtype) == jnp.float32

    def written_out(q_blhd: jax.Array, k_bmhd: jax.Array, v_bmhd: jax.Array, bias: Any, keys: Any) -> jax.Array:
        # Queries are the smaller array; where scaling would round them again, the scores are scaled instead.
        queries = scaled(q_blhd, scale) if early else q_blhd
        q, k, v = (x.astype(dtype).transpose(0, 2, 1, 3) for x in (queries, k_bmhd, v_bmhd))
        scores = product("bhld,bhmd->bhlm", q, k, dtype, result=jnp.float32)
        scores = scores if early else scores * scale
        if isinstance(bias, KeyBias):
            # XLA would write the bias out for all rows, so that cuBLAS can add the product to it.
            scores = jax.lax.platform_dependent(
                scores, cuda=jax.lax.optimization_barrier, default=lambda scores: scores
            )
        for part in (bias.hidden, bias.positions) if isinstance(bias, KeyBias) else (bias,):
            scores = scores if part is None else scores + part.swapaxes(-1, -2)
        probabilities = dropped(jax.nn.softmax(scores, axis=-1), keys, drop.rate)
        out = product("bhlm,bhmd->bhld", probabilities.astype(dtype), v, dtype)
        batch, heads, length, size = out.shape
        return out.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)

    arguments = q_blhd, k_bmhd, v_bmhd, bias, keys
    chosen = "xla"
    if isinstance(bias, KeyBias):
        length, packed = q_blhd.shape[1], are_packed(bias.lengths)
        chosen = attention_on_cuda(dtype, size, length, packed=packed, drops=keys is not None)
    if chosen == "fused":
        form = Form(scale, drop.rate)

        def on_cuda(q_blhd: jax.Array, k_bmhd: jax.Array, v_bmhd: jax.Array, bias: KeyBias, keys: Any) -> jax.Array:
            q, k, v = (x.astype(dtype) for x in (q_blhd, k_bmhd, v_bmhd))
            return fused_attention(q, k, v, bias, keys, form, written_out)
    elif chosen == "cudnn":

        def on_cuda(q_blhd: jax.Array, k_bmhd: jax.Array, v_bmhd: jax.Array, bias: KeyBias, keys: Any) -> jax.Array:
            q, k, v = (x.astype(dtype) for x in (q_blhd, k_bmhd, v_bmhd))
            return by_cudnn(q, k, v, bias, scale)
    else:
        return written_out(*arguments)
    return jax.lax.platform_dependent(*arguments, cuda=on_cuda, default=written_out)


def key_bias(lengths: jax.Array, length: int, positions: jax.Array | None = None) -> KeyBias:
    """Return the bias of self-attention over rows of `length` tokens.

    Args:
      lengths: lengths of padded or packed rows, see packed_rows.py.
      length: L.
      positions: the bias of relative positions, float32 [1, H, keys, queries], or None.
    """
    return KeyBias(hidden_keys(lengths, length), positions, lengths)


def define(make: Callable[[nnx.Rngs], nnx.Module]) -> tuple[Any, Params]:
    """Return a model's graph and its abstract parameters (ShapeDtypeStructs in a plain dict), allocating nothing."""
    graph, state = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))))
    return graph, nnx.to_pure_dict(state)


def bind(graph: Any, params: Params) -> Any:
    """Return a model that can be called: its graph with these parameters."""
    return nnx.merge(graph, params)


def initialise(make: Callable[[nnx.Rngs], nnx.Module], seed: int) -> Params:
    """Return freshly drawn parameters in a plain dict of float32 arrays."""

    @jax.jit
    def draw() -> Params:
        return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(seed))))

    return draw()


def matmuls_in(dtype: Any) -> contextlib.AbstractContextManager[Any]:
    """A context to trace a model in; with float32 its matmuls are float32 on every device.

    GPUs would otherwise round the operands to TF32, and TPUs to bfloat16. Matmuls of bfloat16 keep the device's own
    precision, and so does everything if the user has chosen one for all of JAX (JAX_DEFAULT_MATMUL_PRECISION).
    Gradients inherit it from the forward pass, unless a custom rule computes them.
    """
    chosen: Any = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    if chosen is not None or jnp.dtype(dtype) != jnp.float32:
        return contextlib.nullcontext()
    return jax.default_matmul_precision("highest")
