"""The log: one JSON object per line on stderr, without texts, vectors and keys."""

import contextlib
import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import IO, Any


class RequestLog:
    """Writes a line for every request.

    Args:
      texts: whether queries are quoted.
      stream: the stream to write to; None: the current stderr.
    """

    def __init__(self, texts: bool = False, stream: IO[str] | None = None):
        self.texts, self._stream = texts, stream

    def write(self, *, id: str, method: str, route: str, status: int, seconds: float, facts: Mapping[str, Any]) -> None:
        """Write the line of a request that was answered.

        Args:
          id: the request's id; the response has it as X-Request-Id.
          method, route, status: the route is the template, without a name or id that the client chose.
          seconds: the time until the answer was sent.
          facts: further facts: the key's name, tokens, texts under "texts".
        """
        known = {name: value for name, value in facts.items() if name != "texts" or self.texts}
        self._put(
            {"request": id, "method": method, "route": route, "status": status, "ms": round(1000 * seconds, 2)} | known
        )

    def event(self, message: str, **facts: Any) -> None:
        """Write a line about the service itself."""
        self._put({"message": message, **facts})

    def _put(self, facts: Mapping[str, Any]) -> None:
        moment = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": moment, **facts})
        try:  # The line and its end in one piece: other threads write lines as well.
            print(f"{line}\n", end="", file=self._stream or sys.stderr, flush=True)
        except (OSError, ValueError):  # Nobody reads it any more, which is no reason to fail.
            return


class JsonLines(logging.Handler):
    """Log records of the library as lines of the same kind."""

    def __init__(self, lines: RequestLog):
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.event(" ".join(record.getMessage().split()), level=record.levelname.lower(), logger=record.name)


@contextlib.contextmanager
def log_as_json(lines: RequestLog) -> Iterator[None]:
    """Send all logging within the block to these lines alone."""
    root = logging.getLogger()
    before = list(root.handlers)
    root.handlers[:] = [JsonLines(lines)]
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers[:] = before


def failure(error: BaseException, texts: bool) -> str:
    """An unexpected error as one line: its kind and origin; with `texts` also its message, which may quote texts."""
    places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-6:]]
    message = f": {error}" if texts else ""
    return f"{type(error).__name__}{message} at {' < '.join(reversed(places))}"
