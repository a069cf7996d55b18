"""Keys and values that a decoder keeps while it generates, so that each new token is computed alone."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from jaxretr.models.backbones.products import product


@jax.tree_util.register_dataclass
@dataclass
class KeptKeys:
    """Keys and values of one layer's attention, with the places of tokens last but one, as attention reads them."""

    keys: jax.Array
    """[B, G, M, d], of the matmuls' type; G heads, each of which serves a group of query heads."""
    values: jax.Array
    """[B, G, M, d], of the matmuls' type."""
    prompt: int = field(metadata={"static": True})
    """Number of the places before those of generated tokens."""

    @property
    def places(self) -> int:
        """M, the number of places."""
        return self.keys.shape[2]

    @classmethod
    def of(cls, k_blgd: jax.Array, v_blgd: jax.Array, room: int, dtype: Any) -> "KeptKeys":
        """Keep keys and values [B, L, G, d] in the first of L + room places."""

        def placed(x: jax.Array) -> jax.Array:
            return jnp.pad(x.astype(dtype).transpose(0, 2, 1, 3), ((0, 0), (0, 0), (0, room), (0, 0)))

        return cls(placed(k_blgd), placed(v_blgd), k_blgd.shape[1])

    def with_token(self, k_b1gd: jax.Array, v_b1gd: jax.Array, place: jax.Array) -> "KeptKeys":
        """Return these with the key and value of one more token, [B, 1, G, d], at a place that is the same in all rows."""

        def updated(kept: jax.Array, new: jax.Array) -> jax.Array:
            new = new.astype(kept.dtype).transpose(0, 2, 1, 3)
            return jax.lax.dynamic_update_slice_in_dim(kept, new, place, axis=2)

        return KeptKeys(updated(self.keys, k_b1gd), updated(self.values, v_b1gd), self.prompt)


def attend_kept(q_b1hd: jax.Array, kept: KeptKeys, bias: jax.Array, dtype: Any) -> jax.Array:
    """Compute attention of one query position of each row over the kept keys.

    Args:
      q_b1hd: queries, with shape [B, 1, H, d].
      bias: bias of the scores, broadcastable to [B, G, H / G, M]; a very negative number masks.

    Returns:
      [B, 1, H * d], of type `dtype`.
    """
    batch, _, heads, size = q_b1hd.shape
    groups = kept.keys.shape[1]
    q = q_b1hd.astype(dtype).reshape(batch, groups, heads // groups, size)
    scores = product("bgrd,bgmd->bgrm", q, kept.keys, dtype, result=jnp.float32) + bias
    probabilities = jax.nn.softmax(scores, axis=-1).astype(dtype)
    out = product("bgrm,bgmd->bgrd", probabilities, kept.values, dtype)
    return out.reshape(batch, 1, heads * size)
