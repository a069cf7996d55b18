"""Rows in blocks of one size, whatever their number: no block shrinks because a number has few divisors."""

from typing import Any

import jax
import jax.numpy as jnp

# Rows of matrices on accelerators lie in tiles of eight.
_TILE = 8


def block_size(n: int, limit: int) -> int:
    """Rows a block, so that as few blocks as possible hold n rows, and together hardly more than n.

    Args:
      n: rows, at least 1.
      limit: of a block.
    """
    limit = max(1, limit)
    even = -(-n // num_blocks(n, limit))
    return min(-(-even // _TILE) * _TILE, limit, n)


def num_blocks(n: int, size: int) -> int:
    """How many blocks of at most `size` rows hold n."""
    return -(-n // max(1, size))


def block_start(number: jax.Array, n: int, size: int) -> jax.Array:
    """The first row of a block, int32: the blocks end with row n, and the first may share rows with the second.

    Args:
      number: of the block, from 0.
      n: rows.
      size: rows a block, at most n.
    """
    return jnp.maximum(0, n - (num_blocks(n, size) - number) * size)


def in_blocks(tree: Any, size: int) -> Any:
    """Arrays [n, ...] as blocks [c, size, ...]; the first one is filled up with copies of row 0, c * size - n of them."""

    def cut(x: jax.Array) -> jax.Array:
        if spare := -len(x) % size:
            x = jnp.concatenate([jnp.broadcast_to(x[:1], (spare, *x.shape[1:])), x])
        return x.reshape(-1, size, *x.shape[1:])

    return jax.tree.map(cut, tree)
