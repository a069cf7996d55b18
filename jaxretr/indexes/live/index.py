"""`LiveIndex`: a folder of passages that change while they are searched."""

import contextlib
import functools
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.indexes.exact.host_rows import checked_matrix, checked_questions
from jaxretr.indexes.filters import Value
from jaxretr.indexes.index import Document, Findings, Hit, SearchOptions, Standing, Written
from jaxretr.indexes.live import database, fault_points, snapshots, writes
from jaxretr.indexes.live.certifying import Certified, RecentQuestions
from jaxretr.indexes.live.database import Database, Space
from jaxretr.indexes.live.folder_lock import FolderLock
from jaxretr.indexes.live.group_commit import GroupCommit
from jaxretr.indexes.live.opening import open_newest
from jaxretr.indexes.live.segments import Base, estimate
from jaxretr.indexes.live.settings import LiveSettings
from jaxretr.indexes.live.upkeep import Upkeep
from jaxretr.indexes.live.view import View
from jaxretr.indexes.live.writes import Change, ModelChanged
from jaxretr.indexes.recall import as_dict
from jaxretr.runtime.errors import UserError, check_list, check_rows
from jaxretr.runtime.parallel import memory

log = logging.getLogger(__name__)

# Documents -> float32 [n, D].
Encode = Callable[[Sequence[Document]], np.ndarray]

# Seconds that `close` waits for the upkeep to finish its present work.
_CLOSING_SECONDS = 5.0

# Attempts of a search that a write has overtaken to find a moment between two commits, before it waits for one.
_TRIES = 20


class LiveIndex:
    """A `Writable`: writes that `upsert` and `delete` acknowledge are on disk, and every later search sees them.

    Exact searches give what an `ExactIndex` of the passages gives, in the order in which they were last written.

    Attributes:
      name: its name in requests.
      folder: the folder that holds it.
      database, settings, questions, writer, upkeep: its parts.
      certified: the last certificate.
      also: further models that encode every write, by their fingerprints; see `reindex`.
    """

    def __init__(self, folder: Path, name: str, lock: FolderLock, base: Database, settings: LiveSettings):
        """Use `open`."""
        self.folder, self.name, self.database, self.settings = folder, name, base, settings
        self._lock = lock
        self.also: dict[str, tuple[Space, Encode]] = {}
        self.questions = RecentQuestions(settings.certify_questions)
        with base.reading() as connection:
            snapshots.remove_remains(folder, database.spaces(connection))
            space, rows = database.state(connection).active, database.count(connection, "documents")
            memory.announce(
                f"{folder}: a live index of {rows} passages of {space.dim} dimensions",
                estimate(rows, space.dim, approximate=rows >= settings.scann_from),
            )
            self._view, self.certified = open_newest(connection, folder, space)
        scann = self._view.base.scann
        if scann is not None and scann.questions is not None and not scann.questions.stand_ins:
            self.questions.add(scann.questions.vectors)
        self.writer = GroupCommit(base, self._published)
        self.upkeep = Upkeep(self)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        name: str = "index",
        model: str | None = None,
        model_fingerprint: str | None = None,
        dim: int | None = None,
        settings: LiveSettings | None = None,
        background: bool = True,
    ) -> "LiveIndex":
        """Open a live folder, or make a new one where there is no folder or an empty one.

        Args:
          name: the index's name in requests.
          model: the encoder's name, for messages and /info.
          model_fingerprint: the fingerprint of its passages' vectors, see `stores.fingerprints.model_fingerprint`; by
            default that of an existing folder.
          dim: D; by default the folder's.
          background: whether a thread makes snapshots and certificates; otherwise only calls of `upkeep` do.

        Raises:
          UserError: another process writes the folder; it is another model's, of a newer version, or no live index.
          StorageFull: a new folder cannot be made.
        """
        folder = Path(folder).expanduser()
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: is a file; give a folder")
        new = not folder.is_dir() or Database.is_missing(folder)
        if new and (model is None or model_fingerprint is None or dim is None):
            raise UserError(f"{folder}: holds no live index; give one, or the model for a new one")
        folder = folder.absolute()  # The process may go to another folder.
        folder.mkdir(parents=True, exist_ok=True)
        known = (database.DATABASE, "live.lock", f"{database.DATABASE}-wal", f"{database.DATABASE}-shm")
        if new and (others := sorted(path.name for path in folder.iterdir() if path.name not in known)):
            raise UserError(f"{folder}: holds {others[0]} but no live index; give an empty or a new folder")
        lock = FolderLock.acquire(folder)
        try:
            if new:
                assert model is not None and model_fingerprint is not None and dim is not None
                base = Database.create(folder, model, model_fingerprint, dim)
            else:
                base = Database(folder)
                _check_model(folder, base, model, model_fingerprint, dim)
            index = cls(folder, name, lock, base, settings or LiveSettings())
        except BaseException as error:
            lock.release()
            if isinstance(error, sqlite3.DatabaseError):
                raise database.problem(folder / database.DATABASE, error) from error
            raise
        if background:
            index.upkeep.start()
        return index

    # ---- reading -----------------------------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """The current state."""
        return self._view

    @property
    def dim(self) -> int:
        return self._view.space.dim

    @property
    def standing(self) -> Standing:
        return _standing(self._view)

    def __len__(self) -> int:
        return self._view.count

    def search(
        self, vectors: np.ndarray, k: int, options: SearchOptions, *, model_fingerprint: str | None = None
    ) -> list[list[Hit]]:
        """Find the passages with the highest inner products; see `Index.search`.

        Args:
          vectors: float32 [B, D].
          k: hits per question.
          options: filters, and how to search.
          model_fingerprint: the fingerprint of the model that encoded the questions; by default the index's.

        Raises:
          UserError: see `Index.search`.
          ModelChanged: the index has moved to another model.
        """
        return self.find(vectors, k, options, model_fingerprint=model_fingerprint).hits

    def find(
        self,
        vectors: np.ndarray,
        k: int,
        options: SearchOptions,
        *,
        with_documents: bool = False,
        with_vectors: bool = False,
        model_fingerprint: str | None = None,
    ) -> Findings:
        """Implement `Index.find`; see `search` for the fingerprint and the errors.

        A view has everything but the texts. Since the content of a row never changes, a row that is still in the database
        has the text that was searched. If a write has removed one of them meanwhile, the search is repeated inside a
        transaction; without that no transaction lasts as long as a search, or SQLite's log would grow under load.
        """
        view = self._view
        _check_space(view.space, model_fingerprint)
        vectors = checked_questions(vectors, view.space.dim, k)
        self.questions.add(vectors)
        wanted = (vectors, k, options, with_documents, with_vectors)
        if (findings := self._findings(view, None, *wanted)) is not None:
            return findings
        with self._pinned() as (view, connection):
            _check_space(view.space, model_fingerprint)
            checked_matrix(vectors, view.space.dim)
            findings = self._findings(view, connection, *wanted)
        if findings is None:
            raise UserError(f"{self.folder}: the database lacks texts of its documents; restore a backup")
        return findings

    def _findings(
        self,
        view: View,
        connection: sqlite3.Connection | None,
        vectors: np.ndarray,
        k: int,
        options: SearchOptions,
        with_documents: bool,
        with_vectors: bool,
    ) -> Findings | None:
        """Search a view; None if a hit's row is no longer in the database.

        Args:
          connection: the connection that documents are read from; None: any, at the state of that moment.
          vectors, k, options, with_documents, with_vectors: see `find`.
        """
        fault_points.reached("search.begun")
        scores, positions = view.found(vectors, k, options)
        fault_points.reached("search.found")
        places = np.unique(positions).tolist()
        documents: dict[str, Document] = {}
        if with_documents:
            with self.database.reading() if connection is None else contextlib.nullcontext(connection) as reading:
                there = database.documents_in(reading, [view.row(place) for place in places])
            if len(there) < len(places):
                return None
            documents = {document.id: document for document in there.values()}
            fault_points.reached("search.read")
        return Findings(
            _standing(view),
            not view.is_approximate(options),
            view.hits(scores, positions),
            documents,
            {view.id(place): view.vector(place) for place in places} if with_vectors else {},
        )

    @contextlib.contextmanager
    def _pinned(self) -> Iterator[tuple[View, sqlite3.Connection]]:
        """Yield a view, and a transaction in which the database has its rows."""
        for _ in range(_TRIES):
            with self.database.reading() as connection:
                view = self._view
                if database.sequence(connection) == view.sequence:
                    yield view, connection
                    return
            time.sleep(0.001)  # A commit is about to be published.
        with self.database.reading() as connection:

            def begin(_: sqlite3.Connection) -> View:
                database.sequence(connection)  # The transaction begins with its first reading.
                return self._view

            yield self.writer.alone(begin), connection

    def is_exact(self, options: SearchOptions) -> bool:
        """Whether a search with these options is exact, because it was requested or the passages are few."""
        return not self._view.is_approximate(options)

    def listing(
        self, fields: Sequence[str] = (), *, share: bool = False
    ) -> tuple[Sequence[str], Mapping[str, Sequence[Value]]]:
        return self._view.listing(fields)

    def documents(self, ids: Sequence[str]) -> list[Document | None]:
        """The passages of these ids, None for one that is not there."""
        check_rows("ids", ids)
        with self.database.reading() as connection:
            return database.documents(connection, ids)

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        check_rows("ids", ids)
        return self._view.vectors(ids)

    def facts(self) -> dict[str, Any]:
        """The facts for /info, see `Index.facts`, with sequences, the tail, and the certificate's time."""
        view, certified = self._view, self.certified
        facts = view.facts() | {"name": self.name, "disk_bytes": database.size(self.folder)}
        if certified is not None and view.base.scann is not None and certified.snapshot == view.base.sequence:
            limit = self.settings.certify_share * len(view.base)
            facts["certificate"] = certified.facts(view.changes, limit)
        return facts

    # ---- writing -----------------------------------------------------------------------------------------------------

    def upsert(
        self, documents: Sequence[Document], vectors: np.ndarray, *, model_fingerprint: str | None = None
    ) -> Written:
        """Add or replace passages, all or none; see `Writable.upsert`.

        Args:
          documents: n documents of different ids.
          vectors: the documents' vectors, float32 [n, D].
          model_fingerprint: the fingerprint of the model that encoded them; by default the index's.

        Raises:
          UserError, StorageFull: see `Writable.upsert`.
          ModelChanged: the index has moved to another model.
        """
        space, also = self._view.space, list(self.also.values())
        _check_space(space, model_fingerprint)
        metadata = writes.checked(documents)
        if len(vectors) != len(documents):
            raise UserError(f"vectors: {len(vectors)} for {len(documents)} documents; give one for each")
        if not documents:
            return Written(self._view.sequence)
        found = {space.fingerprint: checked_matrix(vectors, space.dim, "vectors")}
        for other, encode in also:
            if other != space and (more := _encoded(other, encode, documents)) is not None:
                found[other.fingerprint] = more
        write = functools.partial(
            writes.upsert, documents=documents, metadata=metadata, vectors=found, model=space.model
        )
        return self.writer.write(write, len(documents))

    def delete(self, ids: Sequence[str]) -> Written:
        """Remove passages; ids that are not there are ignored.

        Raises:
          StorageFull: nothing was removed.
        """
        check_list("ids", ids)  # The letters of a single id may be ids themselves.
        if not ids:
            return Written(self._view.sequence)
        return self.writer.write(functools.partial(writes.delete, ids=list(dict.fromkeys(ids))), len(ids))

    def _published(self, changes: Sequence[Change]) -> None:
        self._view = self._view.after(changes)
        self.upkeep.look()

    # ---- upkeep and reindexing ---------------------------------------------------------------------------------------

    def put_on(self, base: Base, certified: Certified | None) -> None:
        """Let searches use a newer base of the same space; writes wait for a moment."""

        def swap(connection: sqlite3.Connection) -> None:
            del connection
            if base.space == self._view.space and base.sequence >= self._view.base.sequence:
                self._view, self.certified = self._view.on(base), certified

        self.writer.alone(swap)

    def show(self, view: View, certified: Certified | None) -> None:
        """Let searches use another space; call it on the thread that writes."""
        self._view, self.certified = view, certified
        self.questions = RecentQuestions(self.settings.certify_questions)

    def note(self, view: View, certified: Certified) -> None:
        """Record the certificate of a state, also on disk; one of an older snapshot is no longer shown."""
        self.writer.write(functools.partial(writes.note_certificate, space=view.space, content=as_dict(certified)))
        if self._view.base is view.base:
            self.certified = certified

    def close(self) -> None:
        """Finish accepted writes, and release the folder for other processes unless that takes long."""
        self.close_within(_CLOSING_SECONDS)

    def close_within(self, seconds: float) -> bool:
        """Finish accepted writes, and release the folder for other processes.

        Args:
          seconds: the time to wait for a snapshot or a certificate that is being made. Neither is needed: accepted
            writes are in the database.

        Returns:
          Whether the folder is released. Otherwise this process keeps it to its end.
        """
        self.upkeep.ask_to_stop()
        self.writer.close()
        if not self.upkeep.wait(seconds):
            log.warning(
                "%s: a snapshot or certificate is still being made; the folder is locked until this process ends",
                self.folder,
            )
            return False
        self.database.close()
        self._lock.release()
        return True


def _encoded(space: Space, encode: Encode, documents: Sequence[Document]) -> np.ndarray | None:
    """A write's vectors with another model; None on failure: reindexing later finds the documents that lack them."""
    try:
        return checked_matrix(encode(documents), space.dim, f"vectors of {space.model}")
    except Exception as error:
        log.warning(
            "%s: %d documents have no vectors yet (%s: %s)", space.model, len(documents), type(error).__name__, error
        )
        return None


def _standing(view: View) -> Standing:
    return Standing(view.space.model, view.space.fingerprint, view.sequence)


def _check_space(space: Space, fingerprint: str | None) -> None:
    if fingerprint is not None and fingerprint != space.fingerprint:
        raise ModelChanged(f"the vectors are not those of {space.model}, the index's model; encode with that one")


def _check_model(folder: Path, base: Database, model: str | None, fingerprint: str | None, dim: int | None) -> None:
    with base.reading() as connection:
        active = database.state(connection).active
    if fingerprint is not None and fingerprint != active.fingerprint:
        raise UserError(
            f"{folder}: has the vectors of {active.model}, not of {model}; give the model {active.model}, or move the folder "
            f"to the other one: jaxretr reindex {folder} --to {model}"
        )
    if dim is not None and dim != active.dim:
        raise UserError(f"{folder}: has vectors of {active.dim} dimensions, not {dim}; give the model {active.model}")
