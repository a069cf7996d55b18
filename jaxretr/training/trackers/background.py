"""The services of a config's `tracking.to`, whose failures and delays never reach the training run."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from jaxretr.config import Config
from jaxretr.runtime.errors import import_extra
from jaxretr.training.trackers.tracker import Outcome, Tracker

log = logging.getLogger(__name__)

# Largest number of reports that wait for a service that has stopped answering; beyond it the tracker is given up.
_WAITING = 10_000

# Seconds that the end of a run waits for these reports.
_CLOSE_SECONDS = 90.0


def check_installed(config: Config) -> None:
    """Import the packages of the trackers, before a run reads its data.

    Raises:
      UserError: one is not installed; the message names the extra.
    """
    if "wandb" in config.tracking.to:
        import_extra("wandb", "wandb")
    if "mlflow" in config.tracking.to:
        import_extra("mlflow", "mlflow")


def open_trackers(folder: Path, config: Config, shown: str) -> list[Tracker]:
    """Open the services that the config names; one that cannot be opened is left out with a warning.

    Args:
      folder: the run's folder, which keeps the ids for resuming.
      shown: the folder as the user named it; its last part is in the tracked run's name, unless the config has one.
    """
    name = config.tracking.name or f"{config.name} {Path(shown).name}"
    found: list[Tracker] = []
    for service in config.tracking.to:
        try:
            found.append(Background(service, _open(service, folder, config, name)))
        except Exception as error:  # No login, no network, a server that is down: the run needs none of these.
            _note_failure(service, _reason(error))
    return found


def _open(service: str, folder: Path, config: Config, name: str) -> Tracker:
    if service == "wandb":
        from jaxretr.training.trackers.weights_and_biases import WeightsAndBiases

        return WeightsAndBiases(folder, config, name)
    from jaxretr.training.trackers.mlflow import MLflow

    return MLflow(folder, config, name)


def _note_failure(service: str, why: str) -> None:
    log.warning("%s: %s; the run goes on without it (metrics.jsonl has every value)", service, why)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


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
                self._give_up(_reason(error))
                return

    def _give_up(self, why: str) -> None:
        if not self._failed.is_set():
            self._failed.set()
            _note_failure(self.name, why)
