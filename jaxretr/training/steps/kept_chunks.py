"""Embedding in chunks that keep their activations: one forward pass, for machines that have the memory.

chunks.py embeds every chunk twice, so that memory follows the chunk. Here each chunk's activations stay for the
backward pass, in one buffer per activation. Chunks of one padded width are handled in a loop of their own: short chunks
fill only the head of their line of a buffer, and no loop has a branch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.models.backbones.layer_stacks import bits_are_kept, layers_apart
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.partition import join
from jaxretr.runtime.parallel.mesh import varying_like
from jaxretr.training.steps.packed_chunks import PackedChunks
from jaxretr.training.steps.padded_chunks import Chunk, PaddedChunks, embedded_by_width

Chunks = PaddedChunks | PackedChunks


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def embed_kept(
    embed_rows: Callable[..., jax.Array],
    words: tuple[str, ...] | None,
    apart: bool,
    params: Params,
    frozen: Params,
    chunks: Chunks,
) -> jax.Array:
    """Embed chunks and keep their activations; the arguments and the result as in `embed_in_chunks`, but for the order."""
    # This primal runs where nothing is differentiated, and keeps nothing.
    return embedded_by_width(chunks, lambda *rows: embed_rows(join(params, frozen), *rows))


def _forward(
    embed_rows: Any, words: tuple[str, ...] | None, apart: bool, params: Params, frozen: Params, chunks: Chunks
) -> Any:
    rest, table = _without(params, words)

    def one(width: int, number: Any) -> tuple[jax.Array, list[jax.Array]]:
        with layers_apart(apart):
            embeddings, leaves, _ = _with_pull(embed_rows, rest, table, words, frozen, chunks.at(width, number))
        return embeddings, [_raw(leaf) for leaf in leaves]

    # Shapes of a chunk's embeddings and activations at each width. Memory for all c chunks, which `store` fills: the
    # embeddings, and one buffer per activation, [c, elements at the largest width].
    shapes = [jax.eval_shape(partial(one, width), 0) for width in chunks.widths]
    kept = [
        varying_like(lax.empty((chunks.count, max(leaf.size for leaf in leaves)), leaves[0].dtype), chunks.lengths)
        for leaves in zip(*(leaves for _, leaves in shapes), strict=True)
    ]

    def store(width: int, number: jax.Array, carry: Any) -> Any:
        embeddings, kept = carry
        fresh, leaves = one(width, number)
        kept = [
            lax.dynamic_update_slice(buffer, leaf.reshape(1, -1), (number, jnp.zeros_like(number)))
            for buffer, leaf in zip(kept, leaves, strict=True)
        ]
        return chunks.put(embeddings, number, fresh), kept

    embeddings, kept = chunks.each(store, (chunks.room(shapes[-1][0].shape[-1]), kept))
    return embeddings, (params, frozen, chunks, kept)


def _backward(embed_rows: Any, words: tuple[str, ...] | None, apart: bool, saved: Any, cotangents: jax.Array) -> Any:
    params, frozen, chunks, kept = saved
    rest, table = _without(params, words)

    def add(width: int, number: jax.Array, carry: Any) -> Any:
        totals, table_total = carry
        chunk = chunks.at(width, number)
        # Only the shape of this forward pass is used: its values come from the buffers, and the compiler drops it.
        with layers_apart(apart):
            _, leaves, pull = _with_pull(embed_rows, rest, table, words, frozen, chunk)
        leaves = [_typed(buffer[number], leaf) for buffer, leaf in zip(kept, leaves, strict=True)]
        gradients, of_words = pull(leaves, chunks.taken(cotangents, number))
        if table_total is not None:
            table_total = table_total.at[chunk.tokens].add(of_words)
        return jax.tree.map(jnp.add, totals, gradients), table_total

    zeros = jax.tree.map(lambda x: varying_like(jnp.zeros(x.shape, x.dtype), x), (rest, table))
    rest_total, table_total = chunks.each(add, zeros)
    return (rest_total if words is None else _put(rest_total, words, table_total)), None, None


embed_kept.defvjp(_forward, _backward)


def kept_bytes(embed_rows: Any, words: tuple[str, ...] | None, params: Params, frozen: Params, chunks: Chunks) -> int:
    """Return the bytes of the activations that all chunks keep, as if all had the full width, which the buffers have."""

    def leaves(params: Params, frozen: Params, chunks: Chunks) -> list[jax.Array]:
        rest, table = _without(params, words)
        chunk = chunks.at(chunks.widths[-1], 0)
        return [_raw(leaf) for leaf in _with_pull(embed_rows, rest, table, words, frozen, chunk)[1]]

    # Shapes are taken from the arrays themselves, for the types also say over which mesh axes they vary.
    each = jax.eval_shape(leaves, params, frozen, chunks)
    return chunks.count * sum(leaf.size * leaf.dtype.itemsize for leaf in each)


# ---- a chunk's forward pass and what it keeps ------------------------------------------------------------------------


def _with_pull(
    embed_rows: Any, rest: Params, table: jax.Array | None, words: tuple[str, ...] | None, frozen: Params, chunk: Chunk
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
