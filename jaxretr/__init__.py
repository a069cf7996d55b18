"""jaxretr: train, evaluate and serve dense passage retrievers in JAX."""

import ast
import importlib
import pkgutil
from typing import Any

from jaxretr.version import __version__ as __version__

# Name -> module, of what is imported on first use, so that `import jaxretr` and `jaxretr --help` are instant. The stub
# states both in one place, for type checkers too. No module of the package has the name of one of these.
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
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
