"""Filters of the rows that a search may find: ids to allow or to deny, and fields that must have a value."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypedDict

import numpy as np

from jaxretr.runtime.errors import UserError, did_you_mean

# The values that a field may hold, which are JSON's.
Value = str | int | float | bool | None
Metadata = Mapping[str, Sequence[Value]]
Where = Mapping[str, Any]


class FilterOptions(TypedDict, total=False):
    """The filters of a search; see `ExactIndex.search`."""

    allow: Iterable[str] | None
    deny: Iterable[str] | None
    where: Where | None


class Filters:
    """The ids and fields of N rows, and masks made of them.

    A mask lets a row pass that is in `allow` (where that is given), is not in `deny`, and has for every field of
    `where` the value, or one of the values, given there.
    """

    def __init__(self, rows: int, ids: Sequence[str] | None, metadata: Metadata | None = None):
        """Check the ids and the fields that masks are made of.

        Args:
          rows: N.
          ids: N different strings; None: "0", "1", ...
          metadata: field -> N values, each a string, number, truth value or None.

        Raises:
          UserError: a field has more or fewer values than there are rows, or another kind of value.
        """
        self.rows = rows
        if not isinstance(metadata, Mapping | None):
            raise UserError(
                f"metadata: a {type(metadata).__name__} is not a dict of columns; give field -> one value for each row, such as "
                '{"language": ["en", "de"]}'
            )
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
        for field, allowed_values in several_of(where or {}).items():
            codes, code_of = self._field(field)
            allowed_codes = [code_of.get(key_of(value)) for value in allowed_values]
            mask &= np.isin(codes, [code for code in allowed_codes if code is not None])
        return mask

    def _rows_of(self, what: str, ids: Iterable[str]) -> np.ndarray:
        if isinstance(ids, str):
            raise UserError(f"{what}={ids!r} is one string; give a list of ids")
        if not isinstance(ids, Iterable) or (isinstance(ids, np.ndarray) and not ids.ndim):
            raise UserError(f"{what}={ids!r} is no list; give a list of ids")
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
        row = self._row_of.get(name) if isinstance(name, str) else None
        if row is None:
            hint = nearest(str(name), self._ids) or "; give ids of this index"
            raise UserError(f"{what}: no id {name!r} among the {self.rows} of the index{hint}")
        return row

    def _field(self, field: str) -> tuple[np.ndarray, dict[tuple[type, Value], int]]:
        if field not in self.metadata:
            raise unknown_field(field, self.metadata)
        if field not in self._codes:
            code_of: dict[tuple[type, Value], int] = {}
            codes = [code_of.setdefault(key_of(value), len(code_of)) for value in self.metadata[field]]
            self._codes[field] = np.array(codes, np.int32), code_of
        return self._codes[field]


def unknown_field(field: str, known: Iterable[str]) -> UserError:
    """The error for a field that an index does not have."""
    names = list(known)
    listing = f"it has {', '.join(names)}" if names else "it has none"
    return UserError(f"where: no field {field!r} in the index{did_you_mean(str(field), names) or f'; {listing}'}")


def wanted_values(where: Where, known: Iterable[str]) -> dict[str, list[Value]]:
    """The values that a row may have in each field, checked, for an index that compares them itself.

    Args:
      where: field -> the value, or several.
      known: the index's fields.

    Raises:
      UserError: a field that is not there, or a value that no field holds.
    """
    names, values_of = list(known), {}
    for field, allowed_values in several_of(where).items():
        if field not in names:
            raise unknown_field(field, names)
        for value in allowed_values:
            if not is_value(value):
                raise _no_value(field, value)
        values_of[field] = allowed_values
    return values_of


def is_value(value: Any) -> bool:
    """Whether a field can hold the value: a string, a finite number, a truth value or None."""
    return value is None or (type(value) in (str, int, float, bool) and (type(value) is str or math.isfinite(value)))


def several_of(where: Where) -> dict[str, list[Value]]:
    """Field -> the values of which a row must have one there.

    Raises:
      UserError: a value that no field holds, such as a list within a list.
    """
    if not isinstance(where, Mapping):
        raise UserError(f"where={where!r} is no mapping; give {{field: value}}")
    values_of: dict[str, list[Value]] = {}
    for field, content in where.items():
        content = content.tolist() if isinstance(content, np.ndarray) else content
        several = isinstance(content, Iterable) and not isinstance(content, str | bytes | Mapping)
        values_of[field] = [scalar_of(value) for value in (content if several else [content])]
        for value in values_of[field]:
            if value is not None and not isinstance(value, str | int | float):
                raise _no_value(field, value)
    return values_of


def _no_value(field: str, value: Any) -> UserError:
    return UserError(f"where {field}: a {type(value).__name__} is no value; give strings, finite numbers or None")


def nearest(name: str, names: Iterable[str]) -> str:
    # difflib takes minutes over millions of names; the first thousands have the nearest one or give no hint.
    return did_you_mean(name, list(islice(names, 20_000)))


def key_of(value: Any) -> tuple[type, Value]:
    """1 and 1.0 are the same value, True is another one."""
    value = scalar_of(value)
    return (bool if isinstance(value, bool) else object), value


def scalar_of(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _values(field: str, values: Sequence[Value], rows: int) -> list[Value]:
    if not isinstance(field, str):
        raise UserError(f"metadata: the name {field!r} of a field is not a string")
    if isinstance(values, str) or len(values) != rows:
        raise UserError(f"metadata: field {field!r} has {len(values)} values for {rows} rows; give one for each row")
    scalars = [scalar_of(value) for value in values]
    for row, value in enumerate(scalars):
        if value is not None and type(value) not in (str, int, float, bool):
            kind = type(value).__name__
            raise UserError(f"metadata: field {field!r} contains a {kind} at row {row}; give strings, numbers or None")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"metadata: field {field!r} contains {value} at row {row}; give None for a missing value")
    return scalars
