"""Parameters in two trees, those that are trained and those that stay frozen; and the digest of a tree."""

from collections.abc import Collection
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from jaxretr.models.backbones.layers import Params


def partition(params: Params, frozen: Collection[str]) -> tuple[Params, Params]:
    """Split a tree of parameters.

    Args:
      params: nested dicts of arrays.
      frozen: names, at any depth, whose branches are not trained.

    Returns:
      The trained and the frozen tree; each lacks the other's parameters, and empty branches.
    """
    trained, kept = {}, {}
    for name, value in params.items():
        if name in frozen:
            kept[name] = value
        elif isinstance(value, dict):
            inner = partition(value, frozen)
            for tree, part in zip((trained, kept), inner, strict=True):
                if part:
                    tree[name] = part
        else:
            trained[name] = value
    return trained, kept


def join(trained: Params, frozen: Params) -> Params:
    """Join the two trees of `partition` again, without copying arrays."""
    if not isinstance(trained, dict):  # a single array, no part of which is frozen
        return trained
    joined = dict(trained)
    for name, value in frozen.items():
        joined[name] = join(joined[name], value) if name in joined else value
    return joined


def add_to_digest(digest: Any, params: Params) -> None:
    """Add the names, shapes and float32 numbers of parameters to a digest of hashlib."""
    leaves: dict[str, Any] = flatten_dict(params, sep=".")  # pyright: ignore[reportAssignmentType]
    for name in sorted(leaves):
        array = np.ascontiguousarray(leaves[name], np.float32)
        digest.update(f"{name}{array.shape}".encode())
        digest.update(array.data)
