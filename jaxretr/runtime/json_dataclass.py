"""Dataclasses from JSON values, with every key and type checked."""

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal

from jaxretr.runtime.errors import UsageError, did_you_mean


def dataclass_from(cls: type, values: dict[str, Any], where: str) -> Any:
    """Build a (nested) dataclass from JSON values, refusing unknown and missing keys and values of another type.

    Args:
      where: place to name in errors, for instance the file that the values came from.

    Raises:
      UsageError: a key is unknown (with a suggestion) or missing, or a value is of another type.
    """
    hints = typing.get_type_hints(cls)
    names = {item.name for item in fields(cls)}
    for key in values:
        if key not in names:
            raise UsageError(f"{where}: unknown key '{key}'{did_you_mean(key, names)}")
    needed = (item.name for item in fields(cls) if item.default is MISSING and item.default_factory is MISSING)
    if lacking := [name for name in needed if name not in values]:
        raise UsageError(f"{where}: has no key '{lacking[0]}'; give it")
    converted = {key: _convert(hints[key], value, f"{where}.{key}") for key, value in values.items()}
    for key, value in converted.items():
        if not _fits(hints[key], value):
            raise UsageError(f"{where}: '{key}' is {value!r}; it must be {described(hints[key])}")
    try:
        return cls(**converted)
    except TypeError as error:
        raise UsageError(f"{where}: {error}") from None


def _convert(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict):
        return dataclass_from(hint, value, where)
    if isinstance(hint, types.UnionType) and isinstance(value, dict | list | tuple):
        wanted = is_dataclass if isinstance(value, dict) else lambda part: typing.get_origin(part) is tuple
        inner = next((part for part in hint.__args__ if wanted(part)), None)
        return value if inner is None else _convert(inner, value, where)
    if typing.get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(
            _convert(typing.get_args(hint)[0], item, f"{where}[{number}]") for number, item in enumerate(value)
        )
    # JSON has whole numbers where a program needs a float, and JAX accepts none above 2^31.
    return float(value) if hint is float and type(value) is int and _fits(int, value) else value


def _fits(hint: Any, value: Any) -> bool:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in parts
    if origin in (typing.Union, types.UnionType):
        return any(_fits(part, value) for part in parts)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(parts[0], item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return False  # No array has so many elements, and no float holds 10**400.
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(part, item) for pair in value.items() for part, item in zip(parts, pair, strict=True)
        )
    return isinstance(value, hint)


def described(hint: Any) -> str:
    """Describe a value of this type for an error, for instance "a whole number"."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(described, parts))
    if origin is tuple:
        return f"a list, each {described(parts[0])}"
    names = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}
    return names.get(hint, "an object")
