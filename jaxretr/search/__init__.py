"""Search over embeddings and words; `jaxretr.search(...)` is `jaxretr.searching.search`."""

import inspect
import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """Importing anything of this package puts the package in the place of the function's name."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        # Here, since it stands on models and stores, which the rest of this package knows nothing of.
        from jaxretr.searching import search

        return search(*arguments, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        from jaxretr.searching import search

        return inspect.signature(search)


sys.modules[__name__].__class__ = _Callable
