"""The interface of all trackers, and the file that names the tracked run which a resumed run continues."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from jaxretr.runtime.storage.files import write_json

Outcome = Literal["finished", "interrupted", "failed"]

_IDS = "trackers.json"


class Tracker(Protocol):
    """One place that a run's metrics are written to. Every method may raise; the caller decides what that means."""

    def write(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Add the metrics of a step.

        Args:
          step: number of finished steps. A resumed run repeats the steps after its checkpoint, with equal values.
          seconds: time of the measurement, in seconds since 1970.
        """
        ...

    def best(self, step: int, values: Mapping[str, float]) -> None:
        """Note the metrics of the best evaluation so far, and its step."""
        ...

    def close(self, outcome: Outcome) -> None:
        """Send the remaining metrics, and the outcome of this part of the run."""
        ...


def tracked_id(folder: Path, name: str) -> str | None:
    """Return the id by which the tracker `name` knows the run in `folder`; None before the first start."""
    return _ids(folder).get(name)


def note_id(folder: Path, name: str, value: str) -> None:
    """Store the id for the next start."""
    write_json(folder / _IDS, {**_ids(folder), name: value})


def _ids(folder: Path) -> dict[str, str]:
    path = folder / _IDS
    return json.loads(path.read_text()) if path.exists() else {}
