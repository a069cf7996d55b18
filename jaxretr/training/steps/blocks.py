"""Rows in blocks of one size, for any number of rows: no block shrinks because a number has few divisors."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.runtime.parallel.matmul_flops import TRIPS

Carry = TypeVar("Carry")

# Rows of matrices on accelerators are in tiles of eight.
_TILE = 8


def block_size(n: int, limit: int) -> int:
    """Return the rows per block for which as few blocks as possible hold n rows, and together hardly more than n.

    Args:
      n: number of rows, at least 1.
      limit: largest number of rows in a block.
    """
    limit = max(1, limit)
    even = -(-n // num_blocks(n, limit))
    return min(-(-even // _TILE) * _TILE, limit, n)


def num_blocks(n: int, size: int) -> int:
    """Return the number of blocks of at most `size` rows that hold n rows."""
    return -(-n // max(1, size))


def block_start(number: jax.Array, n: int, size: int) -> jax.Array:
    """Return the first row of a block, int32: the blocks end with row n, and the first may share rows with the second.

    Args:
      number: number of the block, from 0.
      n: number of rows.
      size: rows per block, at most n.
    """
    return jnp.maximum(0, n - (num_blocks(n, size) - number) * size)


def while_counted(
    is_left: Callable[[Carry], jax.Array], body: Callable[[Carry], Carry], carry: Carry, trips: int
) -> Carry:
    """`lax.while_loop`, with the number of runs of its body that a plan assumes.

    Args:
      is_left: whether the body is to run again.
      body: body of the loop.
      carry: first carry.
      trips: number that `jaxretr.runtime.parallel.matmul_flops` counts; the program does not depend on it.
    """
    with jax.named_scope(f"{TRIPS}{trips}"):
        return lax.while_loop(is_left, body, carry)
