"""Loops that Numba compiles, kept on disk between runs where a folder for them can be written."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(**settings: Any) -> Callable[[Function], Function]:
    """A decorator: compiles a function on its first call, and lets other threads run meanwhile; settings of njit."""

    def compile_(function: Function) -> Function:
        try:
            made: Any = numba.njit(nogil=True, cache=True, **settings)(function)
        except RuntimeError:  # no folder that may be written to, neither the package's nor the user's
            return numba.njit(nogil=True, **settings)(function)  # pyright: ignore[reportReturnType]
        _without_errors_of_the_disk(made)
        return made

    return compile_


def _without_errors_of_the_disk(made: Any) -> None:
    """A full disk costs the next run the time of compiling, and not this one its result."""
    save = made._cache.save_overload

    def save_or_not(*what: Any) -> None:
        with contextlib.suppress(OSError):
            save(*what)

    made._cache.save_overload = save_or_not
