"""Background work of a live index: new snapshots, and certificates measured again."""

import atexit
import logging
import threading
from typing import Protocol

from jaxretr.indexes.certified.engines import working_engine
from jaxretr.indexes.live import certifying, database, fault_points, snapshots
from jaxretr.indexes.live.certifying import Certified, RecentQuestions
from jaxretr.indexes.live.database import Database
from jaxretr.indexes.live.opening import open_view
from jaxretr.indexes.live.segments import Base
from jaxretr.indexes.live.settings import LiveSettings
from jaxretr.indexes.live.view import View

log = logging.getLogger(__name__)

# Seconds between a failure and the next attempt.
_PAUSE = 60.0


class Kept(Protocol):
    """The parts of a live index that its upkeep needs."""

    database: Database
    settings: LiveSettings
    questions: RecentQuestions
    certified: Certified | None

    @property
    def view(self) -> View: ...

    def put_on(self, base: Base, certified: Certified | None) -> None:
        """Let searches use a newer base; writes wait for a moment."""
        ...

    def note(self, view: View, certified: Certified) -> None:
        """Note the certificate of a state, on disk as well."""
        ...


class Upkeep:
    """Compaction and certificates, in a thread of their own or on request."""

    def __init__(self, index: Kept):
        """Take the index; `start` starts the thread."""
        self._index = index
        self._busy = threading.Lock()
        self._wanted, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-upkeep", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        # Python must not end under a thread that computes in C++: that would end the process by a signal.
        atexit.register(self._end)
        self._thread.start()
        self.look()

    def ask_to_stop(self) -> None:
        """Ask the thread to end after its present work."""
        self._stopping.set()
        self._wanted.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the thread to end; return whether it has."""
        if self._thread.is_alive():
            self._thread.join(seconds)
        if self._thread.is_alive():
            return False
        atexit.unregister(self._end)
        return True

    def _end(self) -> None:
        self.ask_to_stop()
        self._thread.join()

    def look(self) -> None:
        """Wake the thread if there is something to do; called after every commit."""
        if self._compaction_is_due() or self._certificate_is_due():
            self._wanted.set()

    def compact(self) -> bool:
        """Write a snapshot of the current state and let searches use it; return whether there is one.

        Raises:
          UserError: it cannot be written.
        """
        with self._busy:
            index, space = self._index, self._index.view.space
            questions = index.questions.sample(index.settings.least_questions)
            path = snapshots.write(index.database, space, index.settings, questions)
            if path is None:
                return False
            fault_points.reached("compaction.placed")
            with index.database.reading() as connection:
                snapshot = snapshots.load(path, space, database.state(connection), compare=False)
                base = open_view(connection, space, snapshot).base
            if self._stopping.is_set():
                return True
            index.put_on(base, certifying.of_snapshot(snapshot))
            fault_points.reached("compaction.swapped")
            snapshots.remove_older(path, space)
            fault_points.reached("compaction.removed")
            return True

    def certify(self) -> None:
        """Measure the certificate of the current state, if it is searched approximately."""
        with self._busy:
            index, view = self._index, self._index.view
            if view.base.scann is None or view.count < 4:
                return
            certified = certifying.measure(view, index.questions.sample(index.settings.least_questions))
            fault_points.reached("certificate.measured")
            index.note(view, certified)
            fault_points.reached("certificate.noted")

    def catch_up(self) -> None:
        """Make the snapshot and the certificate that are due, unless asked to stop."""
        while not self._stopping.is_set():
            if self._compaction_is_due():
                self.compact()
            elif self._certificate_is_due():
                self.certify()
            else:
                break

    def _compaction_is_due(self) -> bool:
        view, settings = self._index.view, self._index.settings
        many = view.changes > max(settings.compact_rows, settings.compact_share * len(view.base))
        return view.count > 0 and (many or self._another_engine_is_due())

    def _another_engine_is_due(self) -> bool:
        """Whether the snapshot's engine is not the one that was asked for, or does not work here while another does."""
        scann, wanted = self._index.view.base.scann, self._index.settings.engine
        used = None if scann is None else scann.facts.used_engine()
        if used is None or used.name == wanted or (wanted is None and used.problem() is None):
            return False
        return working_engine(wanted) is not None

    def _certificate_is_due(self) -> bool:
        view, certified = self._index.view, self._index.certified
        if view.base.scann is None:
            return False
        limit = self._index.settings.certify_share * len(view.base)
        return certified is None or view.changes - certified.changes > limit

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wanted.wait()
            self._wanted.clear()
            try:
                self.catch_up()
            except Exception as error:  # Whatever it is, searches and writes continue.
                self._later(f"{type(error).__name__}: {error}")

    def _later(self, reason: str) -> None:
        log.warning("%s: no new snapshot (%s); trying again in a minute", self._index.database.path.parent, reason)
        if not self._stopping.wait(_PAUSE):
            self._wanted.set()
