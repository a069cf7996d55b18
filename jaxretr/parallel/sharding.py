"""The one place for every PartitionSpec: how each named tensor lies on the mesh.

Batches and corpus rows are split over the "data" axis. Parameters are copies on every device of that axis; the large
matrices can in addition be split over the "model" axis, which is how a scorer that does not fit on one device runs.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxretr.parallel.mesh import DATA, MODEL, put_tree

ROWS = P(DATA)
"""Batches, corpus tokens, embeddings: split by row."""

REPLICATED = P()
"""Scalars, norms, biases, small tables."""

# Kernels are [layers, in, out]; heads and inner widths are split, so each block needs one sum over "model".
PARAMETERS: list[tuple[str, P]] = [
    (r"layers\.(query|key|value|qkv|ffn_in|ffn_gate)\.kernel", P(None, None, MODEL)),
    (r"layers\.(query|key|value|qkv|ffn_in|ffn_gate)\.bias", P(None, MODEL)),
    (r"layers\.(attention_out|ffn_out)\.kernel", P(None, MODEL, None)),
    (r"layers\.(attention_out|ffn_out)\.bias", REPLICATED),
    (r"layers\.(attention|ffn|attention_out|ffn_out|query|key)_norm\.(scale|bias)", REPLICATED),
    (r"(encoder|decoder|layers)\.(attention|cross)\.(query|key|value)\.kernel", P(None, None, MODEL)),
    (r"(encoder|decoder|layers)\.(attention|cross)\.out\.kernel", P(None, MODEL, None)),
    (r"(encoder|decoder|layers)\.ffn\.(inner|gate)\.kernel", P(None, None, MODEL)),
    (r"(encoder|decoder|layers)\.ffn\.outer\.kernel", P(None, MODEL, None)),
    (r"(encoder|decoder)\.(attention|cross|ffn)_norm\.scale", REPLICATED),
    (r"(encoder|decoder)_norm\.scale", REPLICATED),
    (r"((encoder|decoder)_positions|relative_positions)\.table", REPLICATED),
    (r"output\.kernel", P(None, MODEL)),
    (r"(embedding|word_embedding)\.table", P(None, MODEL)),
    (r"(position_embedding|type_embedding)\.table", REPLICATED),
    (r"(embedding_)?norm\.(scale|bias)", REPLICATED),
    (r"(projection|inner_dense\.\d+)\.(kernel|bias)", REPLICATED),
    # Adapters are small, and all of them are needed for every column of the layer they adapt.
    (r"(lora\.\w+|parallel)\.(down|up)\.(kernel|bias)", REPLICATED),
    (r"head\.(dense|norm)\.(kernel|scale|bias)", REPLICATED),
    (r"head\.bias", REPLICATED),
]


def spec_of(name: str) -> P:
    """The PartitionSpec of a parameter by its dotted name; an unknown name is an error, not a guess."""
    for pattern, spec in PARAMETERS:
        if re.search(rf"(^|\.){pattern}$", name):
            return spec
    raise KeyError(f"no PartitionSpec for parameter '{name}'; add it to jaxretr/parallel/sharding.py")


def dotted(path: tuple[Any, ...]) -> str:
    """A tree path's dotted name; the optimizer's moments end with the name of their parameter."""
    parts = (next(getattr(key, name) for name in ("key", "name", "idx") if hasattr(key, name)) for key in path)
    return ".".join(str(part) for part in parts)


def shardings(tree: Any, mesh: Mesh) -> Any:
    """The NamedSharding of every leaf of a tree of parameters or of a whole TrainState; scalars are copies.

    Args:
      tree: parameters, or anything whose leaves' paths end with parameter names, like optimizer moments.
      mesh: with the axes "data" and "model".
    """

    def one(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        spec = REPLICATED if leaf.ndim == 0 or mesh.shape[MODEL] == 1 else spec_of(dotted(path))
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(one, tree)


def state_stays(step: Callable[..., tuple[Any, ...]], *, mesh: Mesh) -> Callable[..., tuple[Any, ...]]:
    """`step`, to be jitted, with the state that it gives first where `shardings` has it.

    On a "model" axis the compiler would choose other places, and each new choice would have the next step compiled again.
    """

    @functools.wraps(step)
    def staying(*arguments: Any) -> tuple[Any, ...]:
        state, *others = step(*arguments)
        if mesh.shape[MODEL] > 1:
            state = jax.lax.with_sharding_constraint(state, shardings(state, mesh))
        return state, *others

    return staying


def put(tree: Any, mesh: Mesh) -> Any:
    """Copies a tree of parameters, or a TrainState, to the mesh as `shardings` says."""
    return put_tree(tree, shardings(tree, mesh))


def abstract(tree: Any, mesh: Mesh, sharding: NamedSharding | None = None) -> Any:
    """ShapeDtypeStructs of a tree with `shardings`' (or one common) sharding."""
    places = shardings(tree, mesh) if sharding is None else jax.tree.map(lambda _: sharding, tree)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, places)
