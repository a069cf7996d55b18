"""Moving a live index to another model while it is searched and written, and back.

The new model's vectors are a space of their own. It is filled from the texts, batch by batch; documents that are
written meanwhile go to both spaces. When no document lacks a vector, its snapshot is made and its recall certified, and
one transaction makes it the space that is searched. The old one stays until `forget`, for `rollback`. All of this is in
the folder: a killed process resumes where it was, and no search ever sees vectors of two models.
"""

import functools
import shutil
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxretr.indexes.exact.host_rows import checked_matrix
from jaxretr.indexes.index import Document
from jaxretr.indexes.live import database, fault_points, snapshots, writes
from jaxretr.indexes.live.certifying import Certified
from jaxretr.indexes.live.database import Space
from jaxretr.indexes.live.index import Encode, LiveIndex
from jaxretr.indexes.live.opening import open_newest
from jaxretr.indexes.live.snapshots import Incomplete
from jaxretr.indexes.live.view import View
from jaxretr.indexes.live.writes import Change
from jaxretr.models.encode import without_truncation_warnings
from jaxretr.models.text_encoder import TextEncoder
from jaxretr.runtime.errors import UserError

# Documents that are encoded and written at a time.
BATCH = 256


class Stopped(UserError):
    """Reindexing was asked to stop; the next call resumes it."""


@dataclass(frozen=True)
class Model:
    """An encoder, as a live index needs it.

    Attributes:
      name: the path or hub name that it is loaded from.
      fingerprint: the fingerprint of its passages' vectors.
      dim: D.
      encode: documents -> float32 [n, D]; called from several threads.
    """

    name: str
    fingerprint: str
    dim: int
    encode: Encode


class Reindexing:
    """One move to another model: `run` does it, in any thread, and `state` tells its progress."""

    def __init__(
        self,
        index: LiveIndex,
        to: Model,
        *,
        old: Encode | None = None,
        switched: Callable[[], None] = lambda: None,
        advance: Callable[[int], object] = lambda rows: None,
    ):
        """Check that the move can begin.

        Args:
          old: the present model; if given, what is written after the switch goes to its space as well, so that
            `rollback` needs no encoding.
          switched: called at the moment of the switch, when searches need vectors of the new model, on the thread that
            writes: it must not write itself.
          advance: called with the number of documents that were encoded since the last call.

        Raises:
          UserError: the index has this model, or another move is not finished or not forgotten.
        """
        self._index, self._to, self._old = index, to, old
        self._switched, self._advance = switched, advance
        self._stopping = threading.Event()
        self._phase, self._filled = "waiting", 0
        with index.database.reading() as connection:
            _check_free(index, database.spaces(connection), database.state(connection).active, to)

    def state(self) -> dict[str, Any]:
        """The move's progress, as JSON: `to`, `phase` (waiting, filling, snapshot, switched), `filled`, `lacking`."""
        with self._index.database.reading() as connection:
            found = [each for each in database.spaces(connection) if each.fingerprint == self._to.fingerprint]
            lacking = database.lacking(connection, found[0]) if found else len(self._index)
        return {"to": self._to.name, "phase": self._phase, "filled": self._filled, "lacking": lacking}

    def stop(self) -> None:
        """Make `run` raise `Stopped` after the batch that it is encoding."""
        self._stopping.set()

    def run(self) -> int:
        """Fill, make the snapshot, certify, and switch; return the number of documents that were encoded.

        Raises:
          Stopped: see `stop`.
          UserError, StorageFull: it cannot continue; what was filled stays, and the next run resumes.
        """
        index, to = self._index, self._to
        fault_points.reached("reindex.begun")
        space = index.writer.write(functools.partial(_begin, to=to))
        fault_points.reached("reindex.space")
        before = index.view.space
        index.also[space.fingerprint] = (space, to.encode)
        if self._old is not None:  # Does nothing before the switch.
            index.also[before.fingerprint] = (before, self._old)
        try:
            while True:
                self._phase = "filling"
                self._fill(space)
                self._phase = "snapshot"
                try:
                    snapshots.write(index.database, space, index.settings)
                    fault_points.reached("reindex.snapshot")
                    if not _switch(index, space, self._switched):
                        continue
                except Incomplete:  # A write's encoding failed meanwhile.
                    continue
                break
        except BaseException:
            index.also.pop(before.fingerprint, None)
            raise
        finally:
            index.also.pop(space.fingerprint, None)
        self._phase = "switched"
        index.upkeep.look()
        return self._filled

    def _fill(self, space: Space) -> None:
        after = 0
        while True:
            with self._index.database.reading() as connection:
                found = database.missing(connection, space, after, BATCH)
            if not found:
                break
            if self._stopping.is_set():
                raise Stopped(f"{self._index.folder}: stopped; reindex to {self._to.name} again to resume")
            documents = [document for _, document in found]
            vectors = checked_matrix(self._to.encode(documents), space.dim, f"vectors of {self._to.name}")
            fault_points.reached("reindex.encoded")
            rows = [row for row, _ in found]
            self._filled += self._index.writer.write(
                functools.partial(writes.fill, space=space, rows=rows, vectors=vectors), len(rows)
            )
            fault_points.reached("reindex.filled")
            self._advance(len(rows))
            after = rows[-1]
        fault_points.reached("reindex.complete")


def rollback(index: LiveIndex, encode: Encode | None = None, switched: Callable[[], None] = lambda: None) -> Space:
    """Make the previous space the one that is searched again, and return it.

    Args:
      encode: the encoder of that space, for documents that were written since without it.
      switched: called at the moment of the switch.

    Raises:
      UserError: there is none, or documents lack its vectors and there is no `encode`.
    """
    space = left_space(index)
    while True:
        with index.database.reading() as connection:
            lacking = database.lacking(connection, space)
        if lacking:
            if encode is None:
                raise UserError(
                    f"{index.folder}: {lacking} documents were written since it left {space.model}; encode them with it: "
                    f"jaxretr reindex {index.folder} --to {space.model}"
                )
            Reindexing(index, Model(space.model, space.fingerprint, space.dim, encode), switched=switched).run()
            return space
        if _switch(index, space, switched):
            return space


def left_space(index: LiveIndex) -> Space:
    """The space that was searched before the present one.

    Raises:
      UserError: there is none.
    """
    other = other_space(index)
    if other is None or not other.was_active:
        raise UserError(f"{index.folder}: has no vectors of an earlier model; there is nothing to roll back to")
    return other


def other_space(index: LiveIndex) -> Space | None:
    """The space that is not searched: an earlier one, or one that is not filled yet."""
    with index.database.reading() as connection:
        active = database.state(connection).active
        return next((each for each in database.spaces(connection) if each != active), None)


def forget(index: LiveIndex) -> Space | None:
    """Remove the vectors of the model that is not searched; return its space, None if there is none.

    The database file keeps its size, and later writes reuse the space.
    """
    space = other_space(index)
    if space is None:
        return None
    fault_points.reached("forget.begun")

    def drop(connection: sqlite3.Connection) -> tuple[None, Change]:
        database.drop_space(connection, space)
        return None, Change(database.state(connection).sequence)

    index.also.pop(space.fingerprint, None)
    index.writer.write(drop)
    for path in snapshots.found(index.folder, space):
        shutil.rmtree(path, ignore_errors=True)
    fault_points.reached("forget.done")
    return space


def _check_free(index: LiveIndex, there: Sequence[Space], active: Space, to: Model) -> None:
    if to.fingerprint == active.fingerprint:
        raise UserError(f"{index.folder}: already has the vectors of {to.name}")
    for space in there:
        if space != active and space.fingerprint != to.fingerprint:
            what = "keeps the vectors of" if space.was_active else "has begun to move to"
            raise UserError(
                f"{index.folder}: {what} {space.model}; forget that model first: jaxretr reindex {index.folder} --forget"
            )
        if space.fingerprint == to.fingerprint and space.dim != to.dim:
            raise UserError(f"{index.folder}: has vectors of {to.name} of {space.dim} dimensions, not {to.dim}")


def _begin(connection: sqlite3.Connection, to: Model) -> tuple[Space, Change]:
    found = [space for space in database.spaces(connection) if space.fingerprint == to.fingerprint]
    space = found[0] if found else database.add_space(connection, to.name, to.fingerprint, to.dim)
    return space, Change(database.state(connection).sequence)


def _switch(index: LiveIndex, space: Space, switched: Callable[[], None]) -> bool:
    """Make a space the one that is searched; return False, and do nothing, if a document lacks a vector."""

    def switch(connection: sqlite3.Connection) -> bool:
        fault_points.reached("switch.begun")
        with database.transaction(connection):
            if database.lacking(connection, space):
                return False
            # Read before the commit: nothing can fail between it and the first search.
            found: tuple[View, Certified | None] = open_newest(connection, index.folder, space)
            database.activate(connection, space)
            fault_points.reached("switch.written")
        index.show(*found)
        switched()
        fault_points.reached("switch.done")
        return True

    return index.writer.alone(switch)


class PassageSide:
    """An encoder's passage side as `Model.encode`: one thread at a time, and texts that are cut are counted.

    Attributes:
      count, cut: documents that were encoded so far, and how many of them were cut at the encoder's length.
    """

    def __init__(self, encoder: TextEncoder, batch_size: int | None = None):
        self._encoder, self._batch_size, self._lock = encoder, batch_size, threading.Lock()
        self.count = self.cut = 0

    def __call__(self, documents: Sequence[Document]) -> np.ndarray:
        with self._lock, without_truncation_warnings():
            vectors = self._encoder.encode_passages(documents, batch_size=self._batch_size, progress=False)
            self.count, self.cut = self.count + len(documents), self.cut + self._encoder.truncated
        return vectors
