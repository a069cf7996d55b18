"""The one thread that writes: waiting writes are committed together, and each caller returns after the commit.

A commit waits some milliseconds for the disk, however much it contains, so many callers at once take hardly longer than
one. A failing write does not affect the others: those of its group are then committed one by one.
"""

import collections
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from jaxretr.indexes.live import database, fault_points
from jaxretr.indexes.live.database import Database
from jaxretr.runtime.errors import UserError

T = TypeVar("T")

# Rows of a group, approximately, so that the first caller does not wait for too many others.
_MOST_ROWS = 20_000

# A write to the database; returns its caller's result and the change, for the index in memory.
Write = Callable[[sqlite3.Connection], tuple[T, Any]]


@dataclass
class _Task(Generic[T]):
    rows: int
    write: Write[T] | None = None
    alone: Callable[[sqlite3.Connection], T] | None = None
    done: Future[T] = field(default_factory=Future)


class GroupCommit:
    """Writes to a database from any number of threads."""

    def __init__(self, base: Database, published: Callable[[Sequence[Any]], None]):
        """Start the thread.

        Args:
          published: called on the thread with the changes of each commit, before the callers return.
        """
        self._database, self._published = base, published
        self._waiting: queue.SimpleQueue[_Task[Any] | None] = queue.SimpleQueue()
        self._closed = False
        self._lock = threading.Lock()  # for closing: no write is queued after the end
        self._connection = base.connect()
        self._thread = threading.Thread(target=self._run, name="live-writer", daemon=True)
        self._thread.start()

    def write(self, write: Write[T], rows: int = 1) -> T:
        """Write on the thread, and wait for the commit.

        Args:
          write: called in a transaction; again if another write of the same transaction fails.
          rows: the approximate number of rows that it writes.

        Raises:
          StorageFull: the disk is full; nothing was written.
        """
        return self._result(_Task(rows, write=write))

    def alone(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work on the thread between two commits, and wait for it.

        Args:
          work: called with the connection, outside a transaction.
        """
        return self._result(_Task(0, alone=work))

    def close(self) -> None:
        """Finish the waiting writes, and stop the thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._waiting.put(None)
        self._thread.join()
        self._connection.close()

    def _result(self, task: _Task[T]) -> T:
        with self._lock:
            if self._closed:
                raise UserError(f"{self._database.path.parent}: the live index is closed; open it again to write")
            self._waiting.put(task)
        return task.done.result()

    def _run(self) -> None:
        waiting: collections.deque[_Task[Any] | None] = collections.deque()
        while True:
            if not waiting:
                waiting.append(self._waiting.get())
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.append(self._waiting.get_nowait())
            task = waiting.popleft()
            if task is None:
                return
            if task.write is None:
                self._do(task)
                continue
            group, rows = [task], task.rows
            while waiting and (task := waiting[0]) is not None and task.write is not None and rows < _MOST_ROWS:
                group.append(task)
                rows += task.rows
                waiting.popleft()
            self._commit(group)

    def _commit(self, group: list[_Task[Any]]) -> None:
        try:
            with database.transaction(self._connection):
                fault_points.reached("commit.begun")
                found = [task.write(self._connection) for task in group if task.write is not None]
                fault_points.reached("commit.written")
            fault_points.reached("commit.done")
        except BaseException as error:
            if len(group) > 1:
                for task in group:
                    self._commit([task])
            else:
                group[0].done.set_exception(self._named(error))
            return
        try:
            self._published([change for _, change in found])
            fault_points.reached("commit.published")
        except BaseException as error:
            for task in group:
                task.done.set_exception(error)
            return
        for task, (result, _) in zip(group, found, strict=True):
            task.done.set_result(result)

    def _do(self, task: _Task[Any]) -> None:
        assert task.alone is not None
        try:
            task.done.set_result(task.alone(self._connection))
        except BaseException as error:
            task.done.set_exception(self._named(error))

    def _named(self, error: BaseException) -> BaseException:
        folder: Path = self._database.path.parent
        return database.full(folder) if database.is_full(error, folder) else error
