"""The problems of a data file, which `jaxretr.validate_data` finds."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxretr.data.source import Source
from jaxretr.data.text_rows import BadRows, RowError


@dataclass(frozen=True)
class Problem:
    """A problem of one row, as `path:line: what; remedy`."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


class Problems(BadRows):
    """Collects the first problems and counts them all; counts repeated questions and passages, which training accepts.

    Args:
      most: problems to keep.
      on_problem: called with each of these as soon as it is found.

    Attributes:
      found: the problems that are kept.
      repeated: "questions" or "passages" -> their number, and the place of the first.
    """

    def __init__(self, path: Source, most: int, on_problem: Callable[[Problem], object] | None):
        super().__init__(path, skip=True)
        self.most = most
        self.on_problem = on_problem
        self.found: list[Problem] = []
        self.repeated: dict[str, tuple[int, str]] = {}

    def add(self, line: int, problem: str | RowError) -> None:
        self.count += 1
        if len(self.found) < self.most:
            self.found.append(Problem(str(self.path), line, str(problem)))
            if self.on_problem is not None:
                self.on_problem(self.found[-1])

    def repeat(self, what: str, line: int, how: str) -> None:
        """Count a repeated one of the "questions" or "passages"."""
        count, first = self.repeated.get(what, (0, f"{self.path}:{line}: {how}"))
        self.repeated[what] = count + 1, first
