"""The one place for every PartitionSpec, which says how each named tensor lies on the mesh.

Batches and corpus rows are split over the "data" axis. Parameters are copies on every device of that axis, unless the
run splits its encoder's large matrices over it, with the optimizer's moments (`mesh.shard_parameters`, see
split_parameters.py). Large matrices can also be split over the "model" axis, which is how a scorer that does not fit on
one device runs.
"""

import functools
import math
import re
from collections.abc import Callable, Collection
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxretr.runtime.parallel.mesh import DATA, MODEL, put_tree
from jaxretr.runtime.parallel.programs import device_jit

ROWS = P(DATA)
"""Spec of batches, corpus tokens and embeddings: split by row."""

REPLICATED = P()
"""Spec of scalars, norms, biases and small tables: a copy on every device."""

SPLIT_FROM = 1 << 16
"""Elements from which a matrix is split over "data"; smaller ones, those of low-rank adapters, stay copies."""

# Kernels are [layers, in, out]; heads and inner widths are split, so each block needs one sum over "model". The axis
# that is split over "data" is, but in adapters, as long as the encoder is wide. Scorers (encoder, decoder) are not
# split over it.
PARAMETERS: list[tuple[str, P]] = [
    (r"layers\.(query|key|value|qkv|ffn_in|ffn_gate)\.kernel", P(None, DATA, MODEL)),
    (r"layers\.(query|key|value|qkv|ffn_in|ffn_gate)\.bias", P(None, MODEL)),
    (r"layers\.(attention_out|ffn_out)\.kernel", P(None, MODEL, DATA)),
    (r"layers\.(attention_out|ffn_out)\.bias", REPLICATED),
    (r"layers\.(attention|ffn|attention_out|ffn_out|query|key)_norm\.(scale|bias)", REPLICATED),
    # Parameters of a T5 encoder.
    (r"layers\.(attention\.(query|key|value)|ffn\.(inner|gate))\.kernel", P(None, DATA, MODEL)),
    (r"layers\.(attention\.out|ffn\.outer)\.kernel", P(None, MODEL, DATA)),
    (r"(encoder|decoder)\.(attention|cross)\.(query|key|value)\.kernel", P(None, None, MODEL)),
    (r"(encoder|decoder)\.(attention|cross)\.out\.kernel", P(None, MODEL, None)),
    (r"(encoder|decoder)\.ffn\.(inner|gate)\.kernel", P(None, None, MODEL)),
    (r"(encoder|decoder)\.ffn\.outer\.kernel", P(None, MODEL, None)),
    (r"(encoder|decoder)\.(attention|cross|ffn)_norm\.scale", REPLICATED),
    (r"(encoder|decoder)_norm\.scale", REPLICATED),
    (r"((encoder|decoder)_positions|relative_positions)\.table", REPLICATED),
    (r"output\.kernel", P(None, MODEL)),
    (r"embedding\.table", P(None, MODEL)),
    (r"word_embedding\.table", P(None, (DATA, MODEL))),
    (r"(position_embedding|type_embedding)\.table", REPLICATED),
    (r"(embedding_)?norm\.(scale|bias)", REPLICATED),
    (r"(projection|term_head|inner_dense\.\d+)\.(kernel|bias)", REPLICATED),
    # Every column of the adapted layer needs all of an adapter.
    (r"(lora\.\w+|parallel)\.down\.kernel", P(None, DATA, None)),
    (r"(lora\.\w+|parallel)\.up\.kernel", P(None, None, DATA)),
    (r"(lora\.\w+|parallel)\.(down|up)\.bias", REPLICATED),
    (r"(words_)?head\.(dense|norm|out)\.(kernel|scale|bias)", REPLICATED),
    (r"lm_head\.kernel", P(None, MODEL)),
    (r"(words_)?head\.bias", REPLICATED),
    (r"query_weights", REPLICATED),
    (r"own\..*", REPLICATED),  # Of an encoder of the user's.
    # Product codes, see jaxretr/losses/quantised.py.
    (r"codebook", REPLICATED),
]


def spec_of(name: str) -> P:
    """Return the PartitionSpec of a parameter by its dotted name, with both axes; an unknown name is an error."""
    for pattern, spec in PARAMETERS:
        if re.search(rf"(^|\.){pattern}$", name):
            return spec
    raise KeyError(f"no PartitionSpec for parameter '{name}'; add it to jaxretr/runtime/parallel/sharding.py")


def dotted(path: tuple[Any, ...]) -> str:
    """Return a tree path's dotted name; the names of the optimizer's moments end with the name of their parameter."""
    parts = (next(getattr(key, name) for name in ("key", "name", "idx") if hasattr(key, name)) for key in path)
    return ".".join(str(part) for part in parts)


def _specs(tree: Any, mesh: Mesh, axes: Collection[str], split: bool) -> Any:
    """Return the PartitionSpec of every leaf of a tree, over these mesh axes alone; `split` as in `shardings`."""

    def axes_of(length: int, named: Any, over_data: bool) -> Any:
        kept = tuple(axis for axis in (named if isinstance(named, tuple) else (named,)) if axis in axes)
        if not over_data:
            kept = tuple(axis for axis in kept if axis != DATA)
        # The devices do not divide this length: all of them have all of it.
        if DATA in kept and length % mesh.shape[DATA]:
            kept = tuple(axis for axis in kept if axis != DATA)
        return None if not kept else kept[0] if len(kept) == 1 else kept

    def one(path: tuple[Any, ...], leaf: Any) -> P:
        if leaf.ndim == 0 or not axes:
            return REPLICATED
        name = dotted(path)
        if name.startswith(_OF_WHOLE):
            return REPLICATED
        large = math.prod(leaf.shape[-2:]) >= SPLIT_FROM
        over_data = large and (split or name.startswith(_OPTIMIZER))
        named = [axes_of(length, axis, over_data) for length, axis in zip(leaf.shape, spec_of(name), strict=False)]
        # The form in which a compiled step states its results' places; an equal spec in another form would compile the
        # next step again.
        while named and named[-1] is None:
            named.pop()
        return P(*named)

    return jax.tree_util.tree_map_with_path(one, tree)


def shardings(tree: Any, mesh: Mesh, *, split: bool = False) -> Any:
    """Return the NamedSharding of every leaf of a tree of parameters or of a whole TrainState; scalars are copies.

    The optimizer's moments of all large matrices with an axis that the devices divide are split over "data".

    Args:
      tree: parameters, or anything whose leaves' paths end with parameter names, like optimizer moments.
      split: whether the parameters are split over "data" as well.
    """
    axes = {axis for axis in (DATA, MODEL) if mesh.shape[axis] > 1}
    specs = _specs(tree, mesh, axes, split)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, P))


_OPTIMIZER = "opt_state."
"""Beginning of the paths of a TrainState's moments."""
_OF_WHOLE = f"{_OPTIMIZER}of_whole."
"""The same, of an optimizer that updates whole matrices (`OfWhole`)."""

PARAMETERS_OR_STATE: Any = object()
"""Placeholder among the specs that `over_data` takes: for parameters or a TrainState, as an argument or a result."""


def over_data(
    function: Callable[..., Any], *, mesh: Mesh, split: bool, in_specs: tuple[Any, ...], out_specs: Any
) -> Callable[..., Any]:
    """`jax.shard_map` over "data" of a function of parameters.

    Args:
      function: its first argument is parameters or a TrainState.
      mesh: mesh with the axes "data" and "model"; "model" is left to the compiler.
      split: whether the parameters are split over "data", as in `shardings`.
      in_specs: specs of the arguments, as for `jax.shard_map`, or PARAMETERS_OR_STATE.
      out_specs: specs of the results, in the same form.
    """

    @functools.wraps(function)
    def mapped(first: Any, *others: Any) -> Any:
        own = _specs(first, mesh, {DATA} if mesh.shape[DATA] > 1 else {}, split)
        ins, outs = (
            tuple(own if spec is PARAMETERS_OR_STATE else spec for spec in specs) if isinstance(specs, tuple) else specs
            for specs in (in_specs, out_specs)
        )
        run = jax.shard_map(function, mesh=mesh, axis_names={DATA}, in_specs=ins, out_specs=outs)
        return run(first, *others)

    return mapped


def compiled_over_data(
    mesh: Mesh, in_specs: tuple[Any, ...], out_specs: Any, *, split: bool = False, donate: tuple[int, ...] = ()
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator of functions whose first argument is parameters or a TrainState: `over_data`, compiled.

    A state that is returned first stays in the places of `shardings`: on a "model" axis the compiler would choose others,
    and each new choice would compile the next step again.

    Args:
      in_specs: specs of the arguments after the first.
      out_specs: specs of the results; PARAMETERS_OR_STATE of a state.
      split: whether the parameters are split over "data", as in `shardings`.
      donate: numbers of the arguments that are used up.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        mapped = over_data(
            function, mesh=mesh, split=split, in_specs=(PARAMETERS_OR_STATE, *in_specs), out_specs=out_specs
        )

        @functools.wraps(function)
        def staying(*arguments: Any) -> Any:
            found = mapped(*arguments)
            if mesh.shape[MODEL] == 1 or not isinstance(out_specs, tuple) or out_specs[0] is not PARAMETERS_OR_STATE:
                return found
            state, *others = found
            return jax.lax.with_sharding_constraint(state, shardings(state, mesh, split=split)), *others

        return device_jit(staying, donate_argnums=donate)

    return compiled


def put(tree: Any, mesh: Mesh, *, split: bool = False) -> Any:
    """Copy a tree of parameters, or a TrainState, to the mesh, placed by `shardings`."""
    return put_tree(tree, shardings(tree, mesh, split=split))


def abstract(tree: Any, mesh: Mesh, sharding: NamedSharding | None = None, *, split: bool = False) -> Any:
    """Return ShapeDtypeStructs of a tree, with `shardings`' or one common sharding."""
    places = shardings(tree, mesh, split=split) if sharding is None else jax.tree.map(lambda _: sharding, tree)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, places)
