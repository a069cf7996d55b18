"""The problems of requests: exceptions that know their HTTP status and JSON body.

A class's docstring is what the OpenAPI document says about its status.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxretr.runtime.errors import did_you_mean

Type = Literal[
    "invalid_request",
    "authentication",
    "permission",
    "not_found",
    "overloaded",
    "too_large",
    "read_only",
    "unavailable",
    "internal",
]

# Longer messages are cut: they may quote names that a client chose.
_LONGEST = 500


class Problem(Exception):
    """A request that fails; the message is one line: what, where, and what to do.

    Attributes:
      status: the HTTP status.
      type: the kind of problem, for programs.
      param: the field or parameter that is wrong, if it is one.
      headers: headers of the response.
    """

    status: int = 400
    type: Type = "invalid_request"
    headers: Mapping[str, str] = {}

    def __init__(self, message: str, param: str | None = None):
        super().__init__(message)
        self.param = param

    def to_json(self) -> dict[str, Any]:
        """The body of the response."""
        return body_of(self.type, str(self), self.param)


def body_of(type: Type, message: str, param: str | None = None) -> dict[str, Any]:
    """The JSON of a problem: one line, and nothing in it that UTF-8 cannot hold."""
    line = " ".join(message.encode("utf-8", "replace").decode().split())
    line = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
    return {"error": {"message": line, "type": type, "param": param}}


class Malformed(Problem):
    """The request cannot be read."""


class Invalid(Problem):
    """A value is wrong."""

    status = 422


# The messages of pydantic's types of errors, for a client, who knows the fields of a request and not our classes.
_MESSAGES = {
    "missing": "missing; give it",
    "extra_forbidden": "there is no such field; leave it out, or see /docs",
    "string_too_short": "too few characters; give at least {min_length}",
    "string_too_long": "too many characters; give at most {max_length}",
    "too_short": "{actual_length} items are too few; give at least {min_length}",
    "too_long": "{actual_length} items are too many; give at most {max_length}",
    "greater_than_equal": "too small; give at least {ge}",
    "greater_than": "too small; give more than {gt}",
    "less_than_equal": "too large; give at most {le}",
    "less_than": "too large; give less than {lt}",
    "finite_number": "not finite; give a finite number",
    "literal_error": "an unknown value; give {expected}",
    "value_error": "{error}",
    "int_parsing": "give an integer",
    "int_parsing_size": "too many digits; give a smaller integer",
    "int_from_float": "give an integer",
    "float_parsing": "give a number",
    "bool_parsing": "give true or false",
}
_KINDS = {
    "string_type": "a string",
    "bool_type": "a boolean",
    "int_type": "an integer",
    "float_type": "a number",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null",
}


@dataclass(frozen=True)
class _Fault:
    """An error of pydantic, at its place in a request.

    Attributes:
      path: names and indices that lead to the value.
      branches: branches of the unions on the way, whose names pydantic puts among those of the path.
      union: the length of the part of the path that leads to the first union.
      value: the wrong value.
      error: pydantic's error.
    """

    path: tuple[str | int, ...]
    branches: tuple[str | int, ...]
    union: int
    value: Any
    error: Mapping[str, Any]

    @classmethod
    def of(cls, error: Mapping[str, Any], value: Any) -> "_Fault":
        """Follow the error's location into the request's value."""
        path: list[str | int] = []
        branches: list[str | int] = []
        union = 0
        for number, part in enumerate(error["loc"], start=1):
            missing = error["type"] == "missing" and number == len(error["loc"])
            if isinstance(value, dict) and (part in value or missing):
                path.append(part)
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                path.append(part)
                value = value[part]
            elif part == "[key]":
                value = path.pop()
            else:
                union = union if branches else len(path)
                branches.append(part)
        return cls(tuple(path), tuple(branches), union, value, error)

    @property
    def is_kind(self) -> bool:
        """Whether the value is of a kind that does not belong there."""
        return self.error["type"] in _KINDS


def invalid(errors: Sequence[Mapping[str, Any]], value: Any) -> Invalid:
    """The problem that pydantic's errors amount to: the first error, at its field's own name.

    Of a union's branches, that one is believed which got furthest into the value; where none accepts a value of this kind,
    the message names the kinds of all.

    Args:
      errors: at least one, with locations within `value`.
      value: the request's value.
    """
    faults = [_Fault.of(error, value) for error in errors]
    fault, siblings = faults[0], faults[:1]
    if fault.branches:
        place = fault.path[: fault.union]
        inside = [each for each in faults if each.branches and each.path[: fault.union] == place]
        branches: dict[tuple[str | int, ...], list[_Fault]] = {}
        for each in inside:
            branches.setdefault(each.branches, []).append(each)
        [fault, *_] = max(
            branches.values(),
            key=lambda branch_faults: (
                max(len(each.path) for each in branch_faults),
                any(not each.is_kind for each in branch_faults),
                -len(branch_faults),
            ),
        )
        siblings = [each for each in inside if each.path == fault.path]
    where = ".".join(map(str, fault.path))[:200]
    return Invalid(f"{where or 'the body'}: {_message(fault, siblings)}", where or None)


def no_such(what: str, name: str, known: Collection[str]) -> Invalid:
    """The problem that a request names a parameter or an argument that there is not."""
    listing = f"there are {', '.join(known)}" if known else "there are none"
    return Invalid(f"{name[:200]}: no such {what}{did_you_mean(name, known) or f'; {listing}'}", name[:200])


def _message(fault: _Fault, siblings: Sequence[_Fault]) -> str:
    """The message about a value, made of all the faults that were found at its place."""
    type, context = fault.error["type"], fault.error.get("ctx", {})
    if not fault.is_kind:
        return _MESSAGES[type].format_map(context) if type in _MESSAGES else str(fault.error["msg"])
    *most, last = dict.fromkeys(_KINDS[each.error["type"]] for each in siblings if each.is_kind)
    kinds = f"{', '.join(most)} or {last}" if most else last
    return f"{_kind(fault.value)} is not accepted here; give {kinds}"


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


class Unauthenticated(Problem):
    """No key, or a wrong one."""

    status, type = 401, "authentication"
    headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}


class Forbidden(Problem):
    """The key lacks the scope, or the service does not allow it."""

    status, type = 403, "permission"


class NotFound(Problem):
    """There is no such index or document."""

    status, type = 404, "not_found"


class ReadOnly(Problem):
    """The index cannot be written."""

    status, type = 405, "read_only"
    headers: Mapping[str, str] = {"Allow": "GET, HEAD"}


class Timeout(Problem):
    """The body arrived too slowly."""

    status = 408
    headers: Mapping[str, str] = {"Connection": "close"}


class Conflict(Problem):
    """It exists already, or another operation is in the way."""

    status = 409


class TooLarge(Problem):
    """The body is too large."""

    status, type = 413, "too_large"


class WrongMediaType(Problem):
    """The body is not JSON, or is compressed."""

    status = 415


class Overloaded(Problem):
    """The queue is full, or the key has sent too many requests; see Retry-After."""

    status, type = 429, "overloaded"

    def __init__(self, message: str, seconds: int):
        """Say which of the two it is, and after how many seconds, at least 1, to try again."""
        super().__init__(f"{message}; try again in {seconds} s")
        self.headers, self.seconds = {"Retry-After": str(seconds)}, seconds


class Unavailable(Problem):
    """The service is starting or stopping."""

    status, type = 503, "unavailable"


class DiskFull(Problem):
    """The disk is full; nothing was written."""

    status, type = 507, "unavailable"
