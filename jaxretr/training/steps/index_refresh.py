"""The live index encoded again with the current weights: all of it at once, or a slice before every step."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.packed_rows import of_tokens, token_places
from jaxretr.models.embed import embed, tower
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.runtime.parallel.sharding import compiled_over_data
from jaxretr.runtime.parallel.split_parameters import longest_row
from jaxretr.training.state import CorpusState, CorpusTokens
from jaxretr.training.steps.blocks import block_size, block_start, num_blocks
from jaxretr.training.steps.live_index import IndexProgram, fetch_rows
from jaxretr.training.steps.packed_chunks import PackedForm, Packing
from jaxretr.training.steps.widths import chosen_widths


def make_refresh(program: IndexProgram, mesh: Mesh) -> Callable[..., CorpusState]:
    """Build the compiled program that encodes the whole corpus on the devices, dropout off.

    Returns:
      refresh(params, passages, index, step) -> index. `index` is donated and overwritten.
    """

    @compiled_over_data(mesh, (P(DATA), P(DATA), P()), P(DATA), split=program.shard_parameters, donate=(2,))
    def refresh(params: Params, passages: CorpusTokens, index: CorpusState, step: jax.Array) -> CorpusState:
        rows = jnp.arange(len(index.encoded_at), dtype=jnp.int32)
        embeddings = encode_rows(program, params, passages, index.embeddings, rows)
        return CorpusState(embeddings, jnp.zeros_like(index.encoded_at) + step)

    return refresh


def make_rolling_refresh(program: IndexProgram, mesh: Mesh, every: int) -> Callable[..., CorpusState]:
    """Build the compiled program that encodes one slice of the corpus on the devices, dropout off.

    A slice is a function of the step alone: for any number of devices it has the same rows, equally many on each.

    Args:
      every: R; R steps in a row encode every row once.

    Returns:
      refresh(params, passages, index, step) -> index, in which the rows r with r mod R = step mod R are fresh. `index`
      is donated and overwritten.
    """

    @compiled_over_data(mesh, (P(DATA), P(DATA), P()), P(DATA), split=program.shard_parameters, donate=(2,))
    def refresh(params: Params, passages: CorpusTokens, index: CorpusState, step: jax.Array) -> CorpusState:
        n = len(index.encoded_at)
        rows = slice_rows(lax.axis_index(DATA) * n, n, every, step)
        embeddings = encode_rows(program, params, passages, index.embeddings, rows)
        return CorpusState(embeddings, index.encoded_at.at[rows].set(step, mode="drop"))

    return refresh


def make_embed_rows(program: IndexProgram, mesh: Mesh) -> Callable[..., jax.Array]:
    """Build the compiled program that encodes some passages, dropout off.

    Returns:
      embed(params, passages, rows int32 [n]) -> float32 [n, D] of corpus rows, the same on all devices; n is a multiple of
      them, and NO_PASSAGE stands for no row.
    """

    @compiled_over_data(mesh, (P(DATA), P()), P(), split=program.shard_parameters)
    def embed_rows(params: Params, passages: CorpusTokens, rows: jax.Array) -> jax.Array:
        found = jax.tree.map(lambda values: values[:, 0], fetch_rows(passages, rows[:, None]))
        widths = chosen_widths(passages.width, program.passage_widths)
        p = _embed_cut(program, tower(params, "passage"), found.tokens, found.lengths, widths)
        return lax.all_gather(p, DATA, tiled=True, to="invarying")

    return embed_rows


def _embed_cut(
    program: IndexProgram, weights: Params, tokens: jax.Array, lengths: jax.Array, widths: tuple[int, ...]
) -> jax.Array:
    """Embed passages [n, L], cut to the first of the widths that holds the longest of them."""

    def encode(tokens: jax.Array, lengths: jax.Array, width: int) -> jax.Array:
        return embed(program.encoder, weights, tokens[:, :width], lengths, **program.numbers)

    longest = longest_row(lengths, program.shard_parameters)
    bucket = (longest > jnp.array(widths[:-1], jnp.int32)).sum()  # the first width that is enough
    return lax.switch(bucket, [partial(encode, width=width) for width in widths], tokens, lengths)


def slice_rows(first: jax.Array, n: int, every: int, step: jax.Array) -> jax.Array:
    """Return the rows of a device that a rolling refresh encodes before a step.

    Args:
      first: corpus row of the device's first row, int32 scalar.
      n: number of rows on the device.
      every: R.
      step: number of the step, int32 scalar.

    Returns:
      int32 [ceil(n / R)], rows of the device in ascending order; the last may be n, which stands for no row.
    """
    local = jnp.mod(step - first, every) + every * jnp.arange(-(-n // every), dtype=jnp.int32)
    return jnp.minimum(local, n)


@jax.named_scope("refresh")
def encode_rows(
    program: IndexProgram, params: Params, passages: CorpusTokens, embeddings: jax.Array, rows: jax.Array
) -> jax.Array:
    """Encode rows of this device's passages into the index, block by block; call it inside the shard_map.

    Args:
      params: all parameters of the dual encoder.
      passages: this device's passages, [n, L].
      embeddings: this device's part of the index, [n, D].
      rows: rows on this device, int32 [m], each at most once; n stands for no row.

    Returns:
      The index with the fresh embeddings, [n, D].
    """
    n, width, m = len(passages.lengths), passages.width, len(rows)
    weights = tower(params, "passage")
    if program.packed_row:
        return _encode_packed(program, weights, passages, embeddings, rows)
    size = block_size(m, program.index.encode_rows)
    widths = chosen_widths(width, program.passage_widths)
    # Shortest first, so that a block's rows have about the same length and none is padded to a much longer one. The
    # shortest rows, which the first block shares with the second, are encoded twice.
    lengths_of_rows = jnp.where(rows < n, passages.lengths.at[rows].get(mode="clip"), 0)
    order = rows[jnp.argsort(lengths_of_rows, stable=True)]

    def block(number: jax.Array, embeddings: jax.Array) -> jax.Array:
        chosen = lax.dynamic_slice_in_dim(order, block_start(number, m, size), size)
        read = passages.take(jnp.minimum(chosen, n - 1))
        # A place without a row has the length 0, like padding, so that it does not widen a block.
        tokens, lengths = read.tokens, jnp.where(chosen < n, read.lengths, 0)
        fresh = _embed_cut(program, weights, tokens, lengths, widths)
        return embeddings.at[chosen].set(fresh.astype(embeddings.dtype), mode="drop")

    return lax.fori_loop(0, num_blocks(m, size), block, embeddings)


def _encode_packed(
    program: IndexProgram, weights: Params, passages: CorpusTokens, embeddings: jax.Array, rows: jax.Array
) -> jax.Array:
    """Implement `encode_rows` with packed rows; `weights` are those of the passages' tower."""
    n, width, m = len(passages.lengths), passages.width, len(rows)
    form = PackedForm.of(m, width, program.packed_row, program.index.encode_rows * width)
    lengths = jnp.where(rows < n, passages.lengths.at[rows].get(mode="clip"), 0)
    packing = Packing.of(lengths, form, together=program.shard_parameters)

    def chunk(width: int, number: jax.Array, embeddings: jax.Array) -> jax.Array:
        texts, own, real = packing.texts(number)
        chosen = rows[texts]
        read = of_tokens(jnp.minimum(chosen, n - 1), own, width)
        tokens = passages.ids_at(read, token_places(own, width))
        fresh = embed(program.encoder, weights, tokens, own, **program.numbers)
        places = jnp.where(real, chosen, n).reshape(-1)
        return embeddings.at[places].set(fresh.astype(embeddings.dtype), mode="drop")

    return packing.each(chunk, embeddings)
