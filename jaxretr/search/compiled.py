"""Loops that Numba compiles, kept on disk between runs where a folder for them can be written."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(**settings: Any) -> Callable[[Function], Function]:
    """A decorator: compiles a function on its first call, and lets other threads run meanwhile; settings of njit."""

    def compile_(function: Function) -> Function:
        try:
            return numba.njit(nogil=True, cache=True, **settings)(function)  # pyright: ignore[reportReturnType]
        except RuntimeError:  # no folder that may be written to, neither the package's nor the user's
            return numba.njit(nogil=True, **settings)(function)  # pyright: ignore[reportReturnType]

    return compile_
