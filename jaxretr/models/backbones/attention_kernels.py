"""The choice of attention on NVIDIA GPUs: our kernel, cuDNN's for programs without dropout, or the written-out form."""

import logging
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxretr.runtime.errors import environment_choice
from jaxretr.runtime.parallel.programs import pallas_triton

log = logging.getLogger(__name__)

ATTENTION_VARIABLE = "JAXRETR_ATTENTION"
_CHOICES = "auto", "fused", "cudnn", "xla"

SIZES = (16, 32, 64, 128)
"""Sizes of a head that our kernel supports: powers of two, as Triton requires, from the least that matrix units take."""


class KeyBias(NamedTuple):
    """Addition to the scores of self-attention, in parts: their sum would be as large as the scores.

    Attributes:
      hidden: a very negative number at hidden keys, 0 elsewhere, as `packed_rows.hidden_keys` returns it.
      positions: bias of relative positions, float32 [1, H, keys, queries]; None where there is none.
      lengths: lengths of the padded or packed rows: int32 [B], or [B, M].
    """

    hidden: jax.Array
    positions: jax.Array | None
    lengths: jax.Array


def attention_on_cuda(dtype: Any, size: int, length: int, *, packed: bool, drops: bool) -> str:
    """Return the form of self-attention in programs lowered for CUDA: "fused" for our kernel, "cudnn", or "xla".

    JAXRETR_ATTENTION names one, which is taken where it can compute such rows. Otherwise it is our kernel; cuDNN's if this
    version of JAX has no compiler for ours.

    Args:
      size: size of a head.
      length: L, tokens of a row.

    Raises:
      UsageError: JAXRETR_ATTENTION has another value.
    """
    chosen = environment_choice(ATTENTION_VARIABLE, _CHOICES)
    half = jnp.dtype(dtype) == jnp.bfloat16
    if chosen in ("auto", "fused") and half and size in SIZES and pallas_triton() is not None:
        return "fused"
    left_to_cudnn = chosen == "cudnn" or (chosen == "auto" and pallas_triton() is None and _has_cudnn())
    # Its backward pass takes even lengths only.
    if left_to_cudnn and half and size % 8 == 0 and size <= 128 and length % 2 == 0 and not packed and not drops:
        return "cudnn"
    if chosen in ("fused", "cudnn"):
        _say_written_out(chosen)
    return "xla"


@cache
def _say_written_out(chosen: str) -> None:
    log.info("%s=%s cannot compute all attention of these programs: XLA does the rest", ATTENTION_VARIABLE, chosen)


def _has_cudnn() -> bool:
    try:
        from jax._src.cudnn.fused_attention_stablehlo import check_cudnn_version

        return check_cudnn_version() > 0
    except Exception:  # Whatever it is, programs without it run.
        return False


def by_cudnn(q_blhd: jax.Array, k_bmhd: jax.Array, v_bmhd: jax.Array, bias: KeyBias, scale: float) -> jax.Array:
    """Compute attention of every query position over the real key positions.

    Args:
      q_blhd: queries, bfloat16 [B, L, H, d].
      k_bmhd: keys, bfloat16 [B, L, H, d].
      v_bmhd: values, bfloat16 [B, L, H, d].
      scale: factor of the scores, before the bias.

    Returns:
      bfloat16 [B, L, H * d]; undefined at padding positions.
    """
    positions = None if bias.positions is None else bias.positions.swapaxes(-1, -2).astype(q_blhd.dtype)
    # A row without tokens would be divided by a sum over nothing.
    lengths = jnp.maximum(bias.lengths, 1).astype(jnp.int32)
    out = jax.nn.dot_product_attention(
        q_blhd,
        k_bmhd,
        v_bmhd,
        bias=positions,
        scale=scale,
        query_seq_lengths=lengths,
        key_value_seq_lengths=lengths,
        implementation="cudnn",
    )
    return out.reshape(*out.shape[:2], -1)
