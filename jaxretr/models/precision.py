"""How exactly accelerators multiply the float32 matrices of a model that is asked to compute in float32."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp


def matmuls_in(dtype: Any) -> contextlib.AbstractContextManager[Any]:
    """A context to trace a model in: with float32 its matmuls are float32 on every device.

    GPUs would otherwise round the operands to TF32, and TPUs to bfloat16. Matmuls of bfloat16 keep the device's own
    precision, and so does everything where the user has chosen one for all of JAX (JAX_DEFAULT_MATMUL_PRECISION).
    Gradients inherit it from the forward pass, unless a custom rule makes them.

    Args:
      dtype: of the model's matmuls, float32 or bfloat16.
    """
    chosen: Any = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    if chosen is not None or jnp.dtype(dtype) != jnp.float32:
        return contextlib.nullcontext()
    return jax.default_matmul_precision("highest")
