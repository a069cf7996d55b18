"""Snapshots: files of a space's rows, from which a live index opens without reading every vector of the database.

  snapshots/001-000000004711/    space 1 as write 4711 left it
    manifest.json                whose it is, and the sha256 of every file
    rows.npy                     int64 [N], ascending: the database's rows
    vectors.npy                  float32 [N, D], if there is no approximate index
    scann/                       a `ScannIndex` of the same rows, including its vectors.npy, if they are many

A snapshot can always be made again from the database, so a damaged one is removed.
"""

import contextlib
import logging
import re
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes.certified.build import write_vectors
from jaxretr.indexes.certified.engines import engine_problems, working_engine
from jaxretr.indexes.certified.index import ScannIndex
from jaxretr.indexes.live import database, fault_points
from jaxretr.indexes.live.database import Database, Space, State
from jaxretr.indexes.live.settings import LiveSettings
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage import manifest
from jaxretr.runtime.storage.files import atomic_folder

log = logging.getLogger(__name__)

FOLDER = "snapshots"
KIND = "live-snapshot"
VECTORS, ROWS, SCANN = "vectors.npy", "rows.npy", "scann"

_NAME = re.compile(r"(\d{3,})-(\d{12,})")


@dataclass(frozen=True)
class Snapshot:
    """An open snapshot.

    Attributes:
      path: its folder.
      sequence: the number of the last write that it knows.
      made: the time it was made, in ISO 8601.
      rows: the database's numbers of the rows, int64 [N].
      vectors: float32 [N, D], a plain array over a memory map.
      scann: the index over them, or None.
    """

    path: Path
    sequence: int
    made: str
    rows: NDArray[np.int64]
    vectors: NDArray[np.float32]
    scann: ScannIndex | None


class Incomplete(Exception):
    """An error: documents lack vectors of the space, so there can be no snapshot of it yet."""


def write(
    base: Database, space: Space, settings: LiveSettings, questions: NDArray[np.float32] | None = None
) -> Path | None:
    """Write a snapshot of the database as it is now, whole or not at all; return its folder, None without documents.

    Args:
      settings: the rows from which on there is an approximate index, its engine, and the recall it is tuned for.
      questions: questions to tune and certify the index with, float32 [Q, D]; by default passages stand in for them.

    Raises:
      Incomplete: a document lacks a vector.
      UserError: it cannot be written.
    """
    place = base.path.parent / FOLDER
    place.mkdir(exist_ok=True)
    with contextlib.ExitStack() as reading:
        connection = reading.enter_context(base.reading())
        state = database.state(connection)
        n = database.count(connection, "documents")
        if database.lacking(connection, space):
            raise Incomplete
        if not n:
            return None
        path = place / f"{space.number:03d}-{state.sequence:012d}"
        fault_points.reached("snapshot.begun")
        with atomic_folder(path) as partial:
            ids = _write_rows(connection, space, partial, n)
            reading.close()  # SQLite's log would grow as long as this state is read.
            fault_points.reached("snapshot.rows")
            indexed = n >= settings.scann_from and _index(partial, ids, space, settings, questions)
            fault_points.reached("snapshot.indexed")
            facts = {
                "folder": state.folder,
                "space": space.number,
                "fingerprint": space.fingerprint,
                "sequence": state.sequence,
                "made": datetime.now(UTC).isoformat(timespec="seconds"),
                "rows": n,
                "dim": space.dim,
                "scann": indexed,
            }
            manifest.write(partial, KIND, facts)
            fault_points.reached("snapshot.written")
    return path


def _write_rows(connection: sqlite3.Connection, space: Space, folder: Path, n: int) -> list[str]:
    """Write vectors.npy and rows.npy; return the ids."""
    rows = np.empty(n, np.int64)

    def blocks() -> Iterator[np.ndarray]:
        first = 0
        for numbers, block in database.vectors(connection, space):
            rows[first : first + len(numbers)] = numbers
            yield block
            first += len(numbers)

    write_vectors(folder / VECTORS, blocks(), (n, space.dim), "the database")
    fault_points.reached("snapshot.vectors")
    np.save(folder / ROWS, rows)
    return [id for _, id, _ in database.rows(connection)]


def _index(
    folder: Path, ids: list[str], space: Space, settings: LiveSettings, questions: NDArray[np.float32] | None
) -> bool:
    """Add an approximate index if an engine works here; its copy of the vectors is then the only one."""
    engine = working_engine(settings.engine)
    if engine is None:
        log.warning("searched exactly, since no engine can be used here: %s", engine_problems())
        return False
    try:
        built = ScannIndex.build(
            np.load(folder / VECTORS, mmap_mode="r"),
            ids,
            target_recall=settings.target_recall,
            questions=questions,
            engine=engine.name,
            workdir=folder.parent,
        )
        built.save(folder / SCANN)
    except UserError as error:
        log.warning("searched exactly, since the approximate index was not built: %s", error)
        shutil.rmtree(folder / SCANN, ignore_errors=True)
        return False
    (folder / VECTORS).unlink()
    return True


def load(path: Path, space: Space, state: State, *, compare: bool = True) -> Snapshot:
    """Open a snapshot.

    Args:
      space, state: those of the database that the snapshot must belong to.
      compare: whether to compare every file with its hash.

    Raises:
      UserError: it is damaged, or not of this database.
    """
    content = manifest.read(path)
    facts = content.facts
    wanted = (KIND, state.folder, space.number, space.fingerprint, space.dim)
    if (content.kind, *(facts.get(name) for name in ("folder", "space", "fingerprint", "dim"))) != wanted:
        raise UserError(f"{path}: is a snapshot of another live index")
    if facts["sequence"] > state.sequence:
        raise UserError(f"{path}: is newer than the database, which must be an older copy")
    if compare and (problems := manifest.changed_files(path, content)):
        raise UserError(f"{path}: {'; '.join(problems)}")
    scann = ScannIndex.load(path / SCANN) if facts["scann"] else None
    mapped = np.load(path / VECTORS, mmap_mode="r") if scann is None else scann.rows.base.vectors
    rows = np.load(path / ROWS)
    if scann is not None:
        scann.prepare()
    return Snapshot(path, facts["sequence"], facts["made"], rows, np.asarray(mapped), scann)


def found(folder: Path, space: Space | None = None) -> list[Path]:
    """The snapshots of a live folder, or of one space, the newest first."""
    place = folder / FOLDER
    named = [path for path in place.iterdir() if _NAME.fullmatch(path.name)] if place.is_dir() else []
    number = None if space is None else space.number
    kept = [path for path in named if number is None or int(path.name.split("-")[0]) == number]
    return sorted(kept, key=lambda path: int(path.name.split("-")[1]), reverse=True)


def remove_older(kept: Path, space: Space) -> None:
    """Remove the space's other snapshots."""
    for path in found(kept.parent.parent, space):
        if path != kept:
            shutil.rmtree(path, ignore_errors=True)


def remove_remains(folder: Path, spaces: list[Space]) -> None:
    """Remove what killed processes left behind, and snapshots of removed spaces."""
    place, numbers = folder / FOLDER, {space.number for space in spaces}
    for path in place.iterdir() if place.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name is None or int(name[1]) not in numbers:
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
