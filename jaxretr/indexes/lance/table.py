"""Passages in a LanceDB table: its columns, and how it is searched.

  row int64, id, title, text, metadata (JSON), field_0, field_1, ... (values as JSON), embedding float32 [D]

Filters are LanceDB's expressions, over columns with names of our own and literals that it takes as they are: no SQL is
composed. LanceDB's distances are 1 - q.x in float32, so scores are computed again from the vectors of what was found.
"""

import functools
import json
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from jaxretr.indexes.filters import Column, Value, conditions_of
from jaxretr.indexes.index import Document, SearchOptions, TableHits
from jaxretr.runtime.errors import UnavailableError, UserError, import_extra, reason

lancedb = import_extra("lancedb", "lance")
expressions = import_extra("lancedb.expr", "lance")
pa = import_extra("pyarrow", "lance")

Expr: TypeAlias = Any
"""LanceDB's expression."""

KIND = "lance"
"""The kind that the manifest of a folder names."""

TABLE = "passages"
VECTOR = "embedding"

# Candidates of the index per result that are scored exactly: its vectors have 8 bits per number.
_REFINED = 4

# Parts of the index that are searched at most: all of them, since LanceDB makes one for about a million rows.
_ALL_PARTS = 1 << 10

# Further results of an exact search, so that equal scores at its end are ordered by row too.
_MORE = 16


def schema(dim: int, fields: int) -> Any:
    """The columns for vectors of D dimensions and some fields."""
    texts = [pa.field(name, pa.string()) for name in ("id", "title", "text", "metadata")]
    values = [pa.field(column_of(number), pa.string()) for number in range(fields)]
    return pa.schema(
        [pa.field("row", pa.int64()), *texts, *values, pa.field(VECTOR, pa.list_(pa.float32(), dim), nullable=False)]
    )


def column_of(number: int) -> str:
    """The column of a field, whose own name may be anything."""
    return f"field_{number}"


def as_cell(value: Value) -> str:
    """A value as a column of a field holds it: 1 and 1.0 are the same, True is another value, and None a missing one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)


def batch(first: int, rows: Sequence[Document], vectors: np.ndarray, fields: Sequence[str]) -> Any:
    """Turn rows into a record batch for LanceDB.

    Args:
      first: the number of the first row.
      rows: n documents.
      vectors: the rows' vectors, float32 [n, D].
      fields: the fields of the whole table.
    """
    columns: list[Any] = [pa.array(range(first, first + len(rows)), pa.int64())]
    columns += [pa.array([getattr(each, name) for each in rows], pa.string()) for name in ("id", "title", "text")]
    columns.append(pa.array([json.dumps(dict(each.metadata), ensure_ascii=False) for each in rows], pa.string()))
    columns += [pa.array([as_cell(each.metadata.get(name)) for each in rows], pa.string()) for name in fields]
    flat = pa.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
    columns.append(pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]))
    return pa.record_batch(columns, schema=schema(vectors.shape[1], len(fields)))


def condition(options: SearchOptions, fields: Sequence[str], column: Callable[[str], Column]) -> Expr | None:
    """The filters of a search as LanceDB's expression; None if every row may be found.

    Args:
      options: the filters.
      fields: the table's fields.
      column: returns the values of a field, which are needed for bounds: cells are texts.

    Raises:
      UserError: an unknown field, or what is no value of a field.
    """
    parts: list[Expr] = []
    if options.allow is not None:
        parts.append(_one_of(expressions.col("id"), [name for name in options.allow if _is_text(name)]))
    if denied := [name for name in options.deny if _is_text(name)]:
        parts.append(~_one_of(expressions.col("id"), denied))
    for name, wanted in conditions_of(options.where, fields).items():
        cells = expressions.col(column_of(fields.index(name)))
        one_of = column(name).values(wanted) if wanted.bounds else wanted.one_of
        if one_of is not None:
            parts.append(_one_of(cells, [as_cell(value) for value in one_of]))
        if wanted.none_of:
            parts.append(~_one_of(cells, [as_cell(value) for value in wanted.none_of]))
    return functools.reduce(operator.and_, parts) if parts else None


class LanceTable:
    """A LanceDB table of passages, open to be searched.

    Attributes:
      fields: the fields of the metadata, in the order of their columns.
      dim: D.
    """

    def __init__(self, folder: Path, fields: Sequence[str], dim: int):
        """Open the table in a folder.

        Raises:
          UserError: there is none, or it cannot be read.
        """
        self.fields, self.dim, self._folder = tuple(fields), dim, folder
        self._columns: dict[str, Column] = {}
        try:
            self.table: Any = lancedb.connect(folder).open_table(TABLE)
            self._rows = self.table.count_rows()
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"{folder}: LanceDB cannot read its table ({reason(error)}); export again") from None

    def __len__(self) -> int:
        return self._rows

    def search(
        self, vectors: np.ndarray, k: int, width: int | None, options: SearchOptions | None = None
    ) -> list[TableHits]:
        """Find the rows with the highest inner products.

        Args:
          vectors: float32 [B, D].
          k: rows per question.
          width: candidates that the graph's search holds; None: every row is scored.
          options: the filters are used; None: there are none.

        Returns:
          B results; in those of an exact search, equal scores are in the order of rows.

        Raises:
          UserError: an unknown field.
        """
        filter_expr = None if options is None else condition(options, self.fields, self._column)
        if width is None:
            return [self._exact(vector, k, filter_expr) for vector in vectors]
        results = [self._ask(vector, k, filter_expr, width) for vector in vectors]
        # The index found too few, or there are no more: only looking at every row can tell.
        enough = min(k, self._rows) if filter_expr is None else k
        return [
            hits if len(hits.rows) >= enough else self._exact(vector, k, filter_expr)
            for hits, vector in zip(results, vectors, strict=True)
        ]

    def rows(self, ids: Sequence[str], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Read some columns of the rows with these ids, by id; unknown ids are left out."""
        unique_ids = list({name for name in ids if _is_text(name)})
        if not unique_ids:
            return {}
        query = (
            self.table.search()
            .where(_one_of(expressions.col("id"), unique_ids))
            .select(["id", *columns])
            .limit(len(unique_ids))
        )
        return {row["id"]: row for row in query.to_arrow().to_pylist()}

    def listing(self, fields: Sequence[str]) -> tuple[list[str], dict[str, list[Value]]]:
        """The ids of all rows in their order, and their values of some fields."""
        columns = {name: column_of(self.fields.index(name)) for name in fields}
        table = self.table.search().select(["row", "id", *columns.values()]).limit(self._rows).to_arrow().sort_by("row")
        values = {name: [json.loads(cell) for cell in table[column].to_pylist()] for name, column in columns.items()}
        return table["id"].to_pylist(), values

    def _column(self, field: str) -> Column:
        if field not in self._columns:
            self._columns[field] = Column(self.listing([field])[1][field])
        return self._columns[field]

    def _exact(self, vector: np.ndarray, k: int, filter_expr: Expr | None) -> TableHits:
        depth = k + _MORE
        while True:
            hits = self._ask(vector, depth, filter_expr, None)
            # No row beyond the end may have the last result's score, since rows of equal scores come in any order.
            if len(hits.rows) < depth or hits.scores[-1] < hits.scores[k - 1]:
                return TableHits(hits.rows[:k], hits.ids[:k], hits.scores[:k])
            depth *= 2

    def _ask(self, vector: np.ndarray, k: int, filter_expr: Expr | None, width: int | None) -> TableHits:
        query = self.table.search(vector, vector_column_name=VECTOR).distance_type("dot").limit(k)
        if width is None:
            query = query.bypass_vector_index()
        else:
            query = query.ef(max(width, k * _REFINED)).refine_factor(_REFINED).nprobes(_ALL_PARTS)
        if filter_expr is not None:
            query = query.where(filter_expr, prefilter=True)
        try:
            table = query.select(["row", "id", VECTOR, "_distance"]).to_arrow()
        except (OSError, ValueError, RuntimeError) as error:
            raise UnavailableError(
                f"{self._folder}: LanceDB cannot search its table ({reason(error)}); verify the folder"
            ) from None
        rows = table["row"].to_numpy()
        vectors = table[VECTOR].combine_chunks().flatten().to_numpy().reshape(-1, self.dim)
        scores = (vectors.astype(np.float64) @ vector.astype(np.float64)).astype(np.float32)
        order = np.lexsort((rows, -scores))
        ids = table["id"].to_pylist()
        return TableHits(rows[order], [ids[place] for place in order.tolist()], scores[order])


def write(
    folder: Path, batches: Iterable[Any], dim: int, fields: Sequence[str], *, m: int, ef_construction: int
) -> None:
    """Write a table, and build its index: graphs over vectors of 8 bits per number.

    Raises:
      UserError: LanceDB cannot write there.
    """
    columns = schema(dim, len(fields))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table: Any = lancedb.connect(folder).create_table(
                TABLE, pa.RecordBatchReader.from_batches(columns, batches), schema=columns
            )
            table.create_index(
                metric="dot",
                vector_column_name=VECTOR,
                index_type="IVF_HNSW_SQ",
                m=m,
                ef_construction=ef_construction,
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{folder}: LanceDB cannot write its table ({reason(error)})") from error


def _one_of(column: Expr, values: Sequence[str]) -> Expr:
    return column.isin([expressions.lit(value) for value in values]) if values else expressions.lit(False)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
