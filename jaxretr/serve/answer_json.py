"""Responses as JSON: serialised fast, and without failing on text that UTF-8 cannot hold."""

from typing import Any

from pydantic_core import PydanticSerializationError, to_json
from starlette.responses import JSONResponse

from jaxretr.serve.problems import Problem


class Answer(JSONResponse):
    """A response whose body is JSON, also for text that UTF-8 cannot hold."""

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        try:
            return to_json(content)
        except PydanticSerializationError:  # Half a surrogate pair, which an older index may hold.
            return to_json(_encodable(content))

    @classmethod
    def of(cls, problem: Problem) -> "Answer":
        """The response to a problem."""
        return cls(problem.to_json(), problem.status, headers=problem.headers)


def _encodable(content: Any) -> Any:
    """The content with a question mark in place of each character that UTF-8 cannot hold."""
    if isinstance(content, str):
        return content.encode("utf-8", "replace").decode()
    if isinstance(content, dict):
        return {_encodable(key): _encodable(value) for key, value in content.items()}
    return [_encodable(each) for each in content] if isinstance(content, list | tuple) else content
