"""Approximate search for serving: `ScannIndex`, imported on first use, since the worker process must not import JAX."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxretr.indexes.certified.index import ScannIndex

__all__ = ["ScannIndex"]


def __getattr__(name: str) -> Any:
    if name != "ScannIndex":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from jaxretr.indexes.certified.index import ScannIndex

    return ScannIndex
