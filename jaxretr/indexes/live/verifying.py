"""The check that a live folder is intact: the database, its counts, and the snapshots."""

import sqlite3
from pathlib import Path

import numpy as np

from jaxretr.indexes.live import database, snapshots
from jaxretr.indexes.live.database import Database, Space, State
from jaxretr.runtime.errors import UserError


def verify(folder: str | Path) -> str:
    """Check a live folder, which another process may be writing; return a line that says what agrees.

    Raises:
      UserError: something does not agree; one line names all of it.
    """
    folder = Path(folder).expanduser()
    base = Database(folder)
    try:
        with base.reading() as connection:
            problems = _damage(connection)
            if not problems:
                state, there = database.state(connection), database.spaces(connection)
                problems = _wrong_counts(connection, state, there)
                found = snapshots.found(folder)
                for space in there:
                    for path in snapshots.found(folder, space):
                        problems += _wrong_snapshot(connection, path, space, state)
                n = database.count(connection, "documents")
    except sqlite3.DatabaseError as error:
        problems = [str(error)]
    finally:
        base.close()
    if problems:
        raise UserError(f"{base.path}: not intact: {'; '.join(problems[:10])}; restore a backup")
    models = ", ".join(space.model for space in there)
    return (
        f"a live index of {n} passages with vectors of {models}, after write {state.sequence}; the database is intact, "
        f"and {len(found)} snapshot{' agrees' if len(found) == 1 else 's agree'} with it"
    )


def _damage(connection: sqlite3.Connection) -> list[str]:
    found = [line for (line,) in connection.execute("PRAGMA integrity_check(10)")]
    return [] if found == ["ok"] else found


def _wrong_counts(connection: sqlite3.Connection, state: State, there: list[Space]) -> list[str]:
    problems = []
    documents = database.count(connection, "documents")
    if (texts := database.count(connection, "texts")) != documents:
        problems.append(f"{documents} documents have {texts} texts")
    (last,) = connection.execute("SELECT coalesce(max(row), 0) FROM documents").fetchone()
    if last >= state.next_row:
        problems.append(f"row {last} is there, but the next one is {state.next_row}")
    for space in there:
        if space == state.active and (lacking := database.lacking(connection, space)):
            problems.append(f"{lacking} documents lack vectors of {space.model}")
        (wrong,) = connection.execute(
            f"SELECT count(*) FROM {space.table} WHERE length(vector) != ? OR row NOT IN (SELECT row FROM documents)",
            (4 * space.dim,),
        ).fetchone()
        if wrong:
            problems.append(f"{wrong} vectors of {space.model} have another length, or no document")
    return problems


def _wrong_snapshot(connection: sqlite3.Connection, path: Path, space: Space, state: State) -> list[str]:
    try:
        snapshot = snapshots.load(path, space, state)
    except (UserError, OSError, ValueError, KeyError, TypeError) as error:
        # A process that writes the folder has replaced it meanwhile.
        return [str(error)] if path.exists() else []
    for rows, vectors in database.vectors(connection, space):
        places = np.searchsorted(snapshot.rows, rows)
        known = places < len(snapshot.rows)
        if not np.array_equal(snapshot.vectors[places[known]], vectors[known]):
            return [f"{path.name} has other vectors than the database"]
    return []
