"""A tracker whose failures and delays never reach the training run."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping

from jaxretr.training.trackers.tracker import Outcome, Tracker

log = logging.getLogger(__name__)

# Largest number of reports that wait for a service that has stopped answering; beyond it the tracker is given up.
_WAITING = 10_000

# Seconds that the end of a run waits for these reports.
_CLOSE_SECONDS = 90.0


class Background:
    """Passes every call on to a tracker in a thread; the first failure logs one warning and ends that tracker.

    Args:
      name: name of the tracker, for the warning.
      tracker: the tracker, whose methods are called one at a time and in order.
      waiting: largest number of calls that may wait.
    """

    def __init__(self, name: str, tracker: Tracker, *, waiting: int = _WAITING):
        self.name, self.tracker = name, tracker
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(waiting)
        self._failed = threading.Event()
        # A daemon, so that a service that no longer answers does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def write(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Queue the metrics of a step."""
        self._put(lambda: self.tracker.write(step, values, seconds))

    def best(self, step: int, values: Mapping[str, float]) -> None:
        """Queue the best metrics."""
        self._put(lambda: self.tracker.best(step, values))

    def close(self, outcome: Outcome, seconds: float = _CLOSE_SECONDS) -> None:
        """Wait for the queued calls, at most `seconds`."""
        self._put(lambda: self.tracker.close(outcome))
        self._put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._give_up(f"does not answer for {seconds:.0f} s")

    def _put(self, call: Callable[[], None] | None) -> None:
        if self._failed.is_set():
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._give_up("does not answer")

    def _run(self) -> None:
        while (call := self._calls.get()) is not None and not self._failed.is_set():
            try:
                call()
            except Exception as error:  # Whatever a service or its package raises is no reason to end a run.
                self._give_up(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
                return

    def _give_up(self, why: str) -> None:
        if not self._failed.is_set():
            self._failed.set()
            log.warning("%s: %s; the run goes on without it (metrics.jsonl has every value)", self.name, why)
