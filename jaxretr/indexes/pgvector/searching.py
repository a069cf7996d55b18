"""Searches the table exactly or with its HNSW index; values go to PostgreSQL as parameters only."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxretr.indexes.filters import Condition, Value, conditions_of
from jaxretr.indexes.index import SearchOptions, TableHits
from jaxretr.indexes.pgvector.connections import Connection
from jaxretr.indexes.pgvector.table import Names, Sql, State, as_json, as_text, holds
from jaxretr.runtime.errors import import_extra

sql = import_extra("psycopg.sql", "pgvector")

# Bounds of a field's numbers and texts; a row whose value is of another kind, or that has none, is not within them.
_WITHIN = (
    sql.SQL(
        "CASE jsonb_typeof(metadata -> {name}::text) WHEN 'number' "
        "THEN (metadata ->> {name}::text)::numeric {order} {bound}::numeric ELSE false END"
    ),
    sql.SQL(
        "CASE jsonb_typeof(metadata -> {name}::text) WHEN 'string' "
        'THEN (metadata ->> {name}::text) COLLATE "C" {order} {bound}::text ELSE false END'
    ),
)
_ORDERS = {"gt": sql.SQL(">"), "gte": sql.SQL(">="), "lt": sql.SQL("<"), "lte": sql.SQL("<=")}

# Candidates per result that are scored exactly, if the index holds rounded vectors.
_OVERSAMPLING = 2

# pgvector's limit of hnsw.ef_search.
MOST_WIDTH = 1000

# Candidates per result with a filter: the certificate was measured without one.
_FILTERED = 10

# With a filter, an iterative scan gives up after so many rows; what is then missing is searched for exactly.
_MOST_SCANNED = 20_000
_SCAN_MEMORY = 4


def condition(options: SearchOptions, fields: Sequence[str]) -> tuple[Sql, dict[str, Any]]:
    """The filters of a search as a condition of SQL, and its parameters; "true" if every row may be found.

    Raises:
      UserError: an unknown field, or what is no value of a field.
    """
    parts: list[Sql] = []
    values: dict[str, Any] = {}
    if options.allow is not None:
        parts.append(sql.SQL("id = ANY(%(allow)s)"))
        values["allow"] = [name for name in options.allow if holds(name)]
    if options.deny:
        parts.append(sql.SQL("id <> ALL(%(deny)s)"))
        values["deny"] = [name for name in options.deny if holds(name)]
    for number, (name, wanted) in enumerate(conditions_of(options.where, fields).items()):
        parts += _meeting(wanted, name, f"w{number}", values)
    return sql.SQL(" AND ").join(parts) if parts else sql.SQL("true"), values


def _meeting(wanted: Condition, name: str, key: str, values: dict[str, Any]) -> list[Sql]:
    """The conditions of SQL that a field must meet, all of them; adds their parameters, whose names begin with `key`."""
    values[key] = name
    parts: list[Sql] = []
    if wanted.one_of is not None:
        parts.append(_one_of(wanted.one_of, name, key, values))
    if wanted.none_of:
        parts.append(sql.SQL("NOT {}").format(_one_of(wanted.none_of, name, f"{key}_not", values)))
    for order, bound in wanted.bounds:
        is_text = isinstance(bound, str)
        values[f"{key}_{order}"] = as_text(bound, f"where {name}: {order}") if is_text else as_json(bound)
        parts.append(
            _WITHIN[is_text].format(
                name=sql.Placeholder(key), order=_ORDERS[order], bound=sql.Placeholder(f"{key}_{order}")
            )
        )
    return parts


def _one_of(several: Sequence[Value], name: str, key: str, values: dict[str, Any]) -> Sql:
    """The SQL condition that a field's value is one of several."""
    one_of: list[Sql] = [sql.SQL("false")]
    for place, value in enumerate(several):
        if isinstance(value, str) and not holds(value):
            continue
        values[f"{key}_{place}"] = name if value is None else as_json({name: value})
        # A row without the field has no value there either.
        missing = "coalesce(metadata -> {}::text, 'null') = 'null'"
        one_of.append(
            sql.SQL(missing if value is None else "metadata @> {}::jsonb").format(sql.Placeholder(f"{key}_{place}"))
        )
    return sql.SQL("({})").format(sql.SQL(" OR ").join(one_of))


def search(
    connection: Connection,
    names: Names,
    state: State,
    vectors: np.ndarray,
    k: int,
    width: int | None,
    options: SearchOptions,
) -> list[TableHits]:
    """Find the rows with the highest inner products.

    Args:
      connection: a connection in the transaction that has read `state`.
      vectors: float32 [B, D].
      k: rows per question.
      width: candidates that the HNSW search holds; None: every row is scored.
      options: the filters are used.

    Returns:
      B results. In exact ones, equal scores are in the order of rows.

    Raises:
      UserError: an unknown field.
    """
    where, values = condition(options, state.fields)
    filtered = options.is_filtered
    indexed = state.facts.indexed
    if width is None or indexed == "none":
        return _ask(connection, _exact(names, where), vectors, values | {"k": k}, indexscan=False)
    settings = {
        "hnsw.ef_search": min(max(width, k * _FILTERED if filtered else k), MOST_WIDTH),
        "hnsw.iterative_scan": "relaxed_order",
        "hnsw.max_scan_tuples": max(_MOST_SCANNED, 20 * k),
        "hnsw.scan_mem_multiplier": _SCAN_MEMORY,
    }
    for name, value in settings.items():
        connection.execute("SELECT set_config(%s, %s, true)", (name, str(value)))
    query = _by_vectors(names, where) if indexed == "vector" else _by_halves(names, where, state.facts.dim)
    # Without a filter it must be the index that was certified; with one, PostgreSQL may plan something better.
    values |= {"k": k, "candidates": k * _OVERSAMPLING}
    results = _ask(connection, query, vectors, values, seqscan=filtered)
    # The index gave up before it had enough, or there is no more: only looking at every row can tell.
    enough = k if filtered else min(k, state.rows)
    short = [number for number, hits in enumerate(results) if len(hits.rows) < enough]
    if short:
        exact_results = _ask(connection, _exact(names, where), vectors[short], values | {"k": k}, indexscan=False)
        for number, hits in zip(short, exact_results, strict=True):
            results[number] = hits
    return results


def _exact(names: Names, where: Sql) -> Sql:
    return sql.SQL(
        "SELECT row, id, -(embedding <#> %(q)s) FROM {passages} WHERE {condition} "
        "ORDER BY embedding <#> %(q)s, row LIMIT %(k)s"
    ).format(passages=names.passages, condition=where)


def _by_vectors(names: Names, where: Sql) -> Sql:
    return sql.SQL(
        "SELECT row, id, score FROM (SELECT row, id, -(embedding <#> %(q)s) AS score FROM {passages} "
        "WHERE {condition} ORDER BY embedding <#> %(q)s LIMIT %(k)s) AS found ORDER BY score DESC, row"
    ).format(passages=names.passages, condition=where)


def _by_halves(names: Names, where: Sql, dim: int) -> Sql:
    """The index holds rounded vectors; its candidates are scored with the vectors as they are."""
    half = sql.SQL("halfvec({})").format(sql.Literal(dim))
    return sql.SQL(
        "SELECT row, id, -(embedding <#> %(q)s) AS score FROM (SELECT row, id, embedding FROM {passages} "
        "WHERE {condition} ORDER BY (embedding::{half}) <#> (%(q)s::{half}) LIMIT %(candidates)s) AS found "
        "ORDER BY score DESC, row LIMIT %(k)s"
    ).format(passages=names.passages, condition=where, half=half)


def _ask(
    connection: Connection,
    query: Sql,
    vectors: np.ndarray,
    values: dict[str, Any],
    *,
    indexscan: bool = True,
    seqscan: bool = True,
) -> list[TableHits]:
    """Send all questions at once, and read their answers."""
    switches = ("on" if indexscan else "off", "on" if seqscan else "off")
    connection.execute(
        "SELECT set_config('enable_indexscan', %s, true), set_config('enable_seqscan', %s, true)", switches
    )
    results: list[TableHits] = []
    with connection.cursor() as cursor:
        cursor.executemany(query, [values | {"q": vector} for vector in vectors], returning=True)
        while True:
            rows = cursor.fetchall()
            results.append(TableHits([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]))
            if not cursor.nextset():
                return results
