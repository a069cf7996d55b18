"""The engines of the certified index, by name, and the default choice of one."""

from typing import get_args

from jaxretr.config import EngineName
from jaxretr.indexes.certified.engine import Engine
from jaxretr.indexes.certified.faiss_engine import FaissEngine
from jaxretr.indexes.certified.scann_engine import ScannEngine
from jaxretr.runtime.errors import UsageError

# The engines in the order in which they are tried.
_ENGINES: dict[EngineName, Engine] = {"scann": ScannEngine(), "faiss": FaissEngine()}


def engine_of(name: EngineName) -> Engine:
    """The engine with the given name.

    Raises:
      UsageError: there is none.
    """
    if name not in _ENGINES:
        raise UsageError(f"engine={name!r}: there are {' and '.join(get_args(EngineName))}")
    return _ENGINES[name]


def working_engine(name: EngineName | None = None) -> Engine | None:
    """An engine that can be used here.

    Args:
      name: the only one that will do; by default ScaNN is tried first, then FAISS.
    """
    engines = _ENGINES.values() if name is None else [engine_of(name)]
    return next((engine for engine in engines if engine.problem() is None), None)


def engine_problems() -> str:
    """The reasons why no engine can be used, in one line."""
    return "; ".join(f"{engine.label}: {problem}" for engine in _ENGINES.values() if (problem := engine.problem()))
