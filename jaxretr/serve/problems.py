"""What can go wrong with a request: exceptions that know their HTTP status and JSON body."""

from collections.abc import Mapping
from typing import Any, Literal

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
      status: of HTTP.
      type: what kind of problem it is, for programs.
      param: the field or parameter that is wrong, if it is one.
      headers: of the response.
    """

    status: int = 400
    type: Type = "invalid_request"

    def __init__(self, message: str, param: str | None = None, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.param, self.headers = param, dict(headers or {})

    def to_json(self) -> dict[str, Any]:
        """The body of the response."""
        return body_of(self.type, str(self), self.param)


def body_of(type: Type, message: str, param: str | None = None) -> dict[str, Any]:
    """The JSON of a problem: one line, and nothing in it that UTF-8 cannot hold."""
    line = " ".join(message.encode("utf-8", "replace").decode().split())
    line = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
    return {"error": {"message": line, "type": type, "param": param}}


class Malformed(Problem):
    """The body or a header is not valid HTTP or JSON."""


class Invalid(Problem):
    """A value is wrong; the request could be read."""

    status = 422


class Unauthenticated(Problem):
    """There is no key, or a wrong one."""

    status, type = 401, "authentication"

    def __init__(self, message: str):
        super().__init__(message, headers={"WWW-Authenticate": "Bearer"})


class Forbidden(Problem):
    """The key lacks the scope."""

    status, type = 403, "permission"


class NotFound(Problem):
    """There is no such index, document or path."""

    status, type = 404, "not_found"


class ReadOnly(Problem):
    """The index cannot be written."""

    status, type = 405, "read_only"

    def __init__(self, message: str):
        super().__init__(message, headers={"Allow": "GET, HEAD"})


class Timeout(Problem):
    """The client took too long to send its request."""

    status = 408

    def __init__(self, message: str):
        super().__init__(message, headers={"Connection": "close"})


class Conflict(Problem):
    """What is to be created exists already, or another operation is in the way."""

    status = 409


class TooLarge(Problem):
    """The body is too large."""

    status, type = 413, "too_large"


class WrongMediaType(Problem):
    """The body has a media type that is not accepted."""

    status = 415


class Overloaded(Problem):
    """The queue is full, or a key has sent too many requests.

    Args:
      message: which of the two.
      seconds: after which to try again, at least 1.
    """

    status, type = 429, "overloaded"

    def __init__(self, message: str, seconds: int):
        super().__init__(f"{message}; try again in {seconds} s", headers={"Retry-After": str(seconds)})
        self.seconds = seconds


class Unavailable(Problem):
    """The service is starting or stopping."""

    status, type = 503, "unavailable"


class DiskFull(Problem):
    """A write was refused, and nothing of it was written."""

    status, type = 507, "unavailable"
