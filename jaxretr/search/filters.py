"""Which rows a search may find: lists of ids to allow or to deny, and fields that must have a value."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxretr.errors import UserError, did_you_mean

# What a field may hold, as JSON does.
Value = str | int | float | bool | None
Metadata = Mapping[str, Sequence[Value]]
Where = Mapping[str, Any]


class Filters:
    """The ids and fields of N rows, and masks made of them.

    A mask lets a row pass that is in `allow` (where that is given), is not in `deny`, and has for every field of
    `where` the value, or one of the values, that stand there.
    """

    def __init__(self, rows: int, ids: Sequence[str] | None, metadata: Metadata | None = None):
        """Checks the fields.

        Args:
          rows: N.
          ids: N different strings; None: "0", "1", ...
          metadata: field -> N values, each a string, number, truth value or None.

        Raises:
          UserError: a field has more or fewer values than there are rows, or another kind of value.
        """
        self.rows = rows
        self.metadata = {field: _values(field, values, rows) for field, values in (metadata or {}).items()}
        self._ids = ids
        self._row_of: dict[str, int] | None = None
        self._codes: dict[str, tuple[np.ndarray, dict[tuple[type, Value], int]]] = {}

    def mask(
        self, allow: Iterable[str] | None = None, deny: Iterable[str] | None = None, where: Where | None = None
    ) -> np.ndarray | None:
        """The rows that pass, bool [N]; None where nothing is asked for.

        Raises:
          UserError: an id or a field that is not there.
        """
        if allow is None and deny is None and not where:
            return None
        mask = np.ones(self.rows, bool)
        if allow is not None:
            mask[:] = False
            mask[self._rows_of("allow", allow)] = True
        if deny is not None:
            mask[self._rows_of("deny", deny)] = False
        for field, wanted in (where or {}).items():
            codes, code_of = self._field(field)
            several = isinstance(wanted, Iterable) and not isinstance(wanted, str)
            chosen = [code_of.get(_key(value)) for value in (wanted if several else [wanted])]
            mask &= np.isin(codes, [code for code in chosen if code is not None])
        return mask

    def _rows_of(self, what: str, ids: Iterable[str]) -> np.ndarray:
        if isinstance(ids, str):
            raise UserError(f"{what}={ids!r} is one string; give a list of ids")
        return np.array([self._row(what, name) for name in ids], np.int64)

    def _row(self, what: str, name: str) -> int:
        if self._ids is None:
            if isinstance(name, str) and name.isascii() and name.isdecimal() and str(int(name)) == name:
                row = int(name)
                if row < self.rows:
                    return row
            raise UserError(f"{what}: no row {name!r}; this index has no ids but its row numbers, 0 to {self.rows - 1}")
        if self._row_of is None:
            self._row_of = {known: row for row, known in enumerate(self._ids)}
        row = self._row_of.get(name)
        if row is None:
            # difflib over millions of ids takes minutes; those around would be found in the first thousands or not.
            hint = did_you_mean(str(name), self._ids[:20_000]) or "; give ids of this index"
            raise UserError(f"{what}: no id {name!r} among the {self.rows} of the index{hint}")
        return row

    def _field(self, field: str) -> tuple[np.ndarray, dict[tuple[type, Value], int]]:
        if field not in self.metadata:
            there = f"it has {', '.join(self.metadata)}" if self.metadata else "it has none"
            raise UserError(
                f"where: no field {field!r} in the index{did_you_mean(field, self.metadata) or f'; {there}'}"
            )
        if field not in self._codes:
            code_of: dict[tuple[type, Value], int] = {}
            codes = [code_of.setdefault(_key(value), len(code_of)) for value in self.metadata[field]]
            self._codes[field] = np.array(codes, np.int32), code_of
        return self._codes[field]


def _key(value: Any) -> tuple[type, Value]:
    """1 and 1.0 are the same value, True is another one."""
    value = _scalar(value)
    return (bool if isinstance(value, bool) else object), value


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _values(field: str, values: Sequence[Value], rows: int) -> list[Value]:
    if not isinstance(field, str):
        raise UserError(f"metadata: the name {field!r} of a field is no string")
    if isinstance(values, str) or len(values) != rows:
        raise UserError(f"metadata: field {field!r} has {len(values)} values for {rows} rows; give one for each row")
    found = [_scalar(value) for value in values]
    for row, value in enumerate(found):
        if value is not None and type(value) not in (str, int, float, bool):
            kind = type(value).__name__
            raise UserError(f"metadata: field {field!r} holds a {kind} at row {row}; give strings, numbers or None")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"metadata: field {field!r} holds {value} at row {row}; give None where there is none")
    return found
