"""Fields of a corpus's JSON lines other than title and text, as metadata and for Vertex AI Vector Search's filters."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxretr.data.collection import ID_FIELDS, PASSAGE_FIELDS
from jaxretr.data.corpus import iter_passages
from jaxretr.data.text_rows import RowError, find_input, json_lines, missing_field, string_field
from jaxretr.indexes.filters import Value, is_value
from jaxretr.indexes.index import Document
from jaxretr.runtime.errors import UserError, did_you_mean

log = logging.getLogger(__name__)

_NOT_METADATA = PASSAGE_FIELDS | {"metadata"}


def rows(corpus: str | Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield ("path:line", id, object) of a corpus of JSON lines.

    Raises:
      UserError: a line is no JSON object or has no id.
    """
    path = find_input(corpus, "corpus.jsonl")
    for line, row in json_lines(path):
        where = f"{path}:{line}"
        try:
            if isinstance(row, RowError):
                raise row
            if (name := string_field(row, ID_FIELDS, allow_int=True)) is None:
                raise missing_field(row, ID_FIELDS)
        except RowError as error:
            raise UserError(f"{where}: {error}") from None
        yield where, name, row


def documents(corpus: str | Path) -> Iterator[tuple[str, str, Document]]:
    """Yield ("path:line", id, document) of a corpus, row by row.

    Metadata are `metadata_of` a JSON row; a corpus of tab-separated columns has none. Fields that no metadata can hold are
    named in a warning at the end.
    """
    path = find_input(corpus, "corpus.jsonl")
    left_out: set[str] = set()
    lines = iter(()) if path.suffix == ".tsv" else json_lines(path)
    for number, passage in iter_passages(path):
        row = next((row for line, row in lines if line == number), {})
        metadata = {} if isinstance(row, RowError) else metadata_of(row, left_out)
        yield f"{path}:{number}", passage.id, Document(passage.id, passage.title, passage.text, metadata)
    if left_out:
        names = ", ".join(sorted(left_out)[:20])
        log.warning("%s: fields that are neither texts nor numbers were left out: %s", path, names)


def metadata_of(row: Mapping[str, Any], left_out: set[str]) -> dict[str, Value]:
    """Return the further fields of a JSON row, and those of its "metadata" object, that filters can use.

    The names of the others, which hold lists, objects or numbers that are not finite, are added to `left_out`.
    """
    inner = row.get("metadata")
    further = {name: value for name, value in row.items() if name not in _NOT_METADATA}
    further |= inner if isinstance(inner, dict) else {}  # Whose fields may have the names of a passage's own.
    kept = {name: value for name, value in further.items() if is_value(value)}
    left_out |= further.keys() - kept.keys()
    return kept


class VertexFields:
    """Turns fields of a row, or of its "metadata" object, into Vertex's restricts and crowding tags.

    A text or a list of texts becomes a restrict that allows them, true and false the texts "true" and "false", a whole
    number value_int, another one value_double; a row without the field, or where it is null or an empty text, gets nothing.

    Args:
      restricts: the names of fields to filter by.
      crowding: the name of a field of texts or whole numbers.
    """

    def __init__(self, restricts: Sequence[str], crowding: str | None):
        self.restricts, self.crowding = tuple(dict.fromkeys(restricts)), crowding
        self._types: dict[str, type] = {}
        self._used_fields: set[str] = set()
        self._known_fields: set[str] = set()

    def of(self, where: str, row: dict[str, Any]) -> dict[str, Any]:
        """The fields next to the vector in the row's object.

        Args:
          where: "path:line", for errors.
          row: a row of the corpus.

        Raises:
          UserError: a field that Vertex cannot filter by.
        """
        metadata = row.get("metadata")
        values = {**(metadata if isinstance(metadata, dict) else {}), **row}
        self._known_fields |= values.keys()
        allowed, numbers = [], []
        for name in self.restricts:
            value = self._value(values, name)
            if type(value) in (int, float):
                numbers.append({"namespace": name, self._number_key(where, name, value): value})
            elif value is not None and (tokens := _tokens(where, name, value)):
                allowed.append({"namespace": name, "allow": tokens})
        extras: dict[str, Any] = {}
        if allowed:
            extras["restricts"] = allowed
        if numbers:
            extras["numeric_restricts"] = numbers
        if self.crowding is not None and (value := self._value(values, self.crowding)) not in (None, ""):
            if type(value) not in (str, int):
                raise UserError(f"{where}: '{self.crowding}' is not text, which a crowding tag is; name another field")
            extras["crowding_tag"] = str(value)
        return extras

    def check_found(self, corpus: str | Path) -> None:
        """Raise UserError for a field that no row has; to be called after the last one."""
        fields = (*self.restricts, *([] if self.crowding is None else [self.crowding]))
        for name in fields:
            if name not in self._used_fields:
                hint = did_you_mean(name, self._known_fields) or f" (they have {', '.join(sorted(self._known_fields))})"
                raise UserError(f"{corpus}: no passage has a field '{name}'{hint}")

    def _value(self, values: dict[str, Any], name: str) -> Any:
        value = values.get(name)
        if value is not None:
            self._used_fields.add(name)
        return value

    def _number_key(self, where: str, name: str, value: int | float) -> str:
        if not math.isfinite(value) or (isinstance(value, int) and not -(1 << 63) <= value < 1 << 63):
            raise UserError(f"{where}: '{name}' is {value}, which no 64 bits hold; correct it")
        if (known := self._types.setdefault(name, type(value))) is not type(value):
            kinds = {int: "a whole number", float: "a number with a point"}
            raise UserError(
                f"{where}: '{name}' is {kinds[type(value)]} here and {kinds[known]} in earlier rows; Vertex filters by "
                "one or the other: write all of them alike"
            )
        return "value_int" if known is int else "value_double"


def _tokens(where: str, name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [str(value).lower()]
    tokens = value if isinstance(value, list) else [value]
    if not all(isinstance(token, str) for token in tokens):
        raise UserError(f"{where}: '{name}' is neither a text, a number nor a list of texts; name another field")
    return [token for token in dict.fromkeys(tokens) if token]  # Vertex has no empty one.
