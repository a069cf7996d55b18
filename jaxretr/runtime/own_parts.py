"""Parts of a run that a user writes: a function in a file, which a config names FILE.py:FUNCTION, or one given in Python."""

import contextlib
import functools
import hashlib
import inspect
import marshal
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxretr.runtime.errors import UsageError, UserError, did_you_mean

# Functions that were given in Python, by the name that their config has.
_GIVEN: dict[str, Callable[..., Any]] = {}
_PYTHON = "python"


def is_own(name: str) -> bool:
    """Whether a setting names a function of the user's."""
    return ":" in name


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which a config refers to a function, and `own_part` finds it.

    A function at the top level of a file is found there by later processes too; any other one has to be given again.
    """
    inner = function.func if isinstance(function, functools.partial) else function
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    with contextlib.suppress(TypeError):
        file = Path(inspect.getsourcefile(function) or "")
        if file.is_file() and name.isidentifier():
            name = f"{file.resolve()}:{name}"
    name = name if is_own(name) else f"{_PYTHON}:{name}"
    _GIVEN[name] = function
    return name


def own_part(name: str, setting: str) -> Callable[..., Any]:
    """Return the function that a setting names, FILE.py:FUNCTION.

    Raises:
      UsageError: there is no such file or function, the file fails, or the function was given to another process.
    """
    if name in _GIVEN:
        return _GIVEN[name]
    file, _, function = name.rpartition(":")
    if file == _PYTHON:
        raise UsageError(f"{setting}={name}: was given in Python; call jaxretr.train with this function again")
    path = Path(file).expanduser()
    if not path.is_file():
        raise UsageError(f"{setting}={name}: there is no file {path}; give FILE.py:FUNCTION")
    found = _names_in(path).get(function)
    if not callable(found):
        hint = did_you_mean(function, [each for each, value in _names_in(path).items() if inspect.isfunction(value)])
        raise UsageError(f"{setting}={name}: {path} defines no function {function}{hint}")
    return found


@functools.cache
def _names_in(path: Path) -> dict[str, Any]:
    with of_user(path, "fix the file"):
        return runpy.run_path(str(path))


def source_digest(function: Callable[..., Any]) -> str:
    """Return a digest of a function's source, or of its code where the source is not known; of a partial's values, too."""
    found = hashlib.sha256()
    while isinstance(function, functools.partial):
        found.update(repr((function.args, sorted(function.keywords.items()))).encode())
        function = function.func
    of_class = function if hasattr(function, "__code__") else type(function)
    try:
        found.update(inspect.getsource(of_class).encode())
    except (OSError, TypeError):
        code = getattr(of_class, "__code__", None)
        found.update(marshal.dumps(code) if code else of_class.__qualname__.encode())
    return found.hexdigest()


@contextlib.contextmanager
def of_user(path: Path, remedy: str) -> Iterator[None]:
    """Report what a user's file raises as a UsageError with the line in the file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # The file is the user's program: whatever it raises is to be fixed there.
        line, what = _line_in(error, path), f"{type(error).__name__}: {error}"
        if isinstance(error, SyntaxError) and error.filename == str(path):
            line, what = error.lineno, error.msg
        raise UsageError(f"{path}:{line}: {what}; {remedy}") from error


def _line_in(error: BaseException, path: Path) -> int:
    """Return the last line of `path` in the error's traceback, counted from 1; 0 if there is none."""
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            line = frame.tb_lineno
        frame = frame.tb_next
    return line
