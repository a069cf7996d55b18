"""The attention kernel on NVIDIA GPUs, chosen by JAXRETR_ATTENTION; and cuDNN's, for programs without dropout."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxretr.models.backbones.packed_rows import are_packed
from jaxretr.runtime.errors import environment_choice

ATTENTION_VARIABLE = "JAXRETR_ATTENTION"
_CHOICES = "fused", "cudnn", "xla"


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


def chosen_attention() -> str:
    """Return the attention kernel of programs lowered for CUDA, where it applies: "fused", "cudnn", or "xla" for none.

    Raises:
      UsageError: JAXRETR_ATTENTION has another value.
    """
    return environment_choice(ATTENTION_VARIABLE, _CHOICES)


def can_use_cudnn(dtype: Any, size: int, bias: Any) -> bool:
    """Whether cuDNN has attention for products of this type, heads of this size and rows with such a bias."""
    padded = isinstance(bias, KeyBias) and not are_packed(bias.lengths)
    return padded and jnp.dtype(dtype) == jnp.bfloat16 and size % 8 == 0 and size <= 128


def by_cudnn(q_blhd: jax.Array, k_bmhd: jax.Array, v_bmhd: jax.Array, bias: KeyBias, scale: float) -> jax.Array:
    """Compute attention of every query position over the real key positions.

    Args:
      q_blhd: queries, bfloat16 [B, L, H, d].
      k_bmhd: keys, bfloat16 [B, L, H, d].
      v_bmhd: values, bfloat16 [B, L, H, d].
      bias: bias of the scores.
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
