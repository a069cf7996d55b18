"""Responses as JSON: written fast, and never failing for a text that UTF-8 cannot hold."""

from typing import Any

from pydantic_core import PydanticSerializationError, to_json
from starlette.responses import Response

from jaxretr.serve.problems import Problem


class Answer(Response):
    """A JSON response."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        try:
            return to_json(content)
        except PydanticSerializationError:  # Half a surrogate pair, which an index of old may hold.
            return to_json(_whole(content))

    @classmethod
    def of(cls, problem: Problem) -> "Answer":
        """The response of a problem."""
        return cls(problem.to_json(), problem.status, headers=problem.headers)


def _whole(content: Any) -> Any:
    """The same with question marks in place of what UTF-8 cannot hold."""
    if isinstance(content, str):
        return content.encode("utf-8", "replace").decode()
    if isinstance(content, dict):
        return {_whole(key): _whole(value) for key, value in content.items()}
    return [_whole(each) for each in content] if isinstance(content, list | tuple) else content
