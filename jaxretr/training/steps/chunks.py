"""Embedding many rows in little memory, chunk by chunk.

This is gradient caching (Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup") as
a pure function: the loss is computed from the embeddings of the whole batch, then each chunk is embedded once more and
its part of the gradient taken. Embeddings and gradients do not depend on the chunk's size; the memory does.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.partition import join
from jaxretr.runtime.parallel.split_parameters import longest_row
from jaxretr.training.steps.kept_chunks import embed_kept
from jaxretr.training.steps.widths import chosen_widths

EmbedRows = Callable[..., jax.Array]


def embed_in_chunks(
    embed_rows: EmbedRows,
    params: Params,
    tokens: jax.Array,
    lengths: jax.Array,
    keys: jax.Array | None,
    *,
    chunk: int,
    frozen: Params | None = None,
    keep: bool = False,
    words: tuple[str, ...] | None = None,
    together: bool = False,
    widths: tuple[int, ...] = (),
) -> jax.Array:
    """Embed rows, at most `chunk` at once; differentiable with respect to `params`.

    The rows are taken shortest first, and a chunk is cut to the few columns that its longest row needs, so that short
    texts cost little. There is no communication between devices here, unless they embed `together`.

    Args:
      embed_rows: (params, tokens [m, l], lengths [m], keys [m] or None) -> float32 [m, D], called with all parameters.
        A row's embedding may depend on nothing but the row. With `words` it gets a fifth argument: the tokens' rows of
        the table, float32 [m, l, D'], which it must not look up itself.
      params: a tree of float arrays.
      tokens: integers [n, L], padded on the right.
      lengths: int32 [n].
      keys: one PRNG key a row [n], or None.
      chunk: largest number of rows that are embedded at once.
      frozen: the parameters without a gradient, which `partition` splits off.
      keep: whether to keep the activations of all chunks for the backward pass instead of embedding each chunk twice.
        Only the memory and the time change.
      words: with `keep`, the path in `params` of the table that the tokens are looked up in: its gradient is then added
        row by row. None: `embed_rows` looks them up, and the table's gradient is a dense one in each chunk.
      together: whether the devices of the "data" axis exchange parts of parameters in `embed_rows`. They must then all
        take the same branches: their first chunks have one width, the second ones another, and so on.
      widths: padded lengths that suit the rows, as for `chosen_widths`.

    Returns:
      float32 [n, D], in the order of the rows.
    """
    n, width = tokens.shape
    # Chunks of equal size: the last one is not filled up with more rows than there are chunks.
    size = -(-n // -(-n // chunk))
    order = jnp.argsort(lengths, stable=True)
    # The first chunk is filled up with copies of the shortest row, which the result leaves out.
    spare = -n % size
    filled = jnp.concatenate([jnp.broadcast_to(order[:1], (spare,)), order])
    rows = (tokens[filled], lengths[filled], None if keys is None else keys[filled])
    chunks = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), rows)
    widths = chosen_widths(width, widths)
    if keep:
        embeddings: Any = embed_kept(embed_rows, widths, words, together, params, frozen or {}, chunks)
    else:
        embeddings = _embed_chunks(embed_rows, widths, together, params, frozen or {}, chunks)
    embeddings = embeddings.reshape(n + spare, -1)[spare:]
    return embeddings[jnp.argsort(order)]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _embed_chunks(
    embed_rows: EmbedRows, widths: tuple[int, ...], together: bool, params: Params, frozen: Params, chunks: Any
) -> jax.Array:
    """Embed chunks of tokens [c, m, L], lengths [c, m] and keys [c, m]; float32 [c, m, D]."""

    def one(chunk: Any) -> jax.Array:
        return _at_width(widths, together, lambda *rows: embed_rows(join(params, frozen), *rows), chunk)

    return lax.map(one, chunks)


def _forward(
    embed_rows: EmbedRows, widths: tuple[int, ...], together: bool, params: Params, frozen: Params, chunks: Any
) -> Any:
    return _embed_chunks(embed_rows, widths, together, params, frozen, chunks), (params, frozen, chunks)


def _backward(embed_rows: EmbedRows, widths: tuple[int, ...], together: bool, saved: Any, cotangents: jax.Array) -> Any:
    params, frozen, chunks = saved

    def one(total: Params, slice_: Any) -> tuple[Params, None]:
        chunk, cotangent = slice_

        # The chunk's whole forward and backward pass is in one branch, so that nothing has to be kept between them.
        def gradient(*rows: Any) -> Params:
            return jax.vjp(lambda params: embed_rows(join(params, frozen), *rows), params)[1](cotangent)[0]

        return jax.tree.map(jnp.add, total, _at_width(widths, together, gradient, chunk)), None

    return lax.scan(one, jax.tree.map(zeros_placed_like, params), (chunks, cotangents))[0], None, None


_embed_chunks.defvjp(_forward, _backward)


def _at_width(widths: tuple[int, ...], together: bool, of_rows: Callable[..., Any], chunk: Any) -> Any:
    """Call `of_rows` with the tokens cut to the first width that holds the chunk's longest row."""
    tokens, lengths, keys = chunk
    bucket = (longest_row(lengths, together) > jnp.array(widths[:-1], jnp.int32)).sum()
    branches = [
        lambda tokens, lengths, keys, width=width: of_rows(tokens[:, :width], lengths, keys) for width in widths
    ]
    return lax.switch(bucket, branches, tokens, lengths, keys)


def zeros_placed_like(x: jax.Array) -> jax.Array:
    """Return zeros of x's shape and type that are also split over the devices as x is, to add gradients of x to.

    Inside a shard_map the type of x says over which mesh axes its values vary, and a loop's carry must keep its type;
    the split of x over the axes that are left to the compiler is not in the type. `jnp.zeros` has neither. A function
    of x has both: a choice between two zeros, which the compiler removes.
    """
    return jnp.where(x > 0, jnp.zeros((), x.dtype), jnp.zeros((), x.dtype))


def largest_divisor(n: int, limit: int) -> int:
    """Return the largest divisor of n that is at most `limit` (at least 1)."""
    return next(size for size in range(max(1, min(n, limit)), 0, -1) if n % size == 0)
