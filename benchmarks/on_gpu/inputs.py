"""Random weights, tokens and embeddings, made on the device: no file is read, and nothing goes through the host."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxretr.models.backbones.layers import Params
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.mesh import DATA, make_mesh
from jaxretr.training.runs.corpus_tokens import Layout
from jaxretr.training.state import CorpusTokens, TokenRows

_BLOCK = 1024


def mesh_of_one() -> Mesh:
    """The first device alone."""
    return make_mesh(jax.devices()[:1])


def random_params(shapes: Params, mesh: Mesh, dtype: Any = jnp.float32, seed: int = 0) -> Params:
    """Weights of these shapes, such that activations keep their size.

    Args:
      shapes: ShapeDtypeStructs in nested dicts.
      mesh: on which they are copied.
      dtype: of all of them.
      seed: of the draws.
    """

    def one(number: int, path: tuple[Any, ...], leaf: Any) -> jax.Array:
        name = path[-1].key
        if name in ("scale", "bias"):
            return jnp.full(leaf.shape, float(name == "scale"), dtype)
        std = 1 / math.sqrt(leaf.shape[-2]) if name == "kernel" else 0.02
        # A cheap generator: nobody looks at these numbers.
        return jnp.asarray(std, dtype) * jax.random.normal(jax.random.key(seed + number, impl="rbg"), leaf.shape, dtype)

    @partial(jax.jit, out_shardings=NamedSharding(mesh, sharding.REPLICATED))
    def draw() -> Params:
        leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
        return jax.tree.unflatten(tree, [one(number, *leaf) for number, leaf in enumerate(leaves)])

    return draw()


def random_tokens(mesh: Mesh, lengths: np.ndarray, width: int, vocabulary: int, dtype: Any = jnp.uint16) -> TokenRows:
    """Rows of token ids of these lengths, padded with 0 to `width`, split by row."""
    rows = NamedSharding(mesh, sharding.ROWS)

    @partial(jax.jit, out_shardings=rows)
    def make(lengths: jax.Array) -> jax.Array:
        ids = _hashed(len(lengths), width, vocabulary)
        return jnp.where(jnp.arange(width) < lengths[:, None], ids, 0).astype(dtype)

    put = jax.device_put(lengths, rows)
    return TokenRows(make(put), put)


def random_corpus(
    mesh: Mesh, lengths: np.ndarray, width: int, vocabulary: int, dtype: Any = jnp.uint16, *, room: bool = False
) -> CorpusTokens:
    """A corpus of rows of these lengths, at most `width`, split by row; the number of rows is a multiple of 1024.

    With `room` there are as many ids as if all rows were `width` long: corpora of other lengths have the same shape.
    """
    rows = NamedSharding(mesh, sharding.ROWS)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    layout = Layout(offsets, len(lengths), width, mesh.shape[DATA])
    widest = Layout(np.arange(len(lengths) + 1) * width, len(lengths), width, mesh.shape[DATA])
    shape = widest.shape if room else layout.shape

    @partial(jax.jit, out_shardings=rows)
    def make() -> jax.Array:
        # In rows of 4096, of which lengths are multiples.
        ids = _hashed(math.prod(shape) // 4096, 4096, vocabulary)
        return ids.astype(dtype).reshape(shape)

    numbers = (layout.offsets(0, len(lengths)), lengths.astype(np.int32))
    return CorpusTokens(make(), *(jax.device_put(each, rows) for each in numbers), width)


def _hashed(rows: int, columns: int, vocabulary: int) -> jax.Array:
    """Ids uint32 [rows, columns], a hash of row and column, which the compiler never writes out in this wider type."""
    row = jnp.arange(rows, dtype=jnp.uint32)[:, None] * jnp.uint32(2654435761)
    column = jnp.arange(columns, dtype=jnp.uint32) * jnp.uint32(40503)
    mixed = (row ^ column) * jnp.uint32(2246822519)
    return 5 + (mixed >> 7) % jnp.uint32(vocabulary - 5)


def random_rows(mesh: Mesh, rows: int, dim: int, seed: int = 0) -> jax.Array:
    """Embeddings bfloat16 [rows, dim], split by row; `rows` is a multiple of 1024. Never held in a wider type."""

    @partial(jax.jit, out_shardings=NamedSharding(mesh, sharding.ROWS))
    def make() -> jax.Array:
        def block(number: jax.Array) -> jax.Array:
            key = jax.random.fold_in(jax.random.key(seed, impl="rbg"), number)
            return (dim**-0.5 * jax.random.normal(key, (_BLOCK, dim), jnp.float32)).astype(jnp.bfloat16)

        return jax.lax.map(block, jnp.arange(rows // _BLOCK)).reshape(rows, dim)

    return make()
