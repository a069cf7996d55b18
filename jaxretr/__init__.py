"""jaxretr: train, evaluate and serve dense passage retrievers in JAX."""

import ast
import importlib
import inspect
import pkgutil
import sys
from types import ModuleType
from typing import Any

from jaxretr.version import __version__ as __version__

# Name -> module, of what is imported on first use, so that `import jaxretr` and `jaxretr --help` are instant. The stub
# states both in one place, for type checkers too.
_HOMES = {
    alias.name: str(statement.module)
    for statement in ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"").body
    if isinstance(statement, ast.ImportFrom) and statement.module != "jaxretr.version"
    for alias in statement.names
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'jaxretr' has no attribute '{name}'")
    found = importlib.import_module(home)
    # Importing may have bound a module of that name, which by now is callable.
    return globals().get(name) or getattr(found, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# ---- names that are both a module and a function ---------------------------------------------------------------------


class _CallableModule(ModuleType):
    """A module that can be called like the public function of the same name: `jaxretr.search(...)`, and
    `jaxretr.search.exact` within it."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return _function_of(self)(*arguments, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(_function_of(self))


def _function_of(module: ModuleType) -> Any:
    name = module.__name__.removeprefix("jaxretr.")
    return vars(importlib.import_module(_HOMES[name]))[name]


class _Package(ModuleType):
    """Package whose modules become callable when the import system binds them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOMES and type(value) is ModuleType:
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
