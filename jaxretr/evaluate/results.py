"""The parts that all results of an evaluation share: JSON, tables, and a file with the value of every question."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxretr.data.csv_tables import csv_line
from jaxretr.evaluate.measuring import Values
from jaxretr.evaluate.tables import Grid, render
from jaxretr.runtime.storage.files import atomic_write

QUESTION = "question-id"
"""The column of a `Block` that has the questions' ids."""
Block = tuple[Mapping[str, str], Values]
"""Some rows of the table of all values: the columns that these share, by name and in order, and the metrics of each
question; the shared column `QUESTION` says where the questions' ids stand."""


class Results(ABC):
    """The results of an evaluation; each kind has its own `content`, `grids` and `blocks`."""

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """The results for JSON; NaN stands for what cannot be computed."""

    @abstractmethod
    def grids(self) -> list[Grid]:
        """The results as tables."""

    @abstractmethod
    def blocks(self) -> Iterable[Block]:
        """The values of every question, all with the same columns and metrics."""

    def to_json(self) -> str:
        """All results as one JSON object; null stands for what cannot be computed."""
        return as_json(self.content())

    def table(self, form: str = "table") -> str:
        """All results as text ("table"), or as "latex" or "markdown" tables."""
        return render(self.grids(), form)

    def write_per_query(self, path: str | Path) -> None:
        """Write the values of every question, separated by tabs under a header."""
        with atomic_write(Path(path).expanduser()) as file:
            for number, (columns, values) in enumerate(self.blocks()):
                if number == 0:
                    file.write(csv_line([*columns, *values]))
                for id in next(iter(values.values())):
                    shared = (id if name == QUESTION else value for name, value in columns.items())
                    file.write(csv_line([*shared, *(f"{of_questions[id]:.6g}" for of_questions in values.values())]))


def as_json(content: Mapping[str, Any]) -> str:
    """One JSON object with null for NaN, which JSON has not."""
    return json.dumps(_without_nan(content), indent=1, allow_nan=False)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value
