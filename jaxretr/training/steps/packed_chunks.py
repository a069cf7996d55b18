"""Chunks of packed rows: a training step's texts one behind the other, in chunks of one shape whatever their lengths are.

The texts are packed inside the compiled step, which has found some of them itself: rows are filled in the texts' order,
and a row ends where the next text does not fit. As many chunks are computed as the real tokens fill, so that there are
neither programs for several lengths nor padding to them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.models.backbones.packed_rows import of_tokens, room_for_texts, token_places
from jaxretr.runtime.parallel.matmul_flops import TEXTS
from jaxretr.runtime.parallel.mesh import DATA, varying_like
from jaxretr.training.steps.blocks import while_counted
from jaxretr.training.steps.padded_chunks import Chunk, embedded_by_width


class PackedForm(NamedTuple):
    """Shape of the chunks, for texts of a largest length.

    Attributes:
      longest: the largest length.
      width: tokens of a row, a multiple of the largest length (but for alignment): if all texts have it, none are left out.
      texts: M, the largest number of texts in a row.
      rows: rows of a chunk.
      count: number of chunks that hold any texts of that length or shorter ones.
    """

    longest: int
    width: int
    texts: int
    rows: int
    count: int

    @classmethod
    def of(cls, n: int, longest: int, row: int, tokens: int) -> "PackedForm":
        """Return the form for n texts of at most `longest` tokens, in rows of about `row` tokens, chunks of about `tokens`.

        Rows are shorter where as many of those hold all texts: dense layers compute unfilled places as well.
        """

        def width(texts: int) -> int:
            return 16 * -(-longest * texts // 16)

        whole = max(1, round(row / longest))  # texts of full length in a row
        # A row that is not the last has as many texts as always fit, or more.
        most = -(-n // whole)
        count = -(-most // max(1, tokens // width(whole)))
        rows = -(-most // count)
        whole = -(-n // (rows * count))
        return cls(longest, width(whole), max(whole, room_for_texts(width(whole))), rows, count)


@jax.tree_util.register_dataclass
@dataclass
class Packing:
    """Places of one device's texts in packed rows, in the order in which they are given."""

    lengths: jax.Array
    """int32 [n]."""
    starts: jax.Array
    """The first text of each packed row, int32 [rows + 1]; n where there are no further texts."""
    used: jax.Array
    """Number of chunks with texts, int32; if the devices embed together, the largest on any."""
    form: PackedForm = field(metadata={"static": True})

    @classmethod
    def of(cls, lengths: jax.Array, form: PackedForm, *, together: bool, **others: Any) -> Self:
        """Pack texts of these lengths, int32 [n]; `together` as in `PaddedChunks.of`."""
        starts = row_starts(lengths, form)
        used = -(-(starts < len(lengths)).sum(dtype=jnp.int32) // form.rows)
        used = varying_like(lax.pmax(used, DATA) if together else used, lengths)
        return cls(lengths=lengths, starts=starts, used=used, form=form, **others)

    def each(self, body: Callable[..., Any], carry: Any) -> Any:
        """Run body(width, number, carry) -> carry for every chunk that has texts."""
        form = self.form

        def step(state: Any) -> Any:
            with jax.named_scope(f"{TEXTS}{form.longest}_{form.width}"):
                return state[0] + 1, body(form.width, *state)

        start = jnp.zeros_like(self.used), carry
        return while_counted(lambda state: state[0] < self.used, step, start, form.count)[1]

    def texts(self, number: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return a chunk's texts: their numbers and lengths, int32 [R, M], and whether there is one; otherwise the number
        is any, and the length 0."""
        first = number * self.form.rows + jnp.arange(self.form.rows)
        begins, ends = (self.starts.at[rows].get(mode="clip")[:, None] for rows in (first, first + 1))
        texts = begins + jnp.arange(self.form.texts, dtype=jnp.int32)
        texts, real = jnp.minimum(texts, len(self.lengths) - 1), texts < ends
        return texts, jnp.where(real, self.lengths[texts], 0), real


@jax.tree_util.register_dataclass
@dataclass
class PackedChunks(Packing):
    """Packed texts with their tokens."""

    tokens: jax.Array = field(kw_only=True)
    """Their token ids, integers [n, L]."""
    keys: jax.Array | None = field(kw_only=True)
    """PRNG keys [n], or None."""

    @property
    def count(self) -> int:
        """Number of chunks for which there must be room."""
        return self.form.count

    @property
    def widths(self) -> tuple[int, ...]:
        """The one width of all rows."""
        return (self.form.width,)

    def at(self, width: int, number: Any) -> Chunk:
        """Return a chunk by its number, an integer or int32 scalar."""
        texts, lengths, _ = self.texts(number)
        tokens = self.tokens[of_tokens(texts, lengths, width), token_places(lengths, width)]
        return Chunk(tokens, lengths, None if self.keys is None else self.keys[texts])

    def map(self, of_rows: Callable[..., jax.Array]) -> jax.Array:
        """Return the results of `of_rows(tokens, lengths, keys)` for all texts, float32 [n, D]."""
        return embedded_by_width(self, of_rows)

    def sum(self, of_rows: Callable[..., Any], zeros: Any, values: jax.Array) -> Any:
        """Return the sum of the trees that `of_rows(values, tokens, lengths, keys)` gives, where values are [n, D]."""

        def add(width: int, number: jax.Array, total: Any) -> Any:
            fresh = of_rows(self.taken(values, number), *self.at(width, number))
            return jax.tree.map(jnp.add, total, fresh)

        return self.each(add, zeros)

    def room(self, size: int) -> jax.Array:
        """Return memory for the embeddings of all texts, float32 [n, size]."""
        return varying_like(jnp.zeros((len(self.lengths), size), jnp.float32), self.lengths)

    def put(self, embeddings: jax.Array, number: Any, fresh: jax.Array) -> jax.Array:
        """Write a chunk's embeddings [R * M, D] into those of all texts, [n, D]."""
        return embeddings.at[self._places(number)].set(fresh, mode="drop")

    def taken(self, values: jax.Array, number: Any) -> jax.Array:
        """Return the values of a chunk's texts: [n, D] -> [R * M, D], 0 where there is no text."""
        return values.at[self._places(number)].get(mode="fill", fill_value=0)

    def in_order(self, embeddings: jax.Array) -> jax.Array:
        """Return the embeddings in the order of the texts that were given, [n, D]."""
        return embeddings

    def _places(self, number: Any) -> jax.Array:
        texts, _, real = self.texts(number)
        return jnp.where(real, texts, len(self.lengths)).reshape(-1)  # out of bounds where there is no text


def row_starts(lengths: jax.Array, form: PackedForm) -> jax.Array:
    """Return the first text of each row when every row takes the next texts as long as they fit.

    Args:
      lengths: int32 [n], in the order of packing.
      form: width, texts and rows.

    Returns:
      int32 [rows * count + 1], n behind the last row that is needed.
    """
    n = len(lengths)
    # Tokens before each text; only differences are read, which are right even where the sum has no place in an int32.
    before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(lengths, dtype=jnp.int32)])
    # For each text, the first one of the next row if a row began with it, by bisection; the end leads to itself.
    own = jnp.arange(n + 1, dtype=jnp.int32)
    next_, furthest = own, jnp.minimum(own + form.texts, n)
    for bit in reversed(range(form.texts.bit_length())):
        further = jnp.minimum(next_ + (1 << bit), furthest)
        next_ = jnp.where(before[further] - before <= form.width, further, next_)
    # Follow it from text 0: twice as many rows are known after each step, in place of one after the other.
    starts, wanted = jnp.zeros(1, jnp.int32), form.rows * form.count + 1
    while len(starts) < wanted:
        starts, next_ = jnp.concatenate([starts, next_[starts]]), next_[next_]
    return starts[:wanted]
