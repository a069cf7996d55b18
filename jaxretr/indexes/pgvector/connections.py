"""A small pool of connections, one transaction each, and PostgreSQL's errors as ours.

psycopg_pool would be a further package with threads of its own. Here the thread that needs a connection opens it, so that
an error reaches the request that it belongs to; a broken connection is discarded, and the next request opens another.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from jaxretr.indexes.index import StorageFull
from jaxretr.indexes.pgvector.address import Address
from jaxretr.runtime.errors import UnavailableError, UserError, import_extra

T = TypeVar("T")

psycopg = import_extra("psycopg", "pgvector")
errors = import_extra("psycopg.errors", "pgvector")
sql = import_extra("psycopg.sql", "pgvector")
pgvector = import_extra("pgvector.psycopg", "pgvector")

Connection: TypeAlias = Any
"""A psycopg connection whose rows are tuples."""

# hnsw.iterative_scan, which filters need.
_LEAST_PGVECTOR = (0, 8)


class Database:
    """Up to `size` connections to one database.

    Attributes:
      address: the database's address.
      timeout_s: the limit of a statement, and of the wait for a free connection.
    """

    def __init__(self, address: Address, size: int = 4, timeout_s: float = 30.0):
        self.address, self.timeout_s = address, timeout_s
        self._idle: queue.LifoQueue[Connection | None] = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(None)
        self._closed = threading.Event()

    def run(self, work: Callable[[Connection], T], *, one_state_of: Any = None) -> T:
        """Run work in one transaction, which is committed afterwards, or rolled back if the work raises.

        If the connection turns out to be broken before the commit is sent, for instance after a restart of the server, it
        is replaced, and the work runs once more.

        Args:
          one_state_of: a table, quoted, that nobody can exchange until the transaction ends; all of the work then sees the
            database as it is once that is so, whatever others commit. None: each statement sees what was committed before it.

        Raises:
          UnavailableError: the database cannot be reached, or is too slow.
          StorageFull: its disk is full.
          UserError: it refuses the work.
        """
        try:
            connection = self._idle.get(timeout=self.timeout_s)
        except queue.Empty:
            raise UnavailableError(
                f"{self.address.shown}: all connections were busy for {self.timeout_s:g} s; try again later"
            ) from None
        reusable: Connection | None = None
        try:
            fresh = connection is None
            while True:
                connection = self.connect() if connection is None else connection
                committing = False
                try:
                    with connection.transaction():
                        self._begin(connection, one_state_of)
                        result = work(connection)
                        committing = True
                except (psycopg.Error, UserError) as error:
                    broken = connection.closed or connection.broken
                    if broken and not fresh and not committing and isinstance(error, psycopg.OperationalError):
                        connection, fresh = None, True
                        continue
                    if not broken:
                        reusable = connection
                    if isinstance(error, UserError):
                        raise
                    raise self._ours(error, committing and broken) from None
                except BaseException:
                    connection.close()
                    raise
                reusable = connection
                return result
        finally:
            if reusable is not None and self._closed.is_set():
                reusable.close()
                reusable = None
            self._idle.put(reusable)

    def connect(self, *, extension: bool = False) -> Connection:
        """Open a connection, which the caller closes.

        Args:
          extension: whether pgvector is added to the database if it is missing.

        Raises:
          UnavailableError: the database cannot be reached.
          UserError: it has no pgvector, or one that is too old.
        """
        address = self.address
        try:
            # No prepared statements: filters differ, so each is planned for its own values, and poolers may lack them.
            connection = psycopg.connect(address.conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise UnavailableError(f"{address.shown}: cannot be reached ({address.clean(error)})") from None
        try:
            if extension:
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            row = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
            if row is None:
                raise UserError(
                    f"{address.shown}: the database has no pgvector; run CREATE EXTENSION vector, or export to it first"
                )
            version = tuple(int(part) for part in row[0].split(".")[:2])
            if version < _LEAST_PGVECTOR:
                raise UserError(
                    f"{address.shown}: has pgvector {row[0]}, but 0.8 is needed; run ALTER EXTENSION vector UPDATE"
                )
            pgvector.register_vector(connection)
        except (psycopg.Error, UserError) as error:
            connection.close()
            if isinstance(error, UserError):
                raise
            raise self._ours(error, False) from None
        return connection

    def close(self) -> None:
        """Close idle connections now, and the others when they are returned."""
        self._closed.set()
        for _ in range(self._idle.qsize()):
            connection = self._idle.get_nowait()
            if connection is not None:
                connection.close()
            self._idle.put(None)

    def _begin(self, connection: Connection, one_state_of: Any) -> None:
        # None of these statements reads, so the state is that of the work's first one.
        statements = sql.SQL("SET LOCAL statement_timeout = {}").format(sql.Literal(round(self.timeout_s * 1000)))
        if one_state_of is not None:
            statements = sql.SQL(
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; {}; LOCK TABLE {} IN ACCESS SHARE MODE"
            ).format(statements, one_state_of)
        connection.execute(statements)

    def _ours(self, error: Exception, commit_lost: bool) -> UserError:
        return as_user_error(self.address, error, self.timeout_s, commit_lost)


def as_user_error(address: Address, error: Exception, timeout_s: float, commit_lost: bool = False) -> UserError:
    """PostgreSQL's error as one of ours, in one line and without a password.

    Args:
      commit_lost: the connection broke while a commit was under way.
    """
    where, what = address.shown, address.clean(error)
    if commit_lost:
        return UnavailableError(f"{where}: the connection broke during a commit ({what}); repeat the write")
    if isinstance(error, errors.QueryCanceled):
        return UnavailableError(f"{where}: took longer than {timeout_s:g} s; ask for less, or try again later")
    if isinstance(error, errors.LockNotAvailable | errors.DeadlockDetected):
        return UnavailableError(f"{where}: another transaction holds the table ({what}); end it, or try again later")
    if isinstance(error, errors.DiskFull):
        return StorageFull(f"{where}: the disk is full ({what}); free some space")
    if isinstance(error, errors.UndefinedTable):
        return UserError(f"{where}: there is no such table; run `jaxretr export ... --to pgvector` first")
    if isinstance(error, errors.InsufficientPrivilege):
        return UserError(f"{where}: the user may not do this ({what}); grant it, or use another user")
    if isinstance(error, errors.FeatureNotSupported) and "extension" in what:
        return UserError(f"{where}: pgvector is not installed on the server ({what}); install it there")
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return UserError(f"{where}: the database is read-only ({what}); write to its primary")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return UnavailableError(f"{where}: the connection was lost ({what}); try again later")
    return UserError(f"{where}: PostgreSQL refused this ({what})")
