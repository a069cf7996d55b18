"""Searches and writes an index in PostgreSQL with pgvector: `pgvector:ADDRESS`."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from jaxretr.embeddings.encoding import Encoder
from jaxretr.indexes.checks import check_model
from jaxretr.indexes.exact.host_rows import checked_matrix, checked_questions
from jaxretr.indexes.filters import Value, is_value
from jaxretr.indexes.graph_width import width_of
from jaxretr.indexes.index import (
    Document,
    Findings,
    Hit,
    Opening,
    SearchOptions,
    Standing,
    Written,
    ids_of,
)
from jaxretr.indexes.pgvector import build, writing
from jaxretr.indexes.pgvector import table as tables
from jaxretr.indexes.pgvector.address import Address
from jaxretr.indexes.pgvector.connections import Connection, Database
from jaxretr.indexes.pgvector.searching import search
from jaxretr.indexes.pgvector.table import Names, State, holds
from jaxretr.indexes.recall import as_dict
from jaxretr.runtime.errors import UserError, check_list, check_rows, import_extra

sql = import_extra("psycopg.sql", "pgvector")

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECTIONS = 8
TIMEOUT_S = 30.0


def open(
    place: str,
    opening: Opening,
    *,
    connections: int = CONNECTIONS,
    timeout_s: float = TIMEOUT_S,
) -> "PgvectorIndex":
    """Open a table that `jaxretr export --to pgvector` wrote.

    Args:
      place: the address: postgresql://USER@HOST/DATABASE?table=NAME, or libpq's keywords. Keep the password in ~/.pgpass
        or PGPASSWORD.
      opening: the index's name, and the model of the service.
      connections: the most connections to the database.
      timeout_s: seconds that a statement may take.

    Raises:
      UnavailableError: the database cannot be reached.
      UserError: there is no such table, or another model made it.
    """
    return PgvectorIndex(Address.parse(place), opening.name, opening.encoder, connections, timeout_s)


def verify(place: str) -> str:
    """Compare a table with the facts that its export stated; see `build.verify`."""
    return build.verify(Address.parse(place))


def shown(place: str) -> str:
    """The address of a table as messages show it, without a password."""
    return Address.parse(place).shown


class PgvectorIndex:
    """A table in PostgreSQL as a `Writable`; see `jaxretr.indexes.index`.

    Each write is one transaction; writes are ordered, since each begins by incrementing the sequence number. If an export
    replaces the table, the next request notices.

    Attributes:
      name: its name in requests.
    """

    def __init__(self, address: Address, name: str, encoder: Encoder | None, connections: int, timeout_s: float):
        """Use `open`."""
        self.name, self._address, self._encoder = name, address, encoder
        self._names = Names.of(address.table)
        self._database = Database(address, connections, timeout_s)
        self._changing = threading.Lock()
        self._state: State | None = None
        self._checked = ""
        try:
            self._run(lambda connection, state: None)
            self._durable = self._run(lambda connection, state: _is_durable(connection))
        except BaseException:
            self.close()
            raise
        if not self._durable:
            log.warning("%s: fsync is off, so a power failure loses acknowledged writes", address.shown)

    def __len__(self) -> int:
        return self._run(lambda connection, state: state.rows)

    @property
    def dim(self) -> int:
        return self._known.facts.dim

    @property
    def standing(self) -> Standing:
        """The standing of the table that the last request found; see `Index`."""
        return _standing(self._known)

    def is_exact(self, options: SearchOptions) -> bool:
        return options.exact or not self._known.facts.settings

    def search(self, vectors: np.ndarray, k: int, options: SearchOptions) -> list[list[Hit]]:
        """Implement `Index.search`. Exact scores are PostgreSQL's sums in float32."""
        return self.find(vectors, k, options).hits

    def find(
        self,
        vectors: np.ndarray,
        k: int,
        options: SearchOptions,
        *,
        with_documents: bool = False,
        with_vectors: bool = False,
    ) -> Findings:
        """Implement `Index.find` in one transaction."""
        vectors = checked_questions(vectors, self.dim, k, "questions")

        def ask(connection: Connection, state: State) -> Findings:
            if vectors.shape[1] != state.facts.dim:
                raise UserError(f"{self._address.shown}: the table now has another number of dimensions; try again")
            settings = state.facts.settings
            width = None
            if not options.exact and settings:
                width = width_of(settings, options.target_recall, self._address.shown) or None
            results = search(connection, self._names, state, vectors, k, width, options)
            hits = [list(map(Hit, each.ids, each.scores)) for each in results]
            return Findings(
                _standing(state),
                options.exact or not settings,
                hits,
                self._documents(connection, ids_of(hits)) if with_documents else {},
                self._vectors(connection, ids_of(hits)) if with_vectors else {},
            )

        return self._run(ask)

    def listing(
        self, fields: Sequence[str] = (), *, share: bool = False
    ) -> tuple[Sequence[str], Mapping[str, Sequence[Value]]]:
        columns = [sql.SQL("metadata -> {}").format(sql.Literal(name)) for name in fields]
        statement = sql.SQL("SELECT {} FROM {} ORDER BY row").format(
            sql.SQL(", ").join([sql.SQL("id"), *columns]), self._names.passages
        )
        rows = self._run(lambda connection, state: connection.execute(statement).fetchall())
        return [row[0] for row in rows], {name: [row[n] for row in rows] for n, name in enumerate(fields, 1)}

    def documents(self, ids: Sequence[str]) -> list[Document | None]:
        check_rows("ids", ids)
        documents = self._run(lambda connection, state: self._documents(connection, ids))
        return [documents.get(name) for name in ids]

    def _documents(self, connection: Connection, ids: Sequence[str]) -> dict[str, Document]:
        statement = sql.SQL("SELECT id, title, text, metadata FROM {} WHERE id = ANY(%s)").format(self._names.passages)
        rows = connection.execute(statement, ([name for name in ids if holds(name)],)).fetchall()
        return {row[0]: Document(*row) for row in rows}

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        check_rows("ids", ids)
        vector_of = self._run(lambda connection, state: self._vectors(connection, ids))
        missing = [name for name in ids if name not in vector_of]
        if missing:
            raise UserError(f"{missing[0][:80]!r} is not in the index ({len(missing)} such ids); leave it out")
        return np.array([vector_of[name] for name in ids], np.float32).reshape(len(ids), self.dim)

    def _vectors(self, connection: Connection, ids: Sequence[str]) -> dict[str, np.ndarray]:
        statement = sql.SQL("SELECT id, embedding FROM {} WHERE id = ANY(%s)").format(self._names.passages)
        with connection.cursor(binary=True) as cursor:
            rows = cursor.execute(statement, ([name for name in ids if holds(name)],)).fetchall()
        return {row[0]: row[1].to_numpy() for row in rows}

    def upsert(self, documents: Sequence[Document], vectors: np.ndarray) -> Written:
        vectors = (
            checked_matrix(vectors, self.dim, "vectors") if len(documents) else np.empty((0, self.dim), np.float32)
        )
        if len(vectors) != len(documents):
            raise UserError(f"vectors: {len(vectors)} for {len(documents)} documents; give one for each")
        if twice := [id for id, count in Counter(each.id for each in documents).items() if count > 1]:
            raise UserError(f"documents: the id {twice[0][:80]!r} occurs twice; give every passage an id of its own")
        for document in documents:
            for field, value in document.metadata.items():
                if not is_value(value):
                    raise UserError(
                        f"passage {document.id[:80]!r}: the field {field!r} is a {type(value).__name__} or not finite; give "
                        "strings, numbers, truth values or None"
                    )
        sequence, replaced = self._write(
            lambda connection, state: writing.upsert(connection, self._names, state.generation, documents, vectors)
        )
        return Written(sequence, added=len(documents) - replaced, replaced=replaced)

    def delete(self, ids: Sequence[str]) -> Written:
        check_list("ids", ids)  # The letters of a single id may be ids themselves.
        names = [name for name in ids if holds(name)]
        sequence, count = self._write(
            lambda connection, state: writing.delete(connection, self._names, state.generation, names)
        )
        return Written(sequence, deleted=count)

    def facts(self) -> dict[str, Any]:
        """Implement `Index.facts`; `bytes` is 0, for the memory is PostgreSQL's, `disk_bytes` its size there."""
        table = self._names.passages.as_string(None)
        state, size = self._run(
            lambda connection, state: (
                state,
                connection.execute("SELECT pg_total_relation_size(%s)", (table,)).fetchone(),
            )
        )
        facts = state.facts
        certificate = None if facts.certificate is None else as_dict(facts.certificate) | {"stale": state.changed > 0}
        return {
            "engine": "pgvector",
            "address": self._address.shown,
            "passages": state.rows,
            "dim": facts.dim,
            "model": facts.model,
            "model_fingerprint": facts.model_fingerprint,
            "writable": True,
            "durable": self._durable,
            "sequence": state.sequence,
            "changed": state.changed,
            "bytes": 0,
            "disk_bytes": size[0] if size else 0,
            "fields": list(state.fields),
            "targets": [setting.target for setting in facts.settings],
            "certificate": certificate,
            "postgresql": facts.postgresql,
            "pgvector": facts.pgvector,
        }

    def close(self) -> None:
        self._database.close()

    @property
    def _known(self) -> State:
        assert self._state is not None
        return self._state

    def _run(self, work: Callable[[Connection, State], T], *, writes: bool = False) -> T:
        """Run work in a transaction that sees one state, after checking whether the table is still the same."""

        def checked(connection: Connection) -> T:
            state = tables.read_state(connection, self._address, self._state)
            self._notice(state)
            return work(connection, state)

        return self._database.run(checked, one_state_of=None if writes else self._names.facts)

    def _write(self, work: Callable[[Connection, State], T | None]) -> T:
        """Run a write; refuse it if an export has replaced the table, since the vectors may be another model's."""
        result = self._run(work, writes=True)
        if result is None:
            raise UserError(f"{self._address.shown}: an export replaced the table during the write; write again")
        return result

    def _notice(self, state: State) -> None:
        if state is self._state:
            return
        with self._changing:
            if state.generation != self._checked:
                facts = state.facts
                check_model(self._address.shown, facts.dim, facts.model, facts.model_fingerprint, self._encoder)
                self._checked = state.generation
            known = self._state
            if known is None or known.generation != state.generation or known.sequence < state.sequence:
                self._state = state


def _standing(state: State) -> Standing:
    return Standing(state.facts.model, state.facts.model_fingerprint, state.sequence)


def _is_durable(connection: Connection) -> bool:
    """Whether committed writes survive a power failure; each write turns `synchronous_commit` on."""
    return connection.execute("SELECT current_setting('fsync')").fetchone() == ("on",)
