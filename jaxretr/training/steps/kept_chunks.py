"""Embedding in chunks that keep their activations: one forward pass, for machines that have the memory.

chunks.py embeds every chunk twice, so that memory follows the chunk. Here each chunk's activations stay for the
backward pass, packed into one buffer per activation. Chunks of one padded width are handled in a loop of their own:
short chunks fill only the head of their line of a buffer, and no loop has a branch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.models.backbones.layer_stacks import bits_are_kept
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.partition import join
from jaxretr.runtime.parallel.mesh import varying_like
from jaxretr.runtime.parallel.split_parameters import longest_row

Chunks = tuple[jax.Array, jax.Array, jax.Array | None]
"""Tokens [c, m, L], lengths [c, m] and PRNG keys [c, m] or None, the shortest rows first."""


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def embed_kept(
    embed_rows: Callable[..., jax.Array],
    widths: tuple[int, ...],
    words: tuple[str, ...] | None,
    together: bool,
    params: Params,
    frozen: Params,
    chunks: Chunks,
) -> jax.Array:
    """Embed chunks and keep their activations; the arguments as in `embed_in_chunks`.

    Returns:
      float32 [c, m, D].
    """

    # This primal runs where nothing is differentiated, and keeps nothing.
    def one(width: int, number: Any) -> jax.Array:
        tokens, lengths, keys = _chunk(chunks, number, width)
        return embed_rows(join(params, frozen), tokens, lengths, keys)

    shape = jax.eval_shape(partial(one, widths[-1]), 0).shape
    start = varying_like(lax.empty((len(chunks[0]), *shape), jnp.float32), chunks[0])
    each = partial(_each_width, widths, together, chunks[1])
    return each(lambda width, number, all_: all_.at[number].set(one(width, number)), start)


def _forward(
    embed_rows: Any,
    widths: tuple[int, ...],
    words: tuple[str, ...] | None,
    together: bool,
    params: Params,
    frozen: Params,
    chunks: Any,
) -> Any:
    rest, table = _without(params, words)
    count = len(chunks[0])

    def one(width: int, number: Any) -> tuple[jax.Array, list[jax.Array]]:
        embeddings, leaves, _ = _with_pull(embed_rows, rest, table, words, frozen, _chunk(chunks, number, width))
        return embeddings, [_raw(leaf) for leaf in leaves]

    # Shapes of a chunk's embeddings and activations at each width. Memory for all c chunks, which `store` fills:
    # embeddings [c, m, D], and one buffer per activation, [c, elements at the largest width].
    shapes = [jax.eval_shape(partial(one, width), 0) for width in widths]
    like = chunks[0]
    embeddings = varying_like(lax.empty((count, *shapes[-1][0].shape), jnp.float32), like)
    kept = [
        varying_like(lax.empty((count, max(leaf.size for leaf in leaves)), leaves[0].dtype), like)
        for leaves in zip(*(leaves for _, leaves in shapes), strict=True)
    ]

    def store(width: int, number: jax.Array, carry: Any) -> Any:
        embeddings, kept = carry
        fresh, leaves = one(width, number)
        kept = [
            lax.dynamic_update_slice(buffer, leaf.reshape(1, -1), (number, jnp.zeros_like(number)))
            for buffer, leaf in zip(kept, leaves, strict=True)
        ]
        return embeddings.at[number].set(fresh), kept

    embeddings, kept = _each_width(widths, together, chunks[1], store, (embeddings, kept))
    return embeddings, (params, frozen, chunks, kept)


def _backward(
    embed_rows: Any,
    widths: tuple[int, ...],
    words: tuple[str, ...] | None,
    together: bool,
    saved: Any,
    cotangents: jax.Array,
) -> Any:
    params, frozen, chunks, kept = saved
    rest, table = _without(params, words)

    def add(width: int, number: jax.Array, carry: Any) -> Any:
        totals, table_total = carry
        chunk = _chunk(chunks, number, width)
        # Only the shape of this forward pass is used: its values come from the buffers, and the compiler drops it.
        _, leaves, pull = _with_pull(embed_rows, rest, table, words, frozen, chunk)
        leaves = [_typed(buffer[number], leaf) for buffer, leaf in zip(kept, leaves, strict=True)]
        gradients, of_words = pull(leaves, cotangents[number])
        if table_total is not None:
            table_total = table_total.at[chunk[0]].add(of_words)
        return jax.tree.map(jnp.add, totals, gradients), table_total

    zeros = jax.tree.map(lambda x: varying_like(jnp.zeros(x.shape, x.dtype), x), (rest, table))
    rest_total, table_total = _each_width(widths, together, chunks[1], add, zeros)
    return (rest_total if words is None else _put(rest_total, words, table_total)), None, None


embed_kept.defvjp(_forward, _backward)


def kept_bytes(
    embed_rows: Any,
    words: tuple[str, ...] | None,
    params: Params,
    frozen: Params,
    tokens: jax.Array,
    lengths: jax.Array,
    keys: jax.Array | None,
    chunk: int,
) -> int:
    """Return the bytes of the activations that all chunks keep, as if all had the full width, which the buffers have.

    Args:
      embed_rows: as in `embed_in_chunks`, and so are the other arguments.
      words: path of the table of words.
      params: the trained parameters.
      frozen: the other parameters.
      tokens: integers [n, L].
      lengths: int32 [n].
      keys: PRNG keys [n], or None.
      chunk: number of rows at once.
    """

    def leaves(params: Params, frozen: Params, chunk: Any) -> list[jax.Array]:
        rest, table = _without(params, words)
        return [_raw(leaf) for leaf in _with_pull(embed_rows, rest, table, words, frozen, chunk)[1]]

    count = -(-len(tokens) // chunk)
    rows = -(-len(tokens) // count)
    # Shapes are taken from the arrays themselves, for the types also say over which mesh axes they vary.
    one = tokens[:rows], lengths[:rows], None if keys is None else keys[:rows]
    each = jax.eval_shape(leaves, params, frozen, one)
    return count * sum(leaf.size * leaf.dtype.itemsize for leaf in each)


# ---- a chunk's forward pass and what it keeps ------------------------------------------------------------------------


def _with_pull(
    embed_rows: Any, rest: Params, table: jax.Array | None, words: tuple[str, ...] | None, frozen: Params, chunk: Any
) -> tuple[jax.Array, list[jax.Array], Callable[[list[jax.Array], jax.Array], Any]]:
    """Run a chunk's forward pass.

    Returns:
      Its embeddings; the activations that its backward pass needs, except for the arguments of the pass, which exist
      anyway; and the function from such activations and the embeddings' cotangent to the gradients of `rest` and the
      words' rows.
    """
    tokens, lengths, keys = chunk
    # Looked up outside of the differentiated function: a dense gradient of the table, zeroed and added in each chunk,
    # would cost as much as the layers of a small model.
    looked_up = None if table is None else table[tokens.astype(jnp.int32)].astype(jnp.float32)

    def of_chunk(rest: Params, looked_up: jax.Array | None) -> jax.Array:
        if words is None:
            return embed_rows(join(rest, frozen), tokens, lengths, keys)
        params = _put(rest, words, lax.stop_gradient(table))
        return embed_rows(join(params, frozen), tokens, lengths, keys, looked_up)

    with bits_are_kept():
        embeddings, pull = jax.vjp(of_chunk, rest, looked_up)
    leaves, tree = jax.tree.flatten(pull)
    # Places of the activations among the leaves that the backward pass reads: the others are arguments, which exist anyway.
    arguments = {id(leaf) for leaf in jax.tree.leaves((rest, looked_up, frozen))}
    places = [place for place, leaf in enumerate(leaves) if id(leaf) not in arguments]

    def gradients(activations: list[jax.Array], cotangent: jax.Array) -> Any:
        filled = list(leaves)
        for place, activation in zip(places, activations, strict=True):
            filled[place] = activation
        return jax.tree.unflatten(tree, filled)(cotangent)

    return embeddings, [leaves[place] for place in places], gradients


def _raw(leaf: jax.Array) -> jax.Array:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _typed(line: jax.Array, leaf: jax.Array) -> jax.Array:
    """Restore a leaf from its line of a buffer, which may be longer, as it also holds those of wider chunks."""
    raw = jax.eval_shape(_raw, leaf)
    values = line[: raw.size].reshape(raw.shape)
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.wrap_key_data(values, impl=jax.random.key_impl(leaf)) if is_key else values


# ---- loops over the chunks of each width -----------------------------------------------------------------------------


def _each_width(
    widths: tuple[int, ...], together: bool, lengths: jax.Array, body: Callable[..., Any], carry: Any
) -> Any:
    """Run body(width, number, carry) for every chunk, with the first width that holds its longest row."""
    longest = longest_row(lengths, together)  # [c], ascending
    start = jnp.zeros((), jnp.int32)
    for place, width in enumerate(widths):
        last = place == len(widths) - 1
        end = jnp.int32(len(longest)) if last else (longest <= width).sum(dtype=jnp.int32)
        start, end = (varying_like(x, lengths) for x in (start, end))
        carry = lax.fori_loop(start, end, partial(body, width), carry)
        start = end
    return carry


def _chunk(chunks: Chunks, number: Any, width: int) -> Chunks:
    tokens, lengths, keys = (None if x is None else x[number] for x in chunks)
    assert tokens is not None and lengths is not None
    return tokens[:, :width], lengths, keys


# ---- the table of the words apart from the other parameters ----------------------------------------------------------


def _without(params: Params, path: tuple[str, ...] | None) -> tuple[Params, jax.Array | None]:
    if path is None:
        return params, None
    name, *rest = path
    if not rest:
        return {key: value for key, value in params.items() if key != name}, params[name]
    inner, table = _without(params[name], tuple(rest))
    return {**params, name: inner}, table


def _put(params: Params, path: tuple[str, ...], table: Any) -> Params:
    name, *rest = path
    return {**params, name: _put(params[name], tuple(rest), table) if rest else table}
