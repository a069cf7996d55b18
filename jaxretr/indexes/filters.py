"""Filters of the rows that a search may find: ids to allow or to deny, and conditions on the values of fields."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, TypedDict

import numpy as np

from jaxretr.runtime.errors import UserError, did_you_mean

# The values that a field may hold, which are JSON's.
Value = str | int | float | bool | None
Metadata = Mapping[str, Sequence[Value]]
Where = Mapping[str, Any]

BOUNDS = ("gt", "gte", "lt", "lte")


@dataclass(frozen=True)
class Condition:
    """A condition on a passage's value of a field, all of whose parts must hold.

    Attributes:
      one_of: values of which it must be one; None: any.
      none_of: values that it must not be. A passage without the field passes, unless None is among them.
      bounds: (gt, gte, lt or lte, number or text) of one kind. Numbers are within bounds that are numbers, texts within
        those that are texts, in the order of their characters' numbers; truth values and None are within none.
    """

    one_of: tuple[Value, ...] | None = None
    none_of: tuple[Value, ...] = ()
    bounds: tuple[tuple[str, int | float | str], ...] = ()


class Column:
    """The values of a field in N rows, as codes of the different ones."""

    def __init__(self, values: Iterable[Value]):
        """Number the different values in the order in which they come."""
        self._code_of: dict[tuple[type, Value], int] = {}
        codes = [self._code_of.setdefault(key_of(value), len(self._code_of)) for value in values]
        self._codes = np.array(codes, np.int32)

    def mask(self, condition: Condition) -> np.ndarray:
        """The rows that meet a condition, bool [N]."""
        return self._passing(condition)[self._codes]

    def values(self, condition: Condition) -> list[Value]:
        """The different values that meet a condition."""
        return [value for (_, value), passes in zip(self._code_of, self._passing(condition), strict=True) if passes]

    def _passing(self, condition: Condition) -> np.ndarray:
        """Whether each of the different values meets a condition, bool."""
        passes = np.full(len(self._code_of), not condition.bounds and condition.one_of is None)
        if condition.bounds:
            values, codes = self._sorted[isinstance(condition.bounds[0][1], str)]
            begin, end = 0, len(values)
            for name, bound in condition.bounds:
                place = (bisect_right if name in ("gt", "lte") else bisect_left)(values, bound)
                begin, end = (max(begin, place), end) if name in ("gt", "gte") else (begin, min(end, place))
            passes[codes[begin:end]] = True
        if condition.one_of is not None:
            named = np.zeros_like(passes)
            named[self._known(condition.one_of)] = True
            passes = named & passes if condition.bounds else named
        passes[self._known(condition.none_of)] = False
        return passes

    def _known(self, values: Iterable[Value]) -> list[int]:
        codes = (self._code_of.get(key_of(value)) for value in values)
        return [code for code in codes if code is not None]

    @cached_property
    def _sorted(self) -> tuple[tuple[list[Any], np.ndarray], ...]:
        """The different numbers and the different texts in ascending order, with their codes."""
        found = []
        for kinds in ((int, float), (str,)):
            pairs = sorted((value, code) for (_, value), code in self._code_of.items() if type(value) in kinds)
            found.append(([value for value, _ in pairs], np.array([code for _, code in pairs], np.int64)))
        return tuple(found)


class FilterOptions(TypedDict, total=False):
    """The filters of a search; see `ExactIndex.search`."""

    allow: Iterable[str] | None
    deny: Iterable[str] | None
    where: Where | None


class Filters:
    """The ids and fields of N rows, and masks made of them.

    A mask lets a row pass that is in `allow` (where that is given), is not in `deny`, and meets the condition on every
    field of `where`.
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
        self._columns: dict[str, Column] = {}

    def mask(
        self, allow: Iterable[str] | None = None, deny: Iterable[str] | None = None, where: Where | None = None
    ) -> np.ndarray | None:
        """The rows that pass, bool [N]; None where nothing is asked for.

        Raises:
          UserError: an id or a field that is not there, or no condition.
        """
        if allow is None and deny is None and not where:
            return None
        mask = np.ones(self.rows, bool)
        if allow is not None:
            mask[:] = False
            mask[self._rows_of("allow", allow)] = True
        if deny is not None:
            mask[self._rows_of("deny", deny)] = False
        for field, condition in conditions_of(where or {}, self.metadata).items():
            if field not in self._columns:
                self._columns[field] = Column(self.metadata[field])
            mask &= self._columns[field].mask(condition)
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


def conditions_of(where: Where, known: Iterable[str] | None = None) -> dict[str, Condition]:
    """Field -> its condition, checked.

    Args:
      where: field -> the value that a passage must have there; or several, of which it must have one; or a condition, as an
        object with gt, gte, lt, lte (numbers or texts), in and not_in (a value or several), which must all be met.
      known: the index's fields; None: any.

    Raises:
      UserError: a field that is not there, a value that no field holds, such as a list within a list, or no condition.
    """
    if not isinstance(where, Mapping):
        raise UserError(f"where={where!r} is no mapping; give {{field: value}}")
    names = None if known is None else list(known)
    conditions: dict[str, Condition] = {}
    for field, content in where.items():
        if names is not None and field not in names:
            hint = did_you_mean(str(field), names) or (f"; it has {', '.join(names)}" if names else "; it has none")
            raise UserError(f"where: no field {field!r} in the index{hint}")
        if isinstance(content, Condition):
            conditions[field] = content
        elif isinstance(content, Mapping):
            conditions[field] = _condition(field, content)
        else:
            conditions[field] = Condition(one_of=_several(field, content))
    return conditions


def is_value(value: Any) -> bool:
    """Whether a field can hold the value: a string, a finite number, a truth value or None."""
    return math.isfinite(value) if isinstance(value, float) else value is None or isinstance(value, str | int)


def _condition(field: str, parts: Mapping[str, Any]) -> Condition:
    """The condition that an object states."""
    names = (*BOUNDS, "in", "not_in")
    for name in parts:
        if name not in names:
            hint = did_you_mean(str(name), names) or f"; there are {', '.join(names)}"
            raise UserError(f"where {field}: no condition {name!r}{hint}")
    if not parts:
        raise UserError(f"where {field}: no condition in it; give {', '.join(names)}, or the value itself")
    bounds = tuple((name, scalar_of(parts[name])) for name in BOUNDS if name in parts)
    for name, bound in bounds:
        if isinstance(bound, bool) or not isinstance(bound, str | int | float) or not is_value(bound):
            raise UserError(f"where {field}: {name} is {bound!r}; give a finite number or a text")
    if len({isinstance(bound, str) for _, bound in bounds}) > 1:
        raise UserError(f"where {field}: one bound is a text, another a number; give bounds of one kind")
    one_of = _several(field, parts["in"]) if "in" in parts else None
    return Condition(one_of, _several(field, parts.get("not_in", ())), bounds)


def _several(field: str, content: Any) -> tuple[Value, ...]:
    """The value or the values given."""
    content = content.tolist() if isinstance(content, np.ndarray) else content
    several = isinstance(content, Iterable) and not isinstance(content, str | bytes | Mapping)
    values = tuple(scalar_of(value) for value in (content if several else [content]))
    for value in values:
        if not is_value(value):
            raise UserError(
                f"where {field}: a {type(value).__name__} is no value; give strings, finite numbers or None"
            )
    return values


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
    if isinstance(values, str) or not isinstance(values, Sized):
        kind = type(values).__name__
        raise UserError(f"metadata: field {field!r} is a {kind}; give a list with one value for each row")
    if len(values) != rows:
        raise UserError(f"metadata: field {field!r} has {len(values)} values for {rows} rows; give one for each row")
    scalars = [scalar_of(value) for value in values]
    for row, value in enumerate(scalars):
        if value is not None and type(value) not in (str, int, float, bool):
            kind = type(value).__name__
            raise UserError(f"metadata: field {field!r} contains a {kind} at row {row}; give strings, numbers or None")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"metadata: field {field!r} contains {value} at row {row}; give None for a missing value")
    return scalars
