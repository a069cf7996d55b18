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

from jaxretr.models.backbones.layer_stacks import layers_apart
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.partition import join
from jaxretr.training.steps.kept_chunks import Chunks, embed_kept

EmbedRows = Callable[..., jax.Array]


def embed_in_chunks(
    embed_rows: EmbedRows,
    params: Params,
    chunks: Chunks,
    *,
    frozen: Params | None = None,
    keep: bool = False,
    words: tuple[str, ...] | None = None,
    apart: bool = False,
) -> jax.Array:
    """Embed texts, a chunk at once; differentiable with respect to `params`.

    There is no communication between devices here, unless they embed together, see `PaddedChunks`.

    Args:
      embed_rows: (params, tokens, lengths, keys or None) -> float32 [texts, D], called with all parameters and the arrays
        of a `Chunk`. A text's embedding may depend on nothing but the text. With `words` it gets a fifth argument: the
        tokens' rows of the table, float32 [*tokens, D'], which it must not look up itself.
      params: a tree of float arrays.
      chunks: the texts.
      frozen: the parameters without a gradient, which `partition` splits off.
      keep: whether to keep the activations of all chunks for the backward pass instead of embedding each chunk twice.
        Only the memory and the time change.
      words: with `keep`, the path in `params` of the table that the tokens are looked up in: its gradient is then added
        row by row. None: `embed_rows` looks them up, and the table's gradient is a dense one in each chunk.
      apart: whether the layers are apart in passes with a gradient, see `layers_apart`.

    Returns:
      float32 [n, D], in the order of the texts that were given.
    """
    if keep:
        embeddings: Any = embed_kept(embed_rows, words, apart, params, frozen or {}, chunks)
    else:
        embeddings = _embed_chunks(embed_rows, apart, params, frozen or {}, chunks)
    return chunks.in_order(embeddings)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _embed_chunks(embed_rows: EmbedRows, apart: bool, params: Params, frozen: Params, chunks: Chunks) -> jax.Array:
    return chunks.map(lambda *rows: embed_rows(join(params, frozen), *rows))


def _forward(embed_rows: EmbedRows, apart: bool, params: Params, frozen: Params, chunks: Chunks) -> Any:
    return _embed_chunks(embed_rows, apart, params, frozen, chunks), (params, frozen, chunks)


def _backward(embed_rows: EmbedRows, apart: bool, saved: Any, cotangents: jax.Array) -> Any:
    params, frozen, chunks = saved

    # The chunk's whole forward and backward pass is in one branch, so that nothing has to be kept between them.
    def gradient(cotangent: jax.Array, *rows: Any) -> Params:
        with layers_apart(apart):
            return jax.vjp(lambda params: embed_rows(join(params, frozen), *rows), params)[1](cotangent)[0]

    return chunks.sum(gradient, jax.tree.map(zeros_placed_like, params), cotangents), None, None


_embed_chunks.defvjp(_forward, _backward)


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
