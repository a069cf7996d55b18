"""Writes to the database, and the changes that they report to the index in memory."""

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxretr.data.text_rows import RowError, check_utf8
from jaxretr.indexes.filters import Value
from jaxretr.indexes.index import Document, Written
from jaxretr.indexes.live import database, fault_points
from jaxretr.indexes.live.database import Space
from jaxretr.runtime.errors import UserError


class ModelChanged(UserError):
    """An error: a write or a search came with vectors of a model that the index has left; encode with the new one."""


@dataclass(frozen=True)
class Change:
    """The change that one write made to the index.

    Attributes:
      sequence: the number of the write.
      removed: rows that are no longer there.
      rows: the new rows, ascending.
      ids, metadata: the ids and the metadata of the new rows.
      vectors: the vectors of the new rows in the active space, float32 [n, D].
    """

    sequence: int
    removed: Sequence[int] = ()
    rows: Sequence[int] = ()
    ids: Sequence[str] = ()
    metadata: Sequence[Mapping[str, Value]] = ()
    vectors: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.float32))


def upsert(
    connection: sqlite3.Connection,
    documents: Sequence[Document],
    metadata: Sequence[str],
    vectors: Mapping[str, np.ndarray],
    model: str,
) -> tuple[Written, Change]:
    """Write documents that were checked.

    Args:
      connection: a connection in a transaction.
      metadata: the metadata of each document, as JSON; see `checked`.
      vectors: float32 [n, D] by the fingerprint of the model that made them.
      model: the model of the caller's vectors, for messages.

    Raises:
      ModelChanged: the active space is not among those of the vectors.
    """
    state = database.state(connection)
    if state.active.fingerprint not in vectors:
        raise ModelChanged(
            f"the vectors are {model}'s, but the index has moved to {state.active.model}; encode with that"
        )
    removed = _remove(connection, [document.id for document in documents])
    fault_points.reached("commit.removed")
    rows = range(state.next_row, state.next_row + len(documents))
    sequence = state.sequence + 1
    connection.executemany(
        "INSERT INTO documents VALUES (?, ?, ?, ?)",
        (
            (row, document.id, of_document, sequence)
            for row, document, of_document in zip(rows, documents, metadata, strict=True)
        ),
    )
    connection.executemany(
        "INSERT INTO texts VALUES (?, ?, ?)",
        ((row, document.title, document.text) for row, document in zip(rows, documents, strict=True)),
    )
    database.note_fields(connection, (name for document in documents for name in document.metadata))
    fault_points.reached("commit.texts")
    for space in database.spaces(connection):
        if space.fingerprint in vectors:
            content = np.ascontiguousarray(vectors[space.fingerprint], "<f4")
            connection.executemany(
                f"INSERT INTO {space.table} VALUES (?, ?)",
                ((row, vector.tobytes()) for row, vector in zip(rows, content, strict=True)),
            )
    _set_state(connection, sequence, rows.stop)
    change = Change(
        sequence=sequence,
        removed=removed,
        rows=rows,
        ids=[document.id for document in documents],
        metadata=[document.metadata for document in documents],
        vectors=vectors[state.active.fingerprint],
    )
    return Written(sequence, added=len(documents) - len(removed), replaced=len(removed)), change


def delete(connection: sqlite3.Connection, ids: Sequence[str]) -> tuple[Written, Change]:
    """Remove the documents of these ids that are there, in a transaction."""
    state = database.state(connection)
    removed = _remove(connection, ids)
    fault_points.reached("commit.removed")
    sequence = state.sequence + 1
    _set_state(connection, sequence, state.next_row)
    return Written(sequence, deleted=len(removed)), Change(sequence, removed)


def fill(connection: sqlite3.Connection, space: Space, rows: Sequence[int], vectors: np.ndarray) -> tuple[int, Change]:
    """Write the vectors of rows that are still there and have none; return the number written."""
    before = connection.total_changes
    content = np.ascontiguousarray(vectors, "<f4")
    connection.executemany(
        f"INSERT OR IGNORE INTO {space.table} SELECT row, ? FROM documents WHERE row = ?",
        ((vector.tobytes(), row) for row, vector in zip(rows, content, strict=True)),
    )
    return connection.total_changes - before, Change(database.state(connection).sequence)


def note_certificate(connection: sqlite3.Connection, space: Space, content: dict[str, Any]) -> tuple[None, Change]:
    """Record the certificate of a space."""
    connection.execute("INSERT OR REPLACE INTO certificates VALUES (?, ?)", (space.number, json.dumps(content)))
    return None, Change(database.state(connection).sequence)


def _remove(connection: sqlite3.Connection, ids: Sequence[str]) -> list[int]:
    rows: list[int] = [row for (row,) in database.matching(connection, "SELECT row FROM documents WHERE id", ids)]
    if rows:
        for table in ("documents", "texts", *(space.table for space in database.spaces(connection))):
            connection.executemany(f"DELETE FROM {table} WHERE row = ?", ((row,) for row in rows))
    return rows


def _set_state(connection: sqlite3.Connection, sequence: int, next_row: int) -> None:
    connection.execute("UPDATE state SET sequence = ?, next_row = ?", (sequence, next_row))


# ---- checks, before anything is queued -------------------------------------------------------------------------------


def checked(documents: Sequence[Document]) -> list[str]:
    """Check documents, and return the metadata of each as JSON.

    Raises:
      UserError: an id that is empty or repeats, a document without text, text that is not Unicode, or metadata that
        JSON or filters cannot hold.
    """
    seen: dict[str, int] = {}
    content = []
    for number, document in enumerate(documents):
        where = f"documents[{number}]"
        if not document.id:
            raise UserError(f"{where}: the id is empty; give each document an id")
        if (first := seen.setdefault(document.id, number)) != number:
            raise UserError(f"{where}: the id {document.id!r} is also that of documents[{first}]; give each once")
        if not document.title and not document.text:
            raise UserError(f"{where}: {document.id!r} has neither title nor text; give one of them")
        for name, value in document.metadata.items():
            if not isinstance(name, str):
                raise UserError(f"{where}: the name {name!r} of a field is not a string; correct it")
            if value is not None and type(value) not in (str, int, float, bool):
                raise UserError(
                    f"{where}: field {name!r} is a {type(value).__name__}; give a string, number, truth value or null"
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"{where}: field {name!r} is {value}; leave it out where there is no number")
        found = json.dumps(dict(document.metadata), ensure_ascii=False)
        try:
            for text in (document.id, document.title, document.text, found):
                check_utf8(text)
        except RowError:
            raise UserError(
                f"{where}: contains half a surrogate pair, which is not valid Unicode; correct it"
            ) from None
        content.append(found)
    return content
