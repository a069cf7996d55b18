"""Loops compiled by Numba, kept on disk between runs where a folder for them can be written."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(**settings: Any) -> Callable[[Function], Function]:
    """Decorate a function to be compiled by njit, with its settings, on its first call, and to run without the GIL."""

    def compile_(function: Function) -> Function:
        try:
            made: Any = numba.njit(nogil=True, cache=True, **settings)(function)
        except RuntimeError:  # no folder that may be written to, neither the package's nor the user's
            return numba.njit(nogil=True, **settings)(function)  # pyright: ignore[reportReturnType]
        _without_errors_of_the_disk(made)
        return made

    return compile_


def _without_errors_of_the_disk(made: Any) -> None:
    """Let a full disk cost the next run its compilation, and not this run its result."""
    save = made._cache.save_overload

    def save_or_not(*what: Any) -> None:
        with contextlib.suppress(OSError):
            save(*what)

    made._cache.save_overload = save_or_not
