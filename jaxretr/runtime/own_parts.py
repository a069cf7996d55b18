"""Parts of a run that a user writes: a function in a file, which a config names FILE.py:FUNCTION, or one given in Python."""

import contextlib
import functools
import hashlib
import importlib
import inspect
import linecache
import marshal
import runpy
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxretr.runtime.errors import UsageError, UserError, did_you_mean

# Functions that were given in Python, by their setting and the name that the config has there.
_GIVEN: dict[tuple[str, str], Callable[..., Any]] = {}
_PYTHON = "python"
_RUNNING: list[Path] = []
"""The user's files that are being run, to find functions in them."""


def is_own(name: str) -> bool:
    """Whether a setting names a function of the user's."""
    return ":" in name


def name_of(function: Callable[..., Any] | str, setting: str) -> str:
    """Return the name by which a config refers to a function that was given in Python, and `own_part` finds it.

    A function of an importable module is found there by later processes too; any other one has to be given again.

    Raises:
      UsageError: it cannot be called.
    """
    if isinstance(function, str):
        return function
    if not callable(function):
        raise UsageError(f"{setting}: a function is expected, not a {type(function).__name__}")
    inner = function.func if isinstance(function, functools.partial) else function
    module = getattr(inner, "__module__", None) or type(inner).__module__
    name = f"{_PYTHON}:{module}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
    _GIVEN[setting, name] = function
    return name


def own_part(name: str, setting: str) -> Callable[..., Any]:
    """Return the function that a setting names, FILE.py:FUNCTION; what it raises becomes a UsageError with its line.

    Raises:
      UsageError: there is no such file or function, the file fails, or the function was given to another process.
    """
    function = _found(name, setting)
    try:
        path = Path(inspect.getsourcefile(inspect.unwrap(function)) or name)
    except TypeError:
        path = Path(name.rpartition(":")[0])

    @functools.wraps(function, updated=())
    def reported(*values: Any, **named: Any) -> Any:
        with of_user(path, f"fix the function of {setting}"):
            return function(*values, **named)

    return reported


def _found(name: str, setting: str) -> Callable[..., Any]:
    if (setting, name) in _GIVEN:
        return _GIVEN[setting, name]
    file, _, function = name.rpartition(":")
    if file == _PYTHON:
        module, _, function = function.rpartition(".")
        with contextlib.suppress(ImportError, ValueError):
            if module != "__main__" and callable(found := getattr(importlib.import_module(module), function, None)):
                return found
        raise UsageError(f"{setting}={name}: was given in Python; call jaxretr.train with this function again")
    path = Path(file).expanduser()
    if not path.is_file():
        raise UsageError(f"{setting}={name}: there is no file {path}; give FILE.py:FUNCTION")
    names = _names_in(path, path.read_bytes())
    if not callable(found := names.get(function)):
        hint = did_you_mean(function, [each for each, value in names.items() if inspect.isfunction(value)])
        raise UsageError(f"{setting}={name}: {path} defines no function {function}{hint}")
    return found


@functools.cache
def _names_in(path: Path, content: bytes) -> dict[str, Any]:
    """Return what a file with this content defines."""
    linecache.checkcache(str(path))
    _RUNNING.append(path)
    try:
        with of_user(path, "fix the file"):
            return runpy.run_path(str(path))
    finally:
        _RUNNING.pop()


def refuse_while_looking_for_parts() -> None:
    """Raise UsageError if a user's file, which is run to find a function in it, trains."""
    if _RUNNING:
        raise UsageError("it trains where it is read; put that under: if __name__ == '__main__'")


def source_digest(name: str, setting: str) -> str:
    """Return a digest of what a setting names: of its whole file, or of a function that was given in Python.

    Of the latter, the source counts (the code, where no file has it) with the values that it was made with: a closure's,
    defaults, an object's attributes. What it reads from its module is not looked at.
    """
    file, _, _ = name.rpartition(":")
    found = hashlib.sha256()
    if file == _PYTHON:
        add_value(found, _found(name, setting))
    else:
        found.update(Path(file).expanduser().read_bytes())
    return found.hexdigest()


def add_value(found: Any, value: Any, seen: Collection[int] = ()) -> None:
    """Add a value to a digest; objects that say nothing of themselves count by their class.

    Args:
      seen: ids of the values that hold this one.
    """
    if id(value) in seen:
        return
    seen = {*seen, id(value)}
    if isinstance(value, functools.partial):
        add_value(found, [value.func, value.args, value.keywords], seen)
    elif isinstance(value, Mapping):
        add_value(found, [*value.items()], seen)
    elif isinstance(value, list | tuple):
        found.update(f"{len(value)}[".encode())
        for each in value:
            add_value(found, each, seen)
    elif callable(value) and hasattr(function := inspect.unwrap(value), "__code__"):
        try:
            found.update(inspect.getsource(function).encode())
        except (OSError, TypeError):
            found.update(marshal.dumps(function.__code__))
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        add_value(found, [function.__defaults__, function.__kwdefaults__, cells], seen)
    elif hasattr(value, "__array__"):
        import numpy as np  # Help, which reads configs, does without it.

        array = np.asarray(value)
        found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    elif value is None or isinstance(value, str | bytes | int | float | complex):
        found.update(repr(value).encode())
    else:
        found.update(f"{type(value).__module__}.{type(value).__qualname__}".encode())
        with contextlib.suppress(OSError, TypeError):
            found.update(inspect.getsource(type(value)).encode())
        add_value(found, getattr(value, "__dict__", None), seen)


@contextlib.contextmanager
def of_user(path: Path, remedy: str) -> Iterator[None]:
    """Report what a user's file raises as a UsageError with the line in the file; an argument too many has none."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # The file is the user's program: whatever it raises is to be fixed there.
        line, what = _line_in(error, path), f"{type(error).__name__}: {error}".splitlines()[0]
        if isinstance(error, SyntaxError) and error.filename == str(path):
            line, what = error.lineno, error.msg
        raise UsageError(f"{path}{f':{line}' * bool(line)}: {what}; {remedy}") from error


def _line_in(error: BaseException, path: Path) -> int:
    """Return the last line of `path` in the error's traceback, counted from 1; 0 if there is none."""
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            line = frame.tb_lineno
        frame = frame.tb_next
    return line
