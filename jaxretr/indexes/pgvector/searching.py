"""Searches the table exactly or with its HNSW index; values go to PostgreSQL as parameters only."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxretr.indexes.filters import Value, Where, wanted_values
from jaxretr.indexes.pgvector.connections import Connection
from jaxretr.indexes.pgvector.table import Names, Sql, State, as_json, holds
from jaxretr.runtime.errors import import_extra

sql = import_extra("psycopg.sql", "pgvector")

# Candidates per result that are scored exactly, if the index holds rounded vectors.
_OVERSAMPLING = 2

# pgvector's limit of hnsw.ef_search.
MOST_WIDTH = 1000

# Candidates per result with a filter: the certificate was measured without one.
_FILTERED = 10

# With a filter, an iterative scan gives up after so many rows; what is then missing is searched for exactly.
_MOST_SCANNED = 20_000
_SCAN_MEMORY = 4


@dataclass(frozen=True)
class Found:
    """The hits of one question, best first.

    Attributes:
      rows: row numbers.
      ids: the rows' ids.
      scores: inner products with the question.
    """

    rows: list[int]
    ids: list[str]
    scores: list[float]


@dataclass(frozen=True)
class Only:
    """The filter of a search; see `jaxretr.indexes.filters`.

    Attributes:
      where: field -> the value that a row must have, or several of which it must have one.
      allow: ids of the only rows that may be found; None: all.
      deny: ids of rows that may not be found.
    """

    where: Where = field(default_factory=dict)
    allow: Sequence[str] | None = None
    deny: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.where) or self.allow is not None or bool(self.deny)

    def condition(self, fields: Sequence[str]) -> tuple[Sql, dict[str, Any]]:
        """The filter as a condition of SQL, and its parameters.

        Raises:
          UserError: an unknown field, or what is no value of a field.
        """
        parts: list[Sql] = []
        values: dict[str, Any] = {}
        if self.allow is not None:
            parts.append(sql.SQL("id = ANY(%(allow)s)"))
            values["allow"] = [name for name in self.allow if holds(name)]
        if self.deny:
            parts.append(sql.SQL("id <> ALL(%(deny)s)"))
            values["deny"] = [name for name in self.deny if holds(name)]
        for number, (name, wanted) in enumerate(wanted_values(self.where, fields).items()):
            one_of: list[Sql] = [sql.SQL("false")]
            for place, value in enumerate(wanted):
                if isinstance(value, str) and not holds(value):
                    continue
                if value is None:  # A row without the field has no value there either.
                    key = f"w{number}"
                    one_of.append(sql.SQL("coalesce(metadata -> {0}, 'null') = 'null'").format(sql.Placeholder(key)))
                    values[key] = name
                else:
                    key = f"w{number}_{place}"
                    one_of.append(sql.SQL("metadata @> {0}::jsonb").format(sql.Placeholder(key)))
                    values[key] = _pair(name, value)
            parts.append(sql.SQL("({})").format(sql.SQL(" OR ").join(one_of)))
        return sql.SQL(" AND ").join(parts) if parts else sql.SQL("true"), values


def search(
    connection: Connection,
    names: Names,
    state: State,
    vectors: np.ndarray,
    k: int,
    width: int | None,
    only: Only,
) -> list[Found]:
    """Find the rows with the highest inner products.

    Args:
      connection: a connection in the transaction that has read `state`.
      names: the tables' names.
      state: the known state of the tables.
      vectors: float32 [B, D].
      k: rows per question.
      width: candidates that the HNSW search holds; None: every row is scored.
      only: the filter.

    Returns:
      B results. In exact ones, equal scores are in the order of rows.

    Raises:
      UserError: an unknown field.
    """
    condition, values = only.condition(state.fields)
    indexed = state.facts.indexed
    if width is None or indexed == "none":
        return _ask(connection, _exact(names, condition), vectors, values | {"k": k}, indexscan=False)
    settings = {
        "hnsw.ef_search": min(max(width, k * _FILTERED if only else k), MOST_WIDTH),
        "hnsw.iterative_scan": "relaxed_order",
        "hnsw.max_scan_tuples": max(_MOST_SCANNED, 20 * k),
        "hnsw.scan_mem_multiplier": _SCAN_MEMORY,
    }
    for name, value in settings.items():
        connection.execute("SELECT set_config(%s, %s, true)", (name, str(value)))
    query = _by_vectors(names, condition) if indexed == "vector" else _by_halves(names, condition, state.facts.dim)
    # Without a filter it must be the index that was certified; with one, PostgreSQL may plan something better.
    values |= {"k": k, "candidates": k * _OVERSAMPLING}
    found = _ask(connection, query, vectors, values, seqscan=bool(only))
    # The index gave up before it had enough, or there is no more: only looking at every row can tell.
    enough = k if only else min(k, state.rows)
    short = [number for number, one in enumerate(found) if len(one.rows) < enough]
    if short:
        again = _ask(connection, _exact(names, condition), vectors[short], values | {"k": k}, indexscan=False)
        for number, one in zip(short, again, strict=True):
            found[number] = one
    return found


def _exact(names: Names, condition: Sql) -> Sql:
    return sql.SQL(
        "SELECT row, id, -(embedding <#> %(q)s) FROM {passages} WHERE {condition} "
        "ORDER BY embedding <#> %(q)s, row LIMIT %(k)s"
    ).format(passages=names.passages, condition=condition)


def _by_vectors(names: Names, condition: Sql) -> Sql:
    return sql.SQL(
        "SELECT row, id, score FROM (SELECT row, id, -(embedding <#> %(q)s) AS score FROM {passages} "
        "WHERE {condition} ORDER BY embedding <#> %(q)s LIMIT %(k)s) AS found ORDER BY score DESC, row"
    ).format(passages=names.passages, condition=condition)


def _by_halves(names: Names, condition: Sql, dim: int) -> Sql:
    """The index holds rounded vectors; its candidates are scored with the vectors as they are."""
    half = sql.SQL("halfvec({})").format(sql.Literal(dim))
    return sql.SQL(
        "SELECT row, id, -(embedding <#> %(q)s) AS score FROM (SELECT row, id, embedding FROM {passages} "
        "WHERE {condition} ORDER BY (embedding::{half}) <#> (%(q)s::{half}) LIMIT %(candidates)s) AS found "
        "ORDER BY score DESC, row LIMIT %(k)s"
    ).format(passages=names.passages, condition=condition, half=half)


def _ask(
    connection: Connection,
    query: Sql,
    vectors: np.ndarray,
    values: dict[str, Any],
    *,
    indexscan: bool = True,
    seqscan: bool = True,
) -> list[Found]:
    """Send all questions at once, and read their answers."""
    switches = ("on" if indexscan else "off", "on" if seqscan else "off")
    connection.execute(
        "SELECT set_config('enable_indexscan', %s, true), set_config('enable_seqscan', %s, true)", switches
    )
    found: list[Found] = []
    with connection.cursor() as cursor:
        cursor.executemany(query, [values | {"q": vector} for vector in vectors], returning=True)
        while True:
            rows = cursor.fetchall()
            found.append(Found([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]))
            if not cursor.nextset():
                return found


def _pair(name: str, value: Value) -> str:
    return as_json({name: value})
