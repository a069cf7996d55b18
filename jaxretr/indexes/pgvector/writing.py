"""Fills a new table, exchanges it for the old one, and changes it: completely or not at all.

An export is one transaction: a process that is killed leaves the old table, and nothing of the new one.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxretr.indexes.index import Document
from jaxretr.indexes.pgvector.address import Address
from jaxretr.indexes.pgvector.connections import Connection
from jaxretr.indexes.pgvector.table import Indexed, Names, as_json, as_text
from jaxretr.runtime.errors import UserError, import_extra

errors = import_extra("psycopg.errors", "pgvector")
sql = import_extra("psycopg.sql", "pgvector")
json = import_extra("psycopg.types.json", "pgvector")

# A B-tree's entry is at most 2,704 bytes.
MOST_ID_BYTES = 2000

# A page holds 8 KB: vectors up to this length stay in the row, where an exact search reads them in passing.
_MOST_INLINE_DIM = 1800

# Bounds of the memory in which an HNSW index is built, unless the server grants more.
_LEAST_BUILD_MB, _MOST_BUILD_MB = 64, 2048


def checked(row: Document) -> tuple[str, str, str, Any]:
    """The columns of a passage as they are sent to PostgreSQL, checked.

    Raises:
      UserError: PostgreSQL cannot store it.
    """
    name = as_text(row.id, f"the id {row.id[:80]!r}")
    if not name or len(name.encode()) > MOST_ID_BYTES:
        raise UserError(f"the id {name[:80]!r} is empty or longer than {MOST_ID_BYTES} bytes; give another one")
    for key, value in row.metadata.items():
        as_text(key, f"passage {name!r}: the name of a field")
        if isinstance(value, str):
            as_text(value, f"passage {name!r}: the field {key!r}")
    return (
        name,
        as_text(row.title, f"the title of passage {name!r}"),
        as_text(row.text, f"the text of passage {name!r}"),
        json.Jsonb(row.metadata, dumps=as_json),
    )


# ---- a new table -----------------------------------------------------------------------------------------------------


def create(connection: Connection, names: Names, dim: int) -> None:
    """Create the two tables, empty and without indexes."""
    connection.execute(
        sql.SQL(
            "CREATE TABLE {} (row bigint NOT NULL, id text NOT NULL, title text NOT NULL, text text NOT NULL, "
            "metadata jsonb NOT NULL, embedding vector({}) NOT NULL)"
        ).format(names.passages, sql.Literal(dim))
    )
    if dim <= _MOST_INLINE_DIM:
        connection.execute(sql.SQL("ALTER TABLE {} ALTER COLUMN embedding SET STORAGE PLAIN").format(names.passages))
    connection.execute(
        sql.SQL(
            "CREATE TABLE {} (one boolean PRIMARY KEY DEFAULT true CHECK (one), generation text NOT NULL, "
            "sequence bigint NOT NULL, next_row bigint NOT NULL, rows bigint NOT NULL, changed bigint NOT NULL, "
            "fields text[] NOT NULL, facts jsonb NOT NULL, questions jsonb, question_vectors bytea, "
            "golden jsonb, golden_vectors bytea)"
        ).format(names.facts)
    )


def copy_in(connection: Connection, names: Names, rows: Iterable[Document], pieces: Iterable[np.ndarray]) -> set[str]:
    """Copy all passages in PostgreSQL's binary format; return the fields of their metadata.

    Args:
      connection: the connection, in the transaction that made the tables.
      rows: N passages.
      pieces: the passages' vectors, float32 [n, D].
    """
    fields: dict[str, None] = {}
    statement = sql.SQL(
        "COPY {} (row, id, title, text, metadata, embedding) FROM STDIN WITH (FORMAT BINARY, FREEZE)"
    ).format(names.passages)
    vectors = (vector for piece in pieces for vector in piece)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(["int8", "text", "text", "text", "jsonb", "vector"])
        for number, (row, vector) in enumerate(zip(rows, vectors, strict=True)):
            fields.update(dict.fromkeys(row.metadata))
            name, title, text, metadata = checked(row)
            copy.write_row((number, name, title, text, metadata, vector))
    return set(fields)


def build_indexes(
    connection: Connection,
    names: Names,
    suffix: str,
    indexed: Indexed,
    *,
    rows: int,
    dim: int,
    m: int,
    ef_construction: int,
) -> None:
    """Build the indexes: of ids, of rows, of metadata, and HNSW over inner products.

    Args:
      connection: the connection, in the transaction that filled the table.
      suffix: the suffix of the indexes' names.
      indexed: the type in which the HNSW index holds the vectors.
    """
    table = names.passages
    needed = round(1.3 * rows * (dim * (4 if indexed == "vector" else 2) + 16 * m) / 2**20)
    megabytes = min(max(needed, _LEAST_BUILD_MB), _MOST_BUILD_MB)
    connection.execute(
        "SELECT set_config('maintenance_work_mem', %s, true) WHERE pg_size_bytes(current_setting('maintenance_work_mem')) "
        "< pg_size_bytes(%s)",
        (f"{megabytes}MB", f"{megabytes}MB"),
    )
    statements = [
        sql.SQL("CREATE UNIQUE INDEX {} ON {} (id)").format(sql.Identifier(f"id_{suffix}"), table),
        sql.SQL("CREATE UNIQUE INDEX {} ON {} (row)").format(sql.Identifier(f"row_{suffix}"), table),
        sql.SQL("CREATE INDEX {} ON {} USING gin (metadata jsonb_path_ops)").format(
            sql.Identifier(f"metadata_{suffix}"), table
        ),
    ]
    what = {
        "vector": sql.SQL("embedding vector_ip_ops"),
        "halfvec": sql.SQL("(embedding::halfvec({})) halfvec_ip_ops").format(sql.Literal(dim)),
    }
    if indexed != "none":
        statements.append(
            sql.SQL("CREATE INDEX {} ON {} USING hnsw ({}) WITH (m = {}, ef_construction = {})").format(
                sql.Identifier(f"hnsw_{suffix}"), table, what[indexed], sql.Literal(m), sql.Literal(ef_construction)
            )
        )
    for statement in statements:
        try:
            with connection.transaction():
                connection.execute(statement)
        except errors.DiskFull as error:
            if "shared memory" not in str(error):
                raise
            # Containers have 64 MB of it by default; a single process needs none.
            connection.execute("SELECT set_config('max_parallel_maintenance_workers', '0', true)")
            connection.execute(statement)
    connection.execute(sql.SQL("ANALYZE {}").format(table))


def exchange(connection: Connection, new: Names, address: Address) -> None:
    """Exchange the old tables for the new ones, once their readers have finished; only the commit remains."""
    old, table = Names.of(address.table), address.table[-1]
    # Readers lock the facts first, so this order cannot end in a deadlock.
    for old_table, fresh, name in ((old.facts, new.facts, f"{table}_facts"), (old.passages, new.passages, table)):
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(old_table))
        connection.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(fresh, sql.Identifier(name)))


# ---- changes ---------------------------------------------------------------------------------------------------------


def upsert(
    connection: Connection, names: Names, generation: str, rows: Sequence[Document], vectors: np.ndarray
) -> tuple[int, int] | None:
    """Add passages; one with an existing id takes over that row.

    Args:
      connection: a connection in a transaction.
      generation: the generation of the export that the passages are for.
      rows: n passages of different ids.
      vectors: the passages' vectors, float32 [n, D].

    Returns:
      The write's number, and how many passages were replaced; None if another export has replaced the table.

    Raises:
      UserError: PostgreSQL cannot store it.
    """
    columns = [checked(row) for row in rows]
    if (begun := _begin_write(connection, names, generation, len(rows))) is None:
        return None
    sequence, first = begun
    statement = sql.SQL(
        "INSERT INTO {} (row, id, title, text, metadata, embedding) VALUES (%s, %s, %s, %s, %s, %s) "
        "ON CONFLICT (id) DO UPDATE SET title = EXCLUDED.title, text = EXCLUDED.text, metadata = EXCLUDED.metadata, "
        "embedding = EXCLUDED.embedding RETURNING xmax <> 0"
    ).format(names.passages)
    replaced = 0
    with connection.cursor() as cursor:
        values = [
            (first + place, *row, vector) for place, (row, vector) in enumerate(zip(columns, vectors, strict=True))
        ]
        cursor.executemany(statement, values, returning=True)
        while True:
            replaced += sum(bool(row[0]) for row in cursor.fetchall())
            if not cursor.nextset():
                break
    fields = list(dict.fromkeys(name for row in rows for name in row.metadata))
    connection.execute(
        sql.SQL(
            "UPDATE {} SET rows = rows + %s, changed = changed + %s, fields = fields || ARRAY(SELECT unnest(%s::text[]) "
            "EXCEPT SELECT unnest(fields))"
        ).format(names.facts),
        (len(rows) - replaced, len(rows), fields),
    )
    return sequence, replaced


def delete(connection: Connection, names: Names, generation: str, ids: Sequence[str]) -> tuple[int, int] | None:
    """Remove passages; return the write's number and how many were removed, or None, as `upsert` does."""
    if (begun := _begin_write(connection, names, generation, 0)) is None:
        return None
    count = connection.execute(
        sql.SQL("DELETE FROM {} WHERE id = ANY(%s)").format(names.passages), (list(ids),)
    ).rowcount
    connection.execute(
        sql.SQL("UPDATE {} SET rows = rows - %s, changed = changed + %s").format(names.facts), (count, count)
    )
    return begun[0], count


def _begin_write(connection: Connection, names: Names, generation: str, rows: int) -> tuple[int, int] | None:
    """Lock the facts, so that writes are ordered; return the write's number and the first row for new passages."""
    # A server that acknowledges before it has written would lose what we acknowledge.
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
    )
    row = connection.execute(
        sql.SQL(
            "UPDATE {} SET sequence = sequence + 1, next_row = next_row + %s WHERE generation = %s "
            "RETURNING sequence, next_row - %s"
        ).format(names.facts),
        (rows, generation, rows),
    ).fetchone()
    return None if row is None else (row[0], row[1])
