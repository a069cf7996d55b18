"""Builds the state that searches read, from the database and a snapshot."""

import json
import logging
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes.filters import Value
from jaxretr.indexes.live import database, snapshots
from jaxretr.indexes.live.certifying import Certified, of_snapshot
from jaxretr.indexes.live.database import Space
from jaxretr.indexes.live.segments import Base, TailRows, columns_of
from jaxretr.indexes.live.snapshots import Snapshot
from jaxretr.indexes.live.view import View
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.json_dataclass import dataclass_from

log = logging.getLogger(__name__)


def open_newest(connection: sqlite3.Connection, folder: Path, space: Space) -> tuple[View, Certified | None]:
    """Read the current state and its last certificate, with the newest intact snapshot.

    Args:
      connection: a connection in a transaction.
      folder: the folder of the snapshots; damaged ones are removed with a warning, older ones silently.
      space: the space of the vectors; every document has one in it.
    """
    for path in snapshots.found(folder, space):
        try:
            snapshot = snapshots.load(path, space, database.state(connection))
            view = open_view(connection, space, snapshot)
        except (UserError, OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s; the snapshot is removed, and made again from the database", error)
            shutil.rmtree(path, ignore_errors=True)
            continue
        snapshots.remove_older(path, space)
        noted = database.certificate(connection, space)
        if noted is not None and noted["snapshot"] == snapshot.sequence:
            return view, dataclass_from(Certified, noted, "the certificate in the database")
        return view, of_snapshot(snapshot)
    return open_view(connection, space, None), None


def open_view(connection: sqlite3.Connection, space: Space, snapshot: Snapshot | None) -> View:
    """Read the current state: the snapshot's rows, and from the database the rows after them.

    Args:
      connection: a connection in a transaction.
      space: the space of the vectors; every document has one in it.
      snapshot: a snapshot of the space, or None.

    Raises:
      UserError: the snapshot is not of this database.
    """
    found = list(database.rows(connection))
    rows = np.array([row for row, _, _ in found], np.int64)
    ids = [id for _, id, _ in found]
    metadata: list[Mapping[str, Value]] = [json.loads(text) if text != "{}" else {} for _, _, text in found]
    last = 0 if snapshot is None else int(snapshot.rows[-1])
    count = int(np.searchsorted(rows, last, side="right"))
    base, there = _base(space, snapshot, rows[:count], ids[:count], metadata[:count])
    room = TailRows(space.dim)
    room.append(
        rows[count:], ids[count:], columns_of(metadata[count:]), _vectors(connection, space, rows[count:], last)
    )
    tail = room.segment()
    state = database.state(connection)
    names = database.fields(connection)
    return View(space, state.sequence, base, tail, there, np.ones(len(tail), bool), room, len(rows), names)


def _base(
    space: Space,
    snapshot: Snapshot | None,
    rows: NDArray[np.int64],
    ids: Sequence[str],
    metadata: Sequence[Mapping[str, Value]],
) -> tuple[Base, NDArray[np.bool_]]:
    """The rows of a snapshot, and a mask of those that the database still has."""
    if snapshot is None:
        return Base(rows, [], np.empty((0, space.dim), np.float32), {}, space), np.empty(0, bool)
    places = np.searchsorted(snapshot.rows, rows)
    if not np.array_equal(snapshot.rows[places], rows):
        raise UserError(f"{snapshot.path}: lacks documents of the database")
    there = np.zeros(len(snapshot.rows), bool)
    there[places] = True
    if snapshot.scann is not None:
        names = snapshot.scann.rows.ids  # One list, not two.
    else:
        names = [""] * len(snapshot.rows)
        for place, name in zip(places.tolist(), ids, strict=True):
            names[place] = name
    values: list[Mapping[str, Value]] = [{}] * len(snapshot.rows)
    for place, each in zip(places.tolist(), metadata, strict=True):
        values[place] = each
    base = Base(
        rows=snapshot.rows,
        ids=names,
        vectors=snapshot.vectors,
        columns=columns_of(values),
        space=space,
        sequence=snapshot.sequence,
        scann=snapshot.scann,
    )
    return base, there


def _vectors(connection: sqlite3.Connection, space: Space, rows: NDArray[np.int64], after: int) -> NDArray[np.float32]:
    """The vectors of all documents after a row, which are `rows`."""
    found = list(database.vectors(connection, space, after))
    numbers = np.concatenate([rows[:0], *(part for part, _ in found)])
    if not np.array_equal(numbers, rows):
        raise UserError(f"{space.table}: has {len(numbers)} vectors for {len(rows)} documents; restore a backup")
    return np.concatenate([np.empty((0, space.dim), np.float32), *(part for _, part in found)])
