"""The errors that a user can cause: one line that says what happened, where, and what to do."""

import difflib
import importlib
import math
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from types import ModuleType
from typing import Any, cast

from jaxretr.runtime.extras import requirement


class UserError(Exception):
    """Bad input or a failed run: the command line prints the message alone and exits with `exit_code`."""

    exit_code = 1


class UsageError(UserError):
    """A command or a configuration that was written wrongly."""

    exit_code = 2


class UnavailableError(UserError):
    """A resource cannot be reached now, or takes too long, but may be back later; the service answers with 503."""


def reason(error: BaseException) -> str:
    """The reason that an error states, in one line: the operating system's, or the first line of its message."""
    text = getattr(error, "strerror", None) or str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0][:200]


def some_names(names: list[str]) -> str:
    """Return up to five names, and the number of the others."""
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + rest


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name nearest to `name`, or an empty string."""
    name = str(name)
    # An option's dashes make no word near to another.
    words = {each.lstrip("-"): each for each in known}
    nearest = difflib.get_close_matches(name.lstrip("-"), words, n=1, cutoff=0.6)
    return f"; did you mean '{words[nearest[0]]}'?" if nearest else ""


def environment_choice(variable: str, choices: Sequence[str]) -> str:
    """Return the choice that an environment variable states, or the first one if it is not set.

    Raises:
      UsageError: it states something else.
    """
    chosen = os.environ.get(variable) or choices[0]
    if chosen not in choices:
        known = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise UsageError(f"{variable}={chosen}: set it to {known}{did_you_mean(chosen, choices)}")
    return chosen


def at_least(least: int, **numbers: int | None) -> None:
    """Raise UsageError for the first of the parameters, by their names, that is no whole number of at least `least`.

    None is none of them.
    """
    for name, value in numbers.items():
        if value is None:
            continue
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        if number is None or isinstance(value, bool):
            raise UsageError(f"{name}={_short(value)}: give a whole number, at least {least}")
        if number < least:
            raise UsageError(f"{name}={value}: must be at least {least}")


def require_at_least(least: int, **numbers: int) -> None:
    """Check parameters as `at_least` does, by their names; None is an error as well."""
    for name, value in numbers.items():
        if value is None:
            raise UsageError(f"{name}=None: give a whole number, at least {least}")
    at_least(least, **numbers)


def is_number(value: object) -> bool:
    """Whether a value is a finite number, Python's or numpy's, that a float can hold."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:
        return False


def check_seed(seed: int, name: str = "seed") -> None:
    """Raise UsageError for a seed, by its name, that is no whole number of 32 bits: JAX refuses the others or cuts them."""
    require_at_least(0, **{name: seed})
    if seed >= 2**32:
        raise UsageError(f"{name}={seed}: must be below 2^32")


def path_text(path: object) -> str:
    """The text of a path or name.

    Raises:
      UsageError: it is neither a str nor a path, or one that no file can have.
    """
    try:
        text = os.fspath(cast(Any, path))
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise UsageError(f"{_short(path)}: a {type(path).__name__} is neither a path nor a name; give a str or a Path")
    if "\0" in text:
        raise UsageError(f"{_short(text)}: a path has no NUL character; remove it")
    if any(len(os.fsencode(part)) > 255 for part in text.split("/")):
        raise UsageError(f"{_short(text)}: no file has so long a name; choose a shorter name")
    if text.startswith("~") and os.path.expanduser(text) == text:
        user = text.partition("/")[0]
        raise UsageError(
            f"{_short(path)}: there is no user {user[1:]!r} here; give the path, or ./{user} for that name"
        )
    return text


def check_list(name: str, values: object) -> None:
    """Raise UsageError for a parameter, by its name, that is one text or no list at all in place of a list of texts."""
    if isinstance(values, str | bytes | os.PathLike):
        raise UsageError(f"{name}={_short(values)}: is a single one; give a list")
    if not isinstance(values, Iterable):
        raise UsageError(f"{name}={_short(values)}: a {type(values).__name__} is no list; give a list")


def check_rows(name: str, values: object) -> None:
    """Raise UsageError for a parameter, by its name, whose elements are no rows in an order."""
    check_list(name, values)
    if why := no_rows(values):
        raise UsageError(f"{name}: {why}")


def no_rows(values: object) -> str:
    """Why the elements of a collection are no rows in an order, with a remedy; "" where they are."""
    kind = type(values).__name__
    if isinstance(values, Mapping):
        return f"a {kind} would be read as its keys; give a list"
    if isinstance(values, set | frozenset):
        return f"a {kind} has no order; give a list"
    if hasattr(values, "columns") and hasattr(values, "shape"):
        return f"a {kind} would be read as the names of its columns; give its rows as a list, or one column"
    return ""


def _short(value: object) -> str:
    """A value in a message: its beginning, in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_choice(choices: Iterable[str], **values: object) -> None:
    """Raise UsageError for the first of the parameters, by their names, that is none of the choices; None is left out."""
    known = list(choices)
    for name, value in values.items():
        if value is not None and value not in known:
            raise UsageError(f"{name}={value!r}: give {' or '.join(map(repr, known))}{did_you_mean(str(value), known)}")


def import_extra(module: str, extra: str) -> ModuleType:
    """Import an optional package.

    Args:
      module: dotted name of the module, for instance "scann".
      extra: the extra of this package that installs it.

    Raises:
      UserError: the package is not installed; the message names the command that installs the extra.
    """
    return import_package(module, requirement(extra))


def import_package(module: str, package: str) -> ModuleType:
    """Import a package that the caller has or does not have, in a version of their own.

    Args:
      module: dotted name of the module.
      package: name that pip installs it by.

    Raises:
      UserError: it is not installed; the message names the package.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{module} is not installed ({error}); run: pip install {package}") from error
