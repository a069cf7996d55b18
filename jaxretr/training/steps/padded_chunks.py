"""Chunks of padded rows: a training step's texts in order of length, each chunk cut to the columns that it needs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.runtime.parallel.mesh import varying_like
from jaxretr.runtime.parallel.split_parameters import longest_row
from jaxretr.training.steps.widths import chosen_widths


class Chunk(NamedTuple):
    """Rows that are embedded at once.

    Attributes:
      tokens: integers [m, l], padded, or [R, W], packed.
      lengths: int32 [m]; [R, M] of packed rows.
      keys: PRNG keys of the lengths' shape, or None.
    """

    tokens: jax.Array
    lengths: jax.Array
    keys: jax.Array | None


@jax.tree_util.register_dataclass
@dataclass
class PaddedChunks:
    """Chunks of equally many rows, the shortest first."""

    tokens: jax.Array
    """Integers [c, m, L]."""
    lengths: jax.Array
    """int32 [c, m]."""
    keys: jax.Array | None
    """PRNG keys [c, m], or None."""
    order: jax.Array
    """Places of the rows among those that were given, int32 [n]; the first chunk begins with copies of the first."""
    widths: tuple[int, ...] = field(metadata={"static": True})
    """Lengths that chunks can be cut to, ascending; the last is L."""
    together: bool = field(metadata={"static": True})
    """Whether the devices take the same branches."""

    @classmethod
    def of(
        cls,
        tokens: jax.Array,
        lengths: jax.Array,
        keys: jax.Array | None,
        *,
        chunk: int,
        widths: tuple[int, ...] = (),
        together: bool = False,
    ) -> "PaddedChunks":
        """Divide rows into chunks.

        Args:
          tokens: integers [n, L], padded on the right.
          lengths: int32 [n].
          keys: one PRNG key a row [n], or None.
          chunk: largest number of rows in a chunk.
          widths: padded lengths that suit the rows, as for `chosen_widths`.
          together: whether the devices of the "data" axis exchange parts of parameters while they embed. They must then
            all take the same branches: their first chunks have one width, the second ones another, and so on.
        """
        n, width = tokens.shape
        # Chunks of equal size: the last one is not filled up with more rows than there are chunks.
        size = -(-n // -(-n // chunk))
        order = jnp.argsort(lengths, stable=True)
        # The first chunk is filled up with copies of the shortest row, which the result leaves out.
        filled = jnp.concatenate([jnp.broadcast_to(order[:1], (-n % size,)), order])
        rows = tokens[filled], lengths[filled], None if keys is None else keys[filled]
        tokens, lengths, keys = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), rows)
        return cls(tokens, lengths, keys, order, chosen_widths(width, widths), together)

    @property
    def count(self) -> int:
        """Number of chunks."""
        return len(self.tokens)

    def each(self, body: Callable[..., Any], carry: Any) -> Any:
        """Run body(width, number, carry) -> carry for every chunk, with the first width that holds its longest row."""
        longest = longest_row(self.lengths, self.together)  # [c], ascending
        start = jnp.zeros((), jnp.int32)
        for place, width in enumerate(self.widths):
            last = place == len(self.widths) - 1
            end = jnp.int32(self.count) if last else (longest <= width).sum(dtype=jnp.int32)
            start, end = (varying_like(x, self.lengths) for x in (start, end))
            carry = lax.fori_loop(start, end, partial(body, width), carry)
            start = end
        return carry

    def map(self, of_rows: Callable[..., jax.Array]) -> jax.Array:
        """Return the results of `of_rows(tokens, lengths, keys)` for all chunks, as one loop with a branch for each width."""
        return lax.map(partial(self._at_width, of_rows), (self.tokens, self.lengths, self.keys))

    def sum(self, of_rows: Callable[..., Any], zeros: Any, values: jax.Array) -> Any:
        """Return the sum of the trees that `of_rows(values, tokens, lengths, keys)` gives, where values are [c, m, D]."""

        def add(total: Any, slice_: Any) -> tuple[Any, None]:
            chunk, of_chunk = slice_
            return jax.tree.map(jnp.add, total, self._at_width(partial(of_rows, of_chunk), chunk)), None

        return lax.scan(add, zeros, ((self.tokens, self.lengths, self.keys), values))[0]

    def at(self, width: int, number: Any) -> Chunk:
        """Return a chunk by its number, cut to this width."""
        tokens, lengths, keys = (None if x is None else x[number] for x in (self.tokens, self.lengths, self.keys))
        assert tokens is not None and lengths is not None
        return Chunk(tokens[:, :width], lengths, keys)

    def room(self, size: int) -> jax.Array:
        """Return memory for the embeddings of all chunks, float32 [c, m, size]."""
        return varying_like(lax.empty((*self.lengths.shape, size), jnp.float32), self.tokens)

    def put(self, embeddings: jax.Array, number: Any, fresh: jax.Array) -> jax.Array:
        """Write a chunk's embeddings [m, D] into those of all chunks."""
        return embeddings.at[number].set(fresh)

    def taken(self, values: jax.Array, number: Any) -> jax.Array:
        """Return a chunk's part of values: [c, m, D] -> [m, D]."""
        return values[number]

    def in_order(self, embeddings: jax.Array) -> jax.Array:
        """Return the embeddings [n, D] in the order of the rows that were given, from those of all chunks."""
        n = len(self.order)
        embeddings = embeddings.reshape(self.lengths.size, -1)[self.lengths.size - n :]
        return embeddings[jnp.argsort(self.order)]

    def _at_width(self, of_rows: Callable[..., Any], chunk: Any) -> Any:
        """Call `of_rows` with the tokens cut to the first width that holds the chunk's longest row."""
        tokens, lengths, keys = chunk
        bucket = (longest_row(lengths, self.together) > jnp.array(self.widths[:-1], jnp.int32)).sum()
        branches = [
            lambda tokens, lengths, keys, width=width: of_rows(tokens[:, :width], lengths, keys)
            for width in self.widths
        ]
        return lax.switch(bucket, branches, tokens, lengths, keys)


def embedded_by_width(chunks: Any, of_rows: Callable[..., jax.Array]) -> jax.Array:
    """Return the results of `of_rows(tokens, lengths, keys)` for all chunks, padded or packed, as a loop for each width."""
    size = jax.eval_shape(lambda: of_rows(*chunks.at(chunks.widths[-1], 0))).shape[-1]

    def put(width: int, number: jax.Array, embeddings: jax.Array) -> jax.Array:
        return chunks.put(embeddings, number, of_rows(*chunks.at(width, number)))

    return chunks.each(put, chunks.room(size))
