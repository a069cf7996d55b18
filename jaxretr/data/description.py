"""The description of a data file or folder, which `jaxretr.inspect_data` returns."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

_SHOWN_CHARACTERS = 100

# Facts with such names detail the one above them, and are indented in the table.
_DETAILS = ("with ", "without ", "cut at ", "dropped", "of grade ")


@dataclass(frozen=True)
class Spread:
    """The distribution of a number over rows."""

    mean: float
    lowest: int
    median: int
    percentile_95: int
    highest: int

    @classmethod
    def of(cls, values: Collection[int]) -> "Spread | None":
        """Return the distribution of `values`, also an array; None if there are none."""
        import numpy as np  # Here: the formats are read by the command line's help, too.

        numbers = np.asarray(values)
        if not len(numbers):
            return None
        lowest, median, high, highest = np.percentile(numbers, [0, 50, 95, 100], method="inverted_cdf").tolist()
        return cls(float(numbers.mean()), lowest, median, high, highest)

    def __str__(self) -> str:
        return (
            f"{self.mean:>12,.1f}  from {self.lowest:,} to {self.highest:,}, half up to {self.median:,}, "
            f"95% up to {self.percentile_95:,}"
        )


@dataclass(frozen=True)
class Description:
    """The description of a file's or folder's content.

    Attributes:
      path: the file or folder.
      kind: its format, in words.
      facts: counts, distributions and properties by name; None: there are no rows to count.
      bad_rows: number of bad rows.
      first_bad_row: the first of them, as `path:line: what; remedy`.
      first: lines that show the first row.
      parts: the files of a BEIR folder.
    """

    path: str
    kind: str
    facts: Mapping[str, int | str | Spread | None]
    bad_rows: int = 0
    first_bad_row: str = ""
    first: Sequence[str] = ()
    parts: Sequence["Description"] = ()

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The description for people."""
        return "\n".join([f"{self.path}: {self.kind}", *self._lines()])

    def to_json(self) -> str:
        """The description as JSON."""
        return json.dumps(asdict(self), indent=2)

    def _lines(self) -> list[str]:
        lines = []
        for name, value in self.facts.items():
            shown = f"  {name}" if name.startswith(_DETAILS) else name
            number = f"{value:>12,}" if isinstance(value, int) else f"{'none' if value is None else str(value):>12}"
            lines.append(f"{shown:<28}{number}")
        if self.bad_rows:
            lines += [f"{'bad rows':<28}{self.bad_rows:>12,}", f"  the first: {self.first_bad_row}"]
        lines += self.first
        for part in self.parts:
            lines += [part.path, *part._lines()]
        return lines


def shortened_line(text: str) -> str:
    """Return a text as one line of at most 100 characters."""
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
