"""TensorBoard's event files in the run's folder."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxretr.training.trackers.tracker import Outcome


class TensorBoard:
    """Event files, written at once: tensorboardX's SummaryWriter does it in a thread, which dies on a full disk.

    Args:
      folder: folder of the event files, created when missing.
      start: the step that the run resumes from; TensorBoard drops what an interrupted run wrote after it.
    """

    def __init__(self, folder: Path, start: int):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        folder.mkdir(parents=True, exist_ok=True)
        # Protobuf creates these classes when it is imported, so that no type checker sees their fields.
        self.events: Any = event_pb2
        self.summaries: Any = summary_pb2
        self.writer: Any = EventsWriter(str(folder / "events"))
        started = self.events.SessionLog(status=self.events.SessionLog.START)
        self.writer.write_event(self.events.Event(step=start + 1, session_log=started))
        self.writer.flush()

    def write(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        scalars = [self.summaries.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self.writer.write_event(
            self.events.Event(step=step, wall_time=seconds, summary=self.summaries.Summary(value=scalars))
        )
        self.writer.flush()

    def best(self, step: int, values: Mapping[str, float]) -> None:
        """Add the metrics as best/METRIC: TensorBoard has curves and no summary."""
        self.write(step, {f"best/{name}": value for name, value in values.items()}, time.time())

    def close(self, outcome: Outcome) -> None:
        """Close the file."""
        self.writer.close()
