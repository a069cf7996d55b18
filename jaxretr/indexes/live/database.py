"""The SQLite database of a live folder: everything that was acknowledged.

Each document has a *row*, a number that is never reused: a replaced document gets a new one. So a row's id,
text, metadata and vectors never change, and the order of rows is the order of writing. Vectors are kept by *space*, one
table for each model that has encoded the documents.

WAL with synchronous=FULL: a commit returns once the write is on the disk, and readers see the state before or after it.
"""

import contextlib
import json
import os
import queue
import secrets
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes.index import Document, StorageFull
from jaxretr.indexes.live import fault_points
from jaxretr.runtime.errors import UserError, path_text

DATABASE = "live.sqlite"

# In the file's header: "jxrt", and the version of the tables.
_APPLICATION, _VERSION = 0x6A787274, 1

_TABLES = """
CREATE TABLE state (
  only INTEGER PRIMARY KEY CHECK (only = 1), folder TEXT NOT NULL, sequence INTEGER NOT NULL, next_row INTEGER NOT NULL,
  active INTEGER NOT NULL
);
CREATE TABLE spaces (
  space INTEGER PRIMARY KEY, model TEXT NOT NULL, fingerprint TEXT NOT NULL UNIQUE, dim INTEGER NOT NULL,
  was_active INTEGER NOT NULL
);
CREATE TABLE documents (
  row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL, sequence INTEGER NOT NULL
);
CREATE TABLE texts (row INTEGER PRIMARY KEY, title TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE certificates (space INTEGER PRIMARY KEY, content TEXT NOT NULL);
"""

# Databases of earlier versions lack it until a document with metadata is written.
_FIELDS = "CREATE TABLE IF NOT EXISTS fields (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)"

_DOCUMENTS = "SELECT d.row, d.id, t.title, t.text, d.metadata FROM documents d JOIN texts t USING (row)"

# Values of one IN (...): SQLite takes 32,766, older ones 999.
_AT_A_TIME = 900

# Vectors that are read at a time.
_BLOCK_ROWS = 4096

# With less free space than this, a write error is taken for a full disk.
_LEAST_FREE = 1 << 20


@dataclass(frozen=True)
class Space:
    """The vectors of one model.

    Attributes:
      number: the number of the space, from 1.
      model: the model's name or path, as the user gave it.
      fingerprint: the fingerprint of everything that decides the model's vectors.
      dim: D.
      was_active: whether it has been searched before; then only later writes can lack vectors in it.
    """

    number: int
    model: str
    fingerprint: str
    dim: int
    was_active: bool = field(default=False, compare=False)

    @property
    def table(self) -> str:
        """The table of its vectors: row -> float32 [D] as bytes."""
        return f"vectors_{self.number}"


@dataclass(frozen=True)
class State:
    """The database's own numbers.

    Attributes:
      folder: an id that tells this folder's files from another's.
      sequence: the number of the last write.
      next_row: the row of the next document.
      active: the space that is searched.
    """

    folder: str
    sequence: int
    next_row: int
    active: Space


def is_live(folder: str | Path) -> bool:
    """Whether a folder holds a live index."""
    return (Path(path_text(folder)).expanduser() / DATABASE).is_file()


class Database:
    """Connections to the database of a folder."""

    def __init__(self, folder: Path):
        """Open the database of a folder; see `create` for a new one.

        Raises:
          UserError: it is missing, is not a live index, or is of a newer version.
        """
        self.path = folder / DATABASE
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        if not self.path.is_file():
            raise UserError(f"{folder}: holds no live index; give a folder with {DATABASE}")
        connection = self.connect()
        try:
            _check(connection, self.path)
        finally:
            connection.close()

    @classmethod
    def create(cls, folder: Path, model: str, fingerprint: str, dim: int) -> "Database":
        """Create an empty database, completely or not at all."""
        connection = _connect(folder / DATABASE)
        try:
            fault_points.reached("create.begun")
            with transaction(connection):
                for statement in filter(None, _TABLES.strip().split(";\n")):
                    connection.execute(statement.rstrip(";"))
                space = add_space(connection, model, fingerprint, dim)
                connection.execute("INSERT INTO state VALUES (1, ?, 0, 1, ?)", (secrets.token_hex(8), space.number))
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            fault_points.reached("create.done")
        finally:
            connection.close()
        return cls(folder)

    @staticmethod
    def is_missing(folder: Path) -> bool:
        """Whether the folder has no database yet: no file, or `create` was killed before it made the tables."""
        path = folder / DATABASE
        if not path.exists() or not path.stat().st_size:
            return True
        try:
            connection = _connect(path)
            try:
                tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                return not tables and not connection.execute("PRAGMA application_id").fetchone()[0]
            finally:
                connection.close()
        except sqlite3.DatabaseError:
            return False  # Opening it says why.

    def connect(self) -> sqlite3.Connection:
        """A new connection, for one thread at a time."""
        return _connect(self.path)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that sees the current state, whatever is written meanwhile."""
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = self.connect()
        connection.execute("BEGIN")
        try:
            yield connection
        finally:
            connection.execute("ROLLBACK")
            self._idle.put(connection)

    def close(self) -> None:
        """Close the connections that are not in use."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()


def _connect(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.DatabaseError as error:
        raise problem(path, error) from error
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    try:
        application, version = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
    except sqlite3.DatabaseError as error:
        raise problem(path, error) from error
    if application != _APPLICATION:
        raise UserError(f"{path}: is a database of another program, not of a live index; give another folder")
    if version > _VERSION:
        raise UserError(
            f"{path}: has tables of version {version}, but this jaxretr knows only {_VERSION}; install a newer jaxretr"
        )


def problem(path: Path, error: sqlite3.Error) -> Exception:
    """The error for a database that SQLite cannot read."""
    if is_full(error, path.parent):
        return full(path.parent)
    return UserError(f"{path}: cannot be opened as a live index ({error}); give another folder, or restore a backup")


def is_full(error: BaseException, folder: Path) -> bool:
    """Whether SQLite failed because the disk is full."""
    if not isinstance(error, sqlite3.Error):
        return False
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    no_space = shutil.disk_usage(folder).free < _LEAST_FREE
    return code == sqlite3.SQLITE_FULL or (code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and no_space)


def full(folder: Path) -> StorageFull:
    """The error of a write that found the disk full."""
    return StorageFull(
        f"{folder}: the disk is full, and the last write was undone; free some space there, and repeat it"
    )


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what the block writes, or nothing of it if it fails."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite may have rolled it back itself.
            connection.execute("ROLLBACK")
        raise


# ---- spaces ----------------------------------------------------------------------------------------------------------


def add_space(connection: sqlite3.Connection, model: str, fingerprint: str, dim: int) -> Space:
    """Add a model's space, with no vectors."""
    number = connection.execute("SELECT coalesce(max(space), 0) + 1 FROM spaces").fetchone()[0]
    space = Space(number, model, fingerprint, dim)
    connection.execute("INSERT INTO spaces VALUES (?, ?, ?, ?, 0)", (number, model, fingerprint, dim))
    connection.execute(f"CREATE TABLE {space.table} (row INTEGER PRIMARY KEY, vector BLOB NOT NULL)")
    return space


def drop_space(connection: sqlite3.Connection, space: Space) -> None:
    """Remove a model's vectors."""
    connection.execute(f"DROP TABLE {space.table}")
    for table in ("spaces", "certificates"):
        connection.execute(f"DELETE FROM {table} WHERE space = ?", (space.number,))


def spaces(connection: sqlite3.Connection) -> list[Space]:
    """All spaces, the oldest first."""
    found = connection.execute("SELECT space, model, fingerprint, dim, was_active FROM spaces ORDER BY space")
    return [
        Space(number, model, fingerprint, dim, bool(was_active))
        for number, model, fingerprint, dim, was_active in found
    ]


def activate(connection: sqlite3.Connection, space: Space) -> None:
    """Make a space the one that is searched."""
    connection.execute("UPDATE spaces SET was_active = 1 WHERE space = (SELECT active FROM state)")
    connection.execute("UPDATE state SET active = ?", (space.number,))


def state(connection: sqlite3.Connection) -> State:
    """The database's numbers, as they are in this transaction."""
    folder, sequence, next_row, active = connection.execute(
        "SELECT folder, sequence, next_row, active FROM state"
    ).fetchone()
    return State(folder, sequence, next_row, next(each for each in spaces(connection) if each.number == active))


def missing(
    connection: sqlite3.Connection, space: Space, after: int = 0, limit: int = -1
) -> list[tuple[int, Document]]:
    """Rows and documents that have no vector in a space, in the order of rows.

    Args:
      after: the row after which to look.
      limit: the most rows to return; -1 for all.
    """
    found = connection.execute(
        f"""{_DOCUMENTS} WHERE d.row > ? AND NOT EXISTS (SELECT 1 FROM {space.table} v WHERE v.row = d.row) ORDER BY d.row LIMIT ?""",
        (after, limit),
    )
    return [_row_and_document(*each) for each in found]


# ---- documents -------------------------------------------------------------------------------------------------------


def documents(connection: sqlite3.Connection, ids: Sequence[str]) -> list[Document | None]:
    """The documents of these ids, None for one that is not there."""
    found = {document.id: document for _, document in _documents(connection, "id", ids)}
    return [found.get(id) for id in ids]


def documents_in(connection: sqlite3.Connection, rows: Sequence[int]) -> dict[int, Document]:
    """The documents in these rows, by row; without rows that are not there."""
    return dict(_documents(connection, "row", rows))


def _documents(
    connection: sqlite3.Connection, column: str, values: Sequence[str] | Sequence[int]
) -> Iterator[tuple[int, Document]]:
    """Yield the row and the document for each document that has one of the values in a column."""
    for each in matching(connection, f"{_DOCUMENTS} WHERE d.{column}", values):
        yield _row_and_document(*each)


def _row_and_document(row: int, id: str, title: str, text: str, metadata: str) -> tuple[int, Document]:
    return row, Document(id, title, text, json.loads(metadata))


def matching(
    connection: sqlite3.Connection, query: str, values: Sequence[str] | Sequence[int]
) -> Iterator[tuple[Any, ...]]:
    """Yield the results of a query that ends with the column that has one of the values."""
    for start in range(0, len(values), _AT_A_TIME):
        part = values[start : start + _AT_A_TIME]
        yield from connection.execute(f"{query} IN ({','.join('?' * len(part))})", part)


def note_fields(connection: sqlite3.Connection, names: Iterable[str]) -> None:
    """Record the fields of documents, also for the time when the last document that has one is removed."""
    if unique_names := list(dict.fromkeys(names)):
        connection.execute(_FIELDS)
        connection.executemany("INSERT OR IGNORE INTO fields (name) VALUES (?)", ((name,) for name in unique_names))


def fields(connection: sqlite3.Connection) -> list[str]:
    """The fields that documents have or had, those written first at the front."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'fields'").fetchone() is None:
        return []
    return [name for (name,) in connection.execute("SELECT name FROM fields ORDER BY number")]


def sequence(connection: sqlite3.Connection) -> int:
    """The number of the last write, as it is in this transaction."""
    return connection.execute("SELECT sequence FROM state").fetchone()[0]


def rows(connection: sqlite3.Connection) -> Iterator[tuple[int, str, str]]:
    """Yield (row, id, metadata as JSON) of all documents, in the order of rows."""
    return connection.execute("SELECT row, id, metadata FROM documents ORDER BY row")


def vectors(
    connection: sqlite3.Connection, space: Space, after: int = 0
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield rows int64 [n] and vectors float32 [n, D] of the documents with a larger row, in the order of rows.

    Raises:
      UserError: the vectors have another length.
    """
    found = connection.execute(f"SELECT row, vector FROM {space.table} WHERE row > ? ORDER BY row", (after,))
    while part := found.fetchmany(_BLOCK_ROWS):
        content = b"".join(vector for _, vector in part)
        if len(content) != 4 * len(part) * space.dim:
            raise UserError(f"{space.table}: has vectors that are not of {space.dim} numbers; restore a backup")
        yield np.array([row for row, _ in part]), np.frombuffer(content, "<f4").reshape(len(part), space.dim)


def lacking(connection: sqlite3.Connection, space: Space) -> int:
    """The number of documents that have no vector in a space."""
    return count(connection, "documents") - count(connection, space.table)


def count(connection: sqlite3.Connection, table: str) -> int:
    """The number of a table's rows."""
    return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def size(folder: Path) -> int:
    """The size of the database on disk, in bytes, the write-ahead log included."""
    names = (DATABASE, f"{DATABASE}-wal")
    return sum((folder / name).stat().st_size for name in names if os.path.exists(folder / name))


def certificate(connection: sqlite3.Connection, space: Space) -> dict[str, Any] | None:
    """The last certificate, as `certifying` recorded it."""
    found = connection.execute("SELECT content FROM certificates WHERE space = ?", (space.number,)).fetchone()
    return None if found is None else json.loads(found[0])
