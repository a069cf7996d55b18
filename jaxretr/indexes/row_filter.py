"""The filters of `jaxretr.search`, whose ids may be in files and whose fields in the corpus."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.data.text_rows import RowError, find_input, json_lines, listed_ids, string_field
from jaxretr.indexes.filters import (
    Condition,
    Filters,
    Value,
    Where,
    conditions_of,
    is_value,
    key_of,
    nearest,
    scalar_of,
)
from jaxretr.indexes.index import Index, SearchOptions
from jaxretr.runtime.errors import UserError, did_you_mean

_IDS = ("_id", "id", "docid")


@dataclass(frozen=True)
class RowFilter:
    """The conditions that a passage must meet to be found by `jaxretr.search`, in every kind of index.

    Values of fields are compared as text, as JSON writes them: 2019, 2019.0 and "2019" are the same. Bounds are compared
    as the field's values are: as numbers if it has any, else as texts.

    Attributes:
      allow: ids of the only passages to search, or a file with one per line.
      deny: ids of passages to exclude, or a file with one per line.
      where: field -> the value that a passage must have, several of which it must have one, or bounds; see `conditions_of`.
      corpus: JSON lines with the fields that the index itself lacks.
    """

    allow: Iterable[str] | Path | None = None
    deny: Iterable[str] | Path | None = None
    where: Where | None = None
    corpus: str | Path | None = None

    def __bool__(self) -> bool:
        return self.allow is not None or self.deny is not None or bool(self.where)

    def options(self, index: Index) -> SearchOptions:
        """The filters as an index takes them, checked before the search.

        The index gets ids and the values of its own fields, or if a field comes from the corpus the ids of what passes.

        Raises:
          UserError: an unknown id, field or value, a bad file, or no passage passes.
        """
        if not self:
            return SearchOptions()
        where, fields = conditions_of(self.where or {}), index.facts()["fields"]
        ids, metadata = index.listing([field for field in where if field in fields])
        columns = dict(metadata)
        if missing := [field for field in where if field not in columns]:
            if self.corpus is None:
                hint = did_you_mean(missing[0], fields) or "; give the corpus, JSON lines that have it"
                raise UserError(f"where {missing[0]}: the index has no such field{hint}")
            columns |= _corpus_columns(self.corpus, missing, ids, fields, index.name)
        conditions = {field: _as_in_column(field, wanted, columns[field]) for field, wanted in where.items()}
        allow, deny = _ids_of(self.allow, ids, index.name), _ids_of(self.deny, ids, index.name)
        mask = Filters(len(ids), ids, columns).mask(allow, deny, conditions)
        assert mask is not None
        if not mask.any():
            raise UserError(f"{index.name}: no passage passes the filters; loosen allow, deny or where")
        if missing:
            return SearchOptions(allow=[ids[row] for row in np.flatnonzero(mask).tolist()])
        return SearchOptions(where=conditions, allow=allow, deny=deny or ())


def _as_in_column(field: str, wanted: Condition, column: Sequence[Value]) -> Condition:
    """A condition with the values of a column that have the text of those wanted, and bounds of its kind.

    Raises:
      UserError: no passage has a value, or a bound is not a number although the column has numbers.
    """
    values = {key_of(value): scalar_of(value) for value in column}.values()
    values_of: dict[str | None, list[Value]] = {}
    for value in values:
        for text in _texts(value):
            values_of.setdefault(text, []).append(value)

    def named(wanted: Value) -> list[Value]:
        for text in _texts(wanted):
            if text in values_of or text is None:
                return values_of.get(text, [None])
        hint = nearest(str(_text(wanted)), sorted(filter(None, map(_text, values)))) or "; check the spelling"
        raise UserError(f"where {field}={_text(wanted)}: no passage has this value{hint}")

    def all_named(several: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(value for wanted in several for value in named(wanted))

    has_numbers = any(type(value) in (int, float) for value in values)
    bounds = tuple(
        (name, _number(field, name, bound) if has_numbers else str(_text(bound))) for name, bound in wanted.bounds
    )
    return Condition(None if wanted.one_of is None else all_named(wanted.one_of), all_named(wanted.none_of), bounds)


def _number(field: str, name: str, bound: int | float | str) -> int | float:
    number: Any
    try:
        number = json.loads(bound) if isinstance(bound, str) else bound
    except (ValueError, RecursionError):
        number = None
    if type(number) not in (int, float) or not is_value(number):
        raise UserError(f"where {field}: {name} is {bound!r}, but the field has numbers; give a number")
    return number


def _ids_of(ids_or_file: Iterable[str] | Path | None, ids: Sequence[str], index: str) -> Any:
    """The ids given, which may be in a file, as a list if they are several; `Filters` refuses the rest."""
    if isinstance(ids_or_file, Path):
        return _read_ids(ids_or_file, ids, index)
    return list(ids_or_file) if np.iterable(ids_or_file) and not isinstance(ids_or_file, str) else ids_or_file


def _read_ids(path: Path, ids: Sequence[str], index: str) -> list[str]:
    """Read ids of the index, one per line."""
    known, found = set(ids), []
    for number, name in listed_ids(path):
        if name not in known:
            hint = nearest(name, sorted(known)) or "; give one id of the index per line"
            raise UserError(f"{path}:{number}: {index} has no passage '{name}'{hint}")
        found.append(name)
    return found


def _corpus_columns(
    corpus: str | Path, fields: Sequence[str], ids: Sequence[str], known: Sequence[str], index: str
) -> dict[str, list[Value]]:
    """Read fields of the index's passages from JSON lines, None where a passage lacks one; `known` are those of the index."""
    path = find_input(corpus, "corpus.jsonl")
    row_of = {name: row for row, name in enumerate(ids)}
    columns: dict[str, list[Value]] = {field: [None] * len(ids) for field in fields}
    seen: dict[str, None] = {}
    count = 0
    for number, content in json_lines(path):
        try:
            if isinstance(content, RowError):
                raise content
            row = row_of.get(string_field(content, _IDS, allow_int=True) or "")
        except RowError as error:
            raise UserError(f"{path}:{number}: {error}; where needs JSON lines") from None
        if row is None:
            continue
        count += 1
        inner = content.get("metadata")
        values = {**content, **inner} if isinstance(inner, dict) else content
        seen.update(dict.fromkeys(values))
        for field, column in columns.items():
            value = values.get(field)
            column[row] = value if is_value(value) else _text(value)
    if count < len(ids):
        raise UserError(f"{path}: lacks {len(ids) - count} of the {len(ids)} passages of {index}; give its corpus")
    for field in fields:
        if field not in seen:
            hint = did_you_mean(field, [*seen, *known]) or f"; there are {', '.join(list(seen)[:20])}"
            raise UserError(f"where {field}: no passage of {path} has such a field{hint}")
    return columns


def _text(value: Any) -> str | None:
    """A value as one types it: true, 2019, en."""
    value = scalar_of(value)
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _texts(value: Value) -> dict[str | None, None]:
    """The ways to type a value, the one of JSON first: a whole number with .0 or without, since an index may hold either."""
    found: Any = scalar_of(value)
    is_whole = type(found) is int or (isinstance(found, float) and found.is_integer())
    return dict.fromkeys([_text(found), *((f"{int(found)}", f"{int(found)}.0") if is_whole else ())])
